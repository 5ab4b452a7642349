"""The audit of a run by somebody who did not make it: its updates executed again, from what the run has kept.

`zkdv audit` draws segments, the updates from one checkpoint to the next, executes them from the sealed program in a
process of its own, and compares every root that the transcript holds. It needs the run's folder and the framework, and
nothing of the code that trained.
"""

import random
import secrets
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Literal

from zkdv.auditing._batches import BatchSource, SuppliedBatches
from zkdv.auditing._process import DEFAULT_TIMEOUT_SECONDS, ReplayProcess
from zkdv.auditing._replay import Replay
from zkdv.auditing._report import AuditOutcome, AuditReport, Difference, SegmentReport
from zkdv.auditing._run import Outline, Segment, read_outline, read_updates
from zkdv.errors import ZKDVError, ZKDVVerificationError
from zkdv.verification import RunReport, verify

__all__ = [
    "DEFAULT_SEGMENTS",
    "DEFAULT_TIMEOUT_SECONDS",
    "AuditOutcome",
    "AuditReport",
    "Difference",
    "SegmentReport",
    "SuppliedBatches",
    "audit",
]

DEFAULT_SEGMENTS = 4
"""How many segments are drawn where nothing is said."""

Progressed = Callable[[int, int], None]
"""Told how far an audit is: `(updates_done, updates_total)`."""

# What an audit can be made in spite of: it says so, or finds out more than the record says.
_NO_HINDRANCE = frozenset({"program-missing", "program-digest", "check-failed", "closed-poisoned"})
_GRAVEST = tuple(reversed(AuditOutcome))
# A segment that differs says more than one that can't be audited, and that more than another platform class.


def audit(
    path: Path | str,
    *,
    segments: int | Literal["all"] | None = None,
    updates: Iterable[int] | None = None,
    sampled: bool = False,
    batches: SuppliedBatches | None = None,
    seed: int | None = None,
    timeout: float = DEFAULT_TIMEOUT_SECONDS,
    progress: Progressed | None = None,
) -> AuditReport:
    """Execute updates of a run again and compare the states after them with those that the run has committed to.

    The transcript is verified first. The framework runs in a process of its own, so that this one imports none.

    Args:
        path: The run's folder.
        segments: How many segments to draw, at least 1, or `"all"`; default: 4. A segment goes from one checkpoint to
            the next. All of the run is drawn from, also what no evidence is kept of.
        updates: Indices of updates to execute, in place of a draw; those before them back to a checkpoint are executed
            too.
        sampled: Execute the updates that the run's own draws have chosen, in place of a draw.
        batches: A data set that batches are taken from, in place of those that the run has kept: a function from an
            update's index to its batch, or a folder of safetensors files, one batch each, in any order. They are
            matched by digest. A batch is a mapping of arrays by the names of the batch leaves in the schema record, or
            a list of arrays in their order, or the packed matrix.
        seed: Seed of the draw, to repeat an audit; default: the operating system's randomness. Whoever knows the seed
            beforehand knows the draw.
        timeout: How long loading a program, or one update, may take, in seconds; default: an hour. What takes longer
            can't be audited: a stranger's program need not end.
        progress: Called after each update with how many of how many are done.

    Returns:
        The report. A run that differs or can't be audited gives a report, not an exception.

    Raises:
        TypeError: An argument of another type.
        ValueError: `segments` below 1, `updates` that the run does not have, more than one way to choose, or a
            `timeout` that is not positive.
        ZKDVVerificationError: The transcript is violated, so that nothing that it says can be compared with.
        ZKDVError: The path holds no transcript, cannot be read, or no update is recorded in it.
    """
    _check_choice(segments, updates, sampled=sampled)
    if not 0 < timeout <= threading.TIMEOUT_MAX:
        raise ValueError(f"timeout is {timeout!r}; it is a number of seconds above 0")
    folder = Path(path)
    verification = _verified(folder)
    outline = read_outline(folder, verification)
    chosen = _chosen(outline, segments, updates, sampled=sampled, seed=seed)
    total, done = sum(chosen.values()), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    found: list[SegmentReport] = []
    with ReplayProcess(timeout) as process, BatchSource(outline, batches) as source:
        replay = Replay(outline, process, source, advance)
        wanted = [outline.segments[place] for place in chosen]
        for segment, recorded in read_updates(outline, verification, wanted):
            found.append(replay.run(segment, recorded[: chosen[segment.number]]))
        notes = [
            *(f"{one.code}: {one.message}" for one in verification.violations),
            *replay.notes,
        ]
    every = verification.every is not None
    return AuditReport(
        path=str(path),
        outcome=next(grave for grave in _GRAVEST if any(one.outcome is grave for one in found)),
        verification=verification,
        segments=tuple(found),
        segments_total=len(outline.segments),
        updates_total=outline.updates,
        drawn=updates is None and not sampled,
        sampled=sampled,
        probability=None if not sampled or every else verification.probability,
        platform_differences=replay.platform or (),
        notes=tuple(notes),
    )


