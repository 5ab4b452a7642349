"""What a run keeps for an auditor: states, batches and components, written beside training as `EvidencePolicy` asks.

The pipeline tells `RunEvidence` of its updates; files are written on the stage thread `evidence`. One copy of the state
at a time waits there, and training waits for it only where the next checkpoint comes before the last one is on disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zkdv.config import EvidencePolicy
from zkdv.errors import ZKDVError
from zkdv.evidence_files import (
    batch_file,
    checkpoint_file,
    component_file,
    file_digest,
    write_components,
    write_state,
    write_words,
)
from zkdv.schema import TREES
from zkdv.submission import PendingUpdate

if TYPE_CHECKING:
    from zkdv.pipeline import Pipeline

__all__ = ["PENDING_LIMIT", "RunEvidence"]

PENDING_LIMIT = 64
"""Updates whose batches and components may wait to be written, beside those in flight; the next one waits for them."""


@dataclass(eq=False)
class _Writing:
    """A state that is being written."""

    finished: bool = False


@dataclass(eq=False)
class _Backlog:
    """What one thread has handed over of updates, and how much of it is written."""

    submitted: int = 0
    finished: int = 0


class RunEvidence:
    """The evidence of one run.

    Args:
        pipeline: The run's pipeline.
        policy: What to keep.
        folder: The run's folder.
    """

    def __init__(self, pipeline: "Pipeline", policy: EvidencePolicy, folder: Path) -> None:
        self._pipeline = pipeline
        self._policy = policy
        self._folder = folder
        # Of the training thread.
        self._next_checkpoint = 0
        self._edited: int | None = None
        self._checkpoint: _Writing | None = None
        self._spare: Sequence[Any] | None = None
        # Of the threads that commit and check. Each waits for its own backlog alone: a checkpoint that is being written
        # waits for the former, which so must never wait for what the latter has handed over.
        self._committed, self._checked = _Backlog(), _Backlog()
        self._limit = PENDING_LIMIT + pipeline.queue.capacity
        self._sampled_state: _Writing | None = None
        # Of the thread that writes.
        self._checkpoints: list[int] = []
        self._sampled: set[int] = set()
        self._last_uses: dict[bytes, int] = {}
        self._sampled_batches: set[bytes] = set()
        self._components: set[int] = set()
        self._sampled_components: set[int] = set()

    def before_update(self, index: int, state: Sequence[Any], *, small_edits: bool, large_edits: bool) -> None:
        """Launch a checkpoint of the state before an update, where one is due. Runs on the training thread.

        One is due at the first update, at or after each multiple of the interval, before which all of the state is
        committed: its optimizer leaves too, and without edits since; and before an update with an edit that is too
        large for its record.

        Args:
            index: The update.
            state: The state leaves that it starts from, parameters first.
            small_edits: Whether leaves were edited whose new values are on record.
            large_edits: Whether leaves were edited whose new values are not.
        """
        interval = self._policy.checkpoint_interval
        if interval is None:
            return
        committed = not small_edits and (index == 0 or self._pipeline.due(index - 1).optimizer)
        # A call that came to nothing may have left the file of an edit that was then taken back.
        again = index == self._edited
        if not large_edits and not (committed and (index >= self._next_checkpoint or again)):
            return
        self._await(self._checkpoint)
        copy, self._spare = self._pipeline.launch_snapshot(state, self._spare), None
        writing = _Writing()
        self._pipeline.queue.submit("evidence", self._write_checkpoint, writing, index, copy)
        self._checkpoint = writing
        self._edited = index if large_edits else None
        self._next_checkpoint = (index // interval + 1) * interval

    def after_update(self, update: PendingUpdate) -> None:
        """Keep batch and components of an update whose record is written. Runs on the thread that commits."""
        if self._policy.batches or self._policy.components:
            kept = {"batch": self._policy.batches, "components": self._policy.components}
            self._submit(self._committed, update, **kept, sampled=False)

    def behind_check(self, snapshot: int, copy: Sequence[Any], steps: Sequence[PendingUpdate], *, fresh: bool) -> None:
        """Keep what a sampled update is replayed from. Runs on the thread that checks, before the replay.

        Args:
            snapshot: Index of the update before which the copy was taken.
            copy: The copied leaves, parameters first.
            steps: The updates that the check replays, the sampled one last.
            fresh: Whether the copy still stands where it was taken; otherwise an earlier check has kept it.
        """
        if not self._policy.sampled:
            return
        if fresh and self._is_committed(steps[0]):
            self._await(self._sampled_state)
            leaves = self._pipeline.read_snapshot(copy, own=True)
            writing = _Writing()
            self._pipeline.queue.submit("evidence", self._write_sampled, writing, snapshot, leaves)
            self._sampled_state = writing
        for step in steps:
            self._submit(self._checked, step, batch=True, components=True, sampled=True)

    def flush(self) -> None:
        """Wait until everything is written.

        Raises:
            ZKDVPoisonedError: It could not be written.
        """
        self._await(self._checkpoint)
        self._await(self._sampled_state)
        for backlog in (self._committed, self._checked):
            self._await(backlog)

    def _await(self, work: _Writing | _Backlog | None) -> None:
        """Wait until a state, or all of a backlog, is written."""
        if isinstance(work, _Backlog):
            self._pipeline.queue.wait_until(lambda: work.finished == work.submitted)
        elif work is not None:
            self._pipeline.queue.wait_until(lambda: work.finished)

    def _submit(self, backlog: _Backlog, update: PendingUpdate, **kept: bool) -> None:
        self._pipeline.queue.wait_until(lambda: backlog.submitted - backlog.finished < self._limit)
        self._pipeline.queue.submit("evidence", self._write_update, backlog, update, **kept)
        backlog.submitted += 1

    @staticmethod
    def _is_committed(first: PendingUpdate) -> bool:
        """Return whether records hold all roots of the state that an update starts from, edits included."""
        before, edits = first.evidence_before, first.submission.edits
        if before is None or any(tree not in before.digests for tree in TREES):
            return False
        return not edits or any("value" not in edit for edit in edits)

    # On the thread that writes.

    def _write_checkpoint(self, writing: _Writing, index: int, copy: Sequence[Any]) -> None:
        pipeline = self._pipeline
        pipeline.await_snapshot(copy)
        self._write_state(index, pipeline.read_snapshot(copy, own=False))
        if index not in self._checkpoints:
            self._checkpoints.append(index)
        self._prune()
        self._spare, writing.finished = copy, True
        pipeline.queue.notify()

    def _write_sampled(self, writing: _Writing, index: int, leaves: Sequence[Any]) -> None:
        if index not in self._checkpoints or not self._path(checkpoint_file(index)).exists():
            self._write_state(index, leaves)
        self._sampled.add(index)
        writing.finished = True
        self._pipeline.queue.notify()

    def _write_state(self, index: int, leaves: Sequence[Any]) -> None:
        pipeline, name = self._pipeline, checkpoint_file(index)
        if pipeline.schema is None:
            raise ZKDVError("a checkpoint was taken before the schema was declared")
        write_state(self._path(name), pipeline.schema, leaves)
        # The record stands behind those of the updates that lead to the state, and behind the schema.
        pipeline.queue.wait_until(lambda: pipeline.counts.updates >= max(index, 1))
        pipeline.core.session.append("checkpoint", {"update": index, "files": {name: file_digest(self._path(name))}})

    def _write_update(
        self, backlog: _Backlog, update: PendingUpdate, *, batch: bool, components: bool, sampled: bool
    ) -> None:
        commitment, index = update.batch_commitment, update.index
        if commitment is None:
            raise ZKDVError(f"update {index} has no commitment to its batch yet")
        if batch:
            digest = commitment.digest
            if digest not in self._last_uses and digest not in self._sampled_batches:
                write_words(self._path(batch_file(digest)), update.batch)
            self._last_uses[digest] = index
            if sampled:
                self._sampled_batches.add(digest)
        if components:
            if update.evidence is None:
                raise ZKDVError(f"update {index} has no evidence yet")
            if index not in self._components:
                write_components(self._path(component_file(index)), update.evidence, commitment)
            self._components.add(index)
            if sampled:
                self._sampled_components.add(index)
        backlog.finished += 1
        self._pipeline.queue.notify()

    def _prune(self) -> None:
        """Delete what comes before the oldest of the checkpoints to keep, except behind sampled updates."""
        keep = self._policy.keep
        if keep is None or len(self._checkpoints) <= keep:
            return
        old, self._checkpoints = self._checkpoints[:-keep], self._checkpoints[-keep:]
        oldest = self._checkpoints[0]
        for index in old:
            if index not in self._sampled:
                self._delete(checkpoint_file(index))
        for digest in [digest for digest, last in self._last_uses.items() if last < oldest]:
            del self._last_uses[digest]
            if digest not in self._sampled_batches:
                self._delete(batch_file(digest))
        for index in [index for index in self._components if index < oldest]:
            self._components.discard(index)
            if index not in self._sampled_components:
                self._delete(component_file(index))

    def _delete(self, name: str) -> None:
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise ZKDVError(f"old evidence can't be deleted from {self._path(name)}: {error.strerror}") from error

    def _path(self, name: str) -> Path:
        return self._folder / name
