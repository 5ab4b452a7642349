"""What becomes of one update: its batch, evidence and record, and where it is sampled its check.

`Pipeline.begin` and `Pipeline.submit` run on the training thread, around the call of the training program; what follows
runs on the stage threads of `zkdv.flowcontrol`. Read `_commit` and `Replays._check` for what one update leaves behind.
"""

import contextlib
import operator
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zkdv import _native
from zkdv.edits import EditFinder
from zkdv.errors import ZKDVError, warn
from zkdv.evidence_files import TEXT_EXTENSION
from zkdv.overlap import Policy
from zkdv.replay_memory import OVERLAPPED_COPIES, Snapshot
from zkdv.replays import Replays
from zkdv.schema import Due, LeafEvidence, Schema
from zkdv.submission import PendingUpdate, Program, Submission

__all__ = ["PendingUpdate", "Pipeline"]


@dataclass(frozen=True)
class _HandedOver:
    """An update whose program was launched.

    Attributes:
        update: The update.
        after: The state leaves after it, parameters first.
    """

    update: PendingUpdate
    after: Sequence[Any]


@dataclass
class Pipeline(Replays):
    """Commits updates in order and checks the sampled ones, with the operations that a frontend supplies."""

    _handed_over: deque[_HandedOver] = field(default_factory=deque)
    _begun: bool = False
    _evidence: LeafEvidence | None = None
    _warnings: list[str] = field(default_factory=list)
    _nan_noticed: bool = False
    _edits: EditFinder = field(default_factory=EditFinder)

    # On the training thread.

    @property
    def updates(self) -> int:
        """Number of updates submitted."""
        return self._handed_over[-1].update.index + 1 if self._handed_over else 0

    def declare(self, schema: Schema) -> None:
        """Set the schema at the first update.

        Raises:
            ValueError: The rolling window is wider than a row of the batch.
            ZKDVError: The run has another schema.
        """
        if self.schema is None:
            window, batch = self.core.rolling_window, schema.batch
            if batch.rows and window > batch.width:
                raise ValueError(
                    f"rolling_window is {window} and a row of the batch has {batch.width} words; "
                    f"call start(rolling_window=N) with N from 1 to {batch.width}"
                )
            self.schema = schema
        elif difference := self.schema.difference(schema):
            raise ZKDVError(
                f"the update's arrays changed within the run: {difference}; a run keeps names, shapes, dtypes and "
                "sharding of its first update"
            )

    def due(self, index: int) -> Due:
        """Return which roots the record of update `index` holds."""
        every = self.core.config.commit == "every"
        return Due(optimizer=every or (index + 1) % self.core.replay_snapshot_interval == 0)

    def begin(self, program: Program, policy: Policy, state: Sequence[Any]) -> tuple[int, Submission, Any | None]:
        """Admit the next update, before its program runs on `state`.

        Returns:
            Its index, its submission, and the evidence of the state before it where a `state` record is due.
        """
        self.recover()
        self._begun = True
        with self.checks_may_launch():
            slot = self.queue.acquire(policy)
        try:
            self.warn()
            index = self.updates
            edits = self._find_edits(state) if index else []
            large = any("value" not in edit for edit in edits)
            before = self.start_evidence(state, Due()) if index == 0 or large else None
            if self.core.checks_possible:
                self._prepare_replays(index, policy, state, edited=bool(edits))
            if self.kept is not None:
                self.kept.before_update(index, state, small_edits=bool(edits) and not large, large_edits=large)
        except BaseException:
            slot.retire()
            raise
        if not self.core.may_sample(index):
            slot.draw(sampled=False)
        return index, Submission(slot, program, self.due(index), edits), before

    @contextlib.contextmanager
    def checks_may_launch(self) -> Iterator[None]:
        """Let checks run while the training thread waits in the block.

        Over several processes the programs that join devices must be launched in one order on every rank. So a check
        begins where every rank has launched all that comes before the same call, and ends before the call goes on.
        """
        self._training_waits = True
        self.queue.notify()
        try:
            yield
        finally:
            self._training_waits = False

    def submit(self, update: PendingUpdate, after: Sequence[Any]) -> None:
        """Hand over an update whose program was launched; `after` are the state leaves after it, parameters first."""
        # One operation, so that an interrupt finds the update handed over whole or not at all.
        self._handed_over.append(_HandedOver(update, after))
        self.queue.submit("commit", self._commit_handed_over)
        self._begun = False

    def abandon(self, submission: Submission) -> None:
        """Forget an update that came to nothing; one that was handed over all the same stays."""
        if not (self._handed_over and self._handed_over[-1].update.submission.slot is submission.slot):
            submission.slot.retire()

    def recover(self) -> None:
        """Make good what an exception cut short in the last call: commit what was handed over, forget what was not.

        Only whoever holds the proof's `update_lock` calls this.
        """
        if not self._begun:
            return
        last = self._handed_over[-1].update.submission.slot.number if self._handed_over else -1
        self.queue.withdraw(last)
        if self._handed_over:
            self.queue.submit("commit", self._commit_handed_over)
        self._begun = False

    def warn(self) -> None:
        """Give the warnings that the stages have left, on the thread of the user."""
        while self._warnings:
            warn(self._warnings.pop(0))

    def clear(self) -> None:
        """Let go of all arrays, once nothing more is owed."""
        if self._handed_over:
            # The last update stays, without arrays, since it says how many there were.
            update = self._handed_over[-1].update
            update.release()
            self._handed_over = deque([_HandedOver(update, ())])
        self._evidence = None
        self._memory.clear()

    def finish(self) -> None:
        """Write the closing `state` record over the state that the last update returned. Runs after all updates."""
        self.warn()
        if self.kept is not None:
            self.kept.flush()
        if not self._handed_over:
            return
        after = self._handed_over[-1].after
        missing = [leaf for leaf in after if self.read_leaf_gone(leaf)]
        if missing:
            raise ZKDVError(
                f"arrays of the state after the last update were donated, deleted or written to ({len(missing)} of "
                f"{len(after)}), so the run's final state can't be committed; close the proof before the state is "
                "given away or changed"
            )
        evidence = self.read_evidence(self.start_evidence(after, Due()), Due())
        self._append_state("close", evidence)

    # On the stage threads.

    def _commit_handed_over(self) -> None:
        """Commit waiting updates in order, and keep the last of all: the next one is compared with its state."""
        while self._handed_over:
            update = self._handed_over[0].update
            if update.index >= self.counts.updates:
                self._commit(update)
            elif len(self._handed_over) > 1:
                self._handed_over.popleft()
            else:
                return

    def _commit(self, update: PendingUpdate) -> None:
        """Commit to the batch, bring the evidence to the host, write the record, and draw."""
        submission, due = update.submission, update.submission.due
        # The training program still runs.
        batch = _native.batch_commit(update.batch, self.core.rolling_window, self.core.rolling_base)
        update.batch_commitment = batch
        if update.index == 0:
            self.core.session.append("schema", self._schema().record())
        seq = self._program_seq(submission.program)
        if self.attest_program is not None:
            self._program_seq(self.attest_program)
        before = self._evidence
        if update.pre_projection is not None:
            before = self.read_evidence(update.pre_projection, Due())
            self._append_state("edit" if update.index else "start", before)
        update.evidence_before = before

        update.evidence = self._evidence = self.read_evidence(update.parameter_evidence, due)
        self._notice_nan(update.index, update.evidence)
        body: dict[str, Any] = {
            "update": update.index,
            "batch": batch.digest,
            "program": seq,
            "after": update.evidence.roots,
            "overlap": int(update.overlap),
        }
        if submission.edits:
            body["edits"] = list(submission.edits)
        digest = self.core.session.append_update(update.index, body)
        self.counts.updates += 1
        self.counts.edits += len(submission.edits)

        if self.kept is not None:
            self.kept.after_update(update)

        schema = self._schema()
        sampled, parameter, optimizer = _native.draw(
            digest,
            b"",
            self.core.config.sampling_policy.as_record(),
            update.index,
            schema.elements("parameters"),
            schema.elements("optimizer"),
        )
        if self.core.checks_possible:
            self._memory.add_update(update)
        if not sampled:
            self._memory.settle(update.index)
        submission.slot.draw(sampled=sampled)
        if not sampled:
            self._retire(update)
            return
        self.counts.sampled += 1
        if not self.queue.cancelled:
            self.queue.submit("check", self._check, update, {"parameters": parameter, "optimizer": optimizer})

    def _finish_snapshot(self, snapshot: Snapshot) -> None:
        self.await_snapshot(snapshot.copy)
        snapshot.arrived = True
        self.queue.notify()

    # Pieces of the above.

    def _prepare_replays(self, index: int, policy: Policy, state: Sequence[Any], *, edited: bool) -> None:
        """Take a snapshot of the state before update `index` where one is due."""
        memory = self._memory
        if policy is Policy.ALWAYS and self.queue.capacity > 1:
            memory.limit = OVERLAPPED_COPIES
        if index % self.core.replay_snapshot_interval == 0 or edited or memory.lacks_snapshot(index):
            # Room comes with the end of a check that runs now: those before an update that may not overlap have ended.
            self.queue.wait_until(lambda: memory.make_room(index))
            snapshot = Snapshot(index, self.launch_snapshot(state, memory.take_room(index)))
            self.queue.submit("snapshot", self._finish_snapshot, snapshot)
            memory.add_snapshot(snapshot)
        while memory.primed < memory.limit:
            memory.prime(self.launch_snapshot(state, None))
        if self.core.may_sample(index):
            memory.expect_check(index)

    def _append_state(self, reason: str, evidence: LeafEvidence) -> None:
        body = {"updates": self.counts.updates, "reason": reason, "roots": evidence.roots}
        self.core.session.append("state", body)

    def _program_seq(self, program: Program) -> int:
        """Store a program and write its record, the first time that an update names it."""
        if program.seq is None:
            sealed = program.sealed.result()
            digest, text_digest = _native.leaf_digest(sealed.blob), _native.leaf_digest(sealed.text)
            record = sealed.record()
            self.core.store_program(digest, str(record["extension"]), sealed.blob)
            self.core.store_program(text_digest, TEXT_EXTENSION, sealed.text)
            program.seq = self.core.session.append(
                "program",
                record
                | {
                    "digest": digest,
                    "length": len(sealed.blob),
                    "text-digest": text_digest,
                },
            )
        return program.seq

    def _notice_nan(self, index: int, evidence: LeafEvidence) -> None:
        """Leave a warning the first time that a probe is NaN: the run goes on, and its owner should know."""
        if self._nan_noticed or not evidence.holds_nan:
            return
        own = evidence.probes if evidence.read_own_probes is None else evidence.read_own_probes()
        for tree, probes in own.items():
            for leaf, probe in zip(self._schema().tree(tree), probes, strict=True):
                if probe is not None and np.isnan(probe).any():
                    self._nan_noticed = True
                    self._warnings.append(
                        f"{tree} leaf {leaf.name} holds NaN since update {index}; "
                        "the run goes on and is recorded as it is"
                    )
                    return

    def _find_edits(self, state: Sequence[Any]) -> list[dict[str, Any]]:
        """List the leaves that are not those that the preceding update left behind."""
        last = self._handed_over[-1]
        if all(map(operator.is_, state, last.after)):
            return []
        for position, (leaf, expected) in enumerate(zip(state, last.after, strict=True)):
            if leaf is not expected:
                self.refuse_moved(position, leaf)
        # What a leaf is compared with is the evidence of the preceding update.
        self.queue.wait_until(lambda: self.counts.updates > last.update.index)
        return self._edits.find(
            state,
            last.after,
            index=self.updates,
            schema=self._schema(),
            evidence=self._evidence,
            read_leaf=self.read_leaf,
            attested=self.attest_program is not None,
        )
