"""Where leaves, signs and probes stand, against the native module and an independent BLAKE3."""

import math

import blake3
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zkdv import _native
from zkdv.jax._commitment_plan import (
    DTYPES,
    CommitmentPlan,
    dtype_name,
    leaf_digests,
    probe_digests,
    probe_vectors,
    sign_words,
)

SHAPES = [(), (1,), (0,), (3, 0), (7,), (31,), (32,), (33,), (100,), (101,), (4, 257), (2, 3, 1000), (5, 1)]
ROOT = bytes(range(32))


def abstract(shape: tuple[int, ...], dtype: str) -> jax.ShapeDtypeStruct:
    with jax.enable_x64(new_val=True):
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def every_leaf() -> list[tuple[str, jax.ShapeDtypeStruct]]:
    return [(f"{dtype}{shape}", abstract(shape, dtype)) for dtype in sorted(DTYPES) for shape in SHAPES]


@pytest.mark.parametrize("ratio", [0.01, 0.013, 0.5, 1.0, 1e-300])
def test_geometry_agrees_with_the_native_module(ratio: float) -> None:
    plan = CommitmentPlan.build(every_leaf(), every_leaf(), ratio)
    words = values32 = values64 = 0
    for leaf in plan.leaves:
        length = _native.probe_length(leaf.shape, leaf.dtype, ratio)
        if leaf.probe is None:
            assert (length, _native.probe_sign_words(leaf.shape, leaf.dtype)) == (0, 0)
            continue
        assert leaf.probe.size == length
        assert leaf.probe.sign_words == _native.probe_sign_words(leaf.shape, leaf.dtype)
        assert leaf.probe.sign_offset == words
        words += leaf.probe.sign_words
        if leaf.dtype in ("float64", "complex128"):
            assert (leaf.probe.dtype, leaf.probe.offset) == ("float64", values64)
            values64 += length
        else:
            assert (leaf.probe.dtype, leaf.probe.offset) == ("float32", values32)
            values32 += length
    assert (plan.sign_words, plan.probes32_size, plan.probes64_size) == (words, values32, values64)
    assert plan.parameters == len(plan.leaves) // 2


@pytest.mark.parametrize(
    ("dimension", "ratio"), [(1, 0.01), (100, 0.01), (101, 0.01), (257, 0.03), (999, 0.7), (64, 1.0)]
)
def test_slices_cover_a_row_as_the_protocol_cuts_it(dimension: int, ratio: float) -> None:
    plan = CommitmentPlan.build([("w", abstract((dimension,), "float32"))], [], ratio)
    probe = plan.leaves[0].probe
    assert probe is not None
    kept = max(1, math.ceil(ratio * dimension))
    assert probe.slice_bounds().tolist() == [j * dimension // kept for j in range(kept + 1)]


def test_signs_are_the_protocols_bit_streams_each_from_a_new_word() -> None:
    parameters = [
        ("a", abstract((3, 33), "float32")),
        ("b", abstract((), "float32")),
        ("c", abstract((40,), "complex64")),
    ]
    optimizer = [("count", abstract((), "int32")), ("m", abstract((64,), "bfloat16"))]
    plan = CommitmentPlan.build(parameters, optimizer, 0.01)

    def stream(tree: int, leaf: int, words: int) -> bytes:
        seed = ROOT + bytes([tree]) + leaf.to_bytes(8, "little")
        return blake3.blake3(seed, derive_key_context="zkdv 1 probe signs").digest(4 * words)

    expected = stream(0, 0, 2) + stream(0, 2, 3) + stream(1, 1, 2)
    found = sign_words(plan, ROOT)
    assert found.dtype == np.uint32
    assert found.tobytes() == expected
    assert sign_words(plan, bytes(32)).tobytes() != expected


def test_a_plan_without_probes_has_no_signs() -> None:
    plan = CommitmentPlan.build([("i", abstract((5,), "int32"))], [], 0.01)
    assert sign_words(plan, ROOT).shape == (0,)


def test_results_are_taken_apart_in_plan_order() -> None:
    parameters = [
        ("a", abstract((2, 200), "float32")),
        ("i", abstract((3,), "int8")),
        ("d", abstract((100,), "float64")),
    ]
    plan = CommitmentPlan.build(parameters, [("m", abstract((300,), "float16"))], 0.01)
    digests = np.arange(64, dtype=np.uint32).reshape(8, 8)
    assert leaf_digests(plan, digests) == [digests[index].tobytes() for index in range(4)]
    assert probe_digests(plan, digests) == [digests[index].tobytes() for index in range(4, 8)]
    vectors = probe_vectors(plan, np.arange(7, dtype=np.float32), np.array([9.0]))
    assert [None if vector is None else vector.tolist() for vector in vectors] == [[0, 1, 2, 3], None, [9], [4, 5, 6]]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_a_type_whose_elements_share_bytes_is_refused_by_leaf_and_name(dtype: str) -> None:
    with pytest.raises(TypeError, match=f"optimizer leaf scale is {dtype}, whose elements share bytes"):
        CommitmentPlan.build([], [("scale", abstract((8,), dtype))], 0.01)


def test_a_typed_random_key_is_refused_with_what_to_pass_instead() -> None:
    with pytest.raises(TypeError, match=r"parameters leaf rng is a typed random key .*jax\.random\.key_data"):
        CommitmentPlan.build([("rng", jax.eval_shape(jax.random.key, 0))], [], 0.01)


@pytest.mark.parametrize("dtype", [np.dtype("datetime64[s]"), np.dtype("S3"), np.dtype(object)])
def test_what_is_no_number_is_refused(dtype: np.dtype) -> None:
    message = r"batch leaf x has element type .* which can't be committed; these can: bfloat16"
    with pytest.raises(TypeError, match=message):
        dtype_name(dtype, "batch leaf x")


@pytest.mark.parametrize("ratio", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_a_probe_ratio_out_of_range_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match="probe_ratio must be above 0 and at most 1"):
        CommitmentPlan.build([], [], ratio)


def test_arrays_that_are_not_the_planned_ones_are_refused_by_name() -> None:
    plan = CommitmentPlan.build([("w", abstract((3,), "float32"))], [("m", abstract((3,), "float32"))], 0.01)
    with pytest.raises(ValueError, match="the plan has 2 leaves, 1 were given"):
        plan.check_leaves([abstract((3,), "float32")])
    message = r"optimizer leaf m is planned as float32\[3\] and came as bfloat16\[3\]"
    with pytest.raises(ValueError, match=message):
        plan.check_leaves([abstract((3,), "float32"), abstract((3,), "bfloat16")])
