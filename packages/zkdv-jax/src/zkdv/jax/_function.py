"""A training function under `proof.jit`: traced once, run as one program that also commits to what it did.

`JitFunction.__call__` is what one update does on the training thread; `zkdv.pipeline` does the rest.
"""

import functools
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from zkdv import overlap
from zkdv.errors import ZKDVError, warn
from zkdv.jax import _sealing
from zkdv.jax._committed_leaves import committed_form
from zkdv.jax._layout import StateLayout, describe, explicit_shardings, moved, placement
from zkdv.jax._overlap import carry_policy, policy_of, proofs_of
from zkdv.jax._pipeline import JAXPipeline, JAXProgram
from zkdv.jax._processes import BatchReplicas, JointEvidence
from zkdv.jax._staging import StagedFunction, stage
from zkdv.jax._trace_settings import TraceSettings
from zkdv.schema import Due, Schema
from zkdv.signature import FunctionSignature
from zkdv.submission import PendingUpdate, Submission

if TYPE_CHECKING:
    from zkdv.jax._proof import ZKDV

__all__ = ["JitFunction"]


@dataclass(frozen=True)
class _Variant:
    """One trace of the function: a structure of its dynamic inputs, and values of its static ones.

    Attributes:
        staged: The function, split at its transition.
        program: Its replay program.
        avals: Shape, dtype and weak type of every input leaf.
        layout: How the state lies on devices.
        policy: The overlap policy at the time of the trace, which states in the result carry.
        replicas: Over several processes what each device has of the batch.
    """

    staged: StagedFunction
    program: JAXProgram
    avals: tuple[jax.core.ShapedArray, ...]
    layout: StateLayout
    policy: overlap.Policy
    replicas: BatchReplicas | None


