"""The check of one sampled update: its replay from a snapshot, compared with what was committed.

Runs on the thread of the stage `check`. Read `_check` from top to bottom.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from zkdv.array_operations import ArrayOperations
from zkdv.attested import Attested
from zkdv.check import CheckOutcome, OpenedElement, compare, probes_within
from zkdv.errors import ZKDVError, ZKDVVerificationError
from zkdv.evidence import RunEvidence
from zkdv.flowcontrol import PipelineQueue
from zkdv.replay_memory import ReplayMemory, Snapshot
from zkdv.schema import TREES, Due, LeafEvidence, Schema, TreeName
from zkdv.submission import PendingUpdate, Program

if TYPE_CHECKING:
    from zkdv.driver import Driver

__all__ = ["Counts", "Replays"]


@dataclass
class Counts:
    """What the closing record counts."""

    updates: int = 0
    sampled: int = 0
    passed: int = 0
    failed: int = 0
    edits: int = 0


@dataclass
class Replays(ArrayOperations):
    """Checks sampled updates by replaying them, with the operations that a frontend supplies.

    Args:
        core: The driver whose transcript is written.
        queue: Admission and stage threads.
        attest_program: The user's own statement of the update, where there is one: sealed before the first update.
        kept: The evidence that is kept for an auditor; None where none is.
    """

    core: "Driver"
    queue: PipelineQueue
    attest_program: Program | None = None
    schema: Schema | None = None
    counts: Counts = field(default_factory=Counts)
    kept: RunEvidence | None = None
    _training_waits: bool = False
    _memory: ReplayMemory = field(default_factory=ReplayMemory)

    def _check(self, update: PendingUpdate, coordinates: dict[TreeName, int | None]) -> None:
        """Replay a sampled update from the newest snapshot and write the check's record."""
        session = self.core.session
        if session.size > 1:
            self.queue.wait_until(lambda: self._training_waits)
        challenge = session.challenge(update.index, coordinates, self.core.config.tolerance)
        outcome = self._replay_and_compare(update, challenge.coordinates)
        # The replay's arrays are gone by now, before training goes on where it waited.
        if outcome is not None:
            session.conclude(challenge, outcome.body)
            self._conclude(update, outcome)

    def _replay_and_compare(
        self, update: PendingUpdate, coordinates: dict[TreeName, int | None]
    ) -> CheckOutcome | None:
        """Return what a check finds; None where nobody waits for it any more."""
        production = self._hold_production(update, coordinates)
        update.release()
        update.submission.slot.hold()

        snapshot, steps = self._memory.path_to(update.index)
        self.queue.wait_until(lambda: snapshot.arrived or self.queue.cancelled)
        if not snapshot.arrived:
            return None
        if self.kept is not None:
            fresh = snapshot.reached == snapshot.index
            self.kept.behind_check(snapshot.index, snapshot.copy, steps, fresh=fresh)
        state = self.restore(snapshot.copy)
        if snapshot.reached == snapshot.index:
            self._compare_snapshot(snapshot, state, steps[0])
        exact, probes_agree = snapshot.exact, snapshot.probes_agree
        for step in steps:
            if self.queue.cancelled:
                return None
            attested = self._attest(update, state, production) if step is update else None
            rebuilt_exactly, rebuilt_probes_agree = exact, probes_agree
            state = self.replay(step, state)
            due = step.submission.due
            replayed = self.read_evidence(self.start_evidence(state, due), due)
            committed = self._evidence_of(step)
            exact = exact and replayed.leaf_roots == committed.leaf_roots
            if not exact:
                probes_agree = probes_agree and probes_within(
                    self._schema(), self.core.config.tolerance, self.core.probe_ratio, committed, replayed
                )
        opened = None if attested is None else self._evidence_of(update)
        elements = {
            tree: OpenedElement.read(
                self._schema(), tree, leaf.coordinate, self._replayed_leaf(state, tree, leaf.leaf), opened
            )
            for tree, leaf in production.items()
        }
        # The next check of an update behind the same snapshot goes on from here.
        snapshot.copy, snapshot.reached = self.keep(state, snapshot.copy), update.index + 1
        snapshot.exact, snapshot.probes_agree = exact, probes_agree
        return compare(
            self._schema(),
            self.core.config.tolerance,
            probe_ratio=self.core.probe_ratio,
            update=update.index,
            snapshot=snapshot.index,
            committed=committed,
            replayed=replayed,
            rebuilt_exactly=rebuilt_exactly,
            probes_agree=rebuilt_probes_agree,
            production=production,
            replayed_elements=elements,
            attested=attested,
        )

    def _compare_snapshot(self, snapshot: Snapshot, state: Sequence[Any], first: PendingUpdate) -> None:
        """Compare a fresh snapshot with what is committed of the state before its update.

        A write that went unnoticed since then was copied with the rest, and every replay from the copy would repeat it.
        """
        committed, edits = first.evidence_before, first.submission.edits
        # Edits that keep their values have no `state` record.
        if committed is None or (edits and all("value" in edit for edit in edits)):
            return
        due = Due(optimizer="optimizer" in committed.digests)
        copied = self.read_evidence(self.start_evidence(state, due), due)
        if copied.leaf_roots != committed.leaf_roots:
            snapshot.exact = False
            snapshot.probes_agree = probes_within(
                self._schema(), self.core.config.tolerance, self.core.probe_ratio, committed, copied
            )

    def _attest(
        self, update: PendingUpdate, state: Sequence[Any], production: Mapping[TreeName, OpenedElement]
    ) -> Attested | None:
        """Return what the attest program gives for the state before an update; None where there is no such program."""
        if self.attest_program is None:
            return None
        values = self.attest(update, state, {tree: leaf.coordinate for tree, leaf in production.items()})
        parameter = production.get("parameters")
        before = None if parameter is None else self._replayed_leaf(state, "parameters", parameter.leaf)
        committed = update.evidence_before
        return Attested(values, before, () if committed is None else committed.digests["parameters"])

    def _conclude(self, update: PendingUpdate, outcome: CheckOutcome) -> None:
        if outcome.failure is not None:
            self.counts.failed += 1
            raise ZKDVVerificationError(
                f"update {update.index} {outcome.failure}; the transcript records the failed check, and nothing more "
                "is added to it"
            )
        if outcome.body["verdict"] == "passed":
            self.counts.passed += 1
        self._retire(update)

    def _hold_production(
        self, update: PendingUpdate, coordinates: dict[TreeName, int | None]
    ) -> dict[TreeName, OpenedElement]:
        """Read the elements at the drawn coordinates as training left them."""
        held: dict[TreeName, OpenedElement] = {}
        for tree in TREES:
            coordinate = coordinates[tree]
            if coordinate is None:
                continue
            leaf, _ = self._schema().locate(tree, coordinate)
            array = self.read_leaf((update.parameters if tree == "parameters" else update.opt_state)[leaf])
            held[tree] = OpenedElement.read(self._schema(), tree, coordinate, array, self._evidence_of(update))
        return held

    def _replayed_leaf(self, state: Sequence[Any], tree: TreeName, leaf: int) -> NDArray[Any]:
        position = leaf if tree == "parameters" else len(self._schema().parameters) + leaf
        array = self.read_leaf(state[position])
        if array is None:
            raise ZKDVError("a replayed leaf is gone")
        return array

    def _evidence_of(self, update: PendingUpdate) -> LeafEvidence:
        if update.evidence is None:
            raise ZKDVError(f"update {update.index} has no evidence yet")
        return update.evidence

    def _schema(self) -> Schema:
        if self.schema is None:
            raise ZKDVError("an update was submitted before its schema was declared")
        return self.schema

    def _retire(self, update: PendingUpdate) -> None:
        """Let go of what only this update needed."""
        update.release()
        self._memory.settle(update.index)
        update.submission.slot.retire()
