"""The dtypes of schema records, as NumPy has them."""

import importlib
from typing import Any

import numpy as np

from zkdv.errors import ZKDVError

__all__ = ["named_dtype"]


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
