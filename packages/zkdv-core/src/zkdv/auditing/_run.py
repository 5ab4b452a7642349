"""What an audit reads of a verified transcript: its outline in one pass, and the updates of a segment in another."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zkdv import _native
from zkdv.config import FloatTolerance
from zkdv.errors import ZKDVError
from zkdv.schema import TREES, Schema, TreeName
from zkdv.verification import RunReport
from zkdv.verified import verified_records

__all__ = ["Outline", "ProgramFiles", "RecordedUpdate", "Segment", "read_outline", "read_updates"]


@dataclass(frozen=True)
class ProgramFiles:
    """A replay program, as its record commits to it.

    Attributes:
        seq: Number of the record.
        digest: Digest of the program's file.
        extension: Its extension.
        text_digest: Digest of the program's text.
        format: What kind of file it is.
        platforms: The platforms that it was lowered for.
    """

    seq: int
    digest: bytes
    extension: str
    text_digest: bytes
    format: str
    platforms: tuple[str, ...]


@dataclass(frozen=True)
class RecordedUpdate:
    """An update, as its record has it.

    Attributes:
        index: The update.
        seq: Number of its record.
        batch: The batch digest.
        program: Number of the record of its program.
        after: The roots after it, those that are due.
        edits: The edits before it.
    """

    index: int
    seq: int
    batch: bytes
    program: int
    after: Mapping[str, bytes]
    edits: Sequence[Mapping[str, Any]]


@dataclass
class Segment:
    """The updates from one committed state to the next.

    Attributes:
        number: How many segments come before it.
        start: The update before which the state at its start stands.
        roots: The recorded roots of that state, `parameters` and `optimizer`.
        first_seq: Number of the first record that may belong to it.
        updates: How many updates it has.
        end: The update before which the next segment starts; None where nothing follows in one line.
        sampled: How many of its updates lead to the last one that the run's draws have chosen; 0 where there is none.
        edited: Whether its first update's edits are part of the state at its start.
    """

    number: int
    start: int
    roots: Mapping[TreeName, bytes]
    first_seq: int
    updates: int = 0
    end: int | None = None
    sampled: int = 0
    edited: bool = False


@dataclass
class Outline:
    """A run without its updates one by one.

    Attributes:
        folder: The run's folder.
        root: Digest of the root record.
        prover: What wrote the transcript.
        configuration: The configuration in the root record.
        environment: The environment that the last `environment` record describes.
        schema: The leaves.
        programs: The replay programs, by the number of their record.
        segments: The segments, in order.
        checkpoints: Recorded digests of the checkpoint before each update that has one.
        updates: How many updates are recorded.
    """

    folder: Path
    root: bytes
    prover: str
    configuration: Mapping[str, Any]
    environment: Mapping[str, Any]
    schema: Schema
    programs: dict[int, ProgramFiles]
    segments: list[Segment]
    checkpoints: Mapping[int, set[bytes]]
    updates: int

    @property
    def probe_ratio(self) -> float:
        """The run's probe ratio."""
        return float(self.configuration["probe-ratio"])

    @property
    def tolerance(self) -> FloatTolerance:
        """How far numbers may be apart where a replay is not exact."""
        tolerance = self.configuration["tolerance"]
        return FloatTolerance(float(tolerance["absolute"]), float(tolerance["relative"]))


def read_outline(folder: Path, verification: RunReport) -> Outline:
    """Read a verified transcript without keeping its updates.

    Args:
        folder: The run's folder.
        verification: What its verification found.

    Raises:
        ZKDVError: The transcript is not the one that was verified, or its layout changes at a resume.
    """
    checkpoints: dict[int, set[bytes]] = {}
    for record in verified_records(folder, verification):
        if record["type"] == "checkpoint":
            checkpoints.setdefault(_body(record)["update"], set()).update(_body(record)["files"].values())
    reading = _Reading(folder, checkpoints)
    for record in verified_records(folder, verification):
        reading.take(record)
    return reading.outline()


def read_updates(
    outline: Outline, verification: RunReport, segments: Iterable[Segment]
) -> Iterator[tuple[Segment, list[RecordedUpdate]]]:
    """Read the updates of segments, one segment after the other, in order."""
    waiting = sorted(segments, key=lambda segment: segment.first_seq)
    found: list[RecordedUpdate] = []
    for record in verified_records(outline.folder, verification):
        while waiting and len(found) == waiting[0].updates:
            yield waiting.pop(0), found
            found = []
        if not waiting:
            return
        if record["type"] == "update" and record["number"] >= waiting[0].first_seq:
            body = _body(record)
            found.append(
                RecordedUpdate(
                    body["update"],
                    record["number"],
                    body["batch"],
                    body["program"],
                    body["after"],
                    body.get("edits", ()),
                )
            )
    if waiting:
        yield waiting[0], found


