"""Records of a transcript that was verified: nothing is concluded from one that was not."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zkdv._native import RecordReader
from zkdv.errors import ZKDVError, ZKDVVerificationError
from zkdv.verification import Progressed, RunReport, Verdict, verify

if TYPE_CHECKING:
    from zkdv._native import ReadRecord

__all__ = ["UnverifiedRunError", "VerifiedRun", "verified_records"]


@dataclass(frozen=True)
class VerifiedRun:
    """A transcript without a violation.

    Attributes:
        path: The run's folder, or its records file.
        report: What verification found: passed, or incomplete.
    """

    path: Path
    report: RunReport

    @classmethod
    def open(
        cls,
        path: Path | str,
        *,
        identity: Path | str | bytes | None = None,
        head: str | bytes | None = None,
        allow_edits: bool = False,
        progress: Progressed | None = None,
    ) -> "VerifiedRun":
        """Verify a transcript.

        Args:
            path: A run's folder, or its records file.
            identity: As for `zkdv.verify`.
            head: As for `zkdv.verify`.
            allow_edits: As for `zkdv.verify`.
            progress: As for `zkdv.verify`.

        Returns:
            The run.

        Raises:
            UnverifiedRunError: It has a violation.
            ValueError: `identity` or `head` is none.
            ZKDVError: The path holds no transcript, or it cannot be read.
        """
        (report,) = verify(path, identity=identity, head=head, allow_edits=allow_edits, progress=progress).runs
        if report.verdict is Verdict.FAILED or report.head is None:
            raise UnverifiedRunError(report)
        return cls(Path(path), report)

    def records(self) -> Iterator["ReadRecord"]:
        """Read the records that were verified, and no others.

        A file may grow, or be replaced, after it was verified: each record must name the one before, up to the verified
        head. Only when the iteration has come to its end is that known of all of them.

        Raises:
            ZKDVError: They are not there any more.
        """
        return verified_records(self.path, self.report)


def verified_records(path: Path, report: RunReport) -> Iterator["ReadRecord"]:
    """Read the records that a report is of, and no others, as `VerifiedRun.records` does; whatever the verdict."""
    head = bytes.fromhex(report.head or "")
    before = bytes(32)
    for record in RecordReader(os.fspath(path)):
        if record["prev"] != before:
            break
        before = record["digest"]
        yield record
        if before == head:
            return
    raise ZKDVError(f"{path} was changed while it was read; try again")


class UnverifiedRunError(ZKDVVerificationError):
    """A transcript has violations, so that nothing follows from it.

    Attributes:
        report: What verification found.
    """

    def __init__(self, report: RunReport) -> None:
        found = [f"{violation.code}: {violation.message}" for violation in report.violations[:1]]
        more = f" (and {report.violations_total - 1} more)" if report.violations_total > 1 else ""
        super().__init__(
            f"{report.path} does not verify, so nothing follows from it: {' '.join(found)}{more}; `zkdv verify` says "
            "more"
        )
        self.report = report
