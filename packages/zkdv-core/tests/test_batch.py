"""Batches survive packing into words bit for bit, wherever their leaves come to lie."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zkdv.batch import BatchLayout

DTYPES = ["bool", "int8", "uint16", "float16", "int32", "float32", "int64", "float64", "complex64", "complex128"]


def random_array(generator, dtype, shape):
    data = generator.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    if dtype == "bool":
        data &= 1
    return data.view(dtype).reshape(shape)


def layout_of(arrays):
    return BatchLayout.of(
        [f"leaf{i}" for i in range(len(arrays))], [str(a.dtype) for a in arrays], [a.shape for a in arrays]
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 5), max_size=3).map(tuple)), min_size=0, max_size=6
    ),
    st.integers(0, 2**32 - 1),
)
def test_packing_is_lossless(leaves, seed):
    generator = np.random.default_rng(seed)
    arrays = [random_array(generator, dtype, shape) for dtype, shape in leaves]
    layout = layout_of(arrays)
    matrix = layout.pack(arrays)
    assert matrix.shape == (layout.rows, layout.width)
    for array, restored in zip(arrays, layout.unpack(matrix, [a.dtype for a in arrays]), strict=True):
        assert restored.dtype == array.dtype
        assert restored.shape == array.shape
        assert restored.tobytes() == array.tobytes()


def test_leaves_that_share_the_leading_axis_are_joined_row_by_row():
    images = np.arange(12, dtype=np.float32).reshape(3, 4)
    labels = np.array([7, 8, 9], np.int32)
    matrix = layout_of([images, labels]).pack([images, labels])
    assert matrix.shape == (3, 5)
    assert matrix[:, 4].tolist() == [7, 8, 9]
    assert matrix[1, :4].tobytes() == images[1].tobytes()


def test_other_leaves_fill_padded_rows_below():
    images = np.ones((4, 3), np.uint8)
    key = np.array([5, 6], np.uint32)
    matrix = layout_of([images, key]).pack([images, key])
    assert matrix.shape == (5, 3)
    assert matrix[4].tolist() == [5, 6, 0]


def test_wide_elements_put_the_low_word_first():
    value = np.array([0x1_0000_0002], np.uint64)
    assert layout_of([value]).pack([value]).tolist() == [[2, 1]]


def test_packing_copies_so_that_a_loader_may_reuse_its_buffer():
    images = np.ones((2, 2), np.float32)
    matrix = layout_of([images]).pack([images])
    images[:] = 0
    assert matrix.any()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_types_that_numpy_does_not_know_pack_too(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="comes with the JAX frontend")
    array = np.arange(6).astype(getattr(ml_dtypes, dtype)).reshape(2, 3)
    layout = layout_of([array])
    [restored] = layout.unpack(layout.pack([array]), [array.dtype])
    assert restored.tobytes() == array.tobytes()
