"""One update on its way from submission to retirement, and the replay program that it names."""

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.flowcontrol import Slot
from zkdv.overlap import Policy
from zkdv.schema import Due, LeafEvidence

if TYPE_CHECKING:
    from zkdv.pipeline import Pipeline

__all__ = ["PendingUpdate", "Program", "SealedProgram", "Submission"]


class SealedProgram(Protocol):
    """A program as it is committed and stored."""

    @property
    def blob(self) -> bytes:
        """The program itself."""

    @property
    def text(self) -> bytes:
        """A stable text form of it."""

    def record(self) -> dict[str, Any]:
        """Return what the program record says beside the digests: role, format, extension, platforms, convention."""


@dataclass(eq=False)
class Program:
    """A sealed program of this run: one that replays updates, or the attest program.

    Attributes:
        sealed: The program, being exported.
        seq: Number of its record, once that is written.
    """

    sealed: Future[SealedProgram]
    seq: int | None = None


@dataclass(frozen=True)
class Submission:
    """What is known of an update before its program has run.

    Attributes:
        slot: Its place in the queue.
        program: The replay program of the function that runs.
        due: Which roots its record holds.
        edits: Leaves that were changed since the preceding update, as they stand in the record.
    """

    slot: Slot
    program: Program
    due: Due
    edits: Sequence[dict[str, Any]] = ()


@dataclass
class PendingUpdate:
    """One update from submission to retirement.

    Attributes:
        pipeline: The pipeline that it is in.
        index: Its index, counted from 0.
        submission: What was known before the program ran.
        batch: The packed words, shape (rows, width), uint32; kept for replays.
        opt_state: The optimizer leaves after the update, until the check has copies.
        parameter_evidence: What the training program says of the state after it, still on the device.
        pre_projection: Evidence of the whole state before the update, where a `state` record stands before it.
        overlap: Its overlap policy.
        parameters: The parameter leaves after the update, until the check has copies.
        batch_commitment: The commitment to the batch, once it is made.
        evidence: Digests and probes, once they are on the host.
        evidence_before: What was committed last of the state before it; edits since then that keep their values are not
            in it.
    """

    pipeline: "Pipeline"
    index: int
    submission: Submission
    batch: NDArray[np.uint32]
    opt_state: Sequence[Any]
    parameter_evidence: Any
    pre_projection: Any | None
    overlap: Policy
    parameters: Sequence[Any] = ()
    batch_commitment: _native.BatchCommitment | None = None
    evidence: LeafEvidence | None = None
    evidence_before: LeafEvidence | None = None

    def release(self) -> None:
        """Let go of production buffers."""
        self.opt_state = ()
        self.parameters = ()
        self.parameter_evidence = None
        self.pre_projection = None
