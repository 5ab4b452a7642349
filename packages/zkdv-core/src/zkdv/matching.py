"""Finding the update after which a run's parameters were exactly those in a file.

A record holds one root over the digests of all parameters. So a file's tensors are digested as the run's leaves are, in
the layout that the schema record gives, and the root over them is looked for among the records. Nothing is converted:
a tensor of another dtype or shape is another tensor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zkdv import _native, tensor_files
from zkdv._component_digests import kept_updates, parameter_digests
from zkdv.errors import ZKDVError
from zkdv.leaf_names import Pairing, pairings
from zkdv.schema import LeafSpec
from zkdv.sharding import leaf_digest
from zkdv.tensor_files import Tensors
from zkdv.verification import Progressed, RunReport, Verdict
from zkdv.verified import VerifiedRun

if TYPE_CHECKING:
    from zkdv._native import ReadRecord

__all__ = ["LeafDifference", "LeafTrace", "MatchReport", "MatchVerdict", "MatchedState", "match"]

MAX_LISTED = 100
"""The most states, differences, traces and names that a report lists; it counts all of them."""


class MatchVerdict(StrEnum):
    """What matching came to."""

    MATCHES = "matches"
    """The file's tensors are the parameters of at least one committed state, all of them and no others."""

    EXTRA = "extra"
    """All parameters are those of a committed state, and the file holds other tensors too, which were not allowed."""

    DIFFERS = "differs"
    """They are the parameters of no committed state."""


@dataclass(frozen=True)
class MatchedState:
    """A committed state whose parameters the file holds.

    Attributes:
        updates: Updates done: 0 for the initial state; the state after update u has u + 1.
        record: The record that commits to it.
        edited: Whether it is a state that was recorded because of an edit, before update `updates`.
        abandoned: Whether the run was later rewound to before this state.
    """

    updates: int
    record: int
    edited: bool = False
    abandoned: bool = False


@dataclass(frozen=True)
class LeafDifference:
    """Why a leaf of the run cannot be what the file holds.

    Attributes:
        leaf: Name of the leaf.
        problem: `missing`, `dtype`, `shape` or `copies` (several tensors stand for the leaf and are not equal).
        tensor: Name of the tensor in the file; None where it is missing.
        message: In words, with both values.
    """

    leaf: str
    problem: str
    tensor: str | None
    message: str


@dataclass(frozen=True)
class LeafTrace:
    """A leaf whose digest is known by itself, held against the file's.

    Checks that were not exact, and edits, show digests of single leaves; so does what a run keeps as evidence of an
    update's components. Roots show none.

    Attributes:
        leaf: Name of the leaf.
        updates: Updates done in the state of which the digest is.
        record: The record that shows it, or that holds the root above it.
        equal: Whether the file holds this leaf as it was then.
    """

    leaf: str
    updates: int
    record: int
    equal: bool


@dataclass(frozen=True)
class MatchReport:
    """What matching found.

    Attributes:
        files: The files.
        verdict: The conclusion.
        exit_code: The exit code of `zkdv match`: 0 matches, 1 differs or extra, 3 matches in an incomplete transcript.
        run: What verification of the transcript found; it has no violation.
        matches: The first states that match, in the order of the records.
        matches_total: How many there are.
        states: Committed states that the file was held against.
        renaming: How the file's names differ from the run's, in words; empty where they do not.
        renamed: Names of leaves by the names of their tensors, where the two differ.
        extra: The first names of tensors that stand for no leaf.
        extra_total: How many there are.
        differences: The first leaves of which the file holds no possible value; then no root could be computed.
        differences_total: How many there are.
        traces: The first leaves whose digests are known by themselves, where nothing matches; equal ones first.
        traces_total: How many there are.
        closest: Updates done in the state of which most single leaves are equal, where nothing matches; None where none
            is.
    """

    files: tuple[str, ...]
    verdict: MatchVerdict
    exit_code: int
    run: RunReport
    matches: tuple[MatchedState, ...]
    matches_total: int
    states: int
    renaming: str
    renamed: Mapping[str, str]
    extra: tuple[str, ...]
    extra_total: int
    differences: tuple[LeafDifference, ...]
    differences_total: int
    traces: tuple[LeafTrace, ...]
    traces_total: int
    closest: int | None

    @property
    def matched(self) -> bool:
        """Whether the file holds the parameters of a committed state and nothing else."""
        return self.verdict is MatchVerdict.MATCHES

    def as_json(self) -> dict[str, Any]:
        """This report as `zkdv match --json` prints it."""
        return asdict(self)


