"""Elements of a pytree by their position in its concatenation."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import zkdv.jax

TREE = {"a": jnp.arange(6.0).reshape(2, 3), "b": jnp.zeros((0, 4)), "c": jnp.float32(7), "d": jnp.arange(4.0) + 10}
FLAT = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(TREE)])


@pytest.mark.parametrize("jitted", [True, False])
@pytest.mark.parametrize("position_type", [np.uint64, np.int32, int])
def test_every_element_is_that_of_the_concatenation(jitted, position_type):
    pick = jax.jit(zkdv.jax.index) if jitted else zkdv.jax.index
    for position, expected in enumerate(FLAT):
        element = pick(TREE, position_type(position))
        assert (element.shape, element.dtype) == ((), jnp.float32)
        assert element == expected


def test_leaves_are_promoted_to_one_dtype():
    tree = [jnp.ones(2, jnp.bfloat16), jnp.arange(3, dtype=jnp.float32)]
    assert zkdv.jax.index(tree, 4) == 2
    assert zkdv.jax.index(tree, 0).dtype == jnp.float32


@pytest.mark.parametrize("short", [jnp.bfloat16, jnp.float16])
def test_integers_beside_short_floats_keep_their_value(short):
    tree = {"count": jnp.int32(70_001), "moments": jnp.ones(3, short)}
    assert zkdv.jax.index(tree, 0) == 70_001
    assert {zkdv.jax.index(tree, position).dtype for position in range(4)} == {jnp.dtype(jnp.float32)}
    assert zkdv.jax.index({"moments": tree["moments"]}, 0).dtype == short


@pytest.mark.parametrize(
    ("short", "wide"),
    [
        (jnp.ones(2, jnp.bfloat16), jnp.asarray(0.001)),
        (jnp.ones(2, jnp.float8_e4m3fn), jnp.asarray(0.001, jnp.float32)),
        (jnp.ones(2, jnp.float8_e5m2), jnp.asarray(0.001, jnp.float32)),
    ],
)
def test_the_longest_float_of_a_tree_keeps_its_value(short, wide):
    assert zkdv.jax.index([short, wide], 2) == np.float32(0.001)
    assert zkdv.jax.index([short, wide], 0) == 1


def test_the_concatenation_is_never_built():
    text = jax.jit(zkdv.jax.index).lower(TREE, np.uint64(3)).as_text()
    assert "concatenate" not in text


def test_positions_past_two_to_the_31_reach_their_element_without_64_bit_types():
    assert not jax.config.jax_enable_x64
    count = 2**31 + 1
    program = jax.make_jaxpr(zkdv.jax.index)
    with jax.enable_x64(True):
        jaxpr = program([jax.ShapeDtypeStruct((count,), jnp.bool_)], jax.ShapeDtypeStruct((), np.uint64))
    text = str(jaxpr)
    assert f"{count}:u64[]" in text
    assert "i32" not in text


@pytest.mark.slow
def test_one_bool_leaf_of_more_than_two_to_the_31_elements():
    count = 2**31 + 1
    bits = np.zeros(count, np.bool_)
    bits[-1] = True
    leaf = jnp.asarray(bits)
    assert bool(zkdv.jax.index([leaf], np.uint64(count - 1)))
    assert not bool(zkdv.jax.index([leaf], np.uint64(count - 2)))


def test_trees_without_elements_and_positions_that_are_no_integer_are_refused():
    with pytest.raises(ValueError, match="no elements"):
        zkdv.jax.index({"a": jnp.zeros(0)}, 0)
    with pytest.raises(ValueError, match="integer scalar"):
        zkdv.jax.index(TREE, 1.5)
    with pytest.raises(ValueError, match="integer scalar"):
        zkdv.jax.index(TREE, np.arange(2))


HUGE = 2**31 + 1


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "float32", "complex64"])
def test_leaves_of_every_width_past_two_to_the_31_elements_lower(dtype):
    """Without their gigabytes: the program is made for shapes alone."""
    tree = [jax.ShapeDtypeStruct((3,), dtype), jax.ShapeDtypeStruct((HUGE,), dtype)]
    text = jax.jit(zkdv.jax.index).lower(tree, np.uint64(HUGE)).as_text()
    assert "concatenate" not in text
    assert re.search(rf"dynamic_slice .*tensor<{HUGE}x\w+(<f32>)?>, tensor<ui64>\)", text)
    assert not re.search(r"dynamic_slice .*tensor<\w*i32>\)", text)
