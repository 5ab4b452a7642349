"""Proofs that a row or a window was, or was not, in the batch of an update.

Who has the batch makes a proof; who has the transcript holds it against the digest that the update's record commits
to. Its size grows with the logarithm of the batch. docs/protocol/membership.md says what it holds and what it is worth.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zkdv import _native, tensor_files
from zkdv._arguments import checked_integer
from zkdv.batch import BatchLayout, BatchLeaf
from zkdv.errors import ZKDVError
from zkdv.tensor_files import StoredTensor, Tensors
from zkdv.verification import Progressed, RunReport, Verdict
from zkdv.verified import VerifiedRun

__all__ = [
    "ABSENCE_IS_THE_PROVERS_WORD",
    "Claim",
    "MembershipProof",
    "MembershipReport",
    "prove",
    "read_proof",
    "verify",
]

MAX_PROOF_BYTES = 16 << 20

ABSENCE_IS_THE_PROVERS_WORD = (
    "that words are absent is the prover's statement: the list of windows was the prover's to make, and only an audit "
    "of the batch shows that it is complete"
)


class Claim(StrEnum):
    """What a proof states of its words."""

    ROW = "row"
    """They are a row of the batch."""

    WINDOW = "window"
    """They stand in a row of the batch, one after the other."""

    ABSENT = "absent"
    """They stand in no row of the batch. The prover's statement, unless the batch was audited."""


@dataclass(frozen=True)
class MembershipProof:
    """A proof, and what it states. It shows nothing before it was held against a transcript: `verify`.

    Attributes:
        claim: What is stated of the words.
        words: The words, each below 2^32.
        update: Index of the update.
        record: Number of its record.
        run: Digest of the run's root record, 64 hexadecimal digits.
        batch: The batch digest, 64 hexadecimal digits.
        row: The row that holds the words; None where they are absent.
        position: Words of that row before those that are shown, 0 for a whole row; None where they are absent.
        data: The proof as a file holds it.
    """

    claim: Claim
    words: tuple[int, ...]
    update: int
    record: int
    run: str
    batch: str
    row: int | None
    position: int | None
    data: bytes = field(repr=False)

    @classmethod
    def decode(cls, data: bytes) -> "MembershipProof":
        """Read a proof; nothing of it is verified.

        Raises:
            ZKDVError: The bytes are not exactly those of a proof.
        """
        try:
            native = _native.MembershipProof.decode(data)
        except ValueError as error:
            raise ZKDVError(f"these {len(data)} bytes are no proof of membership: {error}") from error
        claim = Claim(native.claim)
        return cls(
            claim=claim,
            words=tuple(native.words.tolist()),
            update=native.update,
            record=native.record,
            run=native.run.hex(),
            batch=native.batch.hex(),
            row=native.row,
            position=None if claim is Claim.ABSENT else native.position or 0,
            data=data,
        )

    def as_json(self) -> dict[str, Any]:
        """The proof's statement as `zkdv membership --json` prints it."""
        fields = asdict(self)
        del fields["data"]
        return fields


@dataclass(frozen=True)
class MembershipReport:
    """What holding a proof against a transcript found.

    Attributes:
        proof: The proof.
        holds: Whether it shows what it states about this transcript.
        reason: Why it does not; None where it does.
        abandoned: Whether the run was later rewound to before the update.
        exit_code: The exit code of `zkdv membership verify`: 0 holds, 1 does not, 3 holds in an incomplete transcript.
        run: What verification of the transcript found; it has no violation.
    """

    proof: MembershipProof
    holds: bool
    reason: str | None
    abandoned: bool
    exit_code: int
    run: RunReport

    def as_json(self) -> dict[str, Any]:
        """This report as `zkdv membership verify --json` prints it."""
        return {**asdict(self), "proof": self.proof.as_json()}


