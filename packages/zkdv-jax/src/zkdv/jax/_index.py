"""One element of a pytree's concatenation, without building it."""

from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zkdv.jax._committed_leaves import committed_form

__all__ = ["index"]


def index(tree: Any, i: Any) -> jax.Array:
    """Return element `i` of the concatenation of a pytree's leaves, each read in C order.

    Positions count past 2^31 also where 64-bit types are off in JAX.

    Args:
        tree: A pytree of arrays; leaves without elements are passed over, and typed random keys count as their words.
        i: Which element, an integer scalar, usually uint64, below the number of elements of all leaves; it may be
            traced. Beyond them the result is 0.

    Returns:
        The element, shape (), in the dtype that the leaves promote to; where integers stand beside floats, in float32
        at least, since shorter floats don't hold a count of updates.

    Raises:
        ValueError: The tree has no elements, or `i` is no integer scalar.

    Example:
        >>> float(index({"a": jnp.arange(3.0), "b": jnp.ones((2, 2))}, 2))
        2.0
    """
    leaves = [jnp.asarray(committed_form(leaf)) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf for leaf in leaves if leaf.size]
    if not leaves:
        raise ValueError("the tree has no elements to index; an attest program returns 0.0 for a tree without elements")
    dtype = _common_dtype(leaves)
    aval = jax.typeof(i)
    if aval.shape or not jnp.issubdtype(aval.dtype, jnp.integer):
        raise ValueError(f"i is {aval.str_short()}; it is an integer scalar")
    with jax.enable_x64(True):  # noqa: FBT003 (its parameter is positional)
        position = lax.convert_element_type(i, np.uint64)
        found = lax.full((), 0, dtype)
        start = 0
        for leaf in leaves:
            count = prod(leaf.shape)
            first, last = _number(start), _number(start + count)
            inside = lax.bitwise_and(lax.ge(position, first), lax.lt(position, last))
            offset = lax.select(inside, lax.sub(position, first), _number(0))
            element = lax.convert_element_type(_element(leaf, offset), dtype)
            found = lax.select(inside, element, found)
            start += count
    return found


def _common_dtype(leaves: list[jax.Array]) -> Any:
    # Weak types count as any other: a number that would give way to a shorter float is rounded by that.
    dtypes = {leaf.dtype for leaf in leaves}
    if len(dtypes) == 1:
        return dtypes.pop()
    # JAX promotes no 8-bit floats.
    dtype = jnp.result_type(*(np.float32 if _is_short_float(each) else each for each in dtypes))
    if jnp.issubdtype(dtype, jnp.floating) and any(jnp.issubdtype(each, jnp.integer) for each in dtypes):
        return jnp.promote_types(dtype, np.float32)
    return dtype


def _is_short_float(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize == 1


def _element(leaf: jax.Array, offset: jax.Array) -> jax.Array:
    """Return the element of a leaf at `offset` in C order, as a scalar."""
    starts: list[jax.Array] = []
    for extent in reversed(leaf.shape):
        starts.append(lax.rem(offset, _number(extent)))
        offset = lax.div(offset, _number(extent))
    return lax.reshape(lax.dynamic_slice(leaf, starts[::-1], (1,) * leaf.ndim), ())


def _number(value: int) -> jax.Array:
    return lax.full((), value, np.uint64)
