"""Files of evidence beside a transcript: states, batches, and what stands under the roots of an update.

All are safetensors files. A dtype that safetensors does not have is stored as bytes, with an axis more. What a reader
gets is as good as the digests that it is compared with: nothing in a file is believed by itself.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
from numpy.typing import NDArray

from zkdv import _native
from zkdv.dtypes import SAFETENSORS_DTYPES, named_dtype
from zkdv.errors import ZKDVError
from zkdv.schema import TREES, LeafEvidence, Schema, TreeName
from zkdv.sharding import probe_digest

__all__ = [
    "BATCH_FOLDER",
    "CHECKPOINT_FOLDER",
    "COMPONENT_FOLDER",
    "TEXT_EXTENSION",
    "batch_file",
    "checkpoint_file",
    "component_file",
    "file_digest",
    "read_components",
    "read_state",
    "read_tensors",
    "read_words",
    "write_components",
    "write_state",
    "write_words",
]

CHECKPOINT_FOLDER = "checkpoints"
BATCH_FOLDER = "batches"
COMPONENT_FOLDER = "evidence"
TEXT_EXTENSION = "txt"
"""Extension in the folder of programs of their text forms, whose names are the digests of these."""

WORDS = "words"

HEADER_LIMIT_BYTES = 128 * 1024 * 1024
"""More than safetensors itself allows a header to have: what a file may hold beside its tensors."""

_STORED = frozenset(SAFETENSORS_DTYPES.values())
# Whether NumPy has a dtype can't be asked: what somebody imports may register others.
_NUMPY_TYPES = {
    stored: name for stored, name in SAFETENSORS_DTYPES.items() if not name.startswith(("bfloat16", "float8"))
}


def checkpoint_file(update: int) -> str:
    """Return the name in a run's folder of the state before an update."""
    return f"{CHECKPOINT_FOLDER}/{update}.safetensors"


def batch_file(digest: bytes) -> str:
    """Return the name in a run's folder of a batch, by its committed digest."""
    return f"{BATCH_FOLDER}/{digest.hex()}.safetensors"


def component_file(update: int) -> str:
    """Return the name in a run's folder of what stands under the roots of an update."""
    return f"{COMPONENT_FOLDER}/{update}.safetensors"


def file_digest(path: Path) -> bytes:
    """Return the plain BLAKE3-256 of a file's bytes, which are read as a stream.

    Raises:
        ZKDVError: It can't be read.
    """
    try:
        if path.stat().st_size == 0:
            return _native.leaf_digest(b"")
        return _native.leaf_digest(np.memmap(path, np.uint8, "r"))
    except OSError as error:
        raise ZKDVError(f"{path} can't be read: {error.strerror}") from error


# States.


def write_state(path: Path, schema: Schema, leaves: Sequence[NDArray[Any]]) -> None:
    """Write a state, whole or not at all.

    Args:
        path: The file.
        schema: Names of the leaves.
        leaves: All of them, parameters first, in C order.
    """
    names = [_leaf_name(tree, leaf.name) for tree in TREES for leaf in schema.tree(tree)]
    dtypes = [leaf.dtype for tree in TREES for leaf in schema.tree(tree)]
    _write(path, list(zip(names, dtypes, leaves, strict=True)))


def read_state(path: Path, schema: Schema) -> list[NDArray[Any]]:
    """Read a state.

    Returns:
        The leaves, parameters first, with the schema's dtypes and shapes.

    Raises:
        ZKDVError: The file is missing, is no safetensors file, or holds other leaves; says which.
    """
    specs = [(_leaf_name(tree, leaf.name), leaf) for tree in TREES for leaf in schema.tree(tree)]
    expected = sum(leaf.size * named_dtype(leaf.dtype).itemsize for _, leaf in specs)
    tensors = read_tensors(path, expected)
    leaves: list[NDArray[Any]] = []
    for name, leaf in specs:
        if name not in tensors:
            raise ZKDVError(f"{path} lacks the tensor {name}")
        leaves.append(_shaped(path, name, tensors.pop(name), leaf.dtype, leaf.shape))
    if tensors:
        raise ZKDVError(f"{path} holds a tensor that the schema does not have: {min(tensors)}")
    return leaves


# Batches.


def write_words(path: Path, words: NDArray[np.uint32]) -> None:
    """Write a packed batch, shape (rows, width), uint32, whole or not at all."""
    _write(path, [(WORDS, "uint32", words)])


def read_words(path: Path, rows: int, width: int) -> NDArray[np.uint32]:
    """Read a packed batch.

    Raises:
        ZKDVError: The file is missing, is no safetensors file, or holds something else.
    """
    tensors = read_tensors(path, rows * width * 4)
    if WORDS not in tensors:
        raise ZKDVError(f"{path} lacks the tensor {WORDS}")
    words: NDArray[np.uint32] = _shaped(path, WORDS, tensors[WORDS], "uint32", (rows, width))
    return words


# Components.


def write_components(path: Path, evidence: LeafEvidence, batch: _native.BatchCommitment) -> None:
    """Write what stands under the roots and the batch digest of an update, whole or not at all."""
    tensors: list[tuple[str, str, NDArray[Any]]] = []
    for tree, digests in evidence.digests.items():
        tensors.append((f"{tree}/digests", "uint8", _joined(digests)))
        for leaf, probe in enumerate(evidence.probes[tree]):
            if probe is not None:
                tensors.append((f"{tree}/probes/{leaf}", probe.dtype.name, probe))
    tensors += [
        (f"batch/{name}", "uint8", _joined([digest]))
        for name, digest in (
            ("matrix", batch.matrix),
            ("row-root", batch.row_root),
            ("window-root", batch.window_root),
        )
    ]
    tensors.append(("batch/counts", "uint64", np.array([batch.rows, batch.width, batch.window_count], np.uint64)))
    _write(path, tensors)


