"""Where an audit finds the batch of an update: in the run's folder, or in a data set that the auditor supplies."""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.auditing._run import Outline, RecordedUpdate
from zkdv.dtypes import named_dtype
from zkdv.errors import ZKDVError
from zkdv.evidence_files import WORDS, batch_file, read_tensors, read_words, write_words

__all__ = ["BatchSource", "SuppliedBatches"]

SuppliedBatches = Callable[[int], Any] | Path | str
"""A function from an update's index to its batch, or a folder of safetensors files, one batch each, in any order.

A batch is the packed matrix, uint32; or its leaves as arrays, in a mapping by their names in the schema record (those
that `zkdv inspect` shows), or in their order. In a file the matrix is called `words`.
"""


class BatchSource:
    """Finds batches by their committed digests.

    Args:
        outline: The run.
        supplied: The auditor's own data set; None where there is none.
    """

    def __init__(self, outline: Outline, supplied: SuppliedBatches | None) -> None:
        self._layout = outline.schema.batch
        self._folder = outline.folder
        self._window = int(outline.configuration["rolling-window"])
        self._base = _native.rolling_base(outline.root)
        self._supplied = supplied
        self._index: dict[bytes, Path] | None = None
        self._scratch = tempfile.TemporaryDirectory(prefix="zkdv-audit-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._scratch.cleanup()

    def find(self, update: RecordedUpdate) -> Path:
        """Return a file with the packed words of an update's batch, whose digest is the committed one.

        Raises:
            ZKDVError: There is none; says where it was looked for, and what was there instead.
        """
        missing = f"the batch of update {update.index}"
        reasons: list[str] = []
        if self._supplied is not None:
            found = self._from_folder(update) if isinstance(self._supplied, Path | str) else self._from_function(update)
            if isinstance(found, Path):
                return found
            reasons.append(found)
        stored = self._folder / batch_file(update.batch)
        try:
            words = read_words(stored, self._layout.rows, self._layout.width)
        except ZKDVError as error:
            reasons.append(str(error) if stored.exists() else "the run's folder does not have it")
        else:
            if self._digest(words) == update.batch:
                return stored
            reasons.append(f"{stored} holds another batch than the one that its name says")
        raise ZKDVError(f"{missing} is not there: {'; '.join(reasons)}")

    def _from_function(self, update: RecordedUpdate) -> Path | str:
        if not callable(self._supplied):
            return "batches is neither a function nor a folder"
        words = self._packed(self._supplied(update.index), f"batches({update.index})")
        if self._digest(words) != update.batch:
            return f"batches({update.index}) gave another batch than the committed one"
        return self._write(words)

    def _from_folder(self, update: RecordedUpdate) -> Path | str:
        folder = Path(str(self._supplied))
        if self._index is None:
            self._index = {digest: path for path, digest in self._digests(folder)}
        path = self._index.get(update.batch)
        if path is None:
            return f"none of the {len(self._index)} batches in {folder} has its digest"
        words = self._read(path)
        if self._digest(words) != update.batch:
            return f"{path} was changed while the audit ran"
        return self._write(words)

    def _digests(self, folder: Path) -> Iterator[tuple[Path, bytes]]:
        if not folder.is_dir():
            raise ZKDVError(f"{folder} is no folder; batches is a folder of safetensors files, or a function")
        for path in sorted(folder.glob("*.safetensors")):
            yield path, self._digest(self._read(path))

    def _read(self, path: Path) -> NDArray[np.uint32]:
        tensors = read_tensors(path, self._layout.rows * self._layout.width * 8)
        if set(tensors) == {WORDS}:
            return read_words(path, self._layout.rows, self._layout.width)
        return self._packed(tensors, str(path))

    def _packed(self, batch: Any, place: str) -> NDArray[np.uint32]:
        """Return a batch that was supplied as the matrix that is committed."""
        layout = self._layout
        if isinstance(batch, Mapping):
            missing = [leaf.name for leaf in layout.leaves if leaf.name not in batch]
            if missing:
                raise ZKDVError(
                    f"{place} lacks the batch leaf {missing[0]}; the batch of this run has: "
                    f"{', '.join(leaf.name for leaf in layout.leaves)}"
                )
            leaves: Sequence[Any] = [batch[leaf.name] for leaf in layout.leaves]
        elif isinstance(batch, list | tuple):
            leaves = batch
        else:
            matrix = np.asarray(batch)
            if matrix.dtype == np.uint32 and matrix.shape == (layout.rows, layout.width):
                return np.ascontiguousarray(matrix)
            leaves = [batch]
        if len(leaves) != len(layout.leaves):
            raise ZKDVError(f"{place} has {len(leaves)} leaves, and the batch of this run has {len(layout.leaves)}")
        arrays: list[NDArray[Any]] = []
        for leaf, given in zip(layout.leaves, leaves, strict=True):
            array, dtype = np.asarray(given, order="C"), named_dtype(leaf.dtype)
            # What NumPy has no dtype for comes from a file as bytes, one by one.
            stored = array.shape != leaf.shape or (array.dtype == np.uint8 and dtype.isbuiltin != 1)
            if stored and array.nbytes != prod(leaf.shape) * dtype.itemsize:
                raise ZKDVError(
                    f"{place}: leaf {leaf.name} is {array.dtype}{list(array.shape)}, and the batch of this run has "
                    f"{leaf.dtype}{list(leaf.shape)}"
                )
            arrays.append((array.reshape(-1).view(dtype) if stored else array.astype(dtype)).reshape(leaf.shape))
        return layout.pack(arrays)

    def _digest(self, words: NDArray[np.uint32]) -> bytes:
        return _native.batch_commit(words, self._window, self._base).digest

    def _write(self, words: NDArray[np.uint32]) -> Path:
        path = Path(self._scratch.name) / "batch.safetensors"
        write_words(path, words)
        return path
