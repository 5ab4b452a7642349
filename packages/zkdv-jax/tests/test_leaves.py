"""Leaves of every type, shape and number: trained, committed and checked."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from flax import struct
from small_run import check_every, records, verified

import zkdv
import zkdv.jax
from zkdv import _native

DTYPES = {
    name: jnp.dtype(name)
    for name in (
        "bool",
        "int8",
        "int16",
        "int32",
        "uint8",
        "uint16",
        "uint32",
        "float16",
        "bfloat16",
        "float32",
        "complex64",
        *(name for name in dir(ml_dtypes) if name.startswith("float8_")),
    )
}


@struct.dataclass
class Inner:
    """A Flax dataclass inside of a plain one, with a static field, an empty field and a leaf without elements."""

    kernel: jax.Array
    empty: jax.Array
    nothing: Any
    label: str = struct.field(pytree_node=False, default="fixed")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Outer:
    leaves: dict[str, jax.Array]
    inner: Inner
    scale: jax.Array


def changed(leaf):
    """Another value of the same type, for every type."""
    if leaf.dtype == bool:
        return ~leaf
    return (leaf.astype(jnp.float32) * 1.5 + 1).astype(leaf.dtype) if leaf.dtype != jnp.complex64 else leaf * 1j


def every_type():
    generator = np.random.default_rng(0)
    leaves = {name: jnp.asarray(generator.integers(1, 3, (3, 5)), dtype) for name, dtype in DTYPES.items()}
    inner = Inner(jnp.ones((2, 3)), jnp.zeros((0, 4)), None)
    return Outer(leaves, inner, jnp.float32(2.0))


def step(params, opt_state, words):
    transaction = zkdv.jax.Transaction(batch=words, params=params, opt_state=opt_state)
    after = jax.tree.map(changed, params)
    return transaction.update(deltas=after, params=after, opt_state=jax.tree.map(changed, opt_state))


def roots_of(tree):
    return _native.tree_root("parameters", [blake3(np.asarray(leaf).tobytes()).digest() for leaf in tree])


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1, commit="every")) as proof:
        proof.start(rolling_window=4)
        yield proof


def finish(proof, tmp_path, updates):
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_passed, report.edits) == ("passed", updates, ())
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))
    [schema] = records(tmp_path / "proof", "schema")
    return schema["body"]


def test_leaves_of_every_type_scalars_and_leaves_without_elements_are_trained_and_checked(proof, tmp_path):
    jitted = proof.jit(step, donate_argnames="params")
    params, opt_state = every_type(), every_type()
    for number in range(3):
        params, opt_state = jitted(params, opt_state, jnp.full((2, 4), number, jnp.uint32))
    schema = finish(proof, tmp_path, 3)
    expected = {f"leaves.{name}": [name, [3, 5]] for name in DTYPES} | {
        "inner.kernel": ["float32", [2, 3]],
        "inner.empty": ["float32", [0, 4]],
        "scale": ["float32", []],
    }
    for tree in ("parameters", "optimizer"):
        assert {leaf["name"]: [leaf["dtype"], leaf["shape"]] for leaf in schema[tree]} == expected
    final = records(tmp_path / "proof", "state")[-1]["body"]["roots"]
    assert final["parameters"] == roots_of(jax.tree.leaves(params))
    assert params.inner.nothing is None


@pytest.mark.parametrize("dtype", ["int4", "uint2", "float4_e2m1fn"])
def test_types_whose_elements_share_a_byte_are_refused_by_leaf_and_do_not_poison(proof, tmp_path, dtype):
    jitted, words = proof.jit(step), jnp.ones((2, 4), jnp.uint32)
    with pytest.raises(TypeError, match=rf"packed.*{dtype}|{dtype}.*share"):
        jitted({"packed": jnp.ones(4, dtype)}, {}, words)
    jitted({"w": jnp.ones(4)}, {}, words)
    finish(proof, tmp_path, 1)


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_500)])])
def test_many_leaves(tmp_path, count):
    """JAX takes two minutes and ten gigabytes to compile the five programs of a run with ten thousand results."""
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        jitted = proof.jit(step)
        params = [jnp.full((index % 3,), index, jnp.int32) for index in range(count)]
        params, _ = jitted(params, (), jnp.ones((2, 4), jnp.uint32))
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_passed) == ("passed", 1)
    [schema] = records(tmp_path / "proof", "schema")
    assert len(schema["body"]["parameters"]) == count
    assert records(tmp_path / "proof", "state")[-1]["body"]["roots"]["parameters"] == roots_of(params)


def test_one_buffer_twice_in_a_state_is_committed_twice(proof, tmp_path):
    shared = jnp.arange(6, dtype=jnp.float32)
    jitted = proof.jit(step)
    params, opt_state = {"a": shared, "b": shared}, {"c": shared}
    for number in range(3):
        params, opt_state = jitted(params, opt_state, jnp.full((2, 4), number, jnp.uint32))
        # The same array again, by two names: what was there before the update has the digests of what was left.
        params = {"a": params["a"], "b": params["a"]}
    # JAX itself refuses to give one buffer away twice, and that poisons nothing either.
    with pytest.raises((ValueError, RuntimeError), match="twice"):
        proof.jit(step, donate_argnames="params")(params, opt_state, jnp.ones((2, 4), jnp.uint32))
    params, opt_state = jitted(params, opt_state, jnp.ones((2, 4), jnp.uint32))
    finish(proof, tmp_path, 4)