class _Reading:
    """Takes the records of a verified transcript one after the other."""

    def __init__(self, folder: Path, checkpoints: Mapping[int, set[bytes]]) -> None:
        self._folder = folder
        self._checkpoints = checkpoints
        self._root: _native.ReadRecord | None = None
        self._environment: Mapping[str, Any] = {}
        self._schema: Mapping[str, Any] | None = None
        self._elements: dict[TreeName, int] = {}
        self._programs: dict[int, ProgramFiles] = {}
        self._segments: list[Segment] = []
        self._known: dict[TreeName, bytes] = {}
        self._updates = 0

    def take(self, record: _native.ReadRecord) -> None:
        """Take the next record."""
        body = _body(record)
        match record["type"]:
            case "root":
                self._root = record
            case "environment":
                self._environment = body
            case "schema":
                self._take_schema(body)
            case "program" if body["role"] == "replay":
                self._programs[record["number"]] = ProgramFiles(
                    record["number"],
                    body["digest"],
                    body["extension"],
                    body["text-digest"],
                    body["format"],
                    tuple(body["platforms"]),
                )
            case "state":
                self._take_state(record, body)
            case "update":
                self._take_update(record, body)
            case "resume":
                self._known = {}
            case _:
                pass

    def outline(self) -> Outline:
        """Return what was read."""
        if self._root is None or self._schema is None:
            raise ZKDVError(f"{self._folder}: the transcript holds no update, so there is nothing to audit")
        root = _body(self._root)
        return Outline(
            self._folder,
            self._root["digest"],
            root["prover"],
            root["configuration"],
            self._environment,
            Schema.from_record(self._schema),
            self._programs,
            [segment for segment in self._segments if segment.updates],
            self._checkpoints,
            self._updates,
        )

    def _take_schema(self, body: Mapping[str, Any]) -> None:
        if self._schema is not None and body != self._schema:
            raise ZKDVError(
                f"{self._folder}: the layout of the state changes within the run; such runs can't be audited yet"
            )
        self._schema = body
        schema = Schema.from_record(body)
        self._elements = {tree: schema.elements(tree) for tree in TREES}

    def _take_state(self, record: _native.ReadRecord, body: Mapping[str, Any]) -> None:
        roots = {tree: body["roots"][tree] for tree in TREES}
        if body["reason"] != "close":
            end = body["updates"] if body["reason"] == "edit" else None
            self._begin(body["updates"], roots, record["number"], end=end, edited=body["reason"] == "edit")
        self._known = roots

    def _take_update(self, record: _native.ReadRecord, body: Mapping[str, Any]) -> None:
        index, number = body["update"], record["number"]
        if not self._segments:
            raise ZKDVError(f"{self._folder}: no state is recorded before update {index}")
        self._segments[-1].updates += 1
        self._updates += 1
        self._known = {tree: body["after"][tree] for tree in TREES if tree in body["after"]}
        root = _body(self._root) if self._root is not None else {}
        counts = self._elements["parameters"], self._elements["optimizer"]
        sampling = root["configuration"]["sampling"]
        if _native.draw(record["digest"], b"", sampling, index, *counts)[0]:
            self._segments[-1].sampled = self._segments[-1].updates
        if len(self._known) == len(TREES) and index + 1 in self._checkpoints:
            self._begin(index + 1, self._known, number + 1, end=index + 1)

    def _begin(
        self, start: int, roots: Mapping[TreeName, bytes], first_seq: int, *, end: int | None, edited: bool = False
    ) -> None:
        if self._segments:
            last = self._segments[-1]
            last.end = end
            if not last.updates:
                # A checkpoint and an edit at the same place: the state with the edit is the one that goes on.
                self._segments.pop()
        self._segments.append(Segment(len(self._segments), start, dict(roots), first_seq, edited=edited))


def _body(record: _native.ReadRecord) -> dict[str, Any]:
    body = record["body"]
    if body is None:
        raise ZKDVError(f"record {record['number']} has no body that can be read")
    return body
