"""What a training function is sealed as: the schema of its run, and its replay program over committed leaves."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding

from zkdv.batch import BatchLayout
from zkdv.jax import _replay_export
from zkdv.jax._commitment_plan import dtype_name
from zkdv.jax._committed_leaves import CommittedLeaves, committed_form
from zkdv.jax._layout import StateLayout
from zkdv.jax._pipeline import SealedReplay
from zkdv.jax._staging import StagedFunction
from zkdv.jax._trace_settings import TraceSettings
from zkdv.schema import LeafSpec, Schema
from zkdv.submission import SealedProgram

__all__ = ["replay_over_leaves", "schema_of", "seal"]


def seal(
    replay: Callable[..., Any],
    abstract: Sequence[Any],
    counts: tuple[int, int],
    layout: StateLayout,
    settings: TraceSettings,
) -> SealedProgram:
    """Seal the replay program of a training function, with numbers of parameter and of all state leaves."""
    out_shardings = None if layout.mesh is None else [None] * counts[0] + list(layout.shardings)
    with settings.applied():
        exported = _replay_export.seal(replay, abstract, out_shardings=out_shardings)
    return SealedReplay(exported, *counts, layout.ranks if len(set(layout.ranks)) > 1 else ())


def schema_of(staged: StagedFunction, leaves: Sequence[Any], layout: StateLayout) -> Schema:
    """Return the schema of a run whose first update has these input leaves."""

    def spec(name: str, position: int) -> LeafSpec:
        data = jax.eval_shape(committed_form, leaves[staged.state_inputs[position]])
        shape = tuple(data.shape)
        return LeafSpec(name, dtype_name(data.dtype, name), shape, layout.extents(position, shape))

    count = len(staged.parameter_inputs)
    batch = [jax.eval_shape(committed_form, leaves[index]) for index in staged.batch_inputs]
    return Schema(
        tuple(map(spec, staged.layout.parameters, range(count))),
        tuple(map(spec, staged.layout.optimizer, range(count, len(staged.state_inputs)))),
        BatchLayout.of(
            staged.batch_names,
            [dtype_name(leaf.dtype, name) for leaf, name in zip(batch, staged.batch_names, strict=True)],
            [tuple(leaf.shape) for leaf in batch],
        ),
    )


def replay_over_leaves(
    staged: StagedFunction, inputs: Sequence[Any], layout: StateLayout, batch_places: Sequence[NamedSharding | None]
) -> tuple[Sequence[jax.ShapeDtypeStruct], Callable[..., list[Any]]]:
    """Return the replay program over leaves in their committed form, and its abstract inputs."""
    parameters, state = len(staged.parameter_inputs), len(staged.state_inputs)
    committed = CommittedLeaves.of(inputs, [*layout.each(state), *batch_places])

    def replay(*leaves: Any) -> list[Any]:
        results = staged.replay(*committed.restore(leaves))
        deltas, after = results[:parameters], layout.keep(results[parameters:])
        return [committed_form(result) for result in (*deltas, *after)]

    return committed.abstract, replay
