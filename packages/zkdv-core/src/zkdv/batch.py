"""Packing of a batch's leaves into the matrix of words that is committed, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from zkdv.dtypes import named_dtype
from zkdv.errors import ZKDVError

__all__ = ["BatchLayout", "BatchLeaf"]

WORD_BYTES = 4


@dataclass(frozen=True)
class BatchLeaf:
    """One leaf of a batch.

    Attributes:
        name: The leaf's name.
        dtype: The name of its dtype.
        shape: Its shape.
        joined: Whether row `i` of the matrix holds element `i` of its first axis; otherwise it fills rows of its own.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    joined: bool

    @property
    def words(self) -> int:
        """Words of the whole leaf."""
        return prod(self.shape) * _words_per_element(self.dtype)


@dataclass(frozen=True)
class BatchLayout:
    """How the leaves of a batch lie in a `(rows, width)` matrix of `uint32` words.

    Leaves that share the leading axis are joined row by row; every other leaf fills rows of its own below them, padded
    with zeros. An element of up to 32 bits is one word (its bits, zero-extended); wider elements are several words,
    low word first.

    Attributes:
        leaves: The leaves, in the order of the batch.
        rows: Rows of the matrix.
        width: Words of a row.
    """

    leaves: tuple[BatchLeaf, ...]
    rows: int
    width: int

    @classmethod
    def of(cls, names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Self:
        """Lay out leaves with these names, dtype names and shapes.

        The leading axis is that of the leaf with the most elements among those with at least one axis; on a tie the
        first one's.
        """
        arrays = [shape for shape in shapes if shape and prod(shape) > 0]
        leading = max(arrays, key=prod)[0] if arrays else 0
        leaves = tuple(
            BatchLeaf(name, dtype, tuple(shape), bool(shape) and prod(shape) > 0 and shape[0] == leading)
            for name, dtype, shape in zip(names, dtypes, shapes, strict=True)
        )
        width = sum(leaf.words // leading for leaf in leaves if leaf.joined)
        extra = [leaf.words for leaf in leaves if not leaf.joined and leaf.words]
        if not width:
            width = max(extra, default=0)
        rows = (leading if width else 0) + sum(-(-words // width) for words in extra)
        return cls(leaves, rows, width)

    def pack(self, arrays: Sequence[NDArray[Any]]) -> NDArray[np.uint32]:
        """Return the matrix of `arrays`, shape `(rows, width)`, uint32, a copy.

        Args:
            arrays: One array per leaf, with the layout's dtypes and shapes.
        """
        matrix = np.zeros((self.rows, self.width), np.uint32)
        column, row = 0, self.rows - self._extra_rows()
        for leaf, array in zip(self.leaves, arrays, strict=True):
            words = _to_words(array)
            if not words.size:
                continue
            if leaf.joined:
                block = words.reshape(leaf.shape[0], -1)
                matrix[: block.shape[0], column : column + block.shape[1]] = block
                column += block.shape[1]
            else:
                count = -(-words.size // self.width)
                matrix[row : row + count].reshape(-1)[: words.size] = words
                row += count
        return matrix

    def unpack(self, matrix: NDArray[np.uint32], dtypes: Sequence[np.dtype[Any]]) -> list[NDArray[Any]]:
        """Return the leaves that `matrix` holds; the inverse of `pack`.

        Args:
            matrix: Shape `(rows, width)`, uint32.
            dtypes: The dtype of each leaf.
        """
        arrays: list[NDArray[Any]] = []
        column, row = 0, self.rows - self._extra_rows()
        for leaf, dtype in zip(self.leaves, dtypes, strict=True):
            if leaf.joined:
                width = leaf.words // leaf.shape[0]
                words = matrix[: leaf.shape[0], column : column + width]
                column += width
            else:
                count = -(-leaf.words // self.width) if leaf.words else 0
                words = matrix[row : row + count].reshape(-1)[: leaf.words]
                row += count
            arrays.append(_from_words(words, dtype).reshape(leaf.shape))
        return arrays

    def record(self) -> dict[str, Any]:
        """Return the layout as it stands in the schema record."""
        return {
            "rows": self.rows,
            "width": self.width,
            "leaves": [
                {
                    "name": leaf.name,
                    "dtype": leaf.dtype,
                    "shape": list(leaf.shape),
                    "place": "joined" if leaf.joined else "extra",
                }
                for leaf in self.leaves
            ],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the layout that stands in a schema record; the inverse of `record`.

        Raises:
            ZKDVError: Its leaves are laid out in another way than this version does it, or have a dtype that is not
                known here.
        """
        leaves = record["leaves"]
        layout = cls.of(
            [leaf["name"] for leaf in leaves],
            [leaf["dtype"] for leaf in leaves],
            [tuple(leaf["shape"]) for leaf in leaves],
        )
        if layout.record() != record:
            raise ZKDVError("the schema lays the batch out in another way than this version of ZKDV does")
        return layout

    def _extra_rows(self) -> int:
        return sum(-(-leaf.words // self.width) for leaf in self.leaves if not leaf.joined and leaf.words)


def _words_per_element(dtype: str) -> int:
    return max(1, named_dtype(dtype).itemsize // WORD_BYTES)


def _to_words(array: NDArray[Any]) -> NDArray[np.uint32]:
    array = np.ascontiguousarray(array)
    if array.dtype.itemsize >= WORD_BYTES:
        return array.reshape(-1).view(np.uint32)
    narrow: NDArray[np.unsignedinteger[Any]] = array.reshape(-1).view(f"u{array.dtype.itemsize}")
    return narrow.astype(np.uint32)


def _from_words(words: NDArray[np.uint32], dtype: np.dtype[Any]) -> NDArray[Any]:
    flat = np.ascontiguousarray(words).reshape(-1)
    if dtype.itemsize >= WORD_BYTES:
        return flat.view(dtype)
    return flat.astype(f"u{dtype.itemsize}").view(dtype)
