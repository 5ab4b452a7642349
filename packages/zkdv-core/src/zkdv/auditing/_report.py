"""What an audit finds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import comb
from typing import Any

from zkdv.verification import RunReport

__all__ = ["AuditOutcome", "AuditReport", "Difference", "SegmentReport"]

CONFIDENCES = (0.5, 0.05, 0.01)


class AuditOutcome(StrEnum):
    """What the execution of updates came to, from the best to the worst."""

    IDENTICAL = "identical"
    """Every recorded root came out again, bit for bit."""

    WITHIN_TOLERANCE = "within tolerance"
    """Not every root, on a platform of the same class; every number that could be compared was within tolerance."""

    DIFFERENT_PLATFORM_CLASS = "different platform class"
    """Not every root, on a platform where that is to be expected: it says nothing against the run."""

    NOT_AUDITABLE = "not auditable"
    """What is needed to execute the updates is not there, or can't be used here."""

    DIFFERS = "differs"
    """The updates were executed as recorded and came to something else, on a platform of the same class."""


_EXIT_CODES = {
    AuditOutcome.IDENTICAL: 0,
    AuditOutcome.WITHIN_TOLERANCE: 0,
    AuditOutcome.DIFFERENT_PLATFORM_CLASS: 3,
    AuditOutcome.NOT_AUDITABLE: 3,
    AuditOutcome.DIFFERS: 1,
}


@dataclass(frozen=True)
class Difference:
    """Where a run first differs from its execution.

    Attributes:
        update: The first update after which a recorded root did not come out; that before which the state at the start
            of the segment stands, where it is already another one.
        trees: The trees whose root did not, `parameters` and `optimizer`.
        leaves: Names of the leaves that differ after that update, `parameters/…` or `optimizer/…`; empty where nothing
            is kept that tells.
        distance: The largest difference of two numbers; None where nothing is kept that tells.
    """

    update: int
    trees: tuple[str, ...]
    leaves: tuple[str, ...] = ()
    distance: float | None = None


@dataclass(frozen=True)
class SegmentReport:
    """What became of one segment.

    Attributes:
        number: Its place in the run.
        first: Its first update.
        updates: How many updates were asked for, from the first one on.
        executed: How many were executed.
        outcome: What it came to.
        message: The same in words.
        difference: Where it first differs; None where it does not.
    """

    number: int
    first: int
    updates: int
    executed: int
    outcome: AuditOutcome
    message: str
    difference: Difference | None = None


@dataclass(frozen=True)
class AuditReport:
    """What an audit finds.

    Attributes:
        path: The run's folder.
        outcome: The worst outcome of a segment, differs before not auditable before another platform class.
        verification: The report of the verification that came first.
        segments: What became of each segment that was chosen, in order.
        segments_total: How many segments the run has.
        updates_total: How many updates it has.
        drawn: Whether the segments were drawn: only then is there a bound.
        sampled: Whether the updates were those that the run's challenger drew.
        probability: With `sampled`, the chance of each update to be drawn; None otherwise.
        platform_differences: What is different here from where the run was made, as far as numbers depend on it.
        notes: What a reader should know of programs and files, such as a program that fails its digest.
    """

    path: str
    outcome: AuditOutcome
    verification: RunReport
    segments: tuple[SegmentReport, ...]
    segments_total: int
    updates_total: int
    drawn: bool
    sampled: bool
    probability: float | None
    platform_differences: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of `zkdv audit`: 0 identical or within tolerance, 1 differs, 3 anything else."""
        return _EXIT_CODES[self.outcome]

    @property
    def executed(self) -> int:
        """How many updates were executed."""
        return sum(segment.executed for segment in self.segments)

    @property
    def identical(self) -> int:
        """How many of the chosen segments came out identical."""
        return sum(segment.outcome is AuditOutcome.IDENTICAL for segment in self.segments)

    def miss_probability(self, wrong: int) -> float:
        """The probability that an audit that draws so many segments meets none of the wrong ones.

        Args:
            wrong: How many segments of the run hold an update whose exact execution differs from what is recorded.

        Returns:
            C(S - wrong, m) / C(S, m) for m segments drawn from S without replacement; 1 where none were drawn.
        """
        if not self.drawn:
            return 1.0
        total, drawn = self.segments_total, len(self.segments)
        return comb(total - wrong, drawn) / comb(total, drawn) if wrong <= total else 0.0

    def bound(self) -> tuple[str, ...]:
        """What this audit says of the updates that it did not execute, in sentences."""
        chosen = len(self.segments)
        others = chosen - self.identical
        if self.outcome not in {AuditOutcome.IDENTICAL, AuditOutcome.WITHIN_TOLERANCE}:
            failed = f"{others} of the {chosen} chosen segments did not come out identical and count as wrong"
            return (f"{failed}: nothing follows for the rest of the run.",)
        if others:
            tolerated = f"{others} of the {chosen} chosen segments are within tolerance only"
            return (f"{tolerated}, which carries no probability: that finds accidents, not somebody who lies.",)
        if self.sampled:
            return (_sampled_bound(self.probability),)
        if not self.drawn:
            return ("The updates were named, not drawn: nothing follows for the others.",)
        if chosen == self.segments_total:
            return ("Every update of the run was executed: nothing was left out.",)
        return tuple(self._drawn_bound())

    def as_json(self) -> dict[str, Any]:
        """This report as `zkdv audit --json` prints it."""
        return {"exit_code": self.exit_code, "bound": list(self.bound()), **asdict(self)}

    def _drawn_bound(self) -> Sequence[str]:
        total = self.segments_total
        one = f"If 1 of the {self.updates_total} updates were wrong"
        sentences = [f"{one}, this audit would have missed it with probability {self.miss_probability(1):.3g}."]
        for confidence in CONFIDENCES:
            wrong = next(wrong for wrong in range(1, total + 1) if self.miss_probability(wrong) <= confidence)
            if wrong > 1:
                sentences.append(
                    f"If {wrong} of the {total} segments held a wrong update, this audit would have missed all of them "
                    f"with probability {self.miss_probability(wrong):.3g}."
                )
        return list(dict.fromkeys(sentences))


def _sampled_bound(probability: float | None) -> str:
    if probability is None:
        return "The updates were fixed beforehand by the debug policy, not drawn: nothing follows for the others."
    return (
        f"If k updates were wrong, a draw of each with probability {probability:g} would have missed all of them "
        f"with probability (1 - {probability:g})^k; for 1 that is {1 - probability:.3g}, for 100 it is "
        f"{(1 - probability) ** 100:.3g}. With the challenger `transcript` the draw follows from the run's own "
        "records, which somebody who lies can redraw."
    )