def match(
    path: Path | str,
    file: Path | str,
    *more_files: Path | str,
    mapping: Mapping[str, str | None] | None = None,
    allow_extra: bool = False,
    reader: str | None = None,
    identity: Path | str | bytes | None = None,
    head: str | bytes | None = None,
    allow_edits: bool = False,
    progress: Progressed | None = None,
) -> MatchReport:
    """Find the update after which the parameters were exactly those in a file.

    The transcript is verified first. Names that differ by a common beginning or end, by `/` in place of `.`, or by
    parts that wrappers add, are found; others need a mapping. Tied parameters may stand in the file under any of their
    names, or under several, with equal values.

    Args:
        path: A run's folder, or its records file.
        file: What holds the parameters (`zkdv.tensor_files.read`).
        more_files: Further files, where they hold the parameters together.
        mapping: Names in the run by names in the file; None for a tensor that stands for no parameter.
        allow_extra: Whether the file may hold tensors that stand for no parameter; default False.
        reader: The plugin that reads the files, by name; default: what they hold decides.
        identity: The key that must have signed the run, as for `zkdv.verify`.
        head: The digest that the last record must have, as for `zkdv.verify`.
        allow_edits: Whether recorded changes of the state between updates are accepted; default False.
        progress: Called while the transcript is verified, as for `zkdv.verify`.

    Returns:
        The report. A file that matches nothing gives a report that says what differs.

    Raises:
        UnverifiedRunError: The transcript has a violation (`zkdv.verified`).
        MappingError: The mapping names a tensor or parameter that there is not (`zkdv.leaf_names`).
        ValueError: `identity` or `head` is none.
        ZKDVError: The transcript or the file cannot be read, or the run has no parameters.
    """
    run = VerifiedRun.open(path, identity=identity, head=head, allow_edits=allow_edits, progress=progress)
    tensors = tensor_files.read(file, *more_files, reader=reader)
    search = _Search(tensors, mapping, run.path)
    for record in run.records():
        search.take(record)
    return search.report(run.report, tuple(str(one) for one in (file, *more_files)), allow_extra=allow_extra)


@dataclass(eq=False)
class _Candidate:
    """A pairing of the file's tensors with the leaves of one schema, and what was found of it."""

    leaves: Sequence[LeafSpec]
    pairing: Pairing
    differences: tuple[LeafDifference, ...]
    root: bytes | None
    digests: Sequence[bytes | None]
    found: list[MatchedState] = field(default_factory=list)
    found_total: int = 0
    traces: dict[bool, list[LeafTrace]] = field(default_factory=lambda: {True: [], False: []})
    traces_total: int = 0

    def add(self, state: MatchedState) -> None:
        self.found_total += 1
        if len(self.found) < MAX_LISTED:
            self.found.append(state)

    def trace(self, record: int, updates: int, leaf: int, digest: bytes) -> None:
        own = self.digests[leaf]
        if own is None:
            return
        self.traces_total += 1
        if len(kept := self.traces[own == digest]) < MAX_LISTED:
            kept.append(LeafTrace(self.leaves[leaf].name, updates, record, own == digest))


