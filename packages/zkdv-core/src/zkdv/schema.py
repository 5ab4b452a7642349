"""Names, dtypes and shapes of a run's state and batch, and the evidence that an update leaves of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.batch import BatchLayout

__all__ = ["TREES", "Due", "LeafEvidence", "LeafSpec", "Schema", "TreeName"]

TreeName = Literal["parameters", "optimizer"]
TREES: tuple[TreeName, TreeName] = ("parameters", "optimizer")
_PROBE_ROOTS: dict[TreeName, Literal["parameter-probes", "optimizer-probes"]] = {
    "parameters": "parameter-probes",
    "optimizer": "optimizer-probes",
}


@dataclass(frozen=True)
class LeafSpec:
    """One array of the state.

    Attributes:
        name: Dotted name, as in a state dict.
        dtype: Name of the dtype.
        shape: Shape.
        sharding: The extent of a shard in each dimension, where the leaf is cut into shards that lie on several
            devices; None where it is whole, on one device or on each.
        aliases: Other names of the same array, where it is tied.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    sharding: tuple[int, ...] | None = None
    aliases: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def piece_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the pieces that are probed one by one: the shards, or the whole leaf."""
        if self.sharding is None:
            return [self.shape]
        return [
            tuple(stop - start for start, stop in ranges)
            for ranges in _native.sharding_ranges(self.shape, self.sharding)
        ]

    def record(self) -> dict[str, Any]:
        """Return the leaf as it stands in the schema record."""
        record: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        if self.aliases:
            record["aliases"] = list(self.aliases)
        if self.sharding is not None:
            record["sharding"] = list(self.sharding)
        return record

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the leaf that stands in a schema record; the inverse of `record`."""
        sharding = record.get("sharding")
        return cls(
            record["name"],
            record["dtype"],
            tuple(record["shape"]),
            None if sharding is None else tuple(sharding),
            tuple(record.get("aliases", ())),
        )


