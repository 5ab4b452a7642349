"""The one place where failures of the native part become errors of this package."""

from types import TracebackType

from zkdv._native import NativeError
from zkdv.errors import ZKDVError

__all__ = ["native_errors"]


class native_errors:  # noqa: N801 (a context manager, used like a function)
    """Raise failures of the native part as `ZKDVError`, said once: the native exception is not shown beside it.

    What made the native part fail stays the cause, for one the exception of a signer plugin.

    Args:
        advice: What to add to the message.
    """

    def __init__(self, advice: str = "") -> None:
        self._advice = advice

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Raise the `ZKDVError` in place of a native failure; leave everything else alone."""
        if isinstance(error, NativeError):
            raise ZKDVError(f"{error}{self._advice}") from error.__cause__
