"""The commit call from plain JAX operations, for every platform.

Digests equal those of the other lowerings bit for bit. Probes do so within one platform class: the order in which a
slice is summed is XLA's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from zkdv.jax._blake3_portable import Joined, TreeInputs, tree_digests
from zkdv.jax._commitment_plan import SIGN_WORD_BITS, CommitmentPlan, LeafPlan, ProbeGeometry

TILE_CHUNKS: Final = {"cpu": 512}
"""Chunks that are hashed side by side: on CPU as many as keep their state in a core's cache."""
TILE_CHUNKS_ELSEWHERE: Final = 8192
"""On accelerators, which run each operation over a whole tile."""

PROBE_DTYPES: Final = ("float32", "float64")


def commit(
    plan: CommitmentPlan, due: jax.Array, leaves: Sequence[jax.Array], signs: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Digests and probes of a state's leaves, as `zkdv.jax._lowerings.Commit` says."""
    plan.check_leaves(leaves)
    cut = plan.parameters
    parameters = _Tree(plan.leaves[:cut], leaves[:cut], (due[0] & 1).astype(bool))
    optimizer = _Tree(plan.leaves[cut:], leaves[cut:], ((due[0] >> 1) & 1).astype(bool))
    probes = [parameters.probes(signs), optimizer.probes(signs)]
    inputs = (parameters.inputs(probes[0]), optimizer.inputs(probes[1]))
    tile_chunks = TILE_CHUNKS.get(jax.default_backend(), TILE_CHUNKS_ELSEWHERE)
    digests = tree_digests(inputs, tile_chunks=tile_chunks)
    rows = np.concatenate([parameters.digest_rows(), optimizer.digest_rows() + inputs[0].count], axis=1)
    probes32, probes64 = (
        _join([found[dtype] for found in probes if dtype in found], np.dtype(dtype)) for dtype in PROBE_DTYPES
    )
    return digests[rows.reshape(-1)], probes32, probes64


def probe(geometry: ProbeGeometry, leaf: jax.Array, signs: jax.Array) -> jax.Array:
    """The probe of one leaf.

    Args:
        geometry: The leaf's probe.
        leaf: The leaf, floating point or complex.
        signs: The leaf's sign words, shape `(geometry.sign_words,)`, uint32.

    Returns:
        Shape `(geometry.size,)`, of type `geometry.dtype`: the kept values, row by row.
    """
    if jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        leaf = jnp.stack([leaf.real, leaf.imag], axis=-1)
    matrix = leaf.reshape(geometry.rows, geometry.dimension)
    if not geometry.sign_words:
        return matrix.reshape(-1).astype(geometry.dtype)
    bits = (signs[:, None] >> jnp.arange(SIGN_WORD_BITS, dtype=jnp.uint32)) & 1
    factors = 1 - 2 * bits.reshape(-1)[: geometry.dimension].astype(geometry.dtype)
    width, remainder = divmod(geometry.dimension, geometry.kept)
    if not remainder:
        signed = matrix.astype(geometry.dtype) * factors
        return signed.reshape(geometry.rows, geometry.kept, width).sum(axis=2).reshape(-1)
    # A slice has `width` columns or one more. The last one has the more, so that no window passes the end of a row.
    bounds = jnp.asarray(geometry.slice_bounds().astype(np.uint32))
    window = partial(lax.dynamic_slice_in_dim, slice_size=width + 1, axis=-1)
    slices = jax.vmap(window, (None, 0))(matrix, bounds[:-1]).astype(geometry.dtype)
    slice_factors = jax.vmap(window, (None, 0))(factors, bounds[:-1])
    is_inside = jnp.arange(width + 1, dtype=jnp.uint32) < (bounds[1:] - bounds[:-1])[:, None]
    sums = jnp.where(is_inside[:, None, :], slices * slice_factors[:, None, :], 0).sum(axis=2)
    return sums.T.reshape(-1)


@dataclass(frozen=True)
class _Tree:
    """The leaves of one tree, and whether it is due.

    What is hashed of it stands in this order: the leaves by element type (a run of one type is cheap to join), the
    probes by element type, and one empty input for the leaves without a probe.
    """

    plans: Sequence[LeafPlan]
    leaves: Sequence[jax.Array]
    due: jax.Array

    @cached_property
    def by_dtype(self) -> list[int]:
        """Leaves in the order in which they are hashed."""
        return sorted(range(len(self.plans)), key=lambda index: self.plans[index].dtype)

    @cached_property
    def probed(self) -> dict[str, list[tuple[int, ProbeGeometry]]]:
        """Leaves with a probe, by the type of the probe, in plan order."""
        geometries = [(index, plan.probe) for index, plan in enumerate(self.plans) if plan.probe is not None]
        found = {dtype: [item for item in geometries if item[1].dtype == dtype] for dtype in PROBE_DTYPES}
        return {dtype: items for dtype, items in found.items() if items}

    def probes(self, signs: jax.Array) -> dict[str, jax.Array]:
        """The probes of each type, joined in plan order; zeros where the tree is not due."""

        def compute() -> dict[str, jax.Array]:
            return {dtype: self._joined_probes(dtype, signs) for dtype in self.probed}

        def skip() -> dict[str, jax.Array]:
            return {dtype: jnp.zeros(self._probe_size(dtype), dtype) for dtype in self.probed}

        found: dict[str, jax.Array] = lax.cond(self.due, compute, skip)
        return found

    def inputs(self, probes: dict[str, jax.Array]) -> TreeInputs:
        """What is hashed of the tree."""
        joined = [Joined(probes[dtype], [item.size for _, item in items]) for dtype, items in self.probed.items()]
        empty = Joined(jnp.zeros(0, jnp.uint32), [0])
        return TreeInputs(self.due, [self.leaves[index] for index in self.by_dtype], [*joined, empty])

    def digest_rows(self) -> NDArray[np.int32]:
        """Where the digests of each leaf and of its probe stand among those of `inputs`, shape `(2, leaves)`."""
        rows = np.zeros((2, len(self.plans)), np.int32)
        rows[0, self.by_dtype] = np.arange(len(self.plans))
        order = [index for items in self.probed.values() for index, _ in items]
        rows[1] = len(self.plans) + len(order)
        rows[1, order] = len(self.plans) + np.arange(len(order))
        return rows

    def _probe_size(self, dtype: str) -> int:
        return sum(geometry.size for _, geometry in self.probed[dtype])

    def _joined_probes(self, dtype: str, signs: jax.Array) -> jax.Array:
        """The probes of one type, in plan order."""
        items = self.probed[dtype]
        starts = np.cumsum([0, *(geometry.size for _, geometry in items)])
        alike: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for position, (index, _) in enumerate(items):
            alike.setdefault((self.plans[index].dtype, self.plans[index].shape), []).append(position)
        joined = jnp.zeros(self._probe_size(dtype), dtype)
        for positions in alike.values():
            geometries = [items[position][1] for position in positions]
            group = _AlikeLeaves(
                leaves=[self.leaves[items[position][0]] for position in positions],
                geometry=geometries[0],
                sign_offsets=np.array([geometry.sign_offset for geometry in geometries], np.uint32),
                starts=starts[positions].astype(np.uint32),
            )
            joined = group.write_probes(joined, signs)
        return joined


@dataclass(frozen=True)
class _AlikeLeaves:
    """Leaves of one type and shape: one piece of program takes them in turn, so that many of them compile fast.

    Attributes:
        leaves: The leaves.
        geometry: The geometry of their probes, but for offsets.
        sign_offsets: First sign word of each, shape `(leaves,)`.
        starts: First value of each one's probe among the joined ones, shape `(leaves,)`.
    """

    leaves: Sequence[jax.Array]
    geometry: ProbeGeometry
    sign_offsets: NDArray[np.uint32]
    starts: NDArray[np.uint32]

    def write_probes(self, joined: jax.Array, signs: jax.Array) -> jax.Array:
        """Put the probes where they belong."""
        choices = [partial(_choose, position) for position in range(len(self.leaves))]
        sign_offsets, starts = jnp.asarray(self.sign_offsets), jnp.asarray(self.starts)

        def one(index: jax.Array, joined: jax.Array) -> jax.Array:
            words = lax.dynamic_slice_in_dim(signs, sign_offsets[index], self.geometry.sign_words)
            found = probe(self.geometry, lax.switch(index, choices, self.leaves), words)
            return lax.dynamic_update_slice_in_dim(joined, found, starts[index], 0)

        written: jax.Array = lax.fori_loop(0, len(self.leaves), one, joined)
        return written


def _choose(position: int, leaves: Sequence[jax.Array]) -> jax.Array:
    return leaves[position]


def _join(arrays: Sequence[jax.Array], dtype: np.dtype[np.floating]) -> jax.Array:
    if arrays:
        return jnp.concatenate(arrays)
    # The call's results have one type each, also where 64-bit types are off and there is nothing of that type.
    with jax.enable_x64(new_val=True):
        return jnp.zeros(0, dtype)
