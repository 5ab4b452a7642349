"""The dtypes of schema records, as NumPy has them."""

import importlib
from typing import Any

import numpy as np

from zkdv.errors import ZKDVError

__all__ = ["SAFETENSORS_DTYPES", "named_dtype"]

SAFETENSORS_DTYPES = {
    "BOOL": "bool",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2": "float8_e5m2",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}
"""Dtypes by their names in safetensors files; packed ones (F4, F6) are not among them, as the protocol has none."""


def named_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype of a name in a schema record: NumPy's, or that of `ml_dtypes` where NumPy has none.

    Raises:
        ZKDVError: There is none, or `ml_dtypes` is not installed.
    """
    try:
        return np.dtype(name)
    except TypeError:
        # Whoever trains with such a dtype has the distribution; this one does without.
        try:
            dtype: np.dtype[Any] = np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        except (ImportError, AttributeError):
            raise ZKDVError(f"NumPy has no dtype {name}; install ml_dtypes, which has it: uv add ml_dtypes") from None
        return dtype
