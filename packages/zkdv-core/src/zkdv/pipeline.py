"""What becomes of one update: its batch, evidence and record, and where it is sampled its check.

`Pipeline.begin` and `Pipeline.submit` run on the training thread, around the call of the training program; what follows
runs on the stage threads of `zkdv.flowcontrol`. Read `_commit` and `_check` for what one update leaves behind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.check import CheckOutcome, ProductionLeaf, compare, probes_within
from zkdv.errors import ZKDVError, ZKDVVerificationError, warn
from zkdv.flowcontrol import PipelineQueue
from zkdv.overlap import Policy
from zkdv.replay_memory import ReplayMemory, Snapshot
from zkdv.schema import TREES, Due, LeafEvidence, Schema, TreeName
from zkdv.sharding import leaf_digest
from zkdv.submission import PendingUpdate, Program, Submission

if TYPE_CHECKING:
    from zkdv.driver import Driver

__all__ = ["PendingUpdate", "Pipeline"]

EDIT_VALUE_LIMIT_BYTES = 64


@dataclass
class _Counts:
    updates: int = 0
    sampled: int = 0
    passed: int = 0
    failed: int = 0
    edits: int = 0


@dataclass
class Pipeline(ABC):
    """Commits updates in order and checks the sampled ones. A frontend supplies the operations on its arrays.

    Args:
        core: The driver whose transcript is written.
        queue: Admission and stage threads.
        checkpoint: Called with index and state before an update whose state is kept as evidence; None keeps none.
    """

    core: "Driver"
    queue: PipelineQueue
    checkpoint: Callable[[int, Sequence[Any]], None] | None = None
    schema: Schema | None = None
    counts: _Counts = field(default_factory=_Counts)
    _index: int = 0
    _after: Sequence[Any] = ()
    _evidence: LeafEvidence | None = None
    _memory: ReplayMemory = field(default_factory=ReplayMemory)
    _committed: Future[None] | None = None
    _warnings: list[str] = field(default_factory=list)
    _nan_noticed: bool = False
    _edits_noticed: set[tuple[TreeName, int]] = field(default_factory=set)

    # What a frontend supplies.

    @abstractmethod
    def copy_state(self, state: Sequence[Any]) -> Sequence[Any]:
        """Return copies of state leaves that later donation or in-place writes don't touch."""

    @abstractmethod
    def start_evidence(self, state: Sequence[Any], due: Due) -> Any:
        """Launch the commitment of state leaves, parameters first, and return its results, still on the device."""

    @abstractmethod
    def read_evidence(self, results: Any, due: Due) -> LeafEvidence:
        """Wait for the results of a commitment and bring them to the host."""

    @abstractmethod
    def read_leaf(self, leaf: Any) -> NDArray[Any] | None:
        """Return a host copy of one leaf, or None where its buffer is gone."""

    @abstractmethod
    def replay(self, update: PendingUpdate, state: Sequence[Any]) -> Sequence[Any]:
        """Run an update's sealed program on the state before it and return the state leaves after it."""

    # On the training thread.

    @property
    def updates(self) -> int:
        """Number of updates submitted."""
        return self._index

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
        slot = self.queue.acquire(policy)
        try:
            self.warn()
            index = self._index
            edits = self._find_edits(state) if index else []
            large = any("value" not in edit for edit in edits)
            before = self.start_evidence(state, Due()) if index == 0 or large else None
            if self.core.checks_possible and (index % self.core.replay_snapshot_interval == 0 or edits):
                self._memory.add_snapshot(Snapshot(index, self.copy_state(state)))
        except BaseException:
            slot.retire()
            raise
        if not self.core.may_sample(index):
            slot.draw(sampled=False)
        return index, Submission(slot, program, self.due(index), edits), before

    def submit(self, update: PendingUpdate, after: Sequence[Any]) -> None:
        """Hand over an update whose program was launched; `after` are the state leaves after it, parameters first."""
        self._index = update.index + 1
        self._after = after
        self._committed = self.queue.submit("commit", self._commit, update)

    def abandon(self, submission: Submission) -> None:
        """Forget an update whose program could not be launched."""
        submission.slot.retire()

    def commit_batch(self, batch: Future[NDArray[np.uint32]]) -> Future[_native.BatchCommitment]:
        """Commit to a packed batch, on the preparing thread."""
        return self.queue.submit("prepare", self._commit_batch, batch)

    def warn(self) -> None:
        """Give the warnings that the stages have left, on the thread of the user."""
        while self._warnings:
            warn(self._warnings.pop(0))

    def clear(self) -> None:
        """Let go of all arrays, once nothing more is owed."""
        self._after = ()
        self._evidence = None
        self._memory.clear()

    def finish(self) -> None:
        """Write the closing `state` record over the state that the last update returned. Runs after all updates."""
        self.warn()
        if self._index == 0:
            return
        missing = [leaf for leaf in self._after if self.read_leaf_gone(leaf)]
        if missing:
            raise ZKDVError(
                f"{len(missing)} arrays of the state after the last update were donated or deleted, so the run's final "
                "state can't be committed; close the proof before they are given away"
            )
        evidence = self.read_evidence(self.start_evidence(self._after, Due()), Due())
        self._append_state("close", evidence)

    def read_leaf_gone(self, leaf: Any) -> bool:
        """Return whether a leaf's buffer was donated or deleted."""
        return bool(leaf.is_deleted()) if hasattr(leaf, "is_deleted") else False

    # On the stage threads.

    def _commit_batch(self, batch: Future[NDArray[np.uint32]]) -> _native.BatchCommitment:
        return _native.batch_commit(batch.result(), self.core.rolling_window, self.core.rolling_base)

    def _commit(self, update: PendingUpdate) -> None:
        """Bring the evidence to the host, write the record, and draw."""
        submission, due = update.submission, update.submission.due
        if update.index == 0:
            self.core.append("schema", self._schema().record())
        seq = self._program_seq(submission.program)
        if update.pre_projection is not None:
            before = self.read_evidence(update.pre_projection, Due())
            self._append_state("edit" if update.index else "start", before)

        if self._evidence is not None:
            update.pre_optimizer_hash = self._evidence.roots.get("optimizer")
        update.evidence = self._evidence = self.read_evidence(update.parameter_evidence, due)
        self._notice_nan(update.index, update.evidence)
        body: dict[str, Any] = {
            "update": update.index,
            "batch": update.batch_evidence.result().digest,
            "program": seq,
            "after": update.evidence.roots,
            "overlap": int(update.overlap),
        }
        if submission.edits:
            body["edits"] = list(submission.edits)
        _, digest = self.core.append("update", body)
        self.counts.updates += 1
        self.counts.edits += len(submission.edits)

        schema = self._schema()
        sampled, parameter, optimizer = _native.draw(
            digest,
            b"",
            self.core.config.sampling_policy.as_record(),
            update.index,
            schema.elements("parameters"),
            schema.elements("optimizer"),
        )
        submission.slot.draw(sampled=sampled)
        if self.core.checks_possible:
            self._memory.add_update(update)
        if sampled:
            self.counts.sampled += 1
            self.queue.submit("check", self._check, update, {"parameters": parameter, "optimizer": optimizer})
        else:
            self._retire(update)

    def _check(self, update: PendingUpdate, coordinates: dict[TreeName, int | None]) -> None:
        """Replay a sampled update from the newest snapshot and write the check's record."""
        production = self._hold_production(update, coordinates)
        update.release()
        update.submission.slot.hold()

        snapshot, steps = self._memory.path_to(update.index)
        state, exact, probes_agree = snapshot.state, True, True
        for step in steps:
            if self.queue.cancelled:
                return
            state = self.replay(step, state)
            due = step.submission.due
            replayed = self.read_evidence(self.start_evidence(state, due), due)
            committed = self._evidence_of(step)
            if step is not update:
                exact = exact and replayed.leaf_roots == committed.leaf_roots
                if not exact:
                    probes_agree = probes_agree and probes_within(
                        self._schema(), self.core.config.tolerance, self.core.probe_ratio, committed, replayed
                    )
        outcome = compare(
            self._schema(),
            self.core.config.tolerance,
            probe_ratio=self.core.probe_ratio,
            update=update.index,
            snapshot=snapshot.index,
            committed=committed,
            replayed=replayed,
            rebuilt_exactly=exact,
            probes_agree=probes_agree,
            production=production,
            replayed_leaves={tree: self._replayed_leaf(state, tree, leaf.leaf) for tree, leaf in production.items()},
        )
        self._conclude(update, outcome)

    def _conclude(self, update: PendingUpdate, outcome: CheckOutcome) -> None:
        self.core.append("check", outcome.body)
        self.core.sync()
        if outcome.failure is not None:
            self.counts.failed += 1
            raise ZKDVVerificationError(
                f"update {update.index} does not replay to what was committed: {outcome.failure}; the transcript "
                "records the failed check, and nothing more is added to it"
            )
        if outcome.body["verdict"] == "passed":
            self.counts.passed += 1
        self._retire(update)

    # Pieces of the above.

    def _schema(self) -> Schema:
        if self.schema is None:
            raise ZKDVError("an update was submitted before its schema was declared")
        return self.schema

    def _evidence_of(self, update: PendingUpdate) -> LeafEvidence:
        if update.evidence is None:
            raise ZKDVError(f"update {update.index} has no evidence yet")
        return update.evidence

    def _append_state(self, reason: str, evidence: LeafEvidence) -> None:
        self.core.append("state", {"updates": self.counts.updates, "reason": reason, "roots": evidence.roots})

    def _program_seq(self, program: Program) -> int:
        """Store a program and write its record, the first time that an update names it."""
        if program.seq is None:
            sealed = program.sealed.result()
            digest = _native.leaf_digest(sealed.blob)
            record = sealed.record()
            self.core.store_program(digest, str(record["extension"]), sealed.blob)
            program.seq, _ = self.core.append(
                "program",
                record
                | {
                    "digest": digest,
                    "length": len(sealed.blob),
                    "text-digest": _native.leaf_digest(sealed.text),
                },
            )
        return program.seq

    def _notice_nan(self, index: int, evidence: LeafEvidence) -> None:
        """Leave a warning the first time that a probe is NaN: the run goes on, and its owner should know."""
        if self._nan_noticed or not evidence.holds_nan:
            return
        for tree, probes in evidence.probes.items():
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
        if all(leaf is expected for leaf, expected in zip(state, self._after, strict=True)):
            return []
        if self._committed is not None:
            # What a leaf is compared with is the evidence of the preceding update.
            wait([self._committed])
            self.queue.check()
        edits: list[dict[str, Any]] = []
        schema = self._schema()
        for position, (leaf, expected) in enumerate(zip(state, self._after, strict=True)):
            if leaf is expected:
                continue
            tree, index = schema.tree_leaf(position)
            array = self.read_leaf(leaf)
            if array is None:
                raise ZKDVError(f"{tree} leaf {schema.tree(tree)[index].name} was donated or deleted before the update")
            digest = leaf_digest(array, schema.tree(tree)[index].sharding)
            if digest == self._committed_digest(tree, index, expected):
                continue
            edit: dict[str, Any] = {"tree": tree, "leaf": index, "digest": digest}
            if array.nbytes <= EDIT_VALUE_LIMIT_BYTES:
                edit["value"] = array.tobytes()
            edits.append(edit)
        self._notice_edits(edits)
        return edits

    def _notice_edits(self, edits: Sequence[dict[str, Any]]) -> None:
        """Warn of leaves that were edited for the first time: a loop that edits each time says so once."""
        leaves = {(edit["tree"], edit["leaf"]) for edit in edits}
        if leaves <= self._edits_noticed:
            return
        self._edits_noticed |= leaves
        names = [self._schema().tree(edit["tree"])[edit["leaf"]].name for edit in edits]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        warn(
            f"{', '.join(names[:5])}{more} changed between updates {self._index - 1} and {self._index} other than by "
            "the update. The transcript records every such edit, and `zkdv verify` fails because of it unless it is "
            "given --allow-edits; a value that the update itself changes is no edit. Further edits of the same leaves "
            "are recorded without a warning"
        )

    def _committed_digest(self, tree: TreeName, index: int, expected: Any) -> bytes | None:
        """Return a leaf's digest after the last update: the committed one, else that of its array if it is there."""
        if self._evidence is not None and tree in self._evidence.digests:
            return self._evidence.digests[tree][index]
        array = self.read_leaf(expected)
        return None if array is None else leaf_digest(array, self._schema().tree(tree)[index].sharding)

    def _hold_production(
        self, update: PendingUpdate, coordinates: dict[TreeName, int | None]
    ) -> dict[TreeName, ProductionLeaf]:
        """Copy the leaves with the drawn coordinates to the host."""
        held: dict[TreeName, ProductionLeaf] = {}
        for tree in TREES:
            coordinate = coordinates[tree]
            if coordinate is None:
                continue
            leaf, element = self._schema().locate(tree, coordinate)
            leaves = update.parameters if tree == "parameters" else update.opt_state
            held[tree] = ProductionLeaf(coordinate, leaf, element, self.read_leaf(leaves[leaf]))
        return held

    def _replayed_leaf(self, state: Sequence[Any], tree: TreeName, leaf: int) -> NDArray[Any]:
        position = leaf if tree == "parameters" else len(self._schema().parameters) + leaf
        array = self.read_leaf(state[position])
        if array is None:
            raise ZKDVError("a replayed leaf is gone")
        return array

    def _retire(self, update: PendingUpdate) -> None:
        """Let go of what only this update needed, and of snapshots that no open update starts from."""
        update.release()
        update.submission.slot.retire()
        self._memory.settle(update.index)
