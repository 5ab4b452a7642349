"""Arrays that NumPy wrote: `.npy`, and `.npz`, an archive of them. Arrays of Python objects are pickles: refused."""

import functools
import lzma
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from zkdv.errors import ZKDVError
from zkdv.tensor_files._stored import StoredTensor, Tensors

NPY_MAGIC = b"\x93NUMPY"
NPY_NAME = "array"
"""What the array of an `.npy` file is called, which has no name of its own."""
READ_BYTES = 1 << 24

# What the readers of NumPy and Python raise over bytes that are no such file.
_DAMAGE = (
    EOFError,
    MemoryError,
    NotImplementedError,
    OSError,
    OverflowError,
    RecursionError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
_READ_HEADER = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_npy(path: Path) -> Tensors:
    """Read the header of an `.npy` file."""
    with _damage_named(path, NPY_NAME), path.open("rb") as file:
        return {NPY_NAME: _described(file, path, NPY_NAME, functools.partial(path.open, "rb"))}


def read_npz(path: Path) -> Tensors:
    """Read the headers of an `.npz` file."""
    tensors: dict[str, StoredTensor] = {}
    with _damage_named(path), zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            name = member.removesuffix(".npy")
            if name == member or name in tensors:
                raise ZKDVError(f"{path} is no .npz file: it holds {member!r}, which is no array or is there twice")
            with _damage_named(path, name), archive.open(member) as file:
                tensors[name] = _described(file, path, name, functools.partial(_open_member, path, member))
    return tensors


def _open_member(path: Path, member: str) -> IO[bytes]:
    return zipfile.ZipFile(path).open(member)


@contextmanager
def _damage_named(path: Path, name: str | None = None) -> Iterator[None]:
    """Name the file, and the array, where a reader fails."""
    try:
        yield
    except ZKDVError:
        raise
    except _DAMAGE as error:
        place = f"{path}" if name is None else f"{path}: the array {name!r}"
        raise ZKDVError(f"{place} is damaged: {' '.join(str(error).split()) or type(error).__name__}") from error


def _described(file: IO[bytes], path: Path, name: str, opener: Any) -> StoredTensor:
    shape, fortran, dtype = _header(file, path, name)
    known = str(dtype.newbyteorder("=")) if dtype.kind in "biufc" else dtype.str
    return StoredTensor(known, shape, str(path), functools.partial(_read, opener, path, name, (shape, fortran, dtype)))


def _header(file: IO[bytes], path: Path, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = npy.read_magic(file)
    if version not in _READ_HEADER:
        raise ZKDVError(f"{path}: the array {name!r} has version {version} of the .npy format, which is not read")
    shape, fortran, dtype = _READ_HEADER[version](file)
    if dtype.hasobject:
        raise ZKDVError(f"{path}: the array {name!r} holds Python objects, which are pickled; save numbers only")
    if any(size < 0 for size in shape):
        raise ZKDVError(f"{path}: the array {name!r} is damaged: its shape is {list(shape)}")
    return shape, fortran, dtype


def _read(opener: Any, path: Path, name: str, expected: tuple[Any, ...]) -> NDArray[Any]:
    shape, fortran, dtype = expected
    length = prod(shape) * dtype.itemsize
    with _damage_named(path, name), opener() as file:
        if _header(file, path, name) != expected:
            raise ZKDVError(f"{path} was changed while it was read")
        data = bytearray()
        # In pieces: what is not there is not allocated for.
        while len(data) < length and (piece := file.read(min(READ_BYTES, length - len(data)))):
            data += piece
    if len(data) != length:
        raise ZKDVError(f"{path}: the array {name!r} ends after {len(data)} of {length} bytes")
    array = np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    # In memory and in the file the order of bytes may differ; values are the same.
    return np.ascontiguousarray(array.astype(dtype.newbyteorder("<"), copy=False))
