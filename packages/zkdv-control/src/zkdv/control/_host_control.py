"""`HostControl`: rounds with a key, each of which carries one JSON decision from the owner to every follower."""

import json
import math
import secrets
import threading
import weakref
from collections import OrderedDict
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any, Self

from zkdv.control import _engines
from zkdv.errors import ZKDVError
from zkdv.transport import DECISION_BYTES, KEY_BYTES, Membership, OpenTransport, Transport

REMEMBERED_KEYS = 1 << 16
TOKEN_CHARACTERS = 16
"""Fewest characters of a token: a shorter one could be guessed by whoever watches a handshake."""


class HostControl:
    """One rank's end of the control plane of a run over several processes.

    The owner is rank 0. Rounds may arrive in any order on any number of threads; a round that waits holds up no other.

    Args:
        rank: This process, 0 to `size - 1`.
        size: Processes in the run, at least 2.
        address: Where the owner is to be found, as its `address` says; followers need it. On the owner of a `tcp`
            control: where to listen (`"10.0.0.5"`, `"10.0.0.5:7000"`, `"[::1]:0"`); default: loopback, any free port.
        token: The secret that the ranks share, at least 16 characters; followers need it. Default on the owner: a new
            one. Hand it on in a file or an environment variable, never on a command line.
        timeout: Seconds that a round, and joining the run, may take.
        transport: Name of a transport (`zkdv plugins` lists them), `"auto"` for that of the engine that the run already
            has (`jax-kv`, `torch-store`) or else `tcp`, or a callable that opens one, for one
            `zkdv.control.Tcp(tls=context)`.

    Attributes:
        rank: As given.
        size: As given.
        timeout: As given, seconds.
        limit: Most bytes of a decision as JSON, 65,536.
        address: What followers are to be given as their `address`.
        token: The secret; in no `repr`, log or error.

    Raises:
        ValueError: `size` is below 2, `rank` is none of the run's, `timeout` is not above 0, a follower has no address
            or no token, the token is too short, the address is none.
        RuntimeError: The transport cannot be opened, or the owner refused this rank.
        TimeoutError: The owner was not there in time.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        address: str | None = None,
        token: str | None = None,
        timeout: float = 600,
        transport: str | OpenTransport = "auto",
    ) -> None:
        self.rank, self.size, self.timeout = _checked_membership(rank, size, timeout)
        if self.rank != 0 and (not address or not token):
            raise ValueError(
                f"rank {rank} is a follower and needs the owner's address and token; give it `address` and `token` of "
                "the owner's control, or use HostControl.for_backend"
            )
        _check_token(token)
        self.limit = DECISION_BYTES
        self.token = token or secrets.token_urlsafe(32)
        self._lock = threading.Lock()
        self._closed: str | None = None
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self._transport: Transport = _engines.opener(transport)(
            Membership(self.rank, self.size, address, self.token, self.timeout)
        )
        self.address = self._transport.address
        # At the end of the interpreter too, and before the engines' own: they were there first.
        self._finalizer = weakref.finalize(self, self._transport.close, f"rank {self.rank} has ended")

    @classmethod
    def for_backend(cls, backend: str, transport: str = "auto", bind: str | None = None) -> "HostControl | None":
        """Make the control of a run whose processes a framework has brought together.

        Call it on every rank, the same number of times. The owner hands its address and token to followers in the
        framework's own store, and waits until every follower has joined.

        Args:
            backend: `"jax"` (after `jax.distributed.initialize`) or `"torch"` (after
                `torch.distributed.init_process_group`).
            transport: Name of a transport; default: the framework's own store.
            bind: With `tcp`, the owner's address to listen on; needed where ranks are on different hosts.

        Returns:
            This rank's control; None where there is one process, or no process group.

        Raises:
            ValueError: An unknown backend; or `bind` without `tcp`; or the ranks are on several hosts and the owner
                listens on loopback.
            RuntimeError: The framework is not installed, or a rank could not join; the owner's control is closed then.
            TimeoutError: A rank did not come in time; likewise.
        """
        return _engines.control_of_backend(cls, backend, transport, bind)

    def exchange(self, key: str, value: object = None) -> object:
        """Take part in one round.

        The owner waits until every follower has the decision, followers wait for the owner. A round that a bad argument
        or a used key stops has not begun, and the control goes on; after any other failure it is closed on both sides:
        ranks that disagree on one decision cannot go on.

        Args:
            key: The round, up to 256 bytes of UTF-8: the same on every rank, another for each round. The last 65,536
                keys are remembered.
            value: The owner's decision, whatever JSON can hold in `limit` bytes. What followers give is ignored, so
                that every rank can run the same line.

        Returns:
            The decision as JSON gives it back (a tuple is a list), equal on every rank.

        Raises:
            ValueError: The key or the value is too large, or holds NaN, infinities or what JSON does not know.
            RuntimeError: The control is closed, the key was used before, or another rank is gone; says which.
            TimeoutError: Followers are missing, or the owner is; says which.
        """
        key = _checked_key(key)
        decision = self._encoded(key, value) if self.rank == 0 else b""
        self._claim(key)
        try:
            if self.rank == 0:
                self._transport.send(key, decision, self.timeout)
            else:
                decision = self._transport.receive(key, self.timeout)
            return _decoded(decision)
        except BaseException as error:
            place = f"rank {self.rank} of {self.size}, round {key!r}"
            self._close(f"{place} failed: {type(error).__name__}")
            if isinstance(error, TimeoutError):
                raise TimeoutError(f"{place}: {error}") from error
            if isinstance(error, Exception):
                raise ZKDVError(f"{place}: {error}") from error
            raise

    def close(self, reason: str | None = None) -> None:
        """Leave the control plane; rounds that wait end with a `RuntimeError`, on the other ranks too.

        Args:
            reason: What the other ranks are told, one line, of which they see the first 512 bytes in UTF-8; default:
                that this rank has closed its control.
        """
        self._close(reason or f"rank {self.rank} has closed its control")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"HostControl(rank={self.rank}, size={self.size}, address={self.address!r}, timeout={self.timeout:g})"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a HostControl cannot be copied: it holds connections, and a secret")

    def _close(self, reason: str) -> None:
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
        self._finalizer.detach()
        self._transport.close(reason)

    def _claim(self, key: str) -> None:
        digest = blake2b(key.encode(), digest_size=16).digest()
        with self._lock:
            if self._closed is not None:
                raise ZKDVError(f"the control of rank {self.rank} is closed ({self._closed}); round {key!r} is refused")
            if digest in self._used:
                raise ZKDVError(f"rank {self.rank} has used the key {key!r} before; every round has a key of its own")
            self._used[digest] = None
            if len(self._used) > REMEMBERED_KEYS:
                self._used.popitem(last=False)

    def _encoded(self, key: str, value: object) -> bytes:
        try:
            decision = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"the value of round {key!r} cannot be sent as JSON: {error}") from error
        if len(decision) > self.limit:
            raise ValueError(f"the value of round {key!r} has {len(decision)} bytes as JSON; the limit is {self.limit}")
        return decision


def _checked_membership(rank: Any, size: Any, timeout: Any) -> tuple[int, int, float]:
    if isinstance(size, bool) or not isinstance(size, Integral) or int(size) < 2:
        raise ValueError(f"size is {size!r}; a control needs at least 2 processes")
    if isinstance(rank, bool) or not isinstance(rank, Integral) or not 0 <= int(rank) < int(size):
        raise ValueError(f"rank is {rank!r}; it is an integer from 0 to {int(size) - 1}")
    if isinstance(timeout, bool) or not isinstance(timeout, Real) or not 0 < float(timeout) < math.inf:
        raise ValueError(f"timeout is {timeout!r}; it is a finite number of seconds above 0")
    return int(rank), int(size), float(timeout)


def _check_token(token: object) -> None:
    if token is not None and (not isinstance(token, str) or len(token) < TOKEN_CHARACTERS or not token.isprintable()):
        raise ValueError(
            f"the token is no text of at least {TOKEN_CHARACTERS} characters; make one with secrets.token_urlsafe()"
        )


def _checked_key(key: object) -> str:
    if not isinstance(key, str) or not key:
        raise ValueError(f"the key {key!r} is no text; a round is named by a text of 1 to {KEY_BYTES} bytes")
    try:
        length = len(key.encode())
    except UnicodeEncodeError:
        raise ValueError(f"the key {key!r} is no text that UTF-8 can hold") from None
    if length > KEY_BYTES:
        raise ValueError(f"the key {key[:32]!r}... has {length} bytes; the limit is {KEY_BYTES}")
    return key


def _decoded(decision: bytes) -> object:
    def refuse(constant: str) -> object:
        raise ValueError(f"{constant} is no JSON")

    if len(decision) > DECISION_BYTES:
        raise ValueError(f"the decision has {len(decision)} bytes; the limit is {DECISION_BYTES}")
    try:
        return json.loads(decision, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the decision cannot be read: {error}") from error