@dataclass(frozen=True)
class Schema:
    """What an update takes and gives.

    Attributes:
        parameters: The parameter leaves.
        optimizer: The leaves of all other state.
        batch: Layout of the committed batch.
    """

    parameters: tuple[LeafSpec, ...]
    optimizer: tuple[LeafSpec, ...]
    batch: BatchLayout

    def tree(self, tree: TreeName) -> tuple[LeafSpec, ...]:
        """Return the leaves of one tree."""
        return self.parameters if tree == "parameters" else self.optimizer

    def tree_leaf(self, index: int) -> tuple[TreeName, int]:
        """Return tree and index in that tree of state leaf `index`."""
        count = len(self.parameters)
        return ("parameters", index) if index < count else ("optimizer", index - count)

    def elements(self, tree: TreeName) -> int:
        """Return the number of elements of all leaves of a tree."""
        return self._elements[tree]

    @cached_property
    def _elements(self) -> dict[TreeName, int]:
        # Counted once: every update draws over them, and there may be thousands of leaves.
        return {tree: sum(leaf.size for leaf in self.tree(tree)) for tree in TREES}

    def locate(self, tree: TreeName, coordinate: int) -> tuple[int, int]:
        """Return leaf and element (in C order) of a coordinate that counts over the whole tree."""
        ends = list(accumulate(leaf.size for leaf in self.tree(tree)))
        leaf = next(index for index, end in enumerate(ends) if coordinate < end)
        return leaf, coordinate - (ends[leaf] - self.tree(tree)[leaf].size)

    def record(self) -> dict[str, Any]:
        """Return the body of the schema record."""
        return {
            "parameters": [leaf.record() for leaf in self.parameters],
            "optimizer": [leaf.record() for leaf in self.optimizer],
            "batch": self.batch.record(),
            "scalars": [],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the schema whose record has this body; the inverse of `record`.

        Raises:
            ZKDVError: The batch's layout is not the one that its leaves have.
        """
        parameters, optimizer = (tuple(map(LeafSpec.from_record, record[tree])) for tree in TREES)
        return cls(parameters, optimizer, BatchLayout.from_record(record["batch"]))

    def difference(self, other: "Schema") -> str | None:
        """Say in words where `other` differs, naming the leaf and both values; None where it does not."""
        for tree in TREES:
            mine, theirs = self.tree(tree), other.tree(tree)
            for old, new in zip(mine, theirs, strict=False):
                if old != new:
                    return f"{tree} leaf {old.name} was {_describe(old)} and is now {_describe(new, old.name)}"
            if len(mine) != len(theirs):
                return f"{tree} had {len(mine)} leaves and now has {len(theirs)}"
        for old_leaf, new_leaf in zip(self.batch.leaves, other.batch.leaves, strict=False):
            if old_leaf != new_leaf:
                name = f"{new_leaf.name} " if new_leaf.name != old_leaf.name else ""
                return (
                    f"batch leaf {old_leaf.name} was {old_leaf.dtype}{list(old_leaf.shape)} and is now "
                    f"{name}{new_leaf.dtype}{list(new_leaf.shape)}"
                )
        if self.batch != other.batch:
            return f"the batch had {len(self.batch.leaves)} leaves and now has {len(other.batch.leaves)}"
        return None


@dataclass(frozen=True)
class Due:
    """Which trees' roots an update's record holds.

    Attributes:
        parameters: Whether the parameter and parameter-probe roots are due.
        optimizer: Whether the optimizer and optimizer-probe roots are due.
    """

    parameters: bool = True
    optimizer: bool = True

    @property
    def trees(self) -> tuple[TreeName, ...]:
        """The trees that are due."""
        return tuple(tree for tree in TREES if getattr(self, tree))

    @property
    def bits(self) -> int:
        """The flags as the commit call takes them: bit 0 parameters, bit 1 optimizer."""
        return int(self.parameters) | int(self.optimizer) << 1


@dataclass(frozen=True)
class LeafEvidence:
    """Digests and probes of a state's leaves.

    Attributes:
        digests: Leaf digests of each tree that is there, 32 bytes each, in schema order.
        probe_digests: Digests of the leaves' probe vectors, likewise.
        read_probes: Gives the probe vectors, float32 or float64, those of a leaf's shards joined in their order, and
            None for leaves that have none. Most updates never ask for them one by one.
        holds_nan: Whether a probe that this process holds has NaN in it.
        read_own_probes: Gives the vectors, or the parts of them, that this process holds, where other processes hold
            others; None where it holds all. Unlike `read_probes` it needs no other process.
    """

    digests: Mapping[TreeName, Sequence[bytes]]
    probe_digests: Mapping[TreeName, Sequence[bytes]]
    read_probes: Callable[[], Mapping[TreeName, Sequence[NDArray[Any] | None]]] = field(repr=False)
    holds_nan: bool = False
    read_own_probes: Callable[[], Mapping[TreeName, Sequence[NDArray[Any] | None]]] | None = field(
        default=None, repr=False
    )

    @cached_property
    def probes(self) -> Mapping[TreeName, Sequence[NDArray[Any] | None]]:
        """The probe vectors of each tree that is there, in schema order."""
        return self.read_probes()

    @cached_property
    def roots(self) -> dict[str, bytes]:
        """The Merkle roots of what is there, as they stand in a record."""
        roots: dict[str, bytes] = {}
        for tree, digests in self.digests.items():
            roots[tree] = _native.tree_root(tree, digests)
            kind = _PROBE_ROOTS[tree]
            roots[kind] = _native.tree_root(kind, self.probe_digests[tree])
        return roots

    @property
    def leaf_roots(self) -> dict[str, bytes]:
        """The roots over leaf digests alone: what an exact replay must reproduce."""
        return {tree: self.roots[tree] for tree in self.digests}


def element_bytes(array: NDArray[Any], element: int) -> bytes:
    """Return one element of an array, counted in C order, as little-endian bytes."""
    return np.ascontiguousarray(array).reshape(-1)[element : element + 1].tobytes()


def _describe(leaf: LeafSpec, known_as: str | None = None) -> str:
    name = f"{leaf.name} " if known_as is not None and leaf.name != known_as else ""
    sharding = "" if leaf.sharding is None else f" in shards of {list(leaf.sharding)}"
    aliases = f" also named {', '.join(leaf.aliases)}" if leaf.aliases else ""
    return f"{name}{leaf.dtype}{list(leaf.shape)}{sharding}{aliases}"
