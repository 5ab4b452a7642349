"""Holds the shared vectors of 8-bit floats against the types that JAX itself uses.

Run as a program to write the file anew.
"""

import json
import math
import struct
from pathlib import Path

import ml_dtypes
import numpy as np

VECTORS = Path(__file__).with_name("float8.json")
DTYPES = (
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3b11fnuz",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)


def _values(dtype: str) -> list[str]:
    """The binary64 bits, in hexadecimal, of the value of each bit pattern; readers of JSON round decimal numbers."""
    patterns = np.arange(256, dtype=np.uint8)
    values = patterns.view(getattr(ml_dtypes, dtype)).astype(np.float64)
    return ["nan" if math.isnan(value) else struct.pack(">d", value).hex() for value in values.tolist()]


def test_vectors_are_the_values_of_the_frameworks_types() -> None:
    vectors = json.loads(VECTORS.read_text())
    assert sorted(vectors) == sorted(DTYPES)
    for dtype in DTYPES:
        assert vectors[dtype] == _values(dtype)


if __name__ == "__main__":
    lines = [f'"{dtype}": {json.dumps(_values(dtype))}' for dtype in DTYPES]
    VECTORS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
