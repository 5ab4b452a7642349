"""Batches, scheme `zkdv-batch-1`."""

from collections.abc import Sequence
from dataclasses import dataclass

from zkdv_reference.blake3 import derive, digest, xof
from zkdv_reference.trees import open_leaf, root, u64

MODULUS = 2**61 - 1
SMALLEST_BASE = 2**32
BLOCK_NUMBERS = 128


@dataclass(frozen=True)
class Batch:
    """A matrix of 32-bit words, and what its windows are hashed with."""

    rows: Sequence[Sequence[int]]
    width: int
    rolling_window: int
    base: int

    def matrix(self) -> bytes:
        """The plain digest of all bytes."""
        return digest(b"".join(map(row_bytes, self.rows)))

    def row_leaves(self) -> list[bytes]:
        """The data of the leaves of the tree of rows."""
        return [digest(row_bytes(row)) for row in self.rows]

    def numbers(self) -> list[int]:
        """Every different window hash plus one in ascending order, between the sentinels."""
        starts = range(self.width - self.rolling_window + 1)
        windows = (row[start : start + self.rolling_window] for row in self.rows for start in starts)
        return [0, *sorted({rolling_hash(window, self.base) + 1 for window in windows}), 2**64 - 1]

    def window_leaves(self) -> list[bytes]:
        """The data of the leaves of the tree of windows: blocks of the list of numbers."""
        numbers = self.numbers()
        blocks = (numbers[start : start + BLOCK_NUMBERS] for start in range(0, len(numbers), BLOCK_NUMBERS))
        return [b"".join(number.to_bytes(8, "little") for number in block) for block in blocks]

    def window_count(self) -> int:
        """How many different windows there are."""
        return len(self.numbers()) - 2

    def digest(self) -> bytes:
        """The batch digest."""
        data = u64(len(self.rows)) + u64(self.width) + self.matrix()
        data += root("batch-rows", self.row_leaves()) + root("batch-windows", self.window_leaves())
        return derive("zkdv 1 batch", data + u64(self.window_count()))

    def open_row(self, row: int) -> list[bytes]:
        """The path of a row."""
        return open_leaf("batch-rows", self.row_leaves(), row)

    def open_absent(self, window: Sequence[int]) -> list[tuple[int, bytes, list[bytes]]]:
        """The one or two blocks between whose numbers the hash of an absent window would stand: index, data, path."""
        numbers = self.numbers()
        number = rolling_hash(window, self.base) + 1
        if number in numbers:
            raise ValueError("the window is in the batch")
        upper = next(place for place, other in enumerate(numbers) if other > number)
        leaves = self.window_leaves()
        blocks = sorted({(upper - 1) // BLOCK_NUMBERS, upper // BLOCK_NUMBERS})
        return [(block, leaves[block], open_leaf("batch-windows", leaves, block)) for block in blocks]


def row_bytes(row: Sequence[int]) -> bytes:
    """The words of a row as little-endian bytes."""
    return b"".join(word.to_bytes(4, "little") for word in row)


def rolling_base(root_digest: bytes) -> int:
    """The base that follows from the digest of the root record."""
    length = 8
    while True:
        stream = xof("zkdv 1 rolling base", root_digest, length)
        base = int.from_bytes(stream[-8:], "little") % 2**61
        if SMALLEST_BASE <= base < MODULUS:
            return base
        length += 8


def rolling_hash(window: Sequence[int], base: int) -> int:
    """The hash of a window of words."""
    value = 0
    for word in window:
        value = (value * base + word) % MODULUS
    return value
