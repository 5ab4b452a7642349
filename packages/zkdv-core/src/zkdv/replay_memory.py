"""What checks replay from: snapshots of the state, and the updates since, in memory."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zkdv.submission import PendingUpdate

__all__ = ["ReplayMemory", "Snapshot"]


@dataclass(frozen=True)
class Snapshot:
    """A copy of the state before an update.

    Attributes:
        index: The update's index.
        state: Its state leaves, parameters first.
    """

    index: int
    state: Sequence[Any]


@dataclass
class ReplayMemory:
    """Snapshots and committed updates, for as long as a check may need them. Safe to use from several threads."""

    _snapshots: dict[int, Snapshot] = field(default_factory=dict)
    _updates: dict[int, PendingUpdate] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot; one of the same update is replaced."""
        with self._lock:
            self._snapshots[snapshot.index] = snapshot

    def add_update(self, update: PendingUpdate) -> None:
        """Keep a committed update."""
        with self._lock:
            self._updates[update.index] = update

    def path_to(self, index: int) -> tuple[Snapshot, list[PendingUpdate]]:
        """Return the newest snapshot at or before update `index`, and the updates from there up to it."""
        with self._lock:
            start = max(held for held in self._snapshots if held <= index)
            return self._snapshots[start], [self._updates[step] for step in range(start, index + 1)]

    def settle(self, index: int) -> None:
        """Forget what no open update starts from, now that update `index` has retired.

        Updates are committed in order, so that every update before a snapshot is here once the last of them is.
        """
        with self._lock:
            newest = max(self._snapshots, default=0)
            earlier = [update for step, update in self._updates.items() if step < newest]
            if index >= newest - 1 and all(update.submission.slot.retired for update in earlier):
                self._snapshots = {start: held for start, held in self._snapshots.items() if start >= newest}
                self._updates = {step: held for step, held in self._updates.items() if step >= newest}

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._snapshots.clear()
            self._updates.clear()
