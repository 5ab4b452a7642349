"""How the leaves of a state lie on several devices, and what is committed of them there.

Under `jax.jit` a custom call on a sharded array would gather it. So the commit call stands inside `jax.shard_map`: each
device commits to what it holds, and the host puts together which device speaks for which shard.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from numpy.typing import NDArray

from zkdv import _native
from zkdv.errors import ZKDVError

__all__ = ["ONE_DEVICE", "StateLayout", "StatePlaces", "describe", "explicit_shardings", "moved", "placement", "put"]

DIGEST_BYTES = 32


class TracedBatch(Protocol):
    """A batch over several processes, in the program at hand."""

    @property
    def layout(self) -> "StateLayout":
        """How its leaves lie."""

    def digests(self, leaves: Sequence[jax.Array]) -> jax.Array:
        """Return the digests of what one device has of them, shape (leaves, 8), uint32."""


@dataclass(frozen=True)
class StateLayout:
    """The layout of a state's leaves, which a run keeps.

    Attributes:
        mesh: The mesh that all leaves lie on; None on one device.
        shardings: The sharding of each leaf, parameters first; empty on one device.
    """

    mesh: Mesh | None = None
    shardings: tuple[NamedSharding, ...] = ()

    @classmethod
    def of(
        cls,
        names: Sequence[str],
        shapes: Sequence[Sequence[int]],
        before: Sequence[NamedSharding | None],
        after: Sequence[NamedSharding | None],
        others: Sequence[NamedSharding | None],
    ) -> "StateLayout":
        """Find the layout of a state.

        Args:
            names: Names of the leaves, for messages.
            shapes: Their shapes.
            before: Where each leaf lies before the update; None where that is left to JAX.
            after: Where the update is asked to leave it; None where that is left to JAX.
            others: Where other inputs of the update lie, or None. A state that is left to JAX lies on every device of
                theirs.

        Raises:
            ZKDVError: A leaf is asked to move, or leaves lie on different meshes.
        """
        for name, shape, old, new in zip(names, shapes, before, after, strict=True):
            if old is not None and new is not None and moved(old, new, shape):
                raise ZKDVError(
                    f"{name} lies as {describe(old)} before the update and is to lie as {describe(new)} after it; a "
                    "run keeps the layout of its state: place it with jax.device_put where out_shardings leaves it"
                )
        chosen = [new if new is not None else old for old, new in zip(before, after, strict=True)]
        placed = [sharding for sharding in chosen if sharding is not None]
        split = [sharding for sharding in placed if not sharding.is_fully_replicated]
        candidates = [*split, *placed, *(sharding for sharding in others if sharding is not None)]
        if not candidates:
            return cls()
        mesh = candidates[0].mesh
        if not isinstance(mesh, Mesh):
            raise ZKDVError(f"{_mesh(mesh)} has no devices; give shardings on a jax.sharding.Mesh")
        whole = NamedSharding(mesh, PartitionSpec())
        shardings: list[NamedSharding] = []
        for name, sharding in zip(names, chosen, strict=True):
            if sharding is None or sharding.is_fully_replicated:
                shardings.append(whole)
            elif sharding.mesh == mesh:
                shardings.append(sharding)
            else:
                raise ZKDVError(
                    f"{name} lies as {describe(sharding)}, and other leaves lie on {_mesh(mesh)}; place the whole "
                    "state on one mesh, with an axis for each way in which it is spread"
                )
        return cls(mesh, tuple(shardings))

    def extents(self, leaf: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the extent of a leaf's shards in each dimension; None where the leaf is whole, or has no elements."""
        if self.mesh is None or 0 in shape:
            return None
        extents = tuple(self.shardings[leaf].shard_shape(shape))
        return None if extents == shape else extents

    def shard_shape(self, leaf: int, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of what one device holds of a leaf."""
        return shape if self.mesh is None else tuple(self.shardings[leaf].shard_shape(shape))

    def difference(self, other: "StateLayout", names: Sequence[str], shapes: Sequence[Sequence[int]]) -> str | None:
        """Say in words where `other` differs, naming the leaf and both layouts; None where it does not."""
        if self.mesh is None and other.mesh is None:
            return None
        mine, theirs = self.each(len(names)), other.each(len(names))
        for name, shape, old, new in zip(names, shapes, mine, theirs, strict=True):
            if moved(old, new, shape):
                return f"{name} was laid out as {describe(old)} and is now laid out as {describe(new)}"
        return None

    def each(self, leaves: int) -> Sequence[NamedSharding | None]:
        """Return the sharding of each of so many leaves; None on one device."""
        return (None,) * leaves if self.mesh is None else self.shardings

    def refuse_other_types(self, names: Sequence[str], leaves: Sequence[Any]) -> None:
        """Refuse leaves after the update whose types say that they lie elsewhere: on meshes with explicit axes.

        Raises:
            ZKDVError: Naming the leaf and both layouts.
        """
        if self.mesh is None or set(self.mesh.axis_types) != {AxisType.Explicit}:
            return
        for name, leaf, sharding in zip(names, leaves, self.shardings, strict=True):
            typed = jax.typeof(leaf).sharding
            if _spec(typed) != _spec(sharding):
                raise ZKDVError(
                    f"{name} lies as {describe(sharding)} before the update and as {describe(typed)} after it; a run "
                    "keeps the layout of its state: reshard it inside of the update, or place it so from the start"
                )

    def keep(self, state: Sequence[Any]) -> list[Any]:
        """Keep state leaves after an update where they were before it, in the program at hand.

        Left to itself, JAX may leave a leaf as its gradient lies. The training step and its replay say the same here,
        so that both are cut, and rounded, alike.
        """
        if self.mesh is None or AxisType.Explicit in self.mesh.axis_types:
            return list(state)
        return [
            jax.lax.with_sharding_constraint(leaf, sharding)
            for leaf, sharding in zip(state, self.shardings, strict=True)
        ]

    def on_each_device(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        """Return the commit call with the leaves of the whole state as operands.

        Its results are those of all devices, joined along the first axis in the order of `mesh.devices`.
        """
        if self.mesh is None:
            return commit
        each, joined = PartitionSpec(), PartitionSpec(self.mesh.axis_names)
        return jax.shard_map(
            commit,
            mesh=self.mesh,
            in_specs=(each, [sharding.spec for sharding in self.shardings], each),
            out_specs=(joined, joined, joined),
            check_vma=False,
        )

    def on_every_process(self, commit: Callable[..., Any], batch: "TracedBatch | None") -> Callable[..., Any]:
        """Return the commit calls of a state and a batch with whole leaves as operands, for a mesh over processes.

        The digests of all devices, of each those of the state and then those of the batch, are on every device: all
        ranks see the same. Probes stay where they are; they are as in `on_each_device`.

        Args:
            commit: The commit call of the state.
            batch: How the batch lies, and what is committed of it; None without one.
        """
        if self.mesh is None:
            raise ZKDVError("a state on one device lies on no mesh over processes")
        axes = self.mesh.axis_names
        each, joined = PartitionSpec(), PartitionSpec(axes)

        def on_one_device(due: Any, leaves: Any, signs: Any, batch_leaves: Any) -> tuple[Any, Any, Any]:
            digests, probes32, probes64 = commit(due, leaves, signs)
            if batch is not None:
                digests = jax.numpy.concatenate([digests, batch.digests(batch_leaves)])
            return jax.lax.all_gather(digests, axes, tiled=True), probes32, probes64

        in_specs = (
            each,
            [sharding.spec for sharding in self.shardings],
            each,
            [] if batch is None else [sharding.spec for sharding in batch.layout.shardings],
        )
        return jax.shard_map(
            on_one_device, mesh=self.mesh, in_specs=in_specs, out_specs=(each, joined, joined), check_vma=False
        )

    @property
    def ranks(self) -> tuple[int, ...]:
        """The process of each device of the mesh, in its order; none on one device."""
        return () if self.mesh is None else tuple(device.process_index for device in self.mesh.devices.flat)

    def whole(self) -> NamedSharding:
        """Return the sharding of an array that every device of the mesh has as a whole."""
        if self.mesh is None:
            raise ZKDVError("a state on one device lies on no mesh")
        return NamedSharding(self.mesh, PartitionSpec())

    def replicate(self, array: Any) -> jax.Array:
        """Put an operand of the program on all devices, once for many calls."""
        if self.mesh is None:
            return jax.numpy.asarray(array)
        return put(array, self.whole())

    def place(self, state: Sequence[Any]) -> list[Any]:
        """Put state leaves where they belong; those that lie there are given as they are."""
        if self.mesh is None:
            return list(state)
        return [
            leaf if _lies_as(leaf, sharding) else put(leaf, sharding)
            for leaf, sharding in zip(state, self.shardings, strict=True)
        ]


ONE_DEVICE: Final = StateLayout()


@dataclass(frozen=True)
class StatePlaces:
    """Which device speaks for which shard of which leaf.

    Attributes:
        devices: The devices of the mesh, in its order.
        firsts: For each device and leaf the first device with the same shard, shape (devices, leaves), intp.
        holders: For each leaf the first device with each shard, in the order of the shards, shape (shards,), intp.
        shapes: The shapes of the leaves.
        extents: The extents of their shards; None for leaves that are whole.
    """

    devices: tuple[Any, ...]
    firsts: NDArray[np.intp]
    holders: tuple[NDArray[np.intp], ...]
    shapes: tuple[tuple[int, ...], ...]
    extents: tuple[tuple[int, ...] | None, ...]

    @classmethod
    def of(cls, layout: StateLayout, shapes: Sequence[tuple[int, ...]]) -> "StatePlaces":
        """Look up where the leaves of these shapes lie."""
        if layout.mesh is None:
            raise ZKDVError("a state on one device has no places to tell apart")
        devices = tuple(layout.mesh.devices.flat)
        firsts = np.zeros((len(devices), len(shapes)), np.intp)
        holders: list[NDArray[np.intp]] = []
        for leaf, (shape, sharding) in enumerate(zip(shapes, layout.shardings, strict=True)):
            slices = sharding.devices_indices_map(shape)
            starts = [tuple(own.start or 0 for own in slices[device]) for device in devices]
            first = {start: starts.index(start) for start in starts}
            firsts[:, leaf] = [first[start] for start in starts]
            holders.append(np.array([first[start] for start in sorted(first)], np.intp))
        extents = tuple(layout.extents(leaf, shape) for leaf, shape in enumerate(shapes))
        return cls(devices, firsts, tuple(holders), tuple(shapes), extents)

    def digests(self, rows: NDArray[np.uint32]) -> list[bytes]:
        """Return the digests of the leaves from those of what each device holds.

        Args:
            rows: Shape (devices, leaves, 8), uint32.
        """
        data = np.ascontiguousarray(rows, "<u4").tobytes()
        count = rows.shape[1]

        def digest(device: int, leaf: int) -> bytes:
            start = (device * count + leaf) * DIGEST_BYTES
            return data[start : start + DIGEST_BYTES]

        found: list[bytes] = []
        for leaf, (holders, extents) in enumerate(zip(self.holders, self.extents, strict=True)):
            shards = [digest(device, leaf) for device in holders.tolist()]
            found.append(
                shards[0] if extents is None else _native.sharded_leaf_digest(self.shapes[leaf], extents, shards)
            )
        return found

    def unequal_replicas(self, rows: NDArray[np.uint32]) -> list[tuple[int, Any, Any]]:
        """Return leaf and both devices where two of them hold the same shard with different elements.

        Args:
            rows: Shape (devices, leaves, 8), uint32.
        """
        unequal = (np.take_along_axis(rows, self.firsts[:, :, None], axis=0) != rows).any(axis=2)
        return [
            (int(leaf), self.devices[self.firsts[device, leaf]], self.devices[device])
            for device, leaf in np.argwhere(unequal)
        ]

    def probes(self, vectors: Sequence[Sequence[NDArray[Any] | None]]) -> list[NDArray[Any] | None]:
        """Return the probe vectors of the leaves from those of what each device holds, by device and leaf."""
        return [
            _joined([vectors[device][leaf] for device in holders.tolist()]) for leaf, holders in enumerate(self.holders)
        ]

    def own_probes(self, vectors: Sequence[Sequence[NDArray[Any] | None]]) -> list[NDArray[Any] | None]:
        """Return what some devices hold of the probe vectors, each leaf's joined, from that by device and leaf."""
        return [_joined([own[leaf] for own in vectors]) for leaf in range(len(self.shapes))]


def placement(value: Any, name: str) -> NamedSharding | None:
    """Return how an input lies on several devices by the user's will; None where it lies on one, or anywhere.

    Args:
        value: An array, a `jax.ShapeDtypeStruct` or a sharding.
        name: Its name, for messages.

    Raises:
        ZKDVError: It is spread in a way that can't be committed.
    """
    sharding = value if isinstance(value, Sharding) else getattr(value, "sharding", None)
    if sharding is None or not getattr(value, "committed", True) or sharding.num_devices == 1:
        return None
    if not isinstance(sharding, NamedSharding):
        raise ZKDVError(
            f"{name} lies on {sharding.num_devices} devices by {sharding}; only a jax.sharding.NamedSharding says in "
            "terms of a mesh where each element lies, so place it with one"
        )
    if sharding.spec.unreduced:
        raise ZKDVError(
            f"{name} lies as unreduced partial sums ({sharding.spec}); reduce it before it enters the update"
        )
    return sharding


def put(array: Any, sharding: Sharding) -> jax.Array:
    """Put an array where a sharding says; no process waits for another, unless the array is spread over them."""
    if sharding.is_fully_addressable or not getattr(array, "is_fully_addressable", True):
        placed: jax.Array = jax.device_put(array, sharding)
        return placed
    # `jax.device_put` would have all processes compare what they have.
    contents = np.asarray(array)
    return jax.make_array_from_callback(contents.shape, sharding, lambda index: contents[index])


def moved(old: NamedSharding | None, new: NamedSharding | None, shape: Sequence[int]) -> bool:
    """Return whether an array that lay in one way now lies in another; one without elements lies anywhere."""
    if 0 in shape:
        return False
    if old is None or new is None:
        return old is not new
    return not old.is_equivalent_to(new, len(shape))


@dataclass(frozen=True)
class _Entry:
    """What an option says of one part of a tree; no pytree itself."""

    value: Any


def explicit_shardings(option: Any, tree: Any) -> list[Any]:
    """Return what an option of `jax.jit` says of each leaf of `tree`: a sharding, or None where it leaves it to JAX."""

    def is_entry(value: Any) -> bool:
        return value is None or isinstance(value, (Sharding, PartitionSpec))

    # Wrapped, so that a None of the option is told from one in the tree, which has no place.
    wrapped = jax.tree.map(_Entry, option, is_leaf=is_entry)
    entries = [entry.value for entry in jax.tree.leaves(jax.tree.broadcast(wrapped, tree))]
    mesh = jax.sharding.get_mesh()
    return [NamedSharding(mesh, entry) if isinstance(entry, PartitionSpec) else entry for entry in entries]


def describe(sharding: Any) -> str:
    """Return a layout in words, for messages."""
    if isinstance(sharding, NamedSharding):
        return f"{sharding.spec} on {_mesh(sharding.mesh)}"
    return "one array, not placed on a mesh"


def _joined(pieces: Sequence[NDArray[Any] | None]) -> NDArray[Any] | None:
    present = [piece for piece in pieces if piece is not None]
    return np.concatenate(present) if present else None


def _lies_as(leaf: Any, sharding: NamedSharding) -> bool:
    return isinstance(leaf, jax.Array) and leaf.committed and leaf.sharding.is_equivalent_to(sharding, leaf.ndim)


def _mesh(mesh: Any) -> str:
    return "a mesh of " + ", ".join(f"{name}={size}" for name, size in mesh.shape.items())


def _spec(sharding: NamedSharding) -> tuple[Any, ...]:
    """Return a spec without what does not change it: dimensions at the end that are whole."""
    entries = list(sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)
