"""Evidence of a state and a batch that lie on the devices of several processes.

The training program gathers the digests of what each device holds, 32 bytes for each leaf and probe, on every device.
So every rank sees the digests of all ranks, knows the roots of the whole state without asking anybody, and notices
where devices that should hold the same do not. Probe vectors stay where they are, and are gathered where a check asks
for them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from zkdv.errors import ZKDVError
from zkdv.jax._commitment_plan import CommitmentPlan, probe_vectors
from zkdv.jax._committed_leaves import committed_form
from zkdv.jax._layout import StateLayout, StatePlaces, describe
from zkdv.jax._lowerings import commit_lowering

__all__ = ["BatchReplicas", "JointEvidence", "Processes", "is_spread"]

OPTIMIZER_DUE = 2
PROBE_RATIO = 1e-9
"""Probes of batches are computed with their digests and thrown away, so that they are as short as can be."""


@dataclass(frozen=True)
class BatchReplicas:
    """What each device has of a batch, so that replicas of it can be compared.

    Attributes:
        names: Names of the batch leaves.
        layout: How they lie: those without a place of their own are whole on each device.
        shapes: Their shapes, as committed.
        dtypes: Names of their dtypes, as committed.
    """

    names: tuple[str, ...]
    layout: StateLayout
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(
        cls, state: StateLayout, names: Sequence[str], leaves: Sequence[Any], places: Sequence[NamedSharding | None]
    ) -> "BatchReplicas":
        """Describe a batch.

        Args:
            state: How the state lies.
            names: Names of the batch leaves.
            leaves: Their shapes and dtypes, as committed.
            places: Where each lies; None where that is left to JAX.

        Raises:
            ZKDVError: A leaf lies on another mesh than the state.
        """
        whole = state.whole()
        for name, place in zip(names, places, strict=True):
            if place is not None and place.mesh != whole.mesh:
                raise ZKDVError(
                    f"{name} lies as {describe(place)}, and the state on another mesh ({describe(whole)}); over "
                    "several processes place both on one"
                )
        shardings = tuple(whole if place is None else place for place in places)
        return cls(
            tuple(names),
            StateLayout(state.mesh, shardings),
            tuple(tuple(leaf.shape) for leaf in leaves),
            tuple(str(leaf.dtype) for leaf in leaves),
        )

    def digests(self, leaves: Sequence[jax.Array]) -> jax.Array:
        """Trace the digests of what one device has, shape (leaves, 8), uint32."""
        signs = jnp.zeros((self._plan.sign_words,), jnp.uint32)
        due = jnp.full((1,), OPTIMIZER_DUE, jnp.uint32)
        digests, _, _ = commit_lowering(jax.default_backend())(self._plan, due, leaves, signs)
        return digests[: len(leaves)]

    @cached_property
    def places(self) -> StatePlaces:
        """Which devices have the same."""
        return StatePlaces.of(self.layout, self.shapes)

    @cached_property
    def _plan(self) -> CommitmentPlan:
        shapes = (self.layout.shard_shape(index, shape) for index, shape in enumerate(self.shapes))
        leaves = [
            (name, jax.ShapeDtypeStruct(shape, dtype))
            for name, shape, dtype in zip(self.names, shapes, self.dtypes, strict=True)
        ]
        return CommitmentPlan.build([], leaves, PROBE_RATIO)


@dataclass(frozen=True)
class JointEvidence:
    """What a program over several processes gives of the state after it.

    Attributes:
        digests: On every device for each device those of its leaves, of their probes, and of its batch leaves, shape
            (devices * rows, 8), uint32.
        probes32: Float32 probes of all devices, each device's where it is.
        probes64: Float64 probes likewise.
        batch: The batch that went into the program; None where none did.
    """

    digests: Any
    probes32: Any
    probes64: Any
    batch: BatchReplicas | None = None


class Processes:
    """Reads the evidence of one run.

    Args:
        layout: How the state lies.
        plan: What one device commits to.
        places: Which device speaks for which shard.
    """

    def __init__(self, layout: StateLayout, plan: CommitmentPlan, places: StatePlaces) -> None:
        self._plan = plan
        self._places = places
        self._gather: Callable[[list[Any]], list[Any]] = jax.jit(zkdv_gather, out_shardings=layout.whole())

    def gather(self, arrays: Sequence[Any]) -> list[Any]:
        """Launch copies of arrays that are spread over processes, whole on each; others are given as they are.

        Every process calls it, in the same order among all programs that join devices.
        """
        spread = [index for index, array in enumerate(arrays) if is_spread(array)]
        gathered = list(arrays)
        if spread:
            for index, whole in zip(spread, self._gather([arrays[index] for index in spread]), strict=True):
                gathered[index] = whole
        return gathered

    def read_digests(self, evidence: JointEvidence, leaf_name: Callable[[int], str]) -> tuple[list[bytes], list[bytes]]:
        """Wait for the digests, and return those of the leaves and those of their probes.

        Args:
            evidence: What a program gave.
            leaf_name: Gives the name of a state leaf.

        Raises:
            ZKDVError: Devices that should hold the same do not; names the ranks and the leaf.
        """
        leaves = len(self._plan.leaves)
        rows = np.asarray(evidence.digests).reshape(len(self._places.devices), -1, 8)
        if evidence.batch is not None:
            names = evidence.batch.names
            _refuse_unequal(
                evidence.batch.places,
                rows[:, 2 * leaves :],
                lambda index: f"input {names[index]}",
                "feed every rank the same values there, or shard it over the ranks with a NamedSharding",
            )
        _refuse_unequal(
            self._places,
            rows[:, :leaves],
            leaf_name,
            "the replicas have come apart: look for a faulty device or memory, and go on from a checkpoint before that",
        )
        return self._places.digests(rows[:, :leaves]), self._places.digests(rows[:, leaves : 2 * leaves])

    def read_probes(self, evidence: JointEvidence) -> list[NDArray[Any] | None]:
        """Gather the probe vectors of all processes; each of them calls it, as `gather`."""
        count = len(self._places.devices)
        joined = [np.asarray(array) for array in self.gather([evidence.probes32, evidence.probes64])]
        each = zip(*(array.reshape(count, -1) for array in joined), strict=True)
        return self._places.probes([probe_vectors(self._plan, *own) for own in each])

    def read_own_probes(self, evidence: JointEvidence) -> list[NDArray[Any] | None]:
        """Return what this process has of the probe vectors."""
        own = zip(*(_own(array) for array in (evidence.probes32, evidence.probes64)), strict=True)
        return self._places.own_probes([probe_vectors(self._plan, *each) for each in own])


def holds_nan(evidence: JointEvidence) -> bool:
    """Return whether there is NaN in what this process has of the probes."""
    return any(bool(np.isnan(own.sum())) for array in (evidence.probes32, evidence.probes64) for own in _own(array))


def zkdv_gather(arrays: list[Any]) -> list[Any]:
    """Give arrays as they are; where they are to be whole, the compiler gathers them."""
    return [committed_form(array) for array in arrays]


def is_spread(array: Any) -> bool:
    """Return whether no single process has the whole of an array."""
    return isinstance(array, jax.Array) and not (array.is_fully_addressable or array.is_fully_replicated)


def _own(array: Any) -> list[NDArray[Any]]:
    """Return what the devices of this process hold, in their order on the mesh."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [np.asarray(shard.data) for shard in shards]


def _refuse_unequal(places: StatePlaces, rows: NDArray[np.uint32], name: Callable[[int], str], advice: str) -> None:
    for leaf, first, other in places.unequal_replicas(rows):
        raise ZKDVError(
            f"{name(leaf)} has other elements on rank {other.process_index} ({other}) than on rank "
            f"{first.process_index} ({first}), which should hold the same; {advice}"
        )