def prove(
    path: Path | str,
    update: int,
    batch: Path | str | NDArray[np.uint32],
    *,
    row: int | None = None,
    words: Path | str | NDArray[np.uint32] | None = None,
    identity: Path | str | bytes | None = None,
    head: str | bytes | None = None,
    allow_edits: bool = False,
    progress: Progressed | None = None,
) -> MembershipProof:
    """Show that a row or words were, or were not, in the batch of an update.

    Args:
        path: A run's folder, or its records file; it is verified first.
        update: Index of the update; where the run was rewound, the one that was recorded last.
        batch: The batch: its words, shape (rows, width), uint32; or a file (`zkdv.tensor_files`) of them, or of the
            leaves of the batch under their names in the schema record, as they were given to the update.
        row: Index of the row to show.
        words: What to look for: words, shape (n,), uint32; or a file of them, or of one element of each leaf that
            shares the leading axis, which together are a row. Exactly one of `row` and `words` is given.
        identity: As for `zkdv.verify`.
        head: As for `zkdv.verify`.
        allow_edits: As for `zkdv.verify`.
        progress: As for `zkdv.verify`.

    Returns:
        The proof. Where words are a whole row its claim is `row`, else `window`, or `absent` where they stand in no
        row.

    Raises:
        UnverifiedRunError: The transcript has a violation (`zkdv.verified`).
        ValueError: Not exactly one of `row` and `words` is given, or there is no such row.
        ZKDVError: The transcript or a file cannot be read, there is no such update, the batch is not the one that was
            committed, or the words are absent and that cannot be shown: fewer than a window has, or each of their
            windows stands somewhere in the batch.
    """
    if (row is None) == (words is None):
        raise ValueError("exactly one of row and words must be given")
    update = checked_integer("update", update, 0)
    if row is not None:
        row = checked_integer("row", row, 0)
    run = VerifiedRun.open(path, identity=identity, head=head, allow_edits=allow_edits, progress=progress)
    found = _find(run, update=update)
    if found is None:
        raise ZKDVError(f"{run.path} has no update {update}; it has {run.report.updates} update records")
    matrix = _batch_words(batch, found.layout)
    committed = _native.batch_commit(matrix, found.rolling_window, _native.rolling_base(found.run))
    if committed.digest != found.batch:
        raise ZKDVError(
            f"the batch that was given is not the one of update {update}: its digest is {committed.digest.hex()}, and "
            f"record {found.record} commits to {found.batch.hex()}"
        )
    sought = None if words is None else _sought_words(words, found.layout)
    try:
        native = _native.MembershipProof.prove(matrix, row=row, sought=sought, **found.as_native())
        proof = MembershipProof.decode(native.encode())
    except ValueError as error:
        if row is not None and row >= matrix.shape[0]:
            raise
        raise ZKDVError(str(error)) from error
    return proof


def verify(
    path: Path | str,
    proof: Path | str | bytes | MembershipProof,
    *,
    words: Path | str | NDArray[np.uint32] | None = None,
    identity: Path | str | bytes | None = None,
    head: str | bytes | None = None,
    allow_edits: bool = False,
    progress: Progressed | None = None,
) -> MembershipReport:
    """Hold a proof against a transcript, without the batch.

    Args:
        path: A run's folder, or its records file; it is verified first.
        proof: The proof, its bytes, or its file.
        words: What the proof must be about, as for `prove`; default: whatever it is about.
        identity: As for `zkdv.verify`.
        head: As for `zkdv.verify`.
        allow_edits: As for `zkdv.verify`.
        progress: As for `zkdv.verify`.

    Returns:
        The report. A proof that does not hold gives a report that says why.

    Raises:
        UnverifiedRunError: The transcript has a violation (`zkdv.verified`).
        ZKDVError: The transcript or a file cannot be read, or the file is no proof.
    """
    if isinstance(proof, bytes):
        proof = MembershipProof.decode(proof)
    elif not isinstance(proof, MembershipProof):
        proof = read_proof(proof)
    run = VerifiedRun.open(path, identity=identity, head=head, allow_edits=allow_edits, progress=progress)
    found = _find(run, record=proof.record)
    if found is None:
        reason: str | None = f"record {proof.record} of this transcript is no update"
    else:
        reason = _native.MembershipProof.decode(proof.data).verify(**found.as_native())
        if reason is None and words is not None:
            expected = tuple(_sought_words(words, found.layout).tolist())
            reason = None if proof.words == expected else "it is about other words than those that were given"
    incomplete = 3 if run.report.verdict is Verdict.INCOMPLETE else 0
    return MembershipReport(
        proof=proof,
        holds=reason is None,
        reason=reason,
        abandoned=found is not None and found.abandoned,
        exit_code=incomplete if reason is None else 1,
        run=run.report,
    )


def read_proof(path: Path | str) -> MembershipProof:
    """Read the file of a proof; nothing of it is verified.

    Raises:
        ZKDVError: It cannot be read, or is no proof; the message names it.
    """
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_PROOF_BYTES + 1)
    except OSError as error:
        raise ZKDVError(f"{path}: {error.strerror or error}") from error
    try:
        return MembershipProof.decode(data)
    except ZKDVError as error:
        raise ZKDVError(f"{path}: {error}") from error


@dataclass(frozen=True)
class _CommittedUpdate:
    """An update as a verified transcript has it."""

    run: bytes
    record: int
    update: int
    batch: bytes
    rolling_window: int
    layout: Mapping[str, Any]
    abandoned: bool = False

    def as_native(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "record": self.record,
            "update": self.update,
            "batch": self.batch,
            "rolling_window": self.rolling_window,
        }


