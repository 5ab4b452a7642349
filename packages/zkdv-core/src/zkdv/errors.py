"""What ZKDV raises and warns with.

Messages say what was wrong, where, and what to do; nothing that a user needs is hidden in `__cause__`. Arguments of a
wrong type or out of range are `TypeError` and `ValueError`, raised where they were given.
"""


class ZKDVError(RuntimeError):
    """Base of what goes wrong in a run, its transcript, its keys or its plugins."""


class ZKDVPoisonedError(ZKDVError):
    """The run has failed before and accepts nothing more; `__cause__` is the failure."""


class ZKDVVerificationError(ZKDVError):
    """A check of an update failed, or a transcript did not verify."""


class ZKDVWarning(UserWarning):
    """Something that a run can go on with and that its owner should know."""
