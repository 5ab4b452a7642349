"""The commit call from plain JAX operations, for every platform.

Digests equal those of the other lowerings bit for bit. Probes do so within one platform class: the order in which a
slice is summed is XLA's.
"""

from collections.abc import Sequence
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
from jax import lax

from zkdv.jax._blake3_portable import tree_digests
from zkdv.jax._commitment_plan import SIGN_WORD_BITS, CommitmentPlan, LeafPlan, ProbeGeometry
from zkdv.schema import TREES


def commit(
    plan: CommitmentPlan, due: jax.Array, leaves: Sequence[jax.Array], signs: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Digests and probes of a state's leaves, as `zkdv.jax._lowerings.Commit` says."""
    plan.check_leaves(leaves)
    parameters_due, optimizer_due = (((due[0] >> bit) & 1).astype(bool) for bit in range(len(TREES)))
    cut = plan.parameters
    parameter_probes = _probes(plan.leaves[:cut], leaves[:cut], signs, parameters_due)
    optimizer_probes = _probes(plan.leaves[cut:], leaves[cut:], signs, optimizer_due)
    digests = tree_digests(
        ([*leaves[:cut], *parameter_probes], [*leaves[cut:], *optimizer_probes]), (parameters_due, optimizer_due)
    )
    parameters, optimizer = digests[: 2 * cut], digests[2 * cut :]
    middle = len(leaves) - cut
    probes = [*parameter_probes, *optimizer_probes]
    return (
        jnp.concatenate([parameters[:cut], optimizer[:middle], parameters[cut:], optimizer[middle:]]),
        _join(plan, probes, "float32"),
        _join(plan, probes, "float64"),
    )


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
    bounds = jnp.asarray(geometry.slice_bounds().astype("uint32"))
    window = partial(lax.dynamic_slice_in_dim, slice_size=width + 1, axis=-1)
    slices = jax.vmap(window, (None, 0))(matrix, bounds[:-1]).astype(geometry.dtype)
    slice_factors = jax.vmap(window, (None, 0))(factors, bounds[:-1])
    inside = jnp.arange(width + 1, dtype=jnp.uint32) < (bounds[1:] - bounds[:-1])[:, None]
    sums = jnp.where(inside[:, None, :], slices * slice_factors[:, None, :], 0).sum(axis=2)
    return sums.T.reshape(-1)


def _probes(
    plans: Sequence[LeafPlan], leaves: Sequence[jax.Array], signs: jax.Array, due: jax.Array
) -> list[jax.Array]:
    """The probe of each leaf of a tree, zeros where the tree is not due, empty where a leaf has none."""
    probed = [(index, plan.probe) for index, plan in enumerate(plans) if plan.probe is not None]

    def compute(leaves: list[jax.Array], signs: jax.Array) -> list[jax.Array]:
        return [
            probe(geometry, leaf, signs[geometry.sign_offset : geometry.sign_offset + geometry.sign_words])
            for (_, geometry), leaf in zip(probed, leaves, strict=True)
        ]

    def skip(leaves: list[jax.Array], signs: jax.Array) -> list[jax.Array]:
        del leaves, signs
        return [jnp.zeros(geometry.size, geometry.dtype) for _, geometry in probed]

    vectors = [jnp.zeros(0, jnp.float32)] * len(plans)
    found = lax.cond(due, compute, skip, [leaves[index] for index, _ in probed], signs)
    for (index, _), vector in zip(probed, found, strict=True):
        vectors[index] = vector
    return vectors


def _join(plan: CommitmentPlan, vectors: Sequence[jax.Array], dtype: Literal["float32", "float64"]) -> jax.Array:
    wanted = [
        vector for leaf, vector in zip(plan.leaves, vectors, strict=True) if leaf.probe and leaf.probe.dtype == dtype
    ]
    if wanted:
        return jnp.concatenate(wanted)
    # The call's results have one type each, also where 64-bit types are off and nothing of that type is there.
    with jax.enable_x64(new_val=True):
        return jnp.zeros(0, dtype)
