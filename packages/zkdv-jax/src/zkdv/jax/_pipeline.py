"""The JAX side of `zkdv.pipeline`: commitments, copies and replays of `jax.Array` leaves."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from zkdv.errors import ZKDVError
from zkdv.jax import _replay_export
from zkdv.jax._attest import SealedAttest
from zkdv.jax._commitment_plan import (
    CommitmentPlan,
    leaf_digests,
    probe_digests,
    probe_vectors,
    sign_words,
)
from zkdv.jax._committed_leaves import committed_form
from zkdv.jax._layout import ONE_DEVICE, StateLayout, StatePlaces, describe, moved, placement, put
from zkdv.jax._lowerings import commit_lowering
from zkdv.jax._processes import BatchReplicas, JointEvidence, Processes, holds_nan, is_spread
from zkdv.jax._snapshots import SnapshotCopies
from zkdv.jax._trace_settings import TraceSettings, under_trace_settings
from zkdv.pipeline import PendingUpdate, Pipeline
from zkdv.schema import TREES, Due, LeafEvidence, Schema, TreeName
from zkdv.submission import Program

__all__ = ["JAXPipeline", "JAXProgram", "SealedReplay"]


@dataclass(frozen=True)
class SealedReplay:
    """A replay program, exported: takes parameter, optimizer and batch leaves, gives deltas and the new state leaves.

    Attributes:
        exported: The serialized program and its text.
        parameters: Number of parameter leaves, and so of deltas.
        state: Number of all state leaves.
        ranks: The process of each of the program's devices; empty where one process has all of them.
    """

    exported: _replay_export.SealedProgram
    parameters: int
    state: int
    ranks: tuple[int, ...] = ()

    @property
    def blob(self) -> bytes:
        """The serialized program."""
        return self.exported.blob

    @property
    def text(self) -> bytes:
        """Its StableHLO text without locations."""
        return self.exported.text

    def record(self) -> dict[str, Any]:
        """Return what the program record says beside the digests."""
        convention = "parameters, optimizer, batch -> deltas, parameters, optimizer"
        if self.ranks:
            # How sums over devices are rounded depends on which of them share a process.
            convention += f"; devices on ranks {' '.join(map(str, self.ranks))}"
        return self.exported.record("replay", convention)

    @cached_property
    def run(self) -> Callable[..., Any]:
        """The sealed bytes, loaded and compiled; gives the state leaves, and consumes those before the update.

        With nothing else returned, each leaf takes the memory of its predecessor.
        """
        sealed = _replay_export.load(self.blob)

        def zkdv_replay(*leaves: Any) -> list[Any]:
            # Without the deltas, as in training: an addition that has to give both its sum and its summand may be
            # rounded otherwise than one that is fused with what the summand is made of.
            return list(sealed.call(*leaves)[self.parameters :])

        return jax.jit(zkdv_replay, donate_argnums=tuple(range(self.state)))


@dataclass(eq=False)
class JAXProgram(Program):
    """A replay program of one traced function.

    Attributes:
        batch_dtypes: The dtype of each batch leaf, as committed.
        batch_places: Where each batch leaf lies on several devices; None where it lies on one, or anywhere.
    """

    batch_dtypes: tuple[np.dtype[Any], ...] = ()
    batch_places: tuple[NamedSharding | None, ...] = ()


@dataclass
class JAXPipeline(Pipeline):
    """Commits and checks updates whose state leaves are `jax.Array`s, on one device or spread over a mesh.

    Attributes:
        plan: What one device commits to: the leaves, or its shards of them.
        layout: How the leaves lie.
    """

    plan: CommitmentPlan | None = None
    layout: StateLayout = ONE_DEVICE
    trace_settings: TraceSettings | None = None
    _unequal_noticed: set[int] = field(default_factory=set)

    def declare(self, schema: Schema, layout: StateLayout = ONE_DEVICE) -> None:
        """Set schema and layout at the first update, and prepare the commitment of the leaves.

        Raises:
            ZKDVError: The run has another schema or layout.
        """
        leaves = [(f"{tree} leaf {leaf.name}", leaf) for tree in TREES for leaf in schema.tree(tree)]
        names, shapes = [name for name, _ in leaves], [leaf.shape for _, leaf in leaves]
        # In the words of meshes, before the schema is compared by extents alone.
        if self.plan is not None and len(names) == len(self.plan.leaves):
            self._refuse_difference(self.layout.difference(layout, names, shapes))
        if self.plan is None:
            self._refuse_absent_processes(layout)
        super().declare(schema)
        if self.plan is None:
            self.trace_settings = TraceSettings.current()
            local = [
                (leaf.name, _Abstract(layout.shard_shape(index, leaf.shape), leaf.dtype))
                for index, (_, leaf) in enumerate(leaves)
            ]
            cut = len(schema.parameters)
            self.layout = layout
            self.plan = CommitmentPlan.build(local[:cut], local[cut:], self.core.probe_ratio)

    def refuse_moved(self, position: int, leaf: Any) -> None:
        """Refuse a state leaf that was replaced between two updates by one that lies elsewhere."""
        name = self._leaf_name(position)
        place = placement(leaf, name)
        # What JAX may place as it likes goes to where it belongs.
        if place is not None or getattr(leaf, "committed", False):
            mine = self.layout.each(position + 1)[position]
            if moved(mine, place, leaf.shape):
                self._refuse_difference(
                    f"{name} was laid out as {describe(mine)} and is now laid out as {describe(place)}"
                )

    def refuse_moved_results(self, after: Sequence[Any]) -> None:
        """Refuse state leaves that an update left elsewhere than where they were before it."""
        for position, (leaf, mine) in enumerate(zip(after, self.layout.each(len(after)), strict=True)):
            if leaf.sharding is mine:
                continue
            name = self._leaf_name(position)
            if moved(mine, place := placement(leaf, name), leaf.shape):
                raise ZKDVError(
                    f"{name} was laid out as {describe(mine)} before the update, and the update left it as "
                    f"{describe(place)}; a run keeps the layout of its state, so place the state with jax.device_put "
                    "before the first update, or say in out_shardings where it stays"
                )

    def commit(
        self,
        due: Any,
        leaves: Sequence[Any],
        signs: Any,
        batch: Sequence[Any] = (),
        replicas: BatchReplicas | None = None,
    ) -> tuple[Any, Any, Any]:
        """Trace the commitment of state leaves, parameters first, into the program at hand.

        Args:
            due: Which of them are due.
            leaves: The leaves.
            signs: Sign words of the probes.
            batch: The batch leaves, over several processes.
            replicas: How they lie; None without a batch.
        """
        committed = [committed_form(leaf) for leaf in leaves]
        self.layout.refuse_other_types([self._leaf_name(position) for position in range(len(leaves))], committed)
        commit = functools.partial(commit_lowering(jax.default_backend()), self._planned())
        if self.over_processes:
            joint = self.layout.on_every_process(commit, replicas)
            digests, probes32, probes64 = joint(due, committed, signs, [committed_form(leaf) for leaf in batch])
        else:
            digests, probes32, probes64 = self.layout.on_each_device(commit)(due, committed, signs)
        return digests, probes32, probes64

    @property
    def over_processes(self) -> bool:
        """Whether the run has several processes."""
        return self.core.session.size > 1

    @under_trace_settings
    def gather(self, arrays: Sequence[Any]) -> list[Any]:
        """Launch copies of arrays that are spread over processes, whole on each; others are given as they are."""
        return self._processes.gather(arrays) if self.over_processes else list(arrays)

    @cached_property
    def signs(self) -> jax.Array:
        """Sign words of all probes, shape (words,), uint32, on each device."""
        return self.layout.replicate(sign_words(self._planned(), self.core.root_digest))

    def due_operand(self, due: Due) -> jax.Array:
        """Return the flags of the commit call, shape (1,), uint32, on each device."""
        return self._due_operands[due.bits]

    @under_trace_settings
    def launch_snapshot(self, state: Sequence[Any], over: Sequence[Any] | None) -> Sequence[Any]:
        """Launch a copy of state leaves, in the form that is committed, to host memory."""
        return self._snapshots.launch(self.layout.place([committed_form(leaf) for leaf in state]), over)

    def await_snapshot(self, copy: Sequence[Any]) -> None:
        """Wait until a launched copy is in host memory."""
        jax.block_until_ready(copy)

    def read_snapshot(self, copy: Sequence[Any], *, own: bool) -> Sequence[NDArray[Any]]:
        """Return a copy that is in host memory as arrays; without `own` they may show its memory."""
        return [np.array(leaf) if own else np.asarray(leaf) for leaf in copy]

    @under_trace_settings
    def restore(self, copy: Sequence[Any]) -> Sequence[Any]:
        """Return a snapshot's leaves in the memory of their devices."""
        return self._snapshots.restore(copy)

    @under_trace_settings
    def keep(self, state: Sequence[Any], copy: Sequence[Any]) -> Sequence[Any]:
        """Return a snapshot's leaves in host memory, after replays."""
        return self._snapshots.keep(state, copy)

    @under_trace_settings
    def start_evidence(self, state: Sequence[Any], due: Due) -> Any:
        """Launch the commitment of state leaves as a program of its own."""
        if not self.over_processes:
            return self._commit_program(self.due_operand(due), self.signs, list(state))
        return JointEvidence(*self._commit_program(self.due_operand(due), self.signs, self.layout.place(state)))

    def read_evidence(self, results: Any, due: Due) -> LeafEvidence:
        """Wait for the results of a commitment and bring them to the host."""
        if self.over_processes:
            return self._read_joint_evidence(results, due)
        plan, places = self._planned(), self._places
        digests, probes32, probes64 = (np.asarray(result) for result in results)
        if places is None:
            leaves, probes = leaf_digests(plan, digests), probe_digests(plan, digests)
        else:
            rows = digests.reshape(len(places.devices), 2, len(plan.leaves), 8)
            self._notice_unequal(places, rows[:, 0])
            leaves, probes = places.digests(rows[:, 0]), places.digests(rows[:, 1])
        parts = self._parts

        def read_probes() -> dict[TreeName, list[NDArray[Any] | None]]:
            if places is None:
                vectors = probe_vectors(plan, probes32, probes64)
            else:
                count = len(places.devices)
                each = zip(probes32.reshape(count, -1), probes64.reshape(count, -1), strict=True)
                vectors = places.probes([probe_vectors(plan, *own) for own in each])
            return {tree: vectors[parts[tree]] for tree in due.trees}

        return LeafEvidence(
            digests={tree: leaves[parts[tree]] for tree in due.trees},
            probe_digests={tree: probes[parts[tree]] for tree in due.trees},
            read_probes=read_probes,
            # A sum is NaN where a term is, or where infinities of both signs meet, which is worth a look too.
            holds_nan=bool(np.isnan(probes32.sum()) or np.isnan(probes64.sum())),
        )

    def _read_joint_evidence(self, evidence: JointEvidence, due: Due) -> LeafEvidence:
        """Wait for the digests of all processes; probes are gathered where they are asked for."""
        parts, processes = self._parts, self._processes
        leaves, probes = processes.read_digests(evidence, self._leaf_name)

        def by_tree(vectors: Sequence[NDArray[Any] | None]) -> dict[TreeName, Sequence[NDArray[Any] | None]]:
            return {tree: vectors[parts[tree]] for tree in due.trees}

        return LeafEvidence(
            digests={tree: leaves[parts[tree]] for tree in due.trees},
            probe_digests={tree: probes[parts[tree]] for tree in due.trees},
            read_probes=lambda: by_tree(self._gather_probes(evidence)),
            holds_nan=holds_nan(evidence),
            read_own_probes=lambda: by_tree(processes.read_own_probes(evidence)),
        )

    @under_trace_settings
    def _gather_probes(self, evidence: JointEvidence) -> list[NDArray[Any] | None]:
        return self._processes.read_probes(evidence)

    @under_trace_settings
    def read_leaf(self, leaf: Any) -> NDArray[Any] | None:
        """Return a host copy of one leaf, or None where it was donated or deleted."""
        if not isinstance(leaf, jax.Array):
            return np.asarray(leaf)
        if leaf.is_deleted():
            return None
        # A copy is read, since an array that numpy has looked into is no longer donated without a copy.
        if is_spread(leaf):
            return np.asarray(self._processes.gather([leaf])[0])
        return np.asarray(_copy([committed_form(leaf)])[0])

    @under_trace_settings
    def replay(self, update: PendingUpdate, state: Sequence[Any]) -> Sequence[Any]:
        """Run an update's sealed program on the state before it, which it consumes; return the leaves after it."""
        sealed = update.submission.program.sealed.result()
        if not isinstance(sealed, SealedReplay):
            raise ZKDVError(f"the program of update {update.index} was not sealed by this frontend")
        return list(sealed.run(*self.layout.place(state), *self._batch(update)))

    def attest(
        self, update: PendingUpdate, state: Sequence[Any], coordinates: Mapping[TreeName, int]
    ) -> Mapping[TreeName, float]:
        """Run the sealed attest program on the state before an update."""
        sealed = None if self.attest_program is None else self.attest_program.sealed.result()
        if not isinstance(sealed, SealedAttest):
            raise ZKDVError(f"the attest program of update {update.index} was not sealed by this frontend")
        indices = [coordinates.get(tree, 0) for tree in TREES]
        values = dict(zip(TREES, sealed.run([*state, *self._batch(update)], *indices), strict=True))
        return {tree: values[tree] for tree in coordinates}

    def _batch(self, update: PendingUpdate) -> list[Any]:
        """Return an update's batch leaves, as committed, where the training function had them."""
        program = update.submission.program
        if not isinstance(program, JAXProgram) or self.schema is None:
            raise ZKDVError(f"update {update.index} was not made by this frontend")
        batch: list[Any] = list(self.schema.batch.unpack(update.batch, program.batch_dtypes))
        for position, place in enumerate(program.batch_places):
            if place is not None:
                batch[position] = put(batch[position], place)
        return batch

    def _planned(self) -> CommitmentPlan:
        if self.plan is None:
            raise ZKDVError("the commitment was asked for before the schema was declared")
        return self.plan

    @cached_property
    def _due_operands(self) -> dict[int, jax.Array]:
        return {bits: self.layout.replicate(np.array([bits], np.uint32)) for bits in range(4)}

    @cached_property
    def _places(self) -> StatePlaces | None:
        schema = self._schema()
        shapes = [leaf.shape for tree in TREES for leaf in schema.tree(tree)]
        return None if self.layout.mesh is None else StatePlaces.of(self.layout, shapes)

    def _leaf_name(self, position: int) -> str:
        tree, index = self._schema().tree_leaf(position)
        return f"{tree} leaf {self._schema().tree(tree)[index].name}"

    def _refuse_difference(self, difference: str | None) -> None:
        if difference is not None:
            raise ZKDVError(
                f"the update's arrays changed within the run: {difference}; a run keeps the layout of its first "
                "update, so place what enters an update as it was, with jax.device_put"
            )

    def _notice_unequal(self, places: StatePlaces, rows: NDArray[np.uint32]) -> None:
        """Leave a warning the first time that replicas of a leaf differ; what is committed is the first one."""
        for leaf, first, other in places.unequal_replicas(rows):
            if leaf not in self._unequal_noticed:
                self._unequal_noticed.add(leaf)
                self._warnings.append(
                    f"{self._leaf_name(leaf)} has other elements on {other} than on {first}, which should hold the "
                    "same: the replicas have come apart. The run goes on and commits to what is on the latter"
                )

    @property
    def _parts(self) -> dict[TreeName, slice]:
        cut = self._planned().parameters
        return {"parameters": slice(0, cut), "optimizer": slice(cut, None)}

    @cached_property
    def _processes(self) -> Processes:
        if self._places is None:
            raise ZKDVError("a state on one device lies on no several processes")
        return Processes(self.layout, self._planned(), self._places)

    def _refuse_absent_processes(self, layout: StateLayout) -> None:
        """Refuse a state that some of the run's processes have no part of: each of them trains by itself then."""
        size, present = self.core.session.size, len(set(layout.ranks))
        if size > 1 and present != size:
            lies = "on no mesh" if layout.mesh is None else f"on devices of {present} of them"
            raise ZKDVError(
                f"the run has {size} processes, and the state lies {lies}; place state and batch with a "
                "jax.sharding.NamedSharding over a mesh of all jax.devices(), or run processes that train by "
                "themselves without jax.distributed"
            )

    @cached_property
    def _snapshots(self) -> SnapshotCopies:
        return SnapshotCopies()

    @cached_property
    def _commit_program(self) -> Callable[..., Any]:
        def zkdv_commit(due: Any, signs: Any, leaves: list[Any]) -> tuple[Any, Any, Any]:
            return self.commit(due, leaves, signs)

        return jax.jit(zkdv_commit)


@dataclass(frozen=True)
class _Abstract:
    shape: tuple[int, ...]
    dtype: str


@functools.partial(jax.jit)
def _copy(leaves: list[Any]) -> list[Any]:
    return [jnp.copy(leaf) for leaf in leaves]
