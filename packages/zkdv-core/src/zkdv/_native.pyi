"""The native part of zkdv: digests, openings, transcripts, verification and the XLA custom call.

Digests are `bytes` of length 32 unless said otherwise; what they mean is fixed by the protocol's page "Commitments".
Functions that take a buffer read it where it lies and release the GIL meanwhile: as with `hashlib`, nobody may write to
it during the call. A wrong argument raises `TypeError` or `ValueError`, a file that cannot be read `OSError`, and
everything else `NativeError`, whose message says what was wrong, where, and what to do.

`TreeKind`, `RecordType` and `ReadRecord` are for type checkers; at run time they are `str`, `str` and `dict`.
"""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Literal, Self, TypeAlias, TypedDict, final

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

TreeKind: TypeAlias = Literal[
    "parameters",
    "optimizer",
    "parameter-probes",
    "optimizer-probes",
    "batch-rows",
    "batch-windows",
    "attached",
    "inputs",
]

RecordType: TypeAlias = Literal[
    "root",
    "environment",
    "schema",
    "program",
    "state",
    "update",
    "challenge",
    "check",
    "checkpoint",
    "resume",
    "close",
]

class NativeError(Exception):
    """A failure in the native part of zkdv."""

class TranscriptExistsError(NativeError):
    """The folder holds a transcript already; the message says how many updates it has and what can be done."""

class TranscriptLockedError(NativeError):
    """Another writer has the transcript open; the message names it."""

class TranscriptWriteError(NativeError):
    """The transcript could not be written, or not forced to disk; what was written before stays valid."""

def leaf_digest(data: Buffer | NDArray[Any]) -> bytes:
    """The plain BLAKE3-256 of a leaf's bytes.

    Args:
        data: Any C-contiguous buffer or NumPy array, of any dtype (those of `ml_dtypes` included).

    Raises:
        ValueError: The buffer is not C-contiguous, or holds big-endian elements.
    """

def sharded_leaf_digest(shape: Sequence[int], extents: Sequence[int], shards: Sequence[bytes]) -> bytes:
    """The digest of a leaf that is spread over devices (scheme `zkdv-sharded-leaf-1`).

    Args:
        shape: The shape of the leaf.
        extents: The extent of a shard in every dimension, of which the last along a dimension may be shorter.
        shards: The plain digest of each shard's own elements, in the order of the shards' starts. Replicas of a shard
            appear once.

    Raises:
        ValueError: The extents do not cut the leaf into shards, or there is not one digest for each of them.
    """

def sharding_ranges(shape: Sequence[int], extents: Sequence[int]) -> list[list[tuple[int, int]]]:
    """`(start, stop)` in every dimension of each shard, in the order of their starts.

    Raises:
        ValueError: The extents do not cut the leaf into 2 to 65,536 shards.
    """

def sharding_locate(shape: Sequence[int], extents: Sequence[int], element: int) -> tuple[int, int]:
    """The shard that holds an element of the leaf, and the element's index in the shard, both in C order.

    Raises:
        ValueError: The extents do not cut the leaf into shards, or there is no such element.
    """

def tree_root(kind: TreeKind, leaves: Sequence[bytes]) -> bytes:
    """The root of the Merkle tree over the data of `leaves` (scheme `zkdv-tree-1`); there may be none."""