def _check_choice(segments: object, updates: object, *, sampled: bool) -> None:
    ways = [
        name
        for name, given in (("segments", segments is not None), ("updates", updates is not None), ("sampled", sampled))
        if given
    ]
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(ways)} are different ways to choose what is executed; give one of them")
    if segments is not None and segments != "all":
        if not isinstance(segments, int) or isinstance(segments, bool):
            raise TypeError(f"segments is {segments!r} ({type(segments).__name__}); it is an int, 'all' or None")
        if segments < 1:
            raise ValueError(f"segments is {segments}; it is at least 1, or 'all'")


def _verified(folder: Path) -> RunReport:
    """Verify the transcript, and refuse one that nothing can be compared with."""
    if not folder.is_dir():
        raise ZKDVError(f"{folder} is no folder; an audit needs the run's folder, with the evidence in it")
    (run,) = verify(folder, allow_edits=True).runs
    hindrances = [one for one in run.violations if one.code not in _NO_HINDRANCE]
    if hindrances or run.violations_total > len(run.violations):
        first = hindrances[0] if hindrances else run.violations[0]
        raise ZKDVVerificationError(
            f"{folder}: the transcript does not hold, so there is nothing to compare with: {first.code}: "
            f"{first.message}; `zkdv verify` says everything that is wrong"
        )
    return run


def _chosen(
    outline: Outline,
    segments: int | str | None,
    updates: Iterable[int] | None,
    *,
    sampled: bool,
    seed: int | None,
) -> dict[int, int]:
    """Return the segments to execute, by their place, each with how many of its updates."""
    everything = outline.segments
    if not everything:
        raise ZKDVError(f"{outline.folder}: the transcript holds no update, so there is nothing to audit")
    if updates is not None:
        wanted = set(updates)
        chosen = _holding(everything, lambda segment: _last_of(wanted, segment))
        missing = wanted - {index for segment in everything for index in _indices(segment) if index in wanted}
        if missing:
            raise ValueError(f"the run has no update {min(missing)}; it has {outline.updates}")
        if not chosen:
            raise ValueError("updates is empty; give the indices of updates")
        return chosen
    if sampled:
        chosen = _holding(everything, lambda segment: segment.sampled)
        if not chosen:
            raise ZKDVError(f"{outline.folder}: no update of this run was sampled; draw segments in place of it")
        return chosen
    count = len(everything) if segments == "all" else int(segments or DEFAULT_SEGMENTS)
    source: random.Random = secrets.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311 (asked for)
    places = sorted(source.sample(range(len(everything)), min(count, len(everything))))
    return {place: everything[place].updates for place in places}


def _holding(segments: list[Segment], count: Callable[[Segment], int]) -> dict[int, int]:
    return {place: wanted for place, segment in enumerate(segments) if (wanted := count(segment))}


def _indices(segment: Segment) -> range:
    return range(segment.start, segment.start + segment.updates)


def _last_of(wanted: set[int], segment: Segment) -> int:
    """Return how many updates of a segment lead to the last wanted one; 0 where there is none."""
    return max((index - segment.start + 1 for index in _indices(segment) if index in wanted), default=0)
