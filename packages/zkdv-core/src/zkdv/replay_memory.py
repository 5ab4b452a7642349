"""What checks replay from: snapshots of the state, and the updates since, in memory."""

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from zkdv.errors import ZKDVError
from zkdv.submission import PendingUpdate

__all__ = ["OVERLAPPED_COPIES", "ReplayMemory", "Snapshot"]

OVERLAPPED_COPIES = 2
"""Copies of the state where checks run beside training: one that a check replays from, and one for what comes after."""


@dataclass(eq=False)
class Snapshot:
    """A copy of the state before an update, which checks carry forward as they replay from it, in order.

    Attributes:
        index: The update's index.
        copy: The copied leaves, parameters first.
        arrived: Whether they are in host memory by now.
        reached: Index of the update before which the copy stands now.
        exact: Whether every update on the way there was rebuilt exactly.
        probes_agree: Whether the probes of every one that was not are within tolerance.
    """

    index: int
    copy: Sequence[Any]
    arrived: bool = False
    reached: int = field(init=False)
    exact: bool = True
    probes_agree: bool = True

    def __post_init__(self) -> None:
        """Start where the copy was taken."""
        self.reached = self.index


@dataclass
class ReplayMemory:
    """Snapshots and committed updates, for as long as a check may need them. Safe to use from several threads.

    The copies come from a pool: one that no check can start from any more is written over by the next snapshot. An
    update whose check is not ruled out is *open*; it keeps the snapshot that is the newest at its time.

    Args:
        limit: The most copies of the state that are held at once; it may rise.
    """

    limit: int = 1
    _snapshots: dict[int, Snapshot] = field(default_factory=dict)
    _spare: list[Sequence[Any]] = field(default_factory=list)
    _updates: dict[int, PendingUpdate] = field(default_factory=dict)
    _open: set[int] = field(default_factory=set)
    _incomplete: bool = True
    _lock: Any = field(default_factory=threading.RLock)

    @property
    def primed(self) -> int:
        """Number of copies of the state that are held, in use or not."""
        with self._lock:
            return len(self._snapshots) + len(self._spare)

    def prime(self, copy: Sequence[Any]) -> None:
        """Add a copy of the state to the pool, to be written over."""
        with self._lock:
            self._spare.append(copy)

    def lacks_snapshot(self, index: int) -> bool:
        """Return whether update `index` can't start from the newest snapshot.

        That is so before the first one, after a copy that was cut short, and where the snapshot was made for an attempt
        at this very update that came to nothing: another attempt may start from another state.
        """
        with self._lock:
            return self._incomplete or index in self._snapshots

    def make_room(self, index: int) -> bool:
        """Take back copies for a snapshot before update `index`, and return whether there is one to write to."""
        with self._lock:
            self._incomplete = True
            self._reclaim(index)
            return bool(self._spare) or self.primed < self.limit

    def take_room(self, index: int) -> Sequence[Any] | None:
        """Return a copy to write a snapshot before update `index` over, or None where one is to be allocated."""
        with self._lock:
            if not self.make_room(index):
                raise ZKDVError(f"no copy of the state is free for a snapshot before update {index}")
            return self._spare.pop() if self._spare else None

    def add_snapshot(self, snapshot: Snapshot) -> None:
        """Keep a snapshot."""
        with self._lock:
            self._snapshots[snapshot.index] = snapshot
            self._incomplete = False

    def expect_check(self, index: int) -> None:
        """Note that update `index`, which starts from the newest snapshot, may be checked."""
        with self._lock:
            self._open.add(index)

    def add_update(self, update: PendingUpdate) -> None:
        """Keep a committed update, for as long as the replay of one that is open may come through it."""
        with self._lock:
            if update.index >= min(self._snapshots, default=update.index + 1):
                self._updates[update.index] = update

    def path_to(self, index: int) -> tuple[Snapshot, list[PendingUpdate]]:
        """Return the newest snapshot at or before update `index`, and the updates to replay on it, up to that one."""
        with self._lock:
            snapshot = self._snapshots[max(held for held in self._snapshots if held <= index)]
            return snapshot, [self._updates[step] for step in range(snapshot.reached, index + 1)]

    def settle(self, index: int) -> None:
        """Note that no check of update `index` is owed."""
        with self._lock:
            self._open.discard(index)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._snapshots.clear()
            self._spare.clear()
            self._updates.clear()
            self._open.clear()
            self._incomplete = True

    def _reclaim(self, index: int) -> None:
        """Take back the copies that no open update before `index` starts from, and that nobody waits for."""
        for start, end in itertools.pairwise([*sorted(self._snapshots), index]):
            if self._snapshots[start].arrived and not any(start <= opened < end for opened in self._open):
                self._spare.append(self._snapshots.pop(start).copy)
        oldest = min(self._snapshots, default=index)
        self._updates = {step: held for step, held in self._updates.items() if step >= oldest}
