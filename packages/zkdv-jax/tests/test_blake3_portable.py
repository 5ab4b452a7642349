"""The pure-JAX BLAKE3 against the `blake3` package."""

import itertools

import blake3
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from zkdv.jax._blake3_portable import ELEMENTS_MAX, Joined, TreeInputs, digests, tree_digests

BOUNDARY_LENGTHS = [
    *(0, 1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 1023, 1024, 1025, 2047, 2048, 2049, 3071, 3072, 3073),
    *(4096, 5120, 5121, 7168, 8191, 8192, 8193, 16384, 31744, 31745, 65536, 100_001),
]
"""Around the borders of words, blocks, chunks and subtrees."""

SHORT_FLOATS = [
    *("bfloat16", "float16", "float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
DTYPES = [
    *("bool", "int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "complex64"),
    *("int64", "uint64", "float64", "complex128"),
    *SHORT_FLOATS,
]

TRUE = jnp.array(True)


def reference(array: np.ndarray) -> bytes:
    return blake3.blake3(np.ascontiguousarray(array).tobytes()).digest()


def as_bytes(rows: jax.Array) -> list[bytes]:
    return [row.tobytes() for row in np.asarray(rows)]


def random_array(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    """Every bit pattern of the type may occur."""
    numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, shape).astype(bool)
    size = int(np.prod(shape)) * numpy_dtype.itemsize
    return random.integers(0, 256, size, dtype=np.uint8).view(numpy_dtype).reshape(shape)


def hash_in_tiles(arrays: list[np.ndarray], tile_chunks: int) -> jax.Array:
    return jax.jit(lambda arrays: digests(arrays, tile_chunks=tile_chunks))(arrays)


def test_inputs_of_every_boundary_length_hashed_together_have_their_blake3_digests() -> None:
    arrays = [random_array((length,), "uint8", length) for length in BOUNDARY_LENGTHS]
    assert as_bytes(jax.jit(digests)(arrays)) == [reference(array) for array in arrays]


@pytest.mark.parametrize("length", [0, 1024, 1025, 5121])
def test_an_input_alone_has_its_blake3_digest(length: int) -> None:
    array = random_array((length,), "uint8")
    assert as_bytes(jax.jit(digests)([array])) == [reference(array)]


def test_arrays_of_every_dtype_have_the_digests_of_their_bytes() -> None:
    shapes = [(), (0,), (3, 0), (1,), (7,), (5, 51), (300, 7), (9, 1000)]
    arrays = {
        f"{dtype}{shape}": random_array(shape, dtype, seed) for dtype in DTYPES for seed, shape in enumerate(shapes)
    }
    with jax.enable_x64(new_val=True):
        # Few lanes, so that the larger arrays are read in place and the smaller ones are packed.
        found = as_bytes(hash_in_tiles(list(arrays.values()), 8))
    assert dict(zip(arrays, found, strict=True)) == {name: reference(array) for name, array in arrays.items()}


def test_every_bit_pattern_of_a_short_float_is_hashed_as_it_is() -> None:
    # XLA moves some short floats by way of float32, which changes NaNs.
    arrays = {}
    for dtype in SHORT_FLOATS:
        numpy_dtype = np.dtype(getattr(ml_dtypes, dtype, dtype))
        patterns = np.arange(256**numpy_dtype.itemsize).astype(f"uint{8 * numpy_dtype.itemsize}").view(numpy_dtype)
        arrays[f"{dtype}, packed"] = patterns[:-3]
        arrays[f"{dtype}, in place"] = np.tile(patterns, 64)
    found = as_bytes(hash_in_tiles(list(arrays.values()), 8))
    assert dict(zip(arrays, found, strict=True)) == {name: reference(array) for name, array in arrays.items()}


def test_signed_zeros_nans_and_subnormals_keep_their_bits() -> None:
    bits = np.array([0x80000000, 0x7FC00001, 0x7F800001, 0xFFC12345, 0x00000001, 0x807FFFFF, 0x7F800000], np.uint32)
    array = np.tile(bits.view(np.float32), 1000)
    assert as_bytes(jax.jit(digests)([array])) == [reference(array)]
    assert reference(np.zeros(1, np.float32)) != reference(-np.zeros(1, np.float32))


@pytest.mark.parametrize("tile_chunks", [8, 64, 512, 8192])
def test_large_inputs_have_the_same_digest_whatever_the_tile(tile_chunks: int) -> None:
    lengths = [8192 * 4, 8192 * 4 + 1, 1000, 65536 * 3 + 1000, 1_200_003, (1 << 21) + 1024]
    arrays = [random_array((length,), "uint8") for length in lengths]
    assert as_bytes(hash_in_tiles(arrays, tile_chunks)) == [reference(array) for array in arrays]


def test_joined_inputs_are_hashed_piece_by_piece() -> None:
    sizes = [0, 1, 255, 256, 257, 0, 5000]
    array = random_array((sum(sizes),), "float32")
    pieces = np.split(array, np.cumsum(sizes)[:-1])
    rows = jax.jit(
        lambda array: tree_digests((TreeInputs(TRUE, (), [Joined(array, sizes)]), TreeInputs(TRUE, [array])))
    )(array)
    assert as_bytes(rows) == [*map(reference, pieces), reference(array)]


def test_a_tree_that_is_not_due_has_zeros_for_digests() -> None:
    trees = [
        [random_array(shape, "float32", seed) for seed, shape in enumerate([(3,), (700, 900), (2048,)])],
        [random_array(shape, "int8", seed) for seed, shape in enumerate([(600_000,), (5,), (0,)])],
    ]

    @jax.jit
    def program(first: jax.Array, second: jax.Array, trees: list[list[jax.Array]]) -> jax.Array:
        return tree_digests((TreeInputs(first, trees[0]), TreeInputs(second, trees[1])))

    for due in itertools.product([True, False], repeat=2):
        expected = [
            reference(array) if is_due else bytes(32) for tree, is_due in zip(trees, due, strict=True) for array in tree
        ]
        assert as_bytes(program(*map(jnp.array, due), trees)) == expected


def test_one_changed_bit_changes_the_digest() -> None:
    array = random_array((700_001,), "uint8")
    program = jax.jit(digests)
    seen = set(as_bytes(program([array])))
    for position in (0, 1023, 1024, 524_287, 524_288, 700_000):
        changed = array.copy()
        changed[position] ^= 1
        found = as_bytes(program([changed]))
        assert found == [reference(changed)]
        assert not seen.intersection(found)
        seen.update(found)


def test_an_empty_list_has_no_digests() -> None:
    assert digests([]).shape == (0, 8)


def test_a_program_holds_two_compressions_however_many_inputs_it_hashes() -> None:
    def compressions(count: int) -> int:
        shapes = [(3, 5), (1000,), (400, 700)]
        arrays = [jax.ShapeDtypeStruct(shapes[index % 3], jnp.float32) for index in range(count)]
        return str(jax.make_jaxpr(digests)(arrays)).count("shift_right_logical")

    # A compression holds one round, in a loop; a round mixes twice, and each mixing rotates four times.
    assert compressions(3) == compressions(60) == 2 * 2 * 4


def test_an_array_beyond_32_bit_indices_is_refused_with_its_size() -> None:
    array = jax.ShapeDtypeStruct((ELEMENTS_MAX,), jnp.uint8)
    with pytest.raises(ValueError, match=r"4294967296 elements, uint8\[4294967296\], is too large for the portable"):
        jax.eval_shape(digests, [array])


@pytest.mark.slow
def test_elements_past_two_to_the_31_are_reached() -> None:
    array = np.zeros((1 << 31) + 5000, np.uint8)
    array[-5000:] = random_array((5000,), "uint8")
    assert as_bytes(jax.jit(digests)([array])) == [reference(array)]
