"""When a value of an attest program agrees with what was committed."""

import math
import struct

from zkdv_reference.numbers import ELEMENT_BYTES, SMALL_FLOATS, is_probed, reals

# Explicit mantissa bits, exponent of the smallest normal number, whether there are infinities.
FORMATS = {
    "float32": (23, -126, True),
    "complex64": (23, -126, True),
    "float64": (52, -1022, True),
    "complex128": (52, -1022, True),
    "float8_e8m0fnu": (0, -127, False),
} | {
    name: (mantissa_bits, 1 - bias, special == "ieee")
    for name, (_, mantissa_bits, bias, special) in SMALL_FLOATS.items()
}


def delta_agrees(dtype: str, before: bytes, after: bytes, delta: float, tolerance: tuple[float, float]) -> bool:
    """Whether `delta` is what the update added to an element, of which the bytes before and after are given."""
    old, new = _number(dtype, before), _number(dtype, after)
    if math.isfinite(old) and math.isfinite(new):
        return _agrees(delta, float(new - old), _spacing(dtype, max(abs(old), abs(new))), tolerance)
    total = float(old) + delta
    if math.isnan(total):
        return math.isnan(new)
    if abs(total) < _largest(dtype):
        return False
    return new == math.copysign(math.inf, total) or (math.isnan(new) and not FORMATS[dtype][2])


def element_agrees(dtype: str, committed: bytes, value: float, tolerance: tuple[float, float]) -> bool:
    """Whether `value` is the committed element."""
    expected = float(_number(dtype, committed))
    return _agrees(value, expected, _spacing(dtype, max(abs(expected), abs(value))), tolerance)


def _agrees(ours: float, theirs: float, spacing: float, tolerance: tuple[float, float]) -> bool:
    if ours == theirs or (math.isnan(ours) and math.isnan(theirs)):
        return True
    absolute, relative = tolerance
    distance = abs(ours - theirs)
    allowed = absolute + relative * max(abs(ours), abs(theirs)) + spacing
    return math.isfinite(ours) and math.isfinite(theirs) and math.isfinite(distance) and distance <= allowed


def _number(dtype: str, element: bytes) -> float | int:
    """The value; of a complex element the real part."""
    if is_probed(dtype):
        return reals(dtype, element)[0]
    return int.from_bytes(element, "little", signed=dtype.startswith("int"))


def _spacing(dtype: str, magnitude: float) -> float:
    if dtype not in FORMATS:
        return 0.0
    mantissa_bits, lowest, _ = FORMATS[dtype]
    return math.ldexp(1.0, -mantissa_bits) * max(magnitude, math.ldexp(1.0, lowest))


def _largest(dtype: str) -> float:
    """The largest finite number: read off the bit patterns where they are few."""
    if dtype in {"float64", "complex128"}:
        return math.ldexp(2 - 2**-52, 1023)
    if dtype in {"float32", "complex64"}:
        return math.ldexp(2 - 2**-23, 127)
    size = ELEMENT_BYTES[dtype]
    form = {1: "<B", 2: "<H"}[size]
    patterns = b"".join(struct.pack(form, pattern) for pattern in range(256**size))
    return max(value for value in reals(dtype, patterns) if math.isfinite(value))