def read_components(path: Path, schema: Schema, roots: Mapping[Any, bytes], probe_ratio: float) -> LeafEvidence:
    """Read what stands under the roots of an update, and hold it against them.

    Args:
        path: The file.
        schema: The leaves.
        roots: The update's `after`, as recorded; only trees that are in it are read.
        probe_ratio: The run's.

    Raises:
        ZKDVError: The file is missing, is no safetensors file, or does not lead to the recorded roots.
    """
    # A digest and a probe, which has at most the elements of its leaf, for each leaf; two float64 for a complex one.
    expected = sum(64 + 16 * max(leaf.size, 1) for tree in TREES for leaf in schema.tree(tree)) + 1024
    tensors = read_tensors(path, expected)
    digests: dict[TreeName, Sequence[bytes]] = {}
    probe_digests: dict[TreeName, Sequence[bytes]] = {}
    probes: dict[TreeName, Sequence[NDArray[Any] | None]] = {}
    for tree in TREES:
        if tree not in roots:
            continue
        count = len(schema.tree(tree))
        name = f"{tree}/digests"
        joined = _shaped(path, name, tensors.get(name, np.empty(0, np.uint8)), "uint8", (count, 32))
        digests[tree] = [row.tobytes() for row in joined]
        probes[tree] = [tensors.get(f"{tree}/probes/{leaf}") for leaf in range(count)]
        try:
            probe_digests[tree] = [
                probe_digest(leaf.shape, leaf.dtype, leaf.sharding, vector, probe_ratio)
                for leaf, vector in zip(schema.tree(tree), probes[tree], strict=True)
            ]
        except ValueError as error:
            raise ZKDVError(f"{path} holds a probe that does not belong to its leaf: {error}") from error
        if _native.tree_root(tree, digests[tree]) != roots[tree]:
            raise ZKDVError(f"{path} holds {tree} digests that do not lead to the recorded root")
    read = LeafEvidence(digests, probe_digests, lambda: probes)
    if any(found != roots.get(kind, found) for kind, found in read.roots.items()):
        raise ZKDVError(f"{path} holds probes that do not lead to the recorded root")
    return read


# Tensors.


def read_tensors(path: Path, expected_bytes: int) -> dict[str, NDArray[Any]]:
    """Read all tensors of a safetensors file; those whose dtype NumPy lacks come as bytes.

    Args:
        path: The file.
        expected_bytes: What the tensors should have together: a much longer file is not read.

    Raises:
        ZKDVError: The file is missing, too long, or no safetensors file.
    """
    try:
        length = path.stat().st_size
        if path.is_symlink() or not path.is_file():
            raise ZKDVError(f"{path} is no regular file; evidence is read from nothing else")
        if length > expected_bytes + HEADER_LIMIT_BYTES:
            raise ZKDVError(f"{path} has {length} bytes, where tensors of {expected_bytes} bytes are expected")
        deserialize: Callable[[bytes], list[tuple[str, dict[str, Any]]]] = safetensors.deserialize
        found = deserialize(path.read_bytes())
    except FileNotFoundError:
        raise ZKDVError(f"{path} is missing") from None
    except OSError as error:
        raise ZKDVError(f"{path} can't be read: {error.strerror}") from error
    except safetensors.SafetensorError as error:
        raise ZKDVError(f"{path} is no safetensors file: {error}") from error
    return {name: _array(tensor) for name, tensor in found}


def _array(tensor: Mapping[str, Any]) -> NDArray[Any]:
    dtype = _NUMPY_TYPES.get(tensor["dtype"])
    data = np.frombuffer(tensor["data"], np.uint8)
    return data if dtype is None else data.view(dtype).reshape(tensor["shape"])


def _shaped(path: Path, name: str, array: NDArray[Any], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Return an array's bytes with the dtype and shape that it should have."""
    kind = named_dtype(dtype)
    size = kind.itemsize * int(np.prod(shape, dtype=object))
    if array.nbytes != size:
        raise ZKDVError(f"{path} holds {array.nbytes} bytes for {name}, which has {size} as {dtype}{list(shape)}")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.view(kind).reshape(shape) if size else np.empty(shape, kind)


def _leaf_name(tree: TreeName, name: str) -> str:
    return f"{tree}/{name}"


def _joined(digests: Sequence[bytes]) -> NDArray[np.uint8]:
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)


def _write(path: Path, tensors: Iterable[tuple[str, str, NDArray[Any]]]) -> None:
    held: list[NDArray[Any]] = []
    specs: dict[str, safetensors.TensorSpec] = {}
    for name, dtype, array in tensors:
        plain = np.ascontiguousarray(array).reshape(array.shape)
        held.append(plain)
        stored = dtype if dtype in _STORED else "uint8"
        shape = plain.shape if stored == dtype else (*plain.shape, plain.dtype.itemsize)
        specs[name] = safetensors.TensorSpec(
            dtype=stored, shape=list(shape), data_ptr=plain.ctypes.data, data_len=plain.nbytes
        )
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(exist_ok=True)
        safetensors.serialize_file(specs, os.fspath(partial))
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise ZKDVError(f"evidence can't be written to {path}: {error.strerror}") from error
    except safetensors.SafetensorError as error:
        raise ZKDVError(f"evidence can't be written to {path}: {error}") from error
