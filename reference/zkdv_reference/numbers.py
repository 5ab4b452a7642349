"""Reading the elements of the dtypes that have probes."""

import math
import struct
from collections.abc import Callable

# Exponent bits, mantissa bits, exponent bias, and which patterns are no finite numbers.
SMALL_FLOATS = {
    "float16": (5, 10, 15, "ieee"),
    "bfloat16": (8, 7, 127, "ieee"),
    "float8_e3m4": (3, 4, 3, "ieee"),
    "float8_e4m3": (4, 3, 7, "ieee"),
    "float8_e5m2": (5, 2, 15, "ieee"),
    "float8_e4m3fn": (4, 3, 7, "fn"),
    "float8_e4m3fnuz": (4, 3, 8, "fnuz"),
    "float8_e4m3b11fnuz": (4, 3, 11, "fnuz"),
    "float8_e5m2fnuz": (5, 2, 16, "fnuz"),
}
ELEMENT_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}


def is_probed(dtype: str) -> bool:
    """Whether leaves of this dtype have probes."""
    return "float" in dtype or "complex" in dtype


def is_complex(dtype: str) -> bool:
    """Whether an element is two real numbers."""
    return "complex" in dtype


def is_double(dtype: str) -> bool:
    """Whether probes of this dtype are binary64 numbers."""
    return dtype in {"float64", "complex128"}


def reals(dtype: str, elements: bytes) -> list[float]:
    """The real numbers that stand in `elements`."""
    size, read = _reader(dtype)
    return [read(elements[start : start + size]) for start in range(0, len(elements), size)]


def binary32(value: float) -> float:
    """The nearest binary32 number."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _reader(dtype: str) -> tuple[int, Callable[[bytes], float]]:
    if dtype in {"float32", "complex64"}:
        return 4, lambda data: float(struct.unpack("<f", data)[0])
    if dtype in {"float64", "complex128"}:
        return 8, lambda data: float(struct.unpack("<d", data)[0])
    if dtype == "float8_e8m0fnu":
        return 1, lambda data: math.nan if data[0] == 255 else 2.0 ** (data[0] - 127)
    return ELEMENT_BYTES[dtype], lambda data: _small_float(int.from_bytes(data, "little"), *SMALL_FLOATS[dtype])


def _small_float(bits: int, exponent_bits: int, mantissa_bits: int, bias: int, special: str) -> float:
    mantissa = bits % 2**mantissa_bits
    exponent = bits >> mantissa_bits & 2**exponent_bits - 1
    is_negative = bits >> mantissa_bits + exponent_bits == 1
    highest = 2**exponent_bits - 1
    if special == "fnuz" and is_negative and mantissa == exponent == 0:
        return math.nan
    if special == "fn" and exponent == highest and mantissa == 2**mantissa_bits - 1:
        return math.nan
    if special == "ieee" and exponent == highest:
        value = math.nan if mantissa else math.inf
    elif exponent == 0:
        value = math.ldexp(mantissa, 1 - bias - mantissa_bits)
    else:
        value = math.ldexp(2**mantissa_bits + mantissa, exponent - bias - mantissa_bits)
    return -value if is_negative else value