def tree_open(kind: TreeKind, leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The siblings of leaf `index` from the bottom up, none at levels where its node was promoted.

    Raises:
        ValueError: There is no such leaf.
    """

def tree_verify(kind: TreeKind, root: bytes, count: int, index: int, leaf: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` shows that leaf `index` of the `count` leaves under `root` has the data `leaf`."""

def chunk_open(data: Buffer | NDArray[Any], chunk: int) -> tuple[bytes, list[bytes]]:
    """Opens a chunk of 1024 bytes (the last may be shorter) inside a leaf's plain digest.

    Returns:
        The chunk's bytes, and the chaining values beside the path to the top, from the bottom up.

    Raises:
        ValueError: The leaf has no such chunk.
    """

def chunk_verify(digest: bytes, length: int, chunk: int, data: bytes, chain: Sequence[bytes]) -> bool:
    """Whether `data` is chunk number `chunk` of a leaf of `length` bytes with this plain digest."""

def rolling_base(root_digest: bytes) -> int:
    """The base of a run's rolling hash, from the digest of its root record: at least 2^32, below 2^61 - 1."""

def batch_commit(words: NDArray[np.uint32], rolling_window: int, base: int) -> BatchCommitment:
    """Commits to a batch (scheme `zkdv-batch-1`).

    Args:
        words: Shape (rows, width), uint32, C-contiguous.
        rolling_window: Words in a window; at least 1. Rows that are narrower have no windows.
        base: The run's, as `rolling_base` gives it.
    """

@final
class BatchCommitment:
    """What a batch digest is made of; with it, openings are made from the batch's words and verified without them."""

    def __new__(
        cls,
        *,
        rows: int,
        width: int,
        matrix: bytes,
        row_root: bytes,
        window_root: bytes,
        window_count: int,
        rolling_window: int,
        base: int,
    ) -> Self: ...
    @property
    def digest(self) -> bytes:
        """The batch digest: what an update's record holds."""

    @property
    def matrix(self) -> bytes:
        """Plain digest of all bytes."""

    @property
    def row_root(self) -> bytes:
        """Root over the digests of the rows."""

    @property
    def window_root(self) -> bytes:
        """Root over the blocks of the sorted list of window hashes."""

    @property
    def rows(self) -> int:
        """Number of rows."""

    @property
    def width(self) -> int:
        """Words in a row."""

    @property
    def window_count(self) -> int:
        """Different window hashes in the list."""

    @property
    def rolling_window(self) -> int:
        """Words in a window."""

    @property
    def base(self) -> int:
        """Base of the rolling hash."""

    def open_row(self, words: NDArray[np.uint32], row: int) -> tuple[bytes, list[bytes]]:
        """Opens a row.

        Args:
            words: The batch, shape (rows, width), uint32.
            row: Index of the row.

        Returns:
            The row's bytes and its siblings in the tree of rows.
        """

    def verify_row(self, row: int, data: bytes, path: Sequence[bytes]) -> bool:
        """Whether row `row` of this batch has the bytes `data`."""

    def open_window(self, words: NDArray[np.uint32], window: NDArray[np.uint32]) -> tuple[int, int, bytes, list[bytes]]:
        """Opens the first place where `window`, shape (length,), uint32, stands in one row.

        Any number of words can be shown, not only windows of the length that was hashed.

        Returns:
            Row, position in the row, the row's bytes, and its siblings in the tree of rows.

        Raises:
            ValueError: No row holds these words in this order.
        """

    def verify_window(
        self, window: NDArray[np.uint32], row: int, position: int, data: bytes, path: Sequence[bytes]
    ) -> bool:
        """Whether `window` stands at `position` in row `row` of this batch."""

    def open_absence(
        self, words: NDArray[np.uint32], window: NDArray[np.uint32]
    ) -> list[tuple[int, bytes, list[bytes]]]:
        """Opens the place in the sorted list where the hash of `window`, shape (rolling_window,), uint32, would stand.

        That the window is absent is the prover's statement, unless somebody audited the batch.

        Returns:
            One block, or two neighbouring ones: index, bytes, siblings in the tree of blocks.

        Raises:
            ValueError: A window with this hash is in the batch.
        """

    def verify_absence(self, window: NDArray[np.uint32], blocks: Sequence[tuple[int, bytes, Sequence[bytes]]]) -> bool:
        """Whether `blocks` show that no window with the hash of `window` is in this batch's list."""

@final
class MembershipProof:
    """A statement about the batch of one update, with what shows it (docs/protocol/membership.md)."""

    @staticmethod
    def prove(
        words: NDArray[np.uint32],
        *,
        run: bytes,
        record: int,
        update: int,
        batch: bytes,
        rolling_window: int,
        row: int | None = None,
        sought: NDArray[np.uint32] | None = None,
    ) -> MembershipProof:
        """Shows a row, or that words are in the batch or are not.

        Args:
            words: The batch, shape (rows, width), uint32.
            run: Digest of the run's root record.
            record: Number of the update's record.
            update: Index of the update.
            batch: The batch digest in that record.
            rolling_window: Words in a window, as the root record has it.
            row: Index of the row to show.
            sought: The words to look for, shape (n,), uint32; exactly one of `row` and `sought` is given.

        Raises:
            ValueError: There is no such row; or the words are absent, and that cannot be shown.
        """

    @staticmethod
    def decode(data: bytes) -> MembershipProof:
        """Reads a proof; nothing of it is verified.

        Raises:
            ValueError: The bytes are not exactly those of a proof.
        """

    def encode(self) -> bytes:
        """The proof as a file holds it.

        Raises:
            ValueError: Its words take more than 16 MiB.
        """

    def verify(self, *, run: bytes, record: int, update: int, batch: bytes, rolling_window: int) -> str | None:
        """What is wrong with it as a proof about this update of a verified transcript; None where nothing is."""

    @property
    def run(self) -> bytes:
        """Digest of the root record of the run that it is about."""

    @property
    def record(self) -> int:
        """Number of the update's record."""

    @property
    def update(self) -> int:
        """Index of the update."""

    @property
    def batch(self) -> bytes:
        """The batch digest that follows from its parts."""

    @property
    def claim(self) -> Literal["row", "window", "absent"]:
        """What it states of the words: that they are a row, that they stand in a row, or that they stand in none."""

    @property
    def row(self) -> int | None:
        """The row that holds the words; None where they are absent."""

    @property
    def position(self) -> int | None:
        """Words of the row before those that are shown; of an absent claim, words before the window that is absent."""

    @property
    def words(self) -> NDArray[np.uint32]:
        """The words, shape (n,), uint32."""

def probe_kept(dimension: int, ratio: float) -> int:
    """How many numbers a probe keeps of a last dimension: `max(1, ceil(ratio * dimension))`.

    Args:
        dimension: Real numbers in the last dimension: doubled for complex leaves.
        ratio: Above 0, at most 1.
    """

def probe_length(shape: Sequence[int], dtype: str, ratio: float) -> int:
    """How many numbers the probe of a leaf has: none for integers, booleans and leaves without elements."""

def probe_sign_words(shape: Sequence[int], dtype: str) -> int:
    """How many sign words a leaf takes among the joined ones: none for leaves without a probe and for scalars."""

def probe_signs(root_digest: bytes, tree: Literal[0, 1], leaf: int, dimension: int) -> NDArray[np.uint32]:
    """The signs of a leaf's columns (scheme `zkdv-probe-1`).

    Args:
        root_digest: Digest of the run's root record.
        tree: 0 for parameters, 1 for the optimizer state.
        leaf: Place of the leaf in its tree.
        dimension: Real numbers in the last dimension: doubled for complex leaves.

    Returns:
        Shape (ceil(dimension / 32),), uint32: column i counts as negative where bit `i % 32` of word `i // 32` is set.
    """

def commit_leaf(
    data: Buffer | NDArray[Any], dtype: str, shape: Sequence[int], ratio: float, signs: NDArray[np.uint32]
) -> tuple[bytes, NDArray[np.float32] | NDArray[np.float64] | None]:
    """Digest and probe of a leaf on the host, in one pass.

    Args:
        data: The elements in C order.
        dtype: Name of the dtype, as in the schema record.
        shape: Shape of the leaf; empty for a scalar.
        ratio: The probe ratio, above 0 and at most 1.
        signs: Shape (probe_sign_words(shape, dtype),), uint32.

    Returns:
        The digest, and the probe, flattened: float64 for `float64` and `complex128`, else float32; None where the leaf
        has none.
    """

def commit_leaves(
    leaves: Sequence[tuple[Buffer | NDArray[Any], str, Sequence[int]]], ratio: float, signs: NDArray[np.uint32]
) -> tuple[list[bytes], list[bytes], list[NDArray[np.float32] | NDArray[np.float64] | None]]:
    """Digests and probes of many leaves on the host, in one pass over them and spread over the threads that hash.

    Args:
        leaves: Elements, dtype and shape of each, as `commit_leaf` takes them.
        ratio: The probe ratio, above 0 and at most 1.
        signs: The signs of all leaves, joined in their order; uint32.

    Returns:
        The digest of each leaf, the plain digest of each probe's bytes (that of no bytes where the leaf has none), and
        the probes, as `commit_leaf` gives them.
    """

def draw(
    record_digest: bytes,
    randomness: bytes,
    sampling: Mapping[str, float],
    update: int,
    parameters: int,
    optimizer: int,
) -> tuple[bool, int | None, int | None]:
    """Draws the challenge of an update (scheme `zkdv-challenge-1`).

    Args:
        record_digest: Digest of the update's record.
        randomness: That of the challenger's receipt; empty where the transcript is its own challenger.
        sampling: `{"probability": p}` or `{"every": n}`.
        update: Index of the update.
        parameters: Elements of all parameter leaves together.
        optimizer: Elements of all optimizer leaves together.

    Returns:
        Whether the update is sampled, and the parameter and optimizer coordinates; None where there are no elements.
    """

def attested_delta(
    dtype: str, before: bytes, after: bytes, delta: float, absolute: float, relative: float
) -> tuple[bool, float, float]:
    """Compares what an attest program says was added to a parameter with the element before and after the update.

    Args:
        dtype: Name of the leaf's dtype.
        before: The element before the update.
        after: The element after it.
        delta: What the program gave.
        absolute: Absolute tolerance.
        relative: Relative tolerance.

    Returns:
        Whether they agree (docs/protocol/transcript.md, Checks), how far the update moved the element, and how far the
        two may be apart.
    """

def attested_element(
    dtype: str, committed: bytes, element: float, absolute: float, relative: float
) -> tuple[bool, float, float]:
    """Compares an element after the update, as an attest program has it, with the committed one.

    Args:
        dtype: Name of the leaf's dtype.
        committed: The committed element.
        element: What the program gave.
        absolute: Absolute tolerance.
        relative: Relative tolerance.

    Returns:
        Whether they agree (docs/protocol/transcript.md, Checks), the committed element as a number, and how far the two
        may be apart.
    """

@final
class Identity:
    """The key that signs the root of a run. Its private half never shows, in `repr` or in errors."""

    @staticmethod
    def load(path: str | PathLike[str]) -> Identity:
        """Reads an Ed25519 key in PKCS#8 PEM form.

        Raises:
            NativeError: The file is missing, open to others than its owner, or holds no such key.
        """

    @staticmethod
    def generate(path: str | PathLike[str]) -> Identity:
        """Makes a key and writes it to a new file with mode 0600; folders that are missing are made with mode 0700.

        Raises:
            NativeError: The file is there already, or cannot be made.
        """

    @staticmethod
    def external(public_key: bytes, sign: Callable[[bytes], bytes]) -> Identity:
        """A key that is held elsewhere.

        Args:
            public_key: The Ed25519 public key, 32 bytes.
            sign: Takes a message and returns its Ed25519 signature (RFC 8032, not prehashed), 64 bytes. Called on any
                thread; what it raises becomes the cause of a `NativeError`.

        Raises:
            NativeError: `public_key` is no key that can verify signatures.
        """

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, 32 bytes."""

    def public_pem(self) -> str:
        """The public key as PEM text with the label `PUBLIC KEY`."""

@final
class Transcript:
    """A transcript that is being written. May be used from any thread, but only in the process that created it."""

    @property
    def set_aside(self) -> str | None:
        """Where the transcript was moved to that stood here: one that only opens a run; None where there was none."""

    @staticmethod
    def create(folder: str | PathLike[str], root: dict[str, Any], identity: Identity) -> Transcript:
        """Starts a transcript: makes the folder where it is missing, takes its lock, writes the root record to disk.

        Args:
            folder: The run's folder.
            root: Body of the root record without `identity` and `session-key`, which are filled in.
            identity: Signs the root record.

        Raises:
            TypeError: A value of a type that records do not hold; the message names the place.
            ValueError: A value that they cannot hold: an integer beyond 64 bits, nesting beyond 16, lone surrogates.
            TranscriptExistsError: The folder holds a transcript.
            TranscriptLockedError: Another writer has it.
            TranscriptWriteError: The record could not be written.
            NativeError: The grammar does not allow the body, the folder cannot be made, or the signer failed.
        """

    @property
    def root_digest(self) -> bytes:
        """Digest of the root record: the run's name."""

    @property
    def head(self) -> bytes:
        """Digest of the last record."""

    @property
    def records(self) -> int:
        """How many records there are."""

    @property
    def path(self) -> str:
        """The file that the records stand in."""

    @property
    def closed(self) -> bool:
        """Whether a `close` was appended."""

    def append(self, record_type: RecordType, body: dict[str, Any]) -> tuple[int, bytes]:
        """Checks, signs and writes a record, on disk as the run's durability says. A `close` releases the folder.

        `next-key` is added to the bodies of updates where it is due.

        Returns:
            Number and digest of the record.

        Raises:
            TypeError: A value of a type that records do not hold; the message names the place.
            ValueError: A value that they cannot hold, or a record type that there is not.
            TranscriptWriteError: Writing failed; the records before are whole, and nothing more can be appended.
            NativeError: The grammar does not allow the body, the record may not come here, the transcript was released,
                or this is a forked process.
        """

    def sync(self) -> None:
        """Forces everything that was appended to disk.

        Raises:
            TranscriptWriteError: The disk fails, or failed before.
        """

    def release(self) -> None:
        """Forces everything to disk (except with durability `close`) and lets another writer have the folder.

        The transcript stays open on disk where no `close` was appended. Does nothing the second time, or in a forked
        process.

        Raises:
            TranscriptWriteError: The disk fails. The folder is released all the same.
        """

class ReadRecord(TypedDict):
    """A record as it stands in a file; nothing of it is verified.

    Attributes:
        number: Which record of the file it is, from 0.
        offset: Offset of its first byte.
        length: Its bytes.
        digest: Its digest.
        signature: Its Ed25519 signature, 64 bytes.
        seq: Its number as it says itself; None, as all that follow, where the payload cannot be read.
        prev: The digest that it names as the preceding record's.
        type: Its type; one that version 1 does not have is given all the same.
        body: Its body.
        error: Why the payload cannot be read.
    """

    number: int
    offset: int
    length: int
    digest: bytes
    signature: bytes
    seq: int | None
    prev: bytes | None
    type: str | None
    body: dict[str, Any] | None
    error: str | None

@final
class RecordReader:
    """Iterates over the records of a transcript, up to the first byte that belongs to none; `error` then says why.

    Args:
        path: A run's folder, or its file of records.

    Raises:
        OSError: The file cannot be opened.
    """

    def __new__(cls, path: str | PathLike[str]) -> Self: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> ReadRecord: ...
    @property
    def offset(self) -> int:
        """Offset of the first byte that was not given as part of a record."""

    @property
    def error(self) -> str | None:
        """Why reading stopped before the end of the file; None where it did not."""

    @property
    def torn(self) -> bool:
        """Whether reading stopped inside a record that ends before its declared length, as a crash leaves it."""

def verify(
    path: str | PathLike[str], options: dict[str, Any], progress: Callable[[int, int], object] | None = None
) -> dict[str, Any]:
    """Verifies a transcript on all cores, in bounded memory. What is wrong with it stands in the report.

    Args:
        path: A run's folder, or a file of records by itself.
        options: May hold `identity` (the pinned Ed25519 public key, 32 bytes, or None), `head` (the pinned digest of
            the last record, or None), `allow_edits` (bool, default False) and `require` (list of conditions, as for
            `zkdv verify --require`).
        progress: Is called now and then with the bytes that are verified and those of the file, and once at the end.
            What it raises ends the verification and is raised here.

    Returns:
        The report, as `zkdv verify --json` prints it: digests and keys are hexadecimal text.

    Raises:
        NativeError: The file cannot be read.
        ValueError: An unknown option or condition.
    """

def violation_codes() -> list[str]:
    """The codes of everything that `verify` can find wrong, in the order of the protocol's page "Verification"."""

def xla_ffi_handler() -> object:
    """The XLA custom call `zkdv_commit`, for `jax.ffi.register_ffi_target("zkdv_commit", ..., platform="cpu")`.

    Operands: `due` (uint32, shape (1,); bit 0: parameters, bit 1: optimizer state), the leaves (parameters first),
    `signs` (uint32, shape (S,): the sign words of all probed leaves, joined). Attributes: `parameters` (int64: how many
    leaves are parameters) and `probe_ratio` (float64). Results for L leaves: `digests` (uint32, shape (2 L, 8): digests
    of the leaves, then of their probes' bytes), `probes32` (float32) and `probes64` (float64), the joined probes. What
    is not due is zeros.

    Returns:
        A `PyCapsule`.
    """

def xla_ffi_layout() -> dict[str, int]:
    """Sizes and offsets in bytes of the C structures that the custom call was built for, by `Structure.member`."""

def xla_ffi_element_types() -> dict[str, int]:
    """The element types that the custom call knows, by name, with XLA's numbers."""
