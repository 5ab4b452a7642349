"""Where the chunks and parents of many arrays stand while `_blake3_portable` hashes them: tables made on the host.

Tables grow with the number of tiles and of small chunks, not with the bytes of large arrays.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

CHUNK_BYTES: Final = 1024
BLOCK_BYTES: Final = 64
BLOCKS_PER_CHUNK: Final = 16

CHUNK_END: Final = 2
ROOT: Final = 8

TREES: Final = 2
TILE_CHUNKS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One array.

    Attributes:
        tree: Its tree, 0 or 1.
        bytes: Its length.
        node: Node of its first chunk, from the start of its tree's nodes.
        is_large: Whether its full chunks are read in place, tile by tile; else they are packed with those of others.
    """

    tree: int
    bytes: int
    node: int
    is_large: bool

    @property
    def chunks(self) -> int:
        """Chunks of its BLAKE3 tree, at least 1."""
        return chunk_count(self.bytes)

    @property
    def packed(self) -> tuple[int, int]:
        """First and one past the last of the chunks that are packed."""
        return (self.bytes // CHUNK_BYTES if self.is_large else 0, self.chunks)


@dataclass(frozen=True, slots=True)
class ChunkTiles:
    """One row for each tile of chunks, those of tree 0 first.

    Attributes:
        source: Place among the sources: the packed chunks of `Layout.packed_trees`, then the arrays of `Layout.large`.
        first: First chunk inside the source.
        node: Node of that chunk in a large array.
        owner: Entry of the large array.
        tree_0: How many tiles belong to tree 0.
    """

    source: NDArray[np.int32]
    first: NDArray[np.uint32]
    node: NDArray[np.int32]
    owner: NDArray[np.int32]
    tree_0: int


@dataclass(frozen=True, slots=True)
class PackedLanes:
    """One row for each packed chunk of a tree, padded to whole tiles.

    Attributes:
        counter: The chunk's place in its array.
        blocks: Its blocks, 1 to 16.
        last_length: Bytes of its last block.
        last_flags: Flags of its last block.
        node: Its node; out of range in padding.
        owner: Its entry.
        root: Its entry, where the chunk is all of it and its output the digest; out of range elsewhere.
    """

    counter: NDArray[np.uint32]
    blocks: NDArray[np.uint32]
    last_length: NDArray[np.uint32]
    last_flags: NDArray[np.uint32]
    node: NDArray[np.int32]
    owner: NDArray[np.int32]
    root: NDArray[np.int32]


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
        entries: The arrays of both trees, in the order in which they were given.
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
    def packed(self) -> tuple[PackedLanes, PackedLanes]:
        """The packed chunks of each tree."""
        return self._packed_lanes(0), self._packed_lanes(1)

    @cached_property
    def packed_trees(self) -> tuple[int, ...]:
        """The trees that have packed chunks."""
        return tuple(tree for tree in range(TREES) if self.packed[tree].node.size)

    @cached_property
    def chunk_tiles(self) -> ChunkTiles:
        """All tiles of chunks."""
        tiles = self.tile_chunks
        rows: list[tuple[int, int, int, int]] = []
        tree_0 = 0
        for tree in range(TREES):
            if tree in self.packed_trees:
                source = self.packed_trees.index(tree)
                rows += [(source, first, 0, 0) for first in range(0, len(self.packed[tree].node), tiles)]
            for source, owner in enumerate(self.large, len(self.packed_trees)):
                entry = self.entries[owner]
                if entry.tree == tree:
                    full = entry.bytes // CHUNK_BYTES
                    # The last tile reaches back over chunks that are done, so that every tile is whole.
                    starts = [*range(0, full - tiles, tiles), full - tiles]
                    rows += [(source, start, self.bases[tree] + entry.node + start, owner) for start in starts]
            if tree == 0:
                tree_0 = len(rows)
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        return ChunkTiles(
            source=columns[0].astype(np.int32),
            first=columns[1].astype(np.uint32),
            node=columns[2].astype(np.int32),
            owner=columns[3].astype(np.int32),
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
        """Pairs on each level, of the arrays that are not reduced to one node yet; larger arrays stand first."""
        entries = [entry for entry in self.entries if entry.tree == tree]
        level = 0
        while unfinished := [entry for entry in entries if entry.chunks > 1 << level]:
            yield max(entry.node + _power_of_two(entry.chunks) for entry in unfinished) >> (level + 1)
            level += 1

    def _packed_lanes(self, tree: int) -> PackedLanes:
        columns: list[NDArray[np.int64]] = [np.zeros((7, 0), np.int64)]
        lanes = 0
        for owner, entry in enumerate(self.entries):
            chunk = np.arange(*entry.packed, dtype=np.int64)
            if entry.tree != tree or not chunk.size:
                continue
            length = np.minimum(entry.bytes - chunk * CHUNK_BYTES, CHUNK_BYTES)
            blocks = np.maximum(1, -(-length // BLOCK_BYTES))
            is_root = entry.chunks == 1
            columns.append(
                np.stack(
                    [
                        chunk,
                        blocks,
                        length - (blocks - 1) * BLOCK_BYTES,
                        np.full_like(chunk, CHUNK_END | ROOT if is_root else CHUNK_END),
                        self.bases[tree] + entry.node + chunk,
                        np.full_like(chunk, owner),
                        np.full_like(chunk, owner) if is_root else self.out_of_range + lanes + np.arange(chunk.size),
                    ]
                )
            )
            lanes += chunk.size
        padding = np.arange(lanes, lanes + -lanes % self.tile_chunks)
        # Indices out of range are dropped; they differ so that indices stay unique.
        zero, dropped = np.zeros_like(padding), self.out_of_range + padding
        columns.append(np.stack([zero, zero + 1, zero, zero, dropped, zero, dropped]))
        table = np.concatenate(columns, axis=1)
        return PackedLanes(
            counter=table[0].astype(np.uint32),
            blocks=table[1].astype(np.uint32),
            last_length=table[2].astype(np.uint32),
            last_flags=table[3].astype(np.uint32),
            node=table[4].astype(np.int32),
            owner=table[5].astype(np.int32),
            root=table[6].astype(np.int32),
        )


def lay_out(lengths: tuple[Sequence[int], Sequence[int]], tile_chunks: int) -> Layout:
    """Give every array of two trees its nodes, and decide which are read in place.

    An array of `c` chunks owns the next power of two of nodes, larger arrays first: so every pair starts at an even
    node on every level, and the arrays that still have parents to come are a prefix.

    Args:
        lengths: Bytes of the arrays of each tree.
        tile_chunks: Lanes of a tile, a power of two; fewer are used where there are fewer chunks.
    """
    chunks = sum(chunk_count(length) for tree in lengths for length in tree)
    tile_chunks = min(tile_chunks, max(TILE_CHUNKS_MIN, _power_of_two(chunks)))
    entries: list[Entry] = []
    bases: list[int] = []
    total = 0
    for tree, of_tree in enumerate(lengths):
        bases.append(total)
        nodes = [0] * len(of_tree)
        node = 0
        for position in sorted(range(len(of_tree)), key=lambda i: -chunk_count(of_tree[i])):
            nodes[position] = node
            node += _power_of_two(chunk_count(of_tree[position]))
        for length, start in zip(of_tree, nodes, strict=True):
            entries.append(Entry(tree, length, start, is_large=length // CHUNK_BYTES >= tile_chunks))
        # A tile of parents reads twice its lanes, and none reaches into the next tree.
        total += -(-node // (2 * tile_chunks)) * 2 * tile_chunks
    return Layout(tuple(entries), tile_chunks, (bases[0], bases[1]), total)


def chunk_count(length: int) -> int:
    """Chunks of a BLAKE3 input of `length` bytes."""
    return max(1, -(-length // CHUNK_BYTES))


def _power_of_two(count: int) -> int:
    """The least power of two that is not below `count`."""
    return 1 << max(0, count - 1).bit_length()
