"""What ZKDV raises and warns with.

Messages say what was wrong, where, and what to do; nothing that a user needs is hidden in `__cause__`. Arguments of a
wrong type or out of range are `TypeError` and `ValueError`, raised where they were given.
"""

import inspect
import warnings
from typing import NamedTuple


class ZKDVError(RuntimeError):
    """Base of what goes wrong in a run, its transcript, its keys or its plugins."""


class ZKDVPoisonedError(ZKDVError):
    """The run has failed before and accepts nothing more; `__cause__` is the failure."""


class ZKDVVerificationError(ZKDVError):
    """A check of an update failed, or a transcript did not verify."""


class ZKDVWarning(UserWarning):
    """Something that a run can go on with and that its owner should know."""


class CodePlace(NamedTuple):
    """A line of somebody's code."""

    file: str
    line: int


def calling_place(*others: str) -> CodePlace:
    """Return the line outside of ZKDV, and of other top-level packages that may stand between, that led here."""
    packages = tuple(f"{name}." for name in ("zkdv", *others))
    frame = inspect.currentframe()
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith(packages):
        frame = frame.f_back
    return CodePlace("<unknown>", 0) if frame is None else CodePlace(frame.f_code.co_filename, frame.f_lineno)


def warn(message: str, place: CodePlace | None = None) -> None:
    """Warn with `ZKDVWarning`.

    Args:
        message: What to say.
        place: The line to quote; default: the one outside of ZKDV that led here, the user's own.
    """
    if place is not None:
        warnings.warn_explicit(message, ZKDVWarning, place.file, place.line)
        return
    level, frame = 1, inspect.currentframe()
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("zkdv."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ZKDVWarning, stacklevel=level)