class JitFunction:
    """What `ZKDV.jit` returns: a call runs the function and commits one update.

    Args:
        proof: The proof.
        function: The training function.
        options: Options of `jax.jit`.
    """

    def __init__(self, proof: "ZKDV", function: Callable[..., Any], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self._proof = proof
        self._function = function
        self._signature = FunctionSignature(function)
        self._static = self._signature.positions(
            options.pop("static_argnums", None), options.pop("static_argnames", None), "static_argnums"
        )
        self._donated = self._signature.positions(
            options.pop("donate_argnums", None), options.pop("donate_argnames", None), "donate_argnums"
        )
        self._dynamic = tuple(
            position for position in range(len(self._signature.names)) if position not in self._static
        )
        self._variants: dict[Any, _Variant] = {}
        self._tracing: _Variant | None = None
        self._in_shardings, self._out_shardings = options.get("in_shardings"), options.get("out_shardings")
        self._jit: Any = jax.jit(
            self._step,
            static_argnums=tuple(position + 1 for position in self._static),
            donate_argnums=tuple(position + 1 for position in self._donated),
            **_shifted_options(options, self._signature, self._static),
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function and commit the update that it makes."""
        values = self._signature.bind(args, kwargs)
        with self._proof.update_lock:
            return self._update(self._proof.jax_pipeline, values)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method: the instance is its first argument, usually a static one."""
        return self if instance is None else types.MethodType(self, instance)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower the program of one update for these arguments, commitments included, without running it."""
        lowered: jax.stages.Lowered = self._staged_call(self._jit.lower, args, kwargs)
        return lowered

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Trace the program of one update for these arguments, commitments included, without running it."""
        traced: jax.stages.Traced = self._staged_call(self._jit.trace, args, kwargs)
        return traced

    def eval_shape(self, *args: Any, **kwargs: Any) -> Any:
        """Return shapes and dtypes of the function's result for these arguments, without running it."""
        return self._staged_call(self._jit.eval_shape, args, kwargs)[0]

    def clear_cache(self) -> None:
        """Drop the compiled programs; the next call compiles anew and keeps to the sealed program."""
        self._jit.clear_cache()

    def _staged_call(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = self._signature.bind(args, kwargs)
        with self._proof.update_lock:
            pipeline = self._proof.jax_pipeline
            leaves, tree = jax.tree.flatten([values[position] for position in self._dynamic])
            self._refuse_traced(leaves)
            self._tracing = self._variant(pipeline, values, leaves, tree)
            try:
                return call((pipeline.due_operand(Due()), pipeline.signs), *values)
            finally:
                self._tracing = None

    def _update(self, pipeline: JAXPipeline, values: tuple[Any, ...]) -> Any:
        leaves, tree = jax.tree.flatten([values[position] for position in self._dynamic])
        self._refuse_traced(leaves)
        variant = self._variant(pipeline, values, leaves, tree)
        staged = variant.staged
        state = [leaves[index] for index in staged.state_inputs]
        batch = [leaves[index] for index in staged.batch_inputs]
        policy = self._policy(staged, leaves, values)
        admitted = min(policy, overlap.UNCHECKED) if pipeline.over_processes else policy
        if not pipeline.updates:
            self._proof.seal_attest_program(staged, [*state, *batch])

        self._refuse_moved_batch(variant, batch)
        index, submission, before = pipeline.begin(variant.program, admitted, state)
        try:
            # Over several processes the batch is on its way to every rank while the step runs.
            batch = pipeline.gather(batch)
            words = self._pack(pipeline, batch, variant) if self._gives_away_batch(staged) else None
            result, hidden, evidence = self._run(pipeline, submission, variant, values)
            if words is None:
                words = self._pack(pipeline, batch, variant)
            returned = [*jax.tree.leaves(result), *hidden]
            after = [returned[position] for position in staged.after_results]
            # On one device nothing that comes after the first update moves its results.
            if variant.layout.mesh is not None or index == 0:
                pipeline.refuse_moved_results(after)
            count = len(staged.parameter_inputs)
            update = PendingUpdate(
                pipeline,
                index,
                submission,
                words,
                after[count:],
                evidence,
                before,
                admitted,
                after[:count],
            )
            pipeline.submit(update, after)
        except BaseException:
            pipeline.abandon(submission)
            raise
        return result if policy is variant.policy else carry_policy(result, policy)

    def _step(self, evidence_inputs: tuple[Any, Any], *values: Any) -> tuple[Any, list[Any], tuple[Any, Any, Any]]:
        """Trace the function with the commitment of the state after it."""
        variant = self._tracing
        if variant is None:
            raise ZKDVError(f"{self._signature.name}: the function is traced through its proof; call it directly")
        leaves = jax.tree.leaves([values[position] for position in self._dynamic])
        staged = self._staged_as(variant, values, leaves)
        results = staged.step(*leaves)
        after = variant.layout.keep([results[index] for index in staged.after_results])
        for index, leaf in zip(staged.after_results, after, strict=True):
            results[index] = leaf
        due, signs = evidence_inputs
        batch = [] if variant.replicas is None else [leaves[index] for index in staged.batch_inputs]
        evidence = self._proof.jax_pipeline.commit(due, after, signs, batch, variant.replicas)
        result = jax.tree.unflatten(staged.result_tree, results[: staged.result_count])
        return result, results[staged.result_count :], evidence

    def _run(
        self, pipeline: JAXPipeline, submission: Submission, variant: _Variant, values: Sequence[Any]
    ) -> tuple[Any, list[Any], Any]:
        self._tracing = variant
        try:
            with pipeline.queue.annotate("zkdv.run"):
                result, hidden, evidence = self._jit((pipeline.due_operand(submission.due), pipeline.signs), *values)
        finally:
            self._tracing = None
        if variant.replicas is not None:
            digests, probes32, probes64 = evidence
            return result, hidden, JointEvidence(digests, probes32, probes64, variant.replicas)
        return result, hidden, evidence

    def _variant(self, pipeline: JAXPipeline, values: Sequence[Any], leaves: list[Any], tree: Any) -> _Variant:
        """Return the trace for these inputs; the first use traces the function and starts sealing its program."""
        key = (tree, tuple(values[position] for position in self._static))
        try:
            variant = self._variants.get(key)
        except TypeError:
            self._refuse_unhashable(values)
            raise
        if variant is None:
            self._refuse_state_of_another_proof(values)
            staged = self._stage(values)
            self._refuse_given_away_state(staged)
            self._notice_lost_state(staged)
            places = self._placements(staged, leaves, tree)
            layout = self._layout(staged, leaves, places)
            schema = _sealing.schema_of(staged, leaves, layout)
            pipeline.declare(schema, layout)
            avals = tuple(jax.typeof(leaf) for leaf in leaves)
            inputs = [leaves[index] for index in (*staged.state_inputs, *staged.batch_inputs)]
            batch_places = tuple(places[index] for index in staged.batch_inputs)
            abstract, replay = _sealing.replay_over_leaves(staged, inputs, layout, batch_places)
            batch_dtypes = tuple(np.dtype(leaf.dtype) for leaf in schema.batch.leaves)
            counts = len(staged.parameter_inputs), len(staged.state_inputs)
            sealed = pipeline.queue.submit(
                "start", _sealing.seal, replay, abstract, counts, layout, TraceSettings.current()
            )
            policy = self._policy(staged, leaves, values)
            program = JAXProgram(sealed, batch_dtypes=batch_dtypes, batch_places=batch_places)
            replicas = None
            if pipeline.over_processes:
                batch = [jax.eval_shape(committed_form, leaf) for leaf in inputs[len(staged.state_inputs) :]]
                replicas = BatchReplicas.of(layout, staged.batch_names, batch, batch_places)
                self._agree(pipeline, schema, replicas, program)
            variant = _Variant(staged, program, avals, layout, policy, replicas)
            self._variants[key] = variant
        return variant

    def _agree(self, pipeline: JAXPipeline, schema: Schema, replicas: BatchReplicas, program: JAXProgram) -> None:
        """Refuse ranks that would run something else than the owner, before any does."""
        mesh = replicas.layout.whole().mesh
        pipeline.core.session.agree(
            f"what {self._signature.name} does",
            {
                "function": self._signature.name,
                "state and batch": schema.record(),
                "layout of the state": [describe(sharding) for sharding in pipeline.layout.shardings],
                "layout of the batch": [describe(sharding) for sharding in replicas.layout.shardings],
                "devices": [int(device.id) for device in np.ravel(mesh.devices)],
                "program": program.sealed.result().text.decode(),
            },
        )

    def _refuse_traced(self, leaves: Sequence[Any]) -> None:
        if any(issubclass(kind, jax.core.Tracer) for kind in set(map(type, leaves))):
            raise ZKDVError(
                f"{self._signature.name} was called inside of a function that JAX traces (jit, vmap, scan, grad …); "
                "each of its calls commits one update, so call it from plain Python"
            )

    def _refuse_state_of_another_proof(self, values: Sequence[Any]) -> None:
        location = self._proof.location
        for other in proofs_of(values):
            if other != location:
                raise ZKDVError(
                    f"{self._signature.name}: the state was created for the proof in {other} and is trained under the "
                    f"one in {location}; where that is meant, as for a second run that goes on from a first, say so "
                    "with state.replace(zkdv_proof=proof)"
                )

    def _placements(self, staged: StagedFunction, leaves: Sequence[Any], tree: Any) -> list[NamedSharding | None]:
        """Return where each input lies on several devices, by its own placement or by `in_shardings`."""
        given = self._in_shardings
        option = list(given) if isinstance(given, (tuple, list)) else given
        asked = explicit_shardings(option, jax.tree.unflatten(tree, leaves))
        return [
            placement(leaf if sharding is None else sharding, name)
            for leaf, sharding, name in zip(leaves, asked, staged.input_names, strict=True)
        ]

    def _layout(
        self, staged: StagedFunction, leaves: Sequence[Any], places: Sequence[NamedSharding | None]
    ) -> StateLayout:
        results = jax.tree.unflatten(staged.result_tree, range(staged.result_count))
        asked = [*explicit_shardings(self._out_shardings, results), *[None] * len(staged.after_results)]
        names = [staged.input_names[index] for index in staged.state_inputs]
        return StateLayout.of(
            names,
            [np.shape(leaves[index]) for index in staged.state_inputs],
            [places[index] for index in staged.state_inputs],
            [placement(asked[index], name) for index, name in zip(staged.after_results, names, strict=True)],
            [places[index] for index in staged.batch_inputs],
        )

    def _refuse_moved_batch(self, variant: _Variant, batch: Sequence[Any]) -> None:
        """Refuse a batch that lies elsewhere than the first one: another program would run than the sealed one."""
        names = variant.staged.batch_names
        for leaf, name, mine in zip(batch, names, variant.program.batch_places, strict=True):
            # Where `in_shardings` says so, JAX puts the batch in its place.
            if self._in_shardings is None and moved(mine, place := placement(leaf, name), np.shape(leaf)):
                raise ZKDVError(
                    f"{self._signature.name}: input {name} was laid out as {describe(mine)} at the first update and is "
                    f"now laid out as {describe(place)}; place each batch as the first one, with jax.device_put"
                )

    def _refuse_unhashable(self, values: Sequence[Any]) -> None:
        for position in self._static:
            try:
                hash(values[position])
            except TypeError as error:
                raise TypeError(
                    f"{self._signature.name}: the static argument {self._signature.names[position]} is "
                    f"{values[position]!r}, which can't be hashed; give a tuple or another immutable value"
                ) from error

    def _stage(self, values: Sequence[Any]) -> StagedFunction:
        static = {position: values[position] for position in self._static}

        def dynamic(*arguments: Any) -> Any:
            given = dict(zip(self._dynamic, arguments, strict=True)) | static
            return self._signature.call(self._function, [given[position] for position in range(len(given))])

        arguments = tuple(values[position] for position in self._dynamic)
        names = [self._signature.names[position] for position in self._dynamic]
        return stage(dynamic, arguments, self._signature.name, names)

    def _staged_as(self, variant: _Variant, values: Sequence[Any], leaves: Sequence[Any]) -> StagedFunction:
        """Return the split function for the inputs being traced, which may differ from the first in weak types only."""
        avals = tuple(jax.typeof(leaf) for leaf in leaves)
        if avals == variant.avals:
            return variant.staged
        for name, old, new in zip(variant.staged.input_names, variant.avals, avals, strict=True):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                smaller = old.dtype == new.dtype and old.shape[1:] == new.shape[1:]
                raise ZKDVError(
                    f"{self._signature.name}: input {name} was {old.str_short()} at the first update and is now "
                    f"{new.str_short()}; a run keeps shapes and dtypes of its first update"
                    + ("; leave out or pad a last batch that is smaller" if smaller else "")
                )
        return self._stage(values)

    def _policy(self, staged: StagedFunction, leaves: Sequence[Any], values: Sequence[Any]) -> overlap.Policy:
        if staged.overlap_input is not None:
            return overlap.Policy(int(leaves[staged.overlap_input]))
        if staged.layout.overlap is not None:
            return staged.layout.overlap
        policy = policy_of(values)
        return overlap.UNCHECKED if policy is None else policy

    def _refuse_given_away_state(self, staged: StagedFunction) -> None:
        if not staged.layout.keeps_optimizer:
            return
        for index in staged.optimizer_inputs:
            if staged.input_arguments[index] in self._donated_dynamic:
                name = self._signature.names[self._dynamic[staged.input_arguments[index]]]
                raise ZKDVError(
                    f"{staged.layout.api}: {self._signature.name} donates {name}, which holds the optimizer state "
                    "before the update; a sampled check may need it, so donate the parameters alone, as an argument "
                    "of their own"
                )

    def _notice_lost_state(self, staged: StagedFunction) -> None:
        """Warn at the first call of what would be an edit at each call after it."""
        if staged.lost:
            more = f" and {len(staged.lost) - 5} more" if len(staged.lost) > 5 else ""
            warn(
                f"{self._signature.name} does not return {', '.join(staged.lost[:5])}{more} as the update left them: "
                "they are changed after the update, or not returned. Where the next update starts from other values, "
                "its record says so as an edit, and `zkdv verify` fails because of it. Make the change part of the "
                "update (an Optax transformation, apply_gradients(grads=…, field=…), a zkdv.jax.Transaction)"
            )

    def _gives_away_batch(self, staged: StagedFunction) -> bool:
        return any(staged.input_arguments[index] in self._donated_dynamic for index in staged.batch_inputs)

    @functools.cached_property
    def _donated_dynamic(self) -> frozenset[int]:
        return frozenset(self._dynamic.index(position) for position in self._donated if position in self._dynamic)

    def _pack(self, pipeline: JAXPipeline, batch: Sequence[Any], variant: _Variant) -> NDArray[np.uint32]:
        """Pack the batch into the matrix that is committed; a copy, so that loaders may reuse their buffers."""
        if pipeline.schema is None:
            raise ZKDVError("a batch was packed before the schema was declared")
        dtypes = variant.program.batch_dtypes
        arrays = [np.asarray(committed_form(leaf), dtype) for leaf, dtype in zip(batch, dtypes, strict=True)]
        return pipeline.schema.batch.pack(arrays)


def _shifted_options(options: dict[str, Any], signature: FunctionSignature, static: tuple[int, ...]) -> dict[str, Any]:
    """Return the remaining options of `jax.jit` for a function with one more argument and result."""
    shifted = dict(options)
    if (shardings := shifted.pop("in_shardings", None)) is not None:
        dynamic = len(signature.names) - len(static)
        given = tuple(shardings) if isinstance(shardings, (tuple, list)) else (shardings,) * dynamic
        shifted["in_shardings"] = (None, *given)
    if (shardings := shifted.pop("out_shardings", None)) is not None:
        shifted["out_shardings"] = (shardings, None, None)
    return shifted
