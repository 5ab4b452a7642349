"""Checks of arguments, with messages that give the value and what is accepted.

NumPy's scalars are numbers too. A bool is none, though Python takes it for an int: `probe_ratio=True` is a mistake.
"""

import math
from numbers import Integral, Real


def checked_integer(name: str, value: object, low: int, high: int | None = None) -> int:
    """Return an argument as an int.

    Raises:
        TypeError: It is no integer.
        ValueError: It is out of range.
    """
    accepted = f"an integer, at least {low}" if high is None else f"an integer from {low} to {high}"
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it is {accepted}")
    number = int(value)
    if number < low or (high is not None and number > high):
        raise ValueError(f"{name} is {number}; it is {accepted}")
    return number


def checked_number(name: str, value: object, low: float, high: float = math.inf) -> float:
    """Return an argument as a finite float.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of range, infinite or NaN.
    """
    accepted = f"a number from {low:g} to {high:g}" if math.isfinite(high) else f"a finite number, at least {low:g}"
    number = _as_float(name, value, accepted)
    if not (low <= number <= high and math.isfinite(number)):
        raise ValueError(f"{name} is {value!r}; it is {accepted}")
    return number


def checked_ratio(name: str, value: object) -> float:
    """Return an argument as a float above 0 and at most 1.

    Raises:
        TypeError: It is no number.
        ValueError: It is out of range.
    """
    accepted = "a number above 0 and at most 1"
    ratio = _as_float(name, value, accepted)
    if not 0.0 < ratio <= 1.0:
        raise ValueError(f"{name} is {value!r}; it is {accepted}")
    return ratio


def _as_float(name: str, value: object, accepted: str) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); it is {accepted}")
    try:
        return float(value)
    except OverflowError:  # An int beyond binary64 is out of every range.
        return math.inf
