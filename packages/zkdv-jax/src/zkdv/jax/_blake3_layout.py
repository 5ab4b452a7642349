"""Where chunks and parents stand while `_blake3_portable` hashes many inputs: tables made on the host.

Tables grow with the number of tiles and of small chunks, not with the bytes of large arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES: Final = 1024
BLOCK_BYTES: Final = 64
BLOCKS_PER_CHUNK: Final = 16
WORD_BYTES: Final = 4

CHUNK_END: Final = 2
ROOT: Final = 8

TREES: Final = 2
TILE_CHUNKS_MIN: Final = 8


class Input(NamedTuple):
    """One input to hash.

    Attributes:
        bytes: Its length.
        in_place: Whether it is an array of its own, whose full chunks can be read where they lie.
    """

    bytes: int
    in_place: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One input's place in the layout.

    Attributes:
        tree: Its tree, 0 or 1.
        bytes: Its length.
        node: Node of its first chunk.
        is_large: Whether its full chunks are read in place, tile by tile; else they are packed with those of others.
        word: Where its packed bytes start among the packed words of its tree.
    """

    tree: int
    bytes: int
    node: int
    is_large: bool
    word: int

    @property
    def chunks(self) -> int:
        """Chunks of its BLAKE3 tree, at least 1."""
        return chunk_count(self.bytes)

    @property
    def packed_chunks(self) -> range:
        """The chunks that are packed."""
        return range(self.bytes // CHUNK_BYTES if self.is_large else 0, self.chunks)


class PackedLane:
    """Columns of `Layout.packed_lanes`."""

    COUNTER: Final = 0
    """The chunk's place in its input."""
    BLOCKS: Final = 1
    """Its blocks, 1 to 16."""
    LAST_LENGTH: Final = 2
    """Bytes of its last block."""
    LAST_FLAGS: Final = 3
    """Flags of its last block."""
    WORD: Final = 4
    """Its first word among the packed words of its tree."""
    NODE: Final = 5
    """Its node; out of range in padding."""
    OWNER: Final = 6
    """Its entry."""
    ROOT: Final = 7
    """Its entry where the chunk is all of it, so that its output is the digest; out of range elsewhere."""
    COLUMNS: Final = 8


@dataclass(frozen=True, slots=True)
class ChunkTiles:
    """One row for each tile of chunks, those of tree 0 first.

    Attributes:
        source: The packed chunks of `Layout.packed_trees` in their order, then the large arrays of `Layout.large`.
        first: First chunk: a row of `Layout.packed_lanes`, or the place in the large array.
        node: Node of the first chunk, in a large array.
        owner: Entry of the large array.
        tree_0: How many tiles belong to tree 0.
    """

    source: NDArray[np.int32]
    first: NDArray[np.uint32]
    node: NDArray[np.uint32]
    owner: NDArray[np.uint32]
    tree_0: int


@dataclass(frozen=True, slots=True)
class ParentTiles:
    """One row for each tile of parents, tree 0 first, then level by level.

    Attributes:
        base: First node of the tree.
        first: First pair, from the start of the tree.
        pairs: Pairs on the level.
        level: Level of the pair's children; 0 for chunks.
        tree_0: How many tiles belong to tree 0.
    """

    base: NDArray[np.int32]
    first: NDArray[np.int32]
    pairs: NDArray[np.int32]
    level: NDArray[np.int32]
    tree_0: int


@dataclass(frozen=True)
class Layout:
    """Where everything stands; made by `lay_out`.

    Attributes:
        entries: The inputs of both trees, in the order in which they were given.
        tile_chunks: Lanes of a tile.
        bases: First node of each tree.
        nodes: Nodes of both trees.
    """

    entries: tuple[Entry, ...]
    tile_chunks: int
    bases: tuple[int, int]
    nodes: int

    @property
    def out_of_range(self) -> int:
        """First index that is neither a node nor an entry."""
        return max(self.nodes, len(self.entries))

    @cached_property
    def large(self) -> tuple[int, ...]:
        """Entries that are read in place."""
        return tuple(index for index, entry in enumerate(self.entries) if entry.is_large)

    @cached_property
    def packed_trees(self) -> tuple[int, ...]:
        """The trees that have packed chunks."""
        return tuple(tree for tree in range(TREES) if self._packed_by_tree[tree].size)

    @cached_property
    def packed_lanes(self) -> NDArray[np.uint32]:
        """The packed chunks of both trees, each tree's padded to whole tiles, shape `(chunks, PackedLane.COLUMNS)`."""
        return np.concatenate(self._packed_by_tree).astype(np.uint32)

    @cached_property
    def chunk_tiles(self) -> ChunkTiles:
        """All tiles of chunks."""
        rows: list[tuple[int, int, int, int]] = []
        tree_0 = 0
        lanes = 0
        for tree in range(TREES):
            packed = len(self._packed_by_tree[tree])
            if packed:
                source = self.packed_trees.index(tree)
                rows += [(source, first, 0, 0) for first in range(lanes, lanes + packed, self.tile_chunks)]
                lanes += packed
            for source, owner in enumerate(self.large, len(self.packed_trees)):
                entry = self.entries[owner]
                if entry.tree == tree:
                    # The last tile reaches back over chunks that are done, so that every tile is whole.
                    last = entry.bytes // CHUNK_BYTES - self.tile_chunks
                    starts = chain(range(0, last, self.tile_chunks), [last])
                    rows += [(source, start, entry.node + start, owner) for start in starts]
            if tree == 0:
                tree_0 = len(rows)
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        return ChunkTiles(
            source=columns[0].astype(np.int32),
            first=columns[1].astype(np.uint32),
            node=columns[2].astype(np.uint32),
            owner=columns[3].astype(np.uint32),
            tree_0=tree_0,
        )

    @cached_property
    def parent_tiles(self) -> ParentTiles:
        """All tiles of parents."""
        rows: list[tuple[int, int, int, int]] = []
        tree_0 = 0
        for tree in range(TREES):
            for level, pairs in enumerate(self._pairs_by_level(tree)):
                rows += [(self.bases[tree], first, pairs, level) for first in range(0, pairs, self.tile_chunks)]
            if tree == 0:
                tree_0 = len(rows)
        columns = np.array(rows, np.int32).reshape(-1, 4).T
        return ParentTiles(base=columns[0], first=columns[1], pairs=columns[2], level=columns[3], tree_0=tree_0)

    def _pairs_by_level(self, tree: int) -> Iterator[int]:
        """Pairs on each level, of the inputs that are not reduced to one node yet; larger ones stand first."""
        entries = [entry for entry in self.entries if entry.tree == tree]
        level = 0
        while unfinished := [entry for entry in entries if entry.chunks > 1 << level]:
            nodes = max(entry.node - self.bases[tree] + _power_of_two(entry.chunks) for entry in unfinished)
            yield nodes >> (level + 1)
            level += 1

    @cached_property
    def _packed_by_tree(self) -> tuple[NDArray[np.int64], ...]:
        return tuple(self._packed_lanes_of(tree) for tree in range(TREES))

    def _packed_lanes_of(self, tree: int) -> NDArray[np.int64]:
        lanes = 0
        tables = []
        for owner, entry in enumerate(self.entries):
            if entry.tree == tree and entry.packed_chunks:
                tables.append(self._entry_lanes(owner, entry, lanes))
                lanes += len(entry.packed_chunks)
        padding = np.arange(lanes, lanes + -lanes % self.tile_chunks)
        table = np.zeros((padding.size, PackedLane.COLUMNS), np.int64)
        table[:, PackedLane.BLOCKS] = 1
        # Indices out of range are dropped; they differ so that indices stay unique.
        table[:, PackedLane.NODE] = table[:, PackedLane.ROOT] = self.out_of_range + padding
        return np.concatenate([*tables, table])

    def _entry_lanes(self, owner: int, entry: Entry, lanes: int) -> NDArray[np.int64]:
        chunk = np.array(entry.packed_chunks, np.int64)
        length = np.minimum(entry.bytes - chunk * CHUNK_BYTES, CHUNK_BYTES)
        blocks = np.maximum(1, -(-length // BLOCK_BYTES))
        is_root = entry.chunks == 1
        table = np.empty((chunk.size, PackedLane.COLUMNS), np.int64)
        table[:, PackedLane.COUNTER] = chunk
        table[:, PackedLane.BLOCKS] = blocks
        table[:, PackedLane.LAST_LENGTH] = length - (blocks - 1) * BLOCK_BYTES
        table[:, PackedLane.LAST_FLAGS] = CHUNK_END | ROOT if is_root else CHUNK_END
        table[:, PackedLane.WORD] = entry.word + (chunk - chunk[0]) * (CHUNK_BYTES // WORD_BYTES)
        table[:, PackedLane.NODE] = entry.node + chunk
        table[:, PackedLane.OWNER] = owner
        table[:, PackedLane.ROOT] = owner if is_root else self.out_of_range + lanes + np.arange(chunk.size)
        return table


def lay_out(trees: tuple[Sequence[Input], Sequence[Input]], tile_chunks: int) -> Layout:
    """Give every input its nodes and its packed words, and decide which are read in place.

    An input of `c` chunks owns the next power of two of nodes, larger inputs first: so every pair starts at an even
    node on every level, and the inputs that still have parents to come are a prefix. Packed words follow one another in
    the order of the inputs, each from a new word.

    Args:
        trees: The inputs of each tree.
        tile_chunks: Lanes of a tile, a power of two; fewer are used where there are fewer chunks.
    """
    chunks = sum(chunk_count(given.bytes) for tree in trees for given in tree)
    tile_chunks = min(tile_chunks, max(TILE_CHUNKS_MIN, _power_of_two(chunks)))
    entries: list[Entry] = []
    bases: list[int] = []
    nodes = 0
    for tree, inputs in enumerate(trees):
        bases.append(nodes)
        first_nodes = {}
        for index in sorted(range(len(inputs)), key=lambda index: -chunk_count(inputs[index].bytes)):
            first_nodes[index] = nodes
            nodes += _power_of_two(chunk_count(inputs[index].bytes))
        # A tile of parents reads twice its lanes, and none reaches into the next tree.
        nodes = bases[tree] + -(-(nodes - bases[tree]) // (2 * tile_chunks)) * 2 * tile_chunks
        word = 0
        for index, (length, in_place) in enumerate(inputs):
            is_large = in_place and length // CHUNK_BYTES >= tile_chunks
            entries.append(Entry(tree, length, first_nodes[index], is_large, word))
            word += -(-(length % CHUNK_BYTES if is_large else length) // WORD_BYTES)
    return Layout(tuple(entries), tile_chunks, (bases[0], bases[1]), nodes)


def chunk_count(length: int) -> int:
    """Chunks of a BLAKE3 input of `length` bytes."""
    return max(1, -(-length // CHUNK_BYTES))


def _power_of_two(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()
