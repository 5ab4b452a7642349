"""What ZKDV raises and warns with.

Messages say what was wrong, where, and what to do; nothing that a user needs is hidden in `__cause__`. Arguments of a
wrong type or out of range are `TypeError` and `ValueError`, raised where they were given.
"""

import inspect
import warnings


class ZKDVError(RuntimeError):
    """Base of what goes wrong in a run, its transcript, its keys or its plugins."""


class ZKDVPoisonedError(ZKDVError):
    """The run has failed before and accepts nothing more; `__cause__` is the failure."""


class ZKDVVerificationError(ZKDVError):
    """A check of an update failed, or a transcript did not verify."""


class ZKDVWarning(UserWarning):
    """Something that a run can go on with and that its owner should know."""


def warn(message: str) -> None:
    """Warn with `ZKDVWarning`, at the line outside of ZKDV that led here: what is quoted is the user's own code."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and f"{frame.f_globals.get('__name__')}.".startswith("zkdv."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, ZKDVWarning, stacklevel=level)