class _Search:
    """Goes through the records of a run once."""

    def __init__(self, tensors: Tensors, mapping: Mapping[str, str | None] | None, folder: Path) -> None:
        self._folder = folder
        self._kept = kept_updates(folder)
        self._roots: list[tuple[int, int, bytes, list[_Candidate]]] = []
        self._tensors = tensors
        self._mapping = mapping
        self._digests: dict[tuple[str, tuple[int, ...] | None], bytes] = {}
        self._candidates: list[_Candidate] = []
        self._known: dict[tuple[LeafSpec, ...], list[_Candidate]] = {}
        self._updates = 0
        self._states = 0

    def take(self, record: "ReadRecord") -> None:
        body: Mapping[str, Any] = record["body"] or {}
        match record["type"]:
            case "schema":
                self._choose(tuple(map(LeafSpec.from_record, body["parameters"])))
            case "resume":
                kept, self._updates = body["record"], body["updates"]
                for candidate in self._all():
                    candidate.found = [
                        replace(state, abandoned=state.record > kept or state.abandoned) for state in candidate.found
                    ]
            case "state" if body["reason"] in {"start", "edit"}:
                self._compare(record["number"], body["roots"]["parameters"], edited=body["reason"] == "edit")
            case "update":
                self._trace_edits(record["number"], body.get("edits", []))
                self._updates = body["update"] + 1
                self._compare(record["number"], body["after"]["parameters"])
                if body["update"] in self._kept:
                    self._roots.append(
                        (record["number"], body["update"], body["after"]["parameters"], self._candidates)
                    )
            case "check" if "parameter" in body:
                self._trace_opening(record["number"], body["update"] + 1, body["parameter"], "opening")
                self._trace_opening(record["number"], body["update"], body["parameter"], "before-opening")

    def report(self, run: RunReport, files: tuple[str, ...], *, allow_extra: bool) -> MatchReport:
        candidates = [candidate for candidate in self._all() if candidate.found] or self._candidates
        if not candidates:
            raise ZKDVError(
                f"{run.path} has no schema record, so nothing was committed that a file can be held against"
            )
        best = candidates[0]
        # Where a resume changed the layout, the same tensors stand for leaves of several schemas.
        same = [other for other in candidates if other.found and other.pairing.renaming == best.pairing.renaming]
        found = [state for other in same for state in other.found]
        found_total = sum(other.found_total for other in same)
        paired = {key: leaf.name for leaf, keys in zip(best.leaves, best.pairing.keys, strict=True) for key in keys}
        ignored = {key for key, name in (self._mapping or {}).items() if name is None}
        extra = sorted(self._tensors.keys() - paired.keys() - ignored)
        if not found:
            verdict = MatchVerdict.DIFFERS
        else:
            verdict = MatchVerdict.EXTRA if extra and not allow_extra else MatchVerdict.MATCHES
        incomplete = 3 if run.verdict is Verdict.INCOMPLETE else 0
        if not found:
            self._trace_components()
        traces = [] if found else [*best.traces[True], *best.traces[False]]
        return MatchReport(
            files=files,
            verdict=verdict,
            exit_code=incomplete if verdict is MatchVerdict.MATCHES else 1,
            run=run,
            matches=tuple(found[:MAX_LISTED]),
            matches_total=found_total,
            states=self._states,
            renaming=best.pairing.renaming,
            renamed={key: name for key, name in paired.items() if key != name},
            extra=tuple(extra[:MAX_LISTED]),
            extra_total=len(extra),
            differences=best.differences[:MAX_LISTED],
            differences_total=len(best.differences),
            traces=tuple(traces[:MAX_LISTED]),
            traces_total=0 if found else best.traces_total,
            closest=_closest(traces),
        )

    def _choose(self, leaves: tuple[LeafSpec, ...]) -> None:
        if not leaves:
            raise ZKDVError("the run has no parameters, so every file holds all of them; there is nothing to match")
        if leaves not in self._known:
            candidates = [self._judge(leaves, pairing) for pairing in pairings(leaves, self._tensors, self._mapping)]
            possible = [candidate for candidate in candidates if candidate.root is not None]
            # Where no pairing gives a root, the one is kept that explains best why.
            self._known[leaves] = possible or [min(candidates, key=lambda candidate: len(candidate.differences))]
        self._candidates = self._known[leaves]

    def _judge(self, leaves: Sequence[LeafSpec], pairing: Pairing) -> _Candidate:
        differences = [
            difference
            for leaf, keys in zip(leaves, pairing.keys, strict=True)
            if (difference := self._unlike(leaf, keys)) is not None
        ]
        digests: list[bytes | None] = [None] * len(leaves)
        unlike = {difference.leaf for difference in differences}
        # Digests cost reading the whole file: only for a pairing that can be the one.
        if not differences or pairing.missing < len(leaves):
            for index, (leaf, keys) in enumerate(zip(leaves, pairing.keys, strict=True)):
                if leaf.name in unlike:
                    continue
                own = {self._digest(key, leaf.sharding) for key in keys}
                if len(own) == 1:
                    (digests[index],) = own
                else:
                    names = " and ".join(keys)
                    message = f"{leaf.name}: {names} stand for this one leaf in the file and hold different values"
                    differences.append(LeafDifference(leaf.name, "copies", keys[0], message))
        whole = [digest for digest in digests if digest is not None]
        root = _native.tree_root("parameters", whole) if len(whole) == len(leaves) else None
        return _Candidate(leaves, pairing, tuple(differences), root, digests)

    def _unlike(self, leaf: LeafSpec, keys: Sequence[str]) -> LeafDifference | None:
        if not keys:
            known = f" (or {', '.join(leaf.aliases)})" if leaf.aliases else ""
            return LeafDifference(leaf.name, "missing", None, f"{leaf.name}{known}: the file holds no such tensor")
        for key in keys:
            tensor = self._tensors[key]
            name = leaf.name if key == leaf.name else f"{leaf.name} ({key} in the file)"
            if tensor.dtype != leaf.dtype:
                message = (
                    f"{name}: {tensor.dtype} in the file, {leaf.dtype} in the run; a converted copy holds other "
                    "values, and nothing is converted back"
                )
                return LeafDifference(leaf.name, "dtype", key, message)
            if tensor.shape != leaf.shape:
                turned = len(leaf.shape) > 1 and tensor.shape == leaf.shape[::-1]
                hint = "; it may be transposed, and nothing is turned back" if turned else ""
                message = f"{name}: shape {list(tensor.shape)} in the file, {list(leaf.shape)} in the run{hint}"
                return LeafDifference(leaf.name, "shape", key, message)
        return None

    def _digest(self, key: str, sharding: tuple[int, ...] | None) -> bytes:
        if (key, sharding) not in self._digests:
            self._digests[key, sharding] = leaf_digest(self._tensors[key].elements(), sharding)
        return self._digests[key, sharding]

    def _compare(self, record: int, root: bytes, *, edited: bool = False) -> None:
        self._states += 1
        for candidate in self._candidates:
            if candidate.root == root:
                candidate.add(MatchedState(self._updates, record, edited))

    def _trace_edits(self, record: int, edits: Sequence[Mapping[str, Any]]) -> None:
        for edit in edits:
            if edit["tree"] == "parameters":
                self._trace(record, self._updates, edit["leaf"], edit["digest"])

    def _trace_opening(self, record: int, updates: int, coordinate: Mapping[str, Any], name: str) -> None:
        if name in coordinate and self._candidates:
            leaf = _leaf_at(self._candidates[0].leaves, coordinate["index"])
            self._trace(record, updates, leaf, coordinate[name]["digest"])

    def _trace(self, record: int, updates: int, leaf: int, digest: bytes) -> None:
        for candidate in self._candidates:
            candidate.trace(record, updates, leaf, digest)

    def _trace_components(self) -> None:
        for record, update, root, candidates in self._roots:
            digests = parameter_digests(self._folder, update, root, len(candidates[0].leaves)) if candidates else None
            for leaf, digest in enumerate(digests or ()):
                for candidate in candidates:
                    candidate.trace(record, update + 1, leaf, digest)

    def _all(self) -> list[_Candidate]:
        return [candidate for candidates in self._known.values() for candidate in candidates]


def _leaf_at(leaves: Sequence[LeafSpec], coordinate: int) -> int:
    for index, leaf in enumerate(leaves):
        if coordinate < leaf.size:
            return index
        coordinate -= leaf.size
    raise IndexError(coordinate)


def _closest(traces: Sequence[LeafTrace]) -> int | None:
    equal: dict[int, set[str]] = {}
    for trace in traces:
        if trace.equal:
            equal.setdefault(trace.updates, set()).add(trace.leaf)
    return max(equal, key=lambda updates: (len(equal[updates]), updates), default=None)
