"""Safetensors files. The library judges the file; the bytes of a tensor are then read where its header says.

The library gives arrays of NumPy's own dtypes only, and neither bfloat16 nor float8 are among those.
"""

import functools
import json
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from zkdv.dtypes import SAFETENSORS_DTYPES
from zkdv.errors import ZKDVError
from zkdv.tensor_files._stored import StoredTensor, Tensors


def read(path: Path) -> Tensors:
    """Read the header of a file."""
    try:
        with safe_open(path, framework="np", backend="pread") as judged:
            slices = {name: judged.get_slice(name) for name in judged.keys()}  # noqa: SIM118 (it is no mapping)
            expected = {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}
    except SafetensorError as error:
        raise ZKDVError(f"{path} is no sound safetensors file: {' '.join(str(error).split())}") from error
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length), object_pairs_hook=functools.partial(_unique, path))
    header.pop("__metadata__", None)
    if {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items()} != expected:
        raise ZKDVError(f"{path} was changed while it was read")
    tensors = {}
    for name, (dtype, shape) in expected.items():
        start, stop = header[name]["data_offsets"]
        reader = functools.partial(_read_range, path, 8 + length + start, stop - start)
        tensors[name] = StoredTensor(SAFETENSORS_DTYPES.get(dtype, dtype), shape, str(path), reader)
    return tensors


def _unique(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a name that stands twice: readers differ in which of the two they take."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ZKDVError(f"{path} is no sound safetensors file: its header has one name twice")
    return found


def _read_range(path: Path, start: int, length: int) -> NDArray[np.uint8]:
    # Asked for first: a file that has shrunk must not cost memory.
    if path.stat().st_size < start + length:
        raise ZKDVError(f"{path} was changed while it was read")
    with path.open("rb") as file:
        file.seek(start, os.SEEK_SET)
        data = np.fromfile(file, np.uint8, length)
    if data.size != length:
        raise ZKDVError(f"{path} was changed while it was read")
    return data
