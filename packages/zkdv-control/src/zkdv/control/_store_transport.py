"""Rounds over a key-value store: what the transports `jax-kv`, `torch-store` and any site's own store share.

    owner:     set r/ROUND = decision,  wait for a/ROUND/1, a/ROUND/2, ...,  delete them all
    follower:  wait for r/ROUND,        set a/ROUND/RANK
    anybody:   set l/RANK = reason      when it leaves; who waits looks there from time to time

All under a name that follows from address and token, with an HMAC-SHA-256 of key and value before each value: who else
can write to the store can disturb a run, and not decide anything in it.
"""

import hashlib
import hmac
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from zkdv.control._rank_names import rank_names
from zkdv.errors import ZKDVError
from zkdv.transport import Membership, Store

WATCH_SECONDS = 1.0
"""How long a waiting call may not notice that the control was closed, here or elsewhere."""

REASON_BYTES = 512
TAG_BYTES = 32


class StoreTransport:
    """A transport over a key-value store; one key for each rank that has left stays there, everything else is deleted.

    Each call that waits has a connection of its own; as many are kept as were in use at one time.

    Args:
        membership: This rank's place in the run.
        connect: Opens one connection to the store.
        address: What followers are given, where `membership` has no address.

    Raises:
        RuntimeError: The store cannot be reached.
    """

    def __init__(self, membership: Membership, connect: Callable[[], Store], *, address: str) -> None:
        self.address = membership.address or address
        self._membership, self._connect = membership, connect
        self._secret = hmac.digest(b"zkdv store transport", membership.token.encode(), hashlib.sha256)
        self._prefix = f"zkdv/control/{hmac.digest(self._secret, self.address.encode(), hashlib.sha256).hex()[:32]}"
        self._lock = threading.Lock()
        self._returned = threading.Condition(self._lock)
        self._busy = 0
        self._idle: list[Store] = []
        self._closed = threading.Event()
        self._lost = threading.Event()
        with self._connection():
            pass  # A store that cannot be reached is an error here, not in the first round.

    def send(self, key: str, decision: bytes, timeout: float, /) -> None:
        """Give a decision to every follower (`zkdv.transport.Transport`)."""
        name, deadline = _name(key), time.monotonic() + timeout
        with self._connection() as store:
            try:
                self._set(store, f"r/{name}", decision)
                missing = self._wait_for_all(store, name, deadline)
            except BaseException:
                with suppress(Exception):  # The first error is the one to tell.
                    self._forget(store, name)
                raise
            self._forget(store, name)
        if missing:
            raise TimeoutError(f"no answer from {rank_names(missing)} in {timeout:g} s")

    def receive(self, key: str, timeout: float, /) -> bytes:
        """Return the decision of a round (`zkdv.transport.Transport`)."""
        name = _name(key)
        with self._connection() as store:
            decision = self._wait(store, f"r/{name}", 0, time.monotonic() + timeout)
            if decision is None:
                raise TimeoutError(f"no decision from the owner, rank 0, in {timeout:g} s")
            self._set(store, f"a/{name}/{self._membership.rank}", b"")
            return decision

    def close(self, reason: str, /) -> None:
        """Leave the run (`zkdv.transport.Transport`)."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
        # A store that is gone takes no farewell, and some try for minutes to reach it again.
        if not self._lost.is_set():
            with suppress(Exception), self._connection(closing=True) as store:
                self._set(store, f"l/{self._membership.rank}", reason.encode()[:REASON_BYTES])
        with self._lock:
            # An interpreter that ends while one of its threads is in an engine's own code may crash.
            self._returned.wait_for(lambda: self._busy == 0, WATCH_SECONDS + 2)
            idle, self._idle = self._idle, []
        for store in idle:
            store.close()

    def _wait_for_all(self, store: Store, name: str, deadline: float) -> list[int]:
        """Wait for every follower's answer; return the ranks that gave none until the deadline."""
        ranks = range(1, self._membership.size)
        return [rank for rank in ranks if self._wait(store, f"a/{name}/{rank}", rank, deadline) is None]

    def _wait(self, store: Store, part: str, rank: int, deadline: float) -> bytes | None:
        """Return the value that `rank` is to set; None when the time is over."""
        while True:
            remaining = deadline - time.monotonic()
            value = self._get(store, part, min(max(remaining, 0.0), WATCH_SECONDS))
            if value is not None:
                return value
            if self._closed.is_set():
                raise ZKDVError(f"the control of rank {self._membership.rank} was closed meanwhile")
            reason = self._get(store, f"l/{rank}", 0.0)
            if reason is not None:
                # It may have answered, and then left, between the two looks.
                value = self._get(store, part, 0.0)
                if value is not None:
                    return value
                raise ZKDVError(f"{_who(rank)} is gone: {reason.decode(errors='replace')}")
            if remaining <= 0:
                return None

    def _get(self, store: Store, part: str, timeout: float) -> bytes | None:
        name = f"{self._prefix}/{part}"
        with self._explained("read from"):
            sealed = store.get(name, timeout)
        if sealed is None:
            return None
        if not hmac.compare_digest(sealed[:TAG_BYTES], self._tag(name, sealed[TAG_BYTES:])):
            raise ZKDVError("the store holds a value that no rank of this run wrote")
        return sealed[TAG_BYTES:]

    def _set(self, store: Store, part: str, value: bytes) -> None:
        name = f"{self._prefix}/{part}"
        with self._explained("write to"):
            store.set(name, self._tag(name, value) + value)

    def _forget(self, store: Store, name: str) -> None:
        with self._explained("delete from"):
            store.delete(f"{self._prefix}/r/{name}")
            for rank in range(1, self._membership.size):
                store.delete(f"{self._prefix}/a/{name}/{rank}")

    def _tag(self, name: str, value: bytes) -> bytes:
        return hmac.digest(self._secret, name.encode() + b"\0" + value, hashlib.sha256)

    @contextmanager
    def _explained(self, action: str) -> Iterator[None]:
        """Say what the store could not do, in one line and as our error, whatever its own is."""
        try:
            yield
        except Exception as error:
            self._lost.set()
            line = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise ZKDVError(f"cannot {action} the store; the process that keeps it may be gone: {line}") from error

    @contextmanager
    def _connection(self, *, closing: bool = False) -> Iterator[Store]:
        with self._lock:
            if self._closed.is_set() and not closing:
                raise ZKDVError(f"the control of rank {self._membership.rank} is closed")
            store = self._idle.pop() if self._idle else None
            self._busy += 1
        try:
            with self._given_back(store) as connected:
                yield connected
        finally:
            with self._lock:
                self._busy -= 1
                self._returned.notify_all()

    @contextmanager
    def _given_back(self, store: Store | None) -> Iterator[Store]:
        """A connection, kept for the next call where nothing went wrong."""
        if store is None:
            with self._explained("connect to"):
                store = self._connect()
        try:
            yield store
        except BaseException:
            store.close()
            raise
        with self._lock:
            keep = not self._closed.is_set()
            if keep:
                self._idle.append(store)
        if not keep:
            store.close()


def _name(key: str) -> str:
    """Name of a round in the store, of characters that every store takes."""
    return hashlib.blake2b(key.encode(), digest_size=16).hexdigest()


def _who(rank: int) -> str:
    return "the owner, rank 0," if rank == 0 else f"rank {rank}"
