"""What a control transport is: the contract between `zkdv.control.HostControl` and what carries its rounds.

A run over several processes has one *owner*, rank 0; the other ranks are its *followers*. A *round* has a key and
carries one decision, a short text in bytes, from the owner to every follower. A plugin declares a transport in
`zkdv_transports()`; docs/guides/transports.md shows a whole one, and `zkdv.testing` holds what any must pass.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

__all__ = [
    "DECISION_BYTES",
    "KEY_BYTES",
    "Control",
    "Engine",
    "Membership",
    "OpenTransport",
    "Store",
    "Transport",
]

KEY_BYTES = 256
"""Most bytes of a round's key, in UTF-8."""

DECISION_BYTES = 64 * 1024
"""Most bytes of a round's decision, as JSON."""


@dataclass(frozen=True)
class Membership:
    """One rank's place in a run.

    Attributes:
        rank: This process, 0 to `size - 1`; 0 is the owner.
        size: Processes in the run, at least 2.
        address: Where the run's control is, as the transport writes it. None: the owner's transport chooses.
        token: The secret that all ranks of the run share; in no log, error or `repr`.
        timeout: Seconds that a round, and joining the run, may take.
    """

    rank: int
    size: int
    address: str | None
    token: str = field(repr=False)
    timeout: float


class Transport(Protocol):
    """One rank's end of a run's control. Its methods are called from any number of threads at once.

    Errors: `TimeoutError` where the time is over, `RuntimeError` (`zkdv.ZKDVError`) for everything else, with the rank
    that is missing or gone. A call that waits ends when `close` is called on another thread.
    """

    @property
    def address(self) -> str:
        """What followers are to be given as `Membership.address`."""

    def send(self, key: str, decision: bytes, timeout: float, /) -> None:
        """Give a decision to every follower; called on the owner. Returns when all have it.

        Args:
            key: The round; at most `KEY_BYTES`, never used twice at a time.
            decision: At most `DECISION_BYTES`.
            timeout: Seconds to wait for followers.
        """

    def receive(self, key: str, timeout: float, /) -> bytes:
        """Return the decision of the round `key`; called on followers.

        Args:
            key: The round.
            timeout: Seconds to wait for the owner.
        """

    def close(self, reason: str, /) -> None:
        """Leave the run: waiting calls end, and the other ranks are told why. Calling it again does nothing.

        Args:
            reason: One line for the other ranks.
        """


class Control(Protocol):
    """What carries the owner's decisions; `zkdv.control.HostControl` is one."""

    @property
    def rank(self) -> int:
        """This process; 0 is the owner."""

    @property
    def size(self) -> int:
        """Processes in the run, at least 2."""

    def exchange(self, key: str, value: object = None) -> object:
        """Take part in one round: the owner's value, on every rank."""

    def close(self, reason: str | None = None) -> None:
        """Leave the run, and tell the other ranks why."""


OpenTransport = Callable[[Membership], Transport]
"""What a name in `zkdv_transports()` stands for: joins a run, and raises what `Transport` raises."""


class Store(Protocol):
    """A key-value store that all ranks reach; `zkdv.control.StoreTransport` makes a transport of one.

    One connection: it is used by one thread at a time. A store that is gone raises; the error need not be of any type.
    """

    def set(self, key: str, value: bytes, /) -> None:
        """Store `value`; `key` is new."""

    def get(self, key: str, timeout: float, /) -> bytes | None:
        """Return the value of `key`, once it is there; None where it is not within `timeout` seconds (0: look once)."""

    def delete(self, key: str, /) -> None:
        """Remove `key`, if it is there."""

    def close(self) -> None:
        """Give up this connection."""


@dataclass(frozen=True)
class Engine:
    """The processes that a framework has brought together already.

    Attributes:
        rank: This process.
        size: All processes.
        store: The framework's own key-value store, a new connection to it.
    """

    rank: int
    size: int
    store: Store