def _find(run: VerifiedRun, *, update: int | None = None, record: int | None = None) -> _CommittedUpdate | None:
    """Find an update by its record, or the one of an index that was recorded last."""
    root, window, layout = b"", 0, {}
    found: _CommittedUpdate | None = None
    for each in run.records():
        body: Mapping[str, Any] = each["body"] or {}
        match each["type"]:
            case "root":
                root, window = each["digest"], body["configuration"]["rolling-window"]
            case "schema":
                layout = body["batch"]
            case "resume" if found is not None and found.record > body["record"]:
                found = replace(found, abandoned=True)
            case "update" if each["number"] == record or body["update"] == update:
                found = _CommittedUpdate(root, each["number"], body["update"], body["batch"], window, layout)
    return found


def _batch_words(batch: Path | str | NDArray[np.uint32], layout: Mapping[str, Any]) -> NDArray[np.uint32]:
    """The matrix of a batch, as it is or packed from its leaves."""
    rows, width = layout["rows"], layout["width"]
    if not isinstance(batch, str | Path):
        return _as_words(batch, "batch", 2)
    tensors = _by_plain_names(batch)
    if len(tensors) == 1 and (only := next(iter(tensors.values()))).dtype == "uint32" and only.shape == (rows, width):
        return _elements_as_words(only)
    leaves = layout["leaves"]
    shapes = [tuple(leaf["shape"]) for leaf in leaves]
    return _packed(batch, tensors, leaves, shapes, rows=rows, width=width)


def _sought_words(words: Path | str | NDArray[np.uint32], layout: Mapping[str, Any]) -> NDArray[np.uint32]:
    """Words to look for, as they are or packed from one element of each leaf of a row."""
    if not isinstance(words, str | Path):
        return _as_words(words, "words", 1)
    tensors = _by_plain_names(words)
    if len(tensors) == 1 and (only := next(iter(tensors.values()))).dtype == "uint32" and len(only.shape) == 1:
        return _elements_as_words(only)
    leaves = [leaf for leaf in layout["leaves"] if leaf["place"] == "joined"]
    # One row of the matrix: of each leaf what stands at one index of the leading axis.
    shapes = [tuple(leaf["shape"][1:]) for leaf in leaves]
    packed: NDArray[np.uint32] = _packed(words, tensors, leaves, shapes, rows=1, width=layout["width"])[0]
    return packed


def _packed(
    path: Path | str,
    tensors: Tensors,
    leaves: list[Mapping[str, Any]],
    shapes: list[tuple[int, ...]],
    *,
    rows: int,
    width: int,
) -> NDArray[np.uint32]:
    wanted = {
        leaf["name"].replace("/", "."): (leaf["dtype"], shape) for leaf, shape in zip(leaves, shapes, strict=True)
    }
    listed = ", ".join(f"{name} {dtype}{list(shape)}" for name, (dtype, shape) in wanted.items())
    if tensors.keys() != wanted.keys():
        raise ZKDVError(
            f"{path} holds the tensors {', '.join(sorted(tensors)) or 'none'}; wanted are words (uint32) or the leaves "
            f"{listed}"
        )
    packed_leaves, arrays = [], []
    for leaf, shape in zip(leaves, shapes, strict=True):
        tensor = tensors[leaf["name"].replace("/", ".")]
        if (tensor.dtype, tensor.shape) != (leaf["dtype"], shape):
            raise ZKDVError(
                f"{path}: {leaf['name']} is {tensor.dtype}{list(tensor.shape)}; wanted is {leaf['dtype']}{list(shape)}"
            )
        elements = tensor.elements()
        joined = leaf["place"] == "joined" and prod(leaf["shape"]) > 0
        # The words of an element follow from its bytes, so that no dtype has to be known here.
        whole = shape if rows > 1 or shape == tuple(leaf["shape"]) else (1, *shape)
        packed_leaves.append(BatchLeaf(leaf["name"], elements.dtype.str, whole, joined))
        arrays.append(elements.reshape(whole))
    return BatchLayout(tuple(packed_leaves), rows, width).pack(arrays)


def _by_plain_names(path: Path | str) -> dict[str, StoredTensor]:
    tensors = tensor_files.read(path)
    plain = {name.replace("/", "."): tensor for name, tensor in tensors.items()}
    if len(plain) != len(tensors):
        raise ZKDVError(f"{path} holds two tensors of one name, once / is read as .")
    return plain


def _elements_as_words(tensor: StoredTensor) -> NDArray[np.uint32]:
    words: NDArray[np.uint32] = np.ascontiguousarray(tensor.elements()).reshape(-1).view(np.uint32)
    return words.reshape(tensor.shape)


def _as_words(array: NDArray[np.uint32], name: str, dimensions: int) -> NDArray[np.uint32]:
    array = np.asarray(array)
    if array.dtype != np.uint32 or array.ndim != dimensions:
        raise TypeError(
            f"{name} is an array of {array.dtype} with shape {list(array.shape)}; it has dtype uint32 and "
            f"{dimensions} dimension{'s' if dimensions > 1 else ''}"
        )
    return np.ascontiguousarray(array)
