"""The execution of one segment: from its checkpoint, update by update, with every recorded root compared on the way."""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.auditing._batches import BatchSource
from zkdv.auditing._process import ReplayProcess, ReplayProcessDiedError
from zkdv.auditing._report import AuditOutcome, Difference, SegmentReport
from zkdv.auditing._run import Outline, ProgramFiles, RecordedUpdate, Segment
from zkdv.check import probes_within
from zkdv.environment import platform_differences
from zkdv.errors import ZKDVError
from zkdv.evidence_files import TEXT_EXTENSION, checkpoint_file, component_file, file_digest, read_components
from zkdv.schema import TREES, LeafEvidence, TreeName
from zkdv.sharding import probe_digest

__all__ = ["Replay"]

SHOWN_LEAVES = 3
DIGEST_BYTES = 32


class _NotAuditableError(Exception):
    """What is needed is not there, in words."""


class _DiffersError(Exception):
    """The execution came to something else."""

    def __init__(self, difference: Difference, message: str) -> None:
        super().__init__(message)
        self.difference = difference


@dataclass
class _Progress:
    """How far a segment is.

    Attributes:
        executed: How many updates were executed.
        first: Where it first differed; None where everything was exact so far.
        tolerable: Whether every update since then was compared, and within tolerance.
    """

    executed: int = 0
    first: Difference | None = None
    tolerable: bool = True


