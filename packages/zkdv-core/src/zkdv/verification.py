"""Verification of transcripts: `verify`, and the report that it gives.

The verifier itself is native (`crates/zkdv-protocol`); docs/protocol/verification.md says what it checks. Digests and
keys are lower-case hexadecimal digits here, as they are printed and given.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

from zkdv import _native
from zkdv._native_errors import native_errors
from zkdv.errors import ZKDVError, ZKDVVerificationError
from zkdv.identity import parse_public_key

__all__ = [
    "ChallengerReport",
    "Edit",
    "IdentityReport",
    "ProgramReport",
    "RunReport",
    "Verdict",
    "VerificationReport",
    "Violation",
    "parse_digest",
    "verify",
]

_Made = TypeVar("_Made")

Progressed = Callable[[int, int], None]
"""Told how far verification is: `(bytes_done, bytes_total)`."""


Element = bool | int | float | str | tuple[float | str, ...]
"""One element of a leaf: a number, or the text `NaN`, `inf` or `-inf`; a complex one is a pair."""


class Verdict(StrEnum):
    """What verification came to."""

    PASSED = "passed"
    """Closed, and no violation."""

    FAILED = "failed"
    """At least one violation: the transcript must not be believed as it stands."""

    INCOMPLETE = "incomplete"
    """No violation, but not closed, with a torn tail, an unresolved check or an unlinked resume."""


_EXIT_CODES = {Verdict.PASSED: 0, Verdict.INCOMPLETE: 3, Verdict.FAILED: 1}


@dataclass(frozen=True)
class Violation:
    """One thing that is wrong.

    Attributes:
        code: Its stable name (docs/protocol/verification.md).
        message: What was expected and what was found, in plain words.
        record: Number of the record in the file, from 0; None where it concerns the transcript as a whole.
        offset: Offset in bytes of that record in the file; None likewise.
    """

    code: str
    message: str
    record: int | None
    offset: int | None


@dataclass(frozen=True)
class Edit:
    """A leaf of the state that was changed by other means than an update.

    Attributes:
        update: The update before which it was changed.
        record: Number of that update's record in the file.
        tree: `parameters` or `optimizer`.
        leaf: Index of the leaf in the tree.
        name: The leaf's name in the schema; None where there is none.
        digest: Its new digest.
        dtype: The leaf's dtype in the schema; None where there is none.
        elements: Its new elements as numbers, in C order, a complex one as its two parts, NaN and infinities as text;
            None above 64 bytes.
        value: Its new bytes in hexadecimal digits; None above 64 bytes.
    """

    update: int
    record: int
    tree: str
    leaf: int
    name: str | None
    digest: str
    dtype: str | None
    elements: tuple[Element, ...] | None
    value: str | None

    @classmethod
    def from_native(cls, found: Mapping[str, Any]) -> Self:
        """Make it of an edit in a report of `zkdv._native.verify`."""
        elements = found["elements"]
        if elements is not None:
            elements = tuple(tuple(element) if isinstance(element, list) else element for element in elements)
        return cls(**{**found, "elements": elements})


@dataclass(frozen=True)
class IdentityReport:
    """Who signed a run.

    Attributes:
        key: The Ed25519 public key.
        pinned: Whether the verifier named this key beforehand.
    """

    key: str
    pinned: bool


@dataclass(frozen=True)
class ChallengerReport:
    """Who drew the sample.

    Attributes:
        name: Its name; `transcript` where the sample follows from the run's own records.
        key: Its public key; None for `transcript`.
    """

    name: str
    key: str | None


@dataclass(frozen=True)
class ProgramReport:
    """A sealed program.

    Attributes:
        record: Number of its record in the file.
        digest: Digest of its file.
        role: `replay`, `attest` or `aoti`.
        updates: How many updates name it; of an attest program, for how many it was in force.
    """

    record: int
    digest: str
    role: str
    updates: int


@dataclass(frozen=True)
class RunReport:
    """What verification found in one transcript. Fields that the first record gives are None where it cannot be read.

    Attributes:
        path: The folder or file that was verified.
        verdict: The conclusion.
        exit_code: The exit code that goes with it: 0 passed, 1 failed, 3 incomplete.
        level: The level of assurance that was examined; always `record` in this version.
        closed: Whether the transcript ends with a `close` record.
        poisoned: Whether that record says that the run had failed.
        torn_bytes: Bytes of a last record that is not whole.
        records: Whole records in the file.
        bytes: Bytes of the file.
        updates: Updates.
        sampled: Updates for which a check is due.
        checks_passed: Checks that passed.
        checks_failed: Checks that failed.
        checks_unresolved: Checks whose production values were gone, and sampled updates that were abandoned unchecked.
        checks_outstanding: Sampled updates whose check may still come.
        edits: The first hundred changes of the state by other means than updates.
        edits_total: How many there are.
        head: Digest of the last record.
        root: Digest of the first record, by which the run is named.
        run: The run's name.
        prover: What wrote the transcript, for one `whitebox-jax`.
        time: When the run started, in milliseconds since 1970-01-01T00:00:00Z, by the prover's clock.
        parent: Head of the closed run that this one continues; None where it continues none.
        identity: Who signed the run.
        ranks: Processes that train together.
        probability: Chance of each update to be checked; None where `every` says which are.
        every: With the debug policy, which updates are checked: every so-manieth.
        tolerance_absolute: How far a check may be off where it is not bit-exact, whatever the values.
        tolerance_relative: The same in proportion to the larger value.
        commit: Which roots every update commits to, `parameters` or `every`.
        replay_snapshot_interval: Updates from one snapshot to the next.
        challenger: Who drew the sample.
        programs: The sealed programs.
        resumes: How often the run was resumed.
        unlinked: Resumes that go on from an optimizer state that is committed nowhere.
        violations: The first thousand things that are wrong.
        violations_total: How many there are.
        incomplete: What is missing, in plain words.
        warnings: What a reader should know all the same.
        environment: What the prover says of its platform; None where there is no such record, or a very large one.
    """

    path: str
    verdict: Verdict
    exit_code: int
    level: str
    closed: bool
    poisoned: bool
    torn_bytes: int
    records: int
    bytes: int
    updates: int
    sampled: int
    checks_passed: int
    checks_failed: int
    checks_unresolved: int
    checks_outstanding: int
    edits: tuple[Edit, ...]
    edits_total: int
    head: str | None
    root: str | None
    run: str | None
    prover: str | None
    time: int | None
    parent: str | None
    identity: IdentityReport | None
    ranks: int | None
    probability: float | None
    every: int | None
    tolerance_absolute: float | None
    tolerance_relative: float | None
    commit: str | None
    replay_snapshot_interval: int | None
    challenger: ChallengerReport | None
    programs: tuple[ProgramReport, ...]
    resumes: int
    unlinked: int
    violations: tuple[Violation, ...]
    violations_total: int
    incomplete: tuple[str, ...]
    warnings: tuple[str, ...]
    environment: Mapping[str, Any] | None = field(hash=False)

    @classmethod
    def from_native(cls, path: str, found: Mapping[str, Any]) -> Self:
        """Make a report of what `zkdv._native.verify` returned for a path."""
        rest = dict(found)
        return cls(
            path=path,
            verdict=Verdict(rest.pop("verdict")),
            edits=tuple(map(Edit.from_native, rest.pop("edits"))),
            identity=_made(IdentityReport, rest.pop("identity")),
            challenger=_made(ChallengerReport, rest.pop("challenger")),
            programs=tuple(ProgramReport(**program) for program in rest.pop("programs")),
            violations=tuple(Violation(**violation) for violation in rest.pop("violations")),
            incomplete=tuple(rest.pop("incomplete")),
            warnings=tuple(rest.pop("warnings")),
            **rest,
        )


@dataclass(frozen=True)
class VerificationReport:
    """What verification found.

    Attributes:
        runs: One report for each path, in the order of the paths.
    """

    runs: tuple[RunReport, ...]

    @property
    def verdict(self) -> Verdict:
        """The conclusion: failed where any run failed, else incomplete where any is, else passed."""
        verdicts = {run.verdict for run in self.runs}
        return next((grave for grave in (Verdict.FAILED, Verdict.INCOMPLETE) if grave in verdicts), Verdict.PASSED)

    @property
    def exit_code(self) -> int:
        """The exit code of `zkdv verify`: 0 passed, 1 failed, 3 incomplete."""
        return _EXIT_CODES[self.verdict]

    @property
    def passed(self) -> bool:
        """Whether every run passed."""
        return self.verdict is Verdict.PASSED

    @property
    def violations(self) -> tuple[Violation, ...]:
        """What is wrong, run after run."""
        return tuple(violation for run in self.runs for violation in run.violations)

    def require_passed(self) -> None:
        """Raise unless every run passed.

        Raises:
            ZKDVVerificationError: Saying for the first run that did not pass what is wrong or missing.
        """
        for run in self.runs:
            if run.verdict is not Verdict.PASSED:
                reasons = [f"{violation.code}: {violation.message}" for violation in run.violations] or run.incomplete
                more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
                raise ZKDVVerificationError(f"{run.path}: verification {run.verdict}: {reasons[0]}{more}")

    def as_json(self) -> dict[str, Any]:
        """This report as `zkdv verify --json` prints it."""
        return {"exit_code": self.exit_code, "runs": [asdict(run) for run in self.runs]}


def verify(
    path: Path | str,
    *more_paths: Path | str,
    identity: Path | str | bytes | None = None,
    challenger: Path | str | bytes | None = None,
    head: str | bytes | None = None,
    require: Iterable[str] = (),
    allow_edits: bool = False,
    progress: Progressed | None = None,
) -> VerificationReport:
    """Verify transcripts, each in bounded memory, with signatures checked on all cores.

    Args:
        path: A run's folder, or its records file.
        more_paths: Further ones.
        identity: The key that must have signed each run: 64 hexadecimal digits, a PEM file, or the 32 bytes; default
            None: any key, reported as not pinned.
        challenger: The challenger's key; not available in this version.
        head: The digest that the last record must have, 64 hexadecimal digits or 32 bytes; with one path only.
        require: Conditions that are violations where they are not met: `closed`, `no-edits`, `identity`,
            `level=record|checked|audited`, `probability>=NUMBER`.
        allow_edits: Whether recorded changes of the state by other means than updates are accepted; default False.
        progress: Called now and then with how many bytes of how many are done; an exception from it stops the
            verification.

    Returns:
        The report. A transcript with faults gives a report of them, not an exception.

    Raises:
        TypeError: An argument of another type.
        ValueError: `identity` or `head` is none, a condition is unknown, or `head` is given for several paths.
        ZKDVError: A path holds no transcript or cannot be read, a challenger is given, or the verifier itself failed.
    """
    if challenger is not None:
        raise ZKDVError(
            "this version of ZKDV cannot verify a challenger's answers (level 'checked'); leave `challenger` out, for "
            "level 'record'"
        )
    if isinstance(require, str):
        raise TypeError(f"require is {require!r}, a str; it is a list of conditions, such as [{require!r}]")
    paths = (path, *more_paths)
    if head is not None and len(paths) > 1:
        raise ValueError(f"head is the digest of one transcript's last record, and there are {len(paths)} paths")
    options = {
        "identity": None if identity is None else parse_public_key(identity),
        "head": None if head is None else parse_digest(head),
        "allow_edits": allow_edits,
        "require": list(require),
    }
    return VerificationReport(tuple(_verify_one(one, options, progress) for one in paths))


def parse_digest(digest: str | bytes) -> bytes:
    """Read a digest.

    Args:
        digest: 64 hexadecimal digits, or the 32 bytes.

    Returns:
        The digest, 32 bytes.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(digest, str) and re.fullmatch(r"[0-9A-Fa-f]{64}", digest):
        return bytes.fromhex(digest)
    if isinstance(digest, bytes) and len(digest) == 32:
        return digest
    raise ValueError(f"{digest!r} is no digest, which has 64 hexadecimal digits (32 bytes)")


def _verify_one(path: Path | str, options: dict[str, Any], progress: Progressed | None) -> RunReport:
    text = os.fspath(path)
    with native_errors():
        return RunReport.from_native(text, _native.verify(text, options, progress))


def _made(kind: type[_Made], fields: Mapping[str, Any] | None) -> _Made | None:
    return None if fields is None else kind(**fields)
