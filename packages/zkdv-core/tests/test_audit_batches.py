"""Files that an audit takes evidence from, and a data set that the auditor supplies."""

import ml_dtypes
import numpy as np
import pytest
import safetensors

from zkdv import _native
from zkdv.auditing._batches import BatchSource
from zkdv.auditing._run import Outline, RecordedUpdate
from zkdv.batch import BatchLayout
from zkdv.errors import ZKDVError
from zkdv.evidence_files import file_digest, read_words
from zkdv.schema import Schema

ROOT, WINDOW = bytes(range(32)), 2
LAYOUT = BatchLayout.of(["images", "labels", "weights"], ["bfloat16", "int32", "float8_e4m3fn"], [(4, 3), (4,), (4,)])
IMAGES = np.arange(12, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(4, 3)
LABELS = np.arange(4, dtype=np.int32)
WEIGHTS = np.array([1, 0.5, 0, 2], np.float32).astype(ml_dtypes.float8_e4m3fn)


def outline(folder):
    return Outline(
        folder=folder,
        root=ROOT,
        prover="test",
        configuration={"rolling-window": WINDOW},
        environment={},
        schema=Schema((), (), LAYOUT),
        programs={},
        segments=[],
        checkpoints={},
        updates=1,
    )


def update():
    digest = _native.batch_commit(LAYOUT.pack([IMAGES, LABELS, WEIGHTS]), WINDOW, _native.rolling_base(ROOT)).digest
    return RecordedUpdate(0, 0, digest, 0, {}, ())


def save(path, **tensors):
    held = {
        name: safetensors.TensorSpec(
            dtype=array.dtype.name, shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes
        )
        for name, array in tensors.items()
    }
    path.parent.mkdir()
    safetensors.serialize_file(held, str(path))


def test_a_leaf_whose_dtype_numpy_lacks_is_taken_from_a_file(tmp_path):
    save(tmp_path / "data" / "0.safetensors", images=IMAGES, labels=LABELS, weights=WEIGHTS)
    with BatchSource(outline(tmp_path), tmp_path / "data") as source:
        words = read_words(source.find(update()), LAYOUT.rows, LAYOUT.width)
    np.testing.assert_array_equal(words, LAYOUT.pack([IMAGES, LABELS, WEIGHTS]))


def test_a_leaf_of_another_size_is_refused_with_both_shapes(tmp_path):
    save(tmp_path / "data" / "0.safetensors", images=IMAGES[:3], labels=LABELS, weights=WEIGHTS)
    with (
        BatchSource(outline(tmp_path), tmp_path / "data") as source,
        pytest.raises(ZKDVError, match=r"leaf images is uint8\[18\].*bfloat16\[4, 3\]"),
    ):
        source.find(update())


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    # A segment whose evidence can't be read is not auditable, and must not end the audit of the others.
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ZKDVError, match="can't be read: "):
            file_digest(path)