@dataclass
class Replay:
    """Executes segments of one run in a process of its own.

    Attributes:
        outline: The run.
        process: The process.
        batches: Where batches are found.
        progress: Called after each update.
        platform: What is different here; None before the process was asked.
        notes: What a reader should know of programs and files.
    """

    outline: Outline
    process: ReplayProcess
    batches: BatchSource
    progress: Callable[[], None]
    platform: tuple[str, ...] | None = None
    notes: dict[str, None] = field(default_factory=dict)
    _loaded: set[int] = field(default_factory=set)

    def run(self, segment: Segment, updates: Sequence[RecordedUpdate]) -> SegmentReport:
        """Execute the first updates of a segment, all of them or as many as are asked for."""
        at = _Progress()
        difference: Difference | None = None
        try:
            self._execute(segment, updates, at)
        except _DiffersError as found:
            outcome, message, difference = AuditOutcome.DIFFERS, str(found), found.difference
            if self.platform:
                outcome = AuditOutcome.DIFFERENT_PLATFORM_CLASS
                message = (
                    f"{message}; on another platform class that is to be expected, and says nothing against the run"
                )
        except ReplayProcessDiedError as died:
            self._loaded.clear()
            outcome, message = AuditOutcome.NOT_AUDITABLE, f"{died}; a program that does that can't be audited"
        except (_NotAuditableError, ZKDVError) as missing:
            outcome, message = AuditOutcome.NOT_AUDITABLE, str(missing)
        else:
            if at.first is None:
                outcome, message = AuditOutcome.IDENTICAL, f"{_count(at.executed)} came out bit for bit as recorded"
            else:
                difference = at.first
                where = f"from update {at.first.update} on the roots are others, and all numbers within tolerance"
                outcome, message = AuditOutcome.WITHIN_TOLERANCE, where
                if self.platform:
                    outcome = AuditOutcome.DIFFERENT_PLATFORM_CLASS
        return SegmentReport(segment.number, segment.start, len(updates), at.executed, outcome, message, difference)

    def _execute(self, segment: Segment, updates: Sequence[RecordedUpdate], at: _Progress) -> None:
        self._start(segment)
        for position, update in enumerate(updates):
            self._load(update)
            batch = self._batch(update)
            if not (segment.edited and position == 0):
                self._edit(update)
            trees = [tree for tree in TREES if tree in update.after]
            digests = self.process.ask("step", self._digests(trees), seq=update.program, batch=str(batch), trees=trees)
            at.executed += 1
            self._compare(update, digests, at)
            self.progress()
        if at.first is not None and not at.tolerable:
            self._compare_end(segment, at, whole=len(updates) == segment.updates, last=updates[-1].index)

    # The state at the start.

    def _start(self, segment: Segment) -> None:
        name = checkpoint_file(segment.start)
        path, recorded = self.outline.folder / name, self.outline.checkpoints.get(segment.start)
        if recorded is None:
            raise _NotAuditableError(
                f"no checkpoint of the state before update {segment.start} was recorded; keep evidence with "
                "zkdv.EvidencePolicy(checkpoint_interval=…) where this is trained again"
            )
        if path.is_symlink() or not path.is_file():
            raise _NotAuditableError(f"{name} is not in the folder")
        if file_digest(path) not in recorded:
            raise _NotAuditableError(f"{name} is not the file whose digest was recorded")
        self._open()
        digests = self.process.ask("start", self._digests(TREES), path=str(path))
        wrong = [tree for tree in TREES if _native.tree_root(tree, digests[tree]) != segment.roots[tree]]
        if wrong:
            kept = None if segment.edited else self._components(segment.start - 1, segment.roots)
            leaves = self._other_leaves(kept, wrong, digests)
            raise _DiffersError(
                Difference(segment.start, tuple(wrong), leaves),
                f"{name}, which the run signed, holds another state than the one that it committed to before update "
                f"{segment.start}{_named(leaves)}",
            )

    def _open(self) -> None:
        if self.process.running:
            return
        outline = self.outline
        self.platform = self.process.ask(
            "open",
            lambda answer: platform_differences(outline.environment, answer["platform"]),
            prover=outline.prover,
            schema=outline.schema.record(),
            root=outline.root,
            probe_ratio=outline.probe_ratio,
            devices=list(outline.environment.get("devices", ())),
        )

    # One update.

    def _load(self, update: RecordedUpdate) -> None:
        if update.program in self._loaded:
            return
        program = self.outline.programs.get(update.program)
        if program is None:
            raise _NotAuditableError(f"update {update.index} names a program that is none")
        blob = self._committed_file(f"{program.digest.hex()}.{program.extension}", program.digest, "program")
        text = self._committed_file(f"{program.text_digest.hex()}.{TEXT_EXTENSION}", program.text_digest, "text")
        if blob is None and text is None:
            raise _NotAuditableError(f"neither the program of update {update.index} nor its text is in the folder")
        source, notes = self.process.ask(
            "load",
            lambda answer: (str(answer["source"]), list(map(str, answer["notes"]))),
            seq=program.seq,
            blob=blob,
            text=text,
            format=program.format,
            platforms=program.platforms,
        )
        self._loaded.add(update.program)
        self.notes |= dict.fromkeys(notes)
        if source == "text":
            self.notes[f"program {_short(program)} was executed from its committed text"] = None

    def _committed_file(self, name: str, digest: bytes, what: str) -> str | None:
        """Return the path of a program's file where it is the committed one."""
        path = self.outline.folder / "programs" / name
        if path.is_symlink() or not path.is_file():
            self.notes[f"the {what} programs/{name} is not in the folder"] = None
            return None
        if file_digest(path) != digest:
            self.notes[f"the {what} programs/{name} fails its digest: it is not the one that was committed"] = None
            return None
        return str(path)

    def _batch(self, update: RecordedUpdate) -> Path:
        try:
            return self.batches.find(update)
        except ZKDVError as error:
            raise _NotAuditableError(str(error)) from error

    def _edit(self, update: RecordedUpdate) -> None:
        for edit in update.edits:
            if "value" not in edit:
                raise _NotAuditableError(f"a leaf was edited before update {update.index}, and its value is not kept")
            self.process.ask("edit", lambda _: None, tree=edit["tree"], leaf=edit["leaf"], value=edit["value"])

    def _compare(self, update: RecordedUpdate, digests: Mapping[TreeName, Sequence[bytes]], at: _Progress) -> None:
        wrong = [tree for tree, mine in digests.items() if _native.tree_root(tree, mine) != update.after[tree]]
        if not wrong and at.first is None:
            return
        kept = self._components(update.index, update.after)
        leaves = self._other_leaves(kept, wrong, digests)
        if at.first is None:
            at.first = Difference(update.index, tuple(wrong), leaves)
        if kept is None:
            at.tolerable = False
        elif wrong and not self._within(kept, digests):
            raise _DiffersError(
                Difference(update.index, tuple(wrong), leaves),
                f"update {update.index} does not come to what was committed{_named(leaves)}",
            )

    def _components(self, index: int, roots: Mapping[Any, bytes]) -> LeafEvidence | None:
        """Return what is kept under the roots of an update; None where nothing is, or something else."""
        path = self.outline.folder / component_file(index)
        if not path.exists():
            return None
        try:
            return read_components(path, self.outline.schema, roots, self.outline.probe_ratio)
        except ZKDVError as error:
            self.notes[str(error)] = None
            return None

    def _digests(self, trees: Sequence[TreeName]) -> Callable[[Mapping[str, Any]], dict[TreeName, list[bytes]]]:
        """Return what reads the digests of all leaves of these trees."""

        def read(answer: Mapping[str, Any]) -> dict[TreeName, list[bytes]]:
            digests = {tree: [bytes.fromhex(digest) for digest in answer["digests"][tree]] for tree in trees}
            for tree, told in digests.items():
                if [len(digest) for digest in told] != [DIGEST_BYTES] * len(self.outline.schema.tree(tree)):
                    raise ValueError(f"digests of other leaves than those of {tree}")
            return digests

        return read

    def _within(self, kept: LeafEvidence, digests: Mapping[TreeName, Sequence[bytes]]) -> bool:
        """Return whether the probes of what was executed are within tolerance of the committed ones."""
        schema, ratio = self.outline.schema, self.outline.probe_ratio
        probes: dict[TreeName, list[NDArray[Any] | None]] = {}
        probe_digests: dict[TreeName, list[bytes]] = {}
        for tree in digests:
            probes[tree] = self.process.ask("probes", functools.partial(_vectors, kept.probes[tree]), tree=tree)
            probe_digests[tree] = [
                probe_digest(leaf.shape, leaf.dtype, leaf.sharding, vector, ratio)
                for leaf, vector in zip(schema.tree(tree), probes[tree], strict=True)
            ]
        mine = LeafEvidence(digests, probe_digests, lambda: probes)
        return _equal_where_unprobed(kept, mine) and probes_within(schema, self.outline.tolerance, ratio, kept, mine)

    def _other_leaves(
        self,
        kept: LeafEvidence | None,
        wrong: Sequence[TreeName],
        digests: Mapping[TreeName, Sequence[bytes]],
    ) -> tuple[str, ...]:
        """Name the leaves whose digests are not the committed ones, where those are kept."""
        if kept is None:
            return ()
        return tuple(
            f"{tree}/{leaf.name}"
            for tree in wrong
            for leaf, mine, theirs in zip(
                self.outline.schema.tree(tree), digests[tree], kept.digests.get(tree, digests[tree]), strict=True
            )
            if mine != theirs
        )

    # The state at the end.

    def _compare_end(self, segment: Segment, at: _Progress, *, whole: bool, last: int) -> None:
        """Compare with the state that the next checkpoint holds, number by number, where components don't tell."""
        first = at.first
        if first is None:
            return
        what = f"update {first.update} does not come to what was committed"
        unknown = "; which leaf, and by how much, nothing tells that was kept (EvidencePolicy(components=True) does)"
        path = None if segment.end is None else self.outline.folder / checkpoint_file(segment.end)
        recorded = self.outline.checkpoints.get(segment.end if segment.end is not None else -1, set())
        if not whole or path is None or not path.is_file() or file_digest(path) not in recorded:
            raise _DiffersError(first, what + unknown)
        tolerance = self.outline.tolerance
        names = [f"{tree}/{leaf.name}" for tree in TREES for leaf in self.outline.schema.tree(tree)]

        def read(answer: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
            told = zip(names, answer["leaves"], strict=True)
            return [(name, float(leaf["distance"]), bool(leaf["within"])) for name, leaf in told]

        found = self.process.ask("distances", read, path=str(path), absolute=tolerance.abs, relative=tolerance.rel)
        largest = max((distance for _, distance, _ in found), default=0.0)
        if all(within for _, _, within in found):
            at.first = Difference(first.update, first.trees, first.leaves, largest)
            return
        beyond = tuple(name for name, distance, within in found if not within)
        # Later updates carry a difference on to other leaves.
        leaves = first.leaves or (beyond if first.update == last else ())
        raise _DiffersError(
            Difference(first.update, first.trees, leaves, largest),
            f"{what}{_named(leaves)}; before update {segment.end} numbers are off by up to {largest:g}",
        )


def _vectors(committed: Sequence[NDArray[Any] | None], answer: Mapping[str, Any]) -> list[NDArray[Any] | None]:
    """Read the probes of a tree's leaves, which are as long as the committed ones."""
    vectors: list[NDArray[Any] | None] = []
    for sent, probe in zip(answer["probes"], committed, strict=True):
        vector = None if sent is None else np.frombuffer(bytes.fromhex(sent["data"]), sent["dtype"])
        if (vector is None) != (probe is None):
            raise ValueError("a probe of a leaf that has none, or none of one that has")
        if vector is not None and probe is not None and (vector.dtype, vector.shape) != (probe.dtype, probe.shape):
            raise ValueError(f"a probe of {vector.size} numbers in place of {probe.size}")
        vectors.append(vector)
    return vectors


def _equal_where_unprobed(kept: LeafEvidence, mine: LeafEvidence) -> bool:
    """Return whether leaves without a probe, integers for one, are the committed ones."""
    return all(
        probe is not None or ours == theirs
        for tree in mine.digests
        for probe, ours, theirs in zip(kept.probes[tree], mine.digests[tree], kept.digests[tree], strict=True)
    )


def _named(leaves: Sequence[str]) -> str:
    if not leaves:
        return ""
    more = f" and {len(leaves) - SHOWN_LEAVES} more" if len(leaves) > SHOWN_LEAVES else ""
    return f": {', '.join(leaves[:SHOWN_LEAVES])}{more}"


def _short(program: ProgramFiles) -> str:
    return program.digest.hex()[:12]


def _count(updates: int) -> str:
    return "1 update" if updates == 1 else f"{updates} updates"
