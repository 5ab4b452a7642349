"""BLAKE3-256 of many arrays inside a JAX program, from 32-bit integer operations alone.

The hash is that of O'Connor, Aumasson, Neves and Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020). A
program holds two compressions however many arrays it hashes, each run in a loop over tiles of lanes:

1. *Chunks.* A tile chains the blocks of its chunks. It lies either in one large array, which is read in place, or in
   the packed words of a tree: its small arrays, and the last partial chunks of the large ones.
2. *Parents.* Chaining values stand in one buffer, which each level overwrites with the level above it.

Which tiles run is decided at run time, by tree. `_blake3_layout` says what stands where.
"""

from collections.abc import Callable, Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from zkdv.jax._blake3_layout import BLOCK_BYTES, BLOCKS_PER_CHUNK, CHUNK_BYTES, CHUNK_END, ROOT, Layout, lay_out

TILE_CHUNKS: Final = 512
"""Chunks that are hashed side by side: on a CPU their state stays in a core's cache."""

WORDS_PER_CHUNK: Final = 256
WORDS_PER_BLOCK: Final = 16

CHUNK_START: Final = 1
PARENT: Final = 4

INITIAL: Final[NDArray[np.uint32]] = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
PERMUTATION: Final = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
ROUNDS: Final = 7

ELEMENTS_MAX: Final = 2**32
"""Elements of one array that a 32-bit index can reach."""

Trees = tuple[Sequence[jax.Array], Sequence[jax.Array]]
State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def digests(arrays: Sequence[jax.Array]) -> jax.Array:
    """The BLAKE3-256 digests of arrays, each of its elements as little-endian bytes in C order.

    Args:
        arrays: Arrays of any shape and of any element type that fills whole bytes.

    Returns:
        Shape `(len(arrays), 8)`, uint32: each digest as little-endian words.

    Raises:
        ValueError: If an array has `ELEMENTS_MAX` elements or more.
    """
    return tree_digests((arrays, ()), (jnp.array(True), jnp.array(False)))  # noqa: FBT003 (an array of the program)


def tree_digests(trees: Trees, due: tuple[jax.Array, jax.Array], *, tile_chunks: int = TILE_CHUNKS) -> jax.Array:
    """The BLAKE3-256 digests of the arrays of two trees, of which either may not be due.

    Args:
        trees: The arrays of each tree, as in `digests`.
        due: For each tree whether it is hashed, shape `()`, bool.
        tile_chunks: Chunks that are hashed side by side, a power of two.

    Returns:
        Shape `(arrays of both trees, 8)`, uint32: each digest as little-endian words, zeros where a tree is not due.

    Raises:
        ValueError: If an array has `ELEMENTS_MAX` elements or more.
    """
    for array in (*trees[0], *trees[1]):
        if array.size >= ELEMENTS_MAX:
            raise ValueError(
                f"an array of {array.size} elements, {array.dtype}{list(array.shape)}, is too large for the portable "
                f"lowering, which reaches {ELEMENTS_MAX - 1}: split the array, or shard it over devices"
            )
    lengths = tuple([array.size * array.dtype.itemsize for array in tree] for tree in trees)
    layout = lay_out((lengths[0], lengths[1]), tile_chunks)
    if not layout.entries:
        return jnp.zeros((0, 8), jnp.uint32)
    return _hash_parents(layout, due, *_hash_chunks(layout, trees, due))


def compress(
    chaining: jax.Array, block: jax.Array, counter: jax.Array, length: jax.Array, flags: jax.Array
) -> jax.Array:
    """One compression in each of `lanes` lanes.

    Args:
        chaining: Chaining values, shape `(8, lanes)`, uint32.
        block: Message words, shape `(16, lanes)`, uint32.
        counter: Chunk counters, below 2^32, shape `(lanes,)`, uint32.
        length: Bytes of the blocks, shape `(lanes,)`, uint32.
        flags: Domain flags, shape `(lanes,)`, uint32.

    Returns:
        New chaining values, shape `(8, lanes)`, uint32.
    """
    lanes = chaining.shape[1]
    initial = jnp.broadcast_to(jnp.asarray(INITIAL[:4, None]), (4, lanes))
    inputs = jnp.stack([counter, jnp.zeros_like(counter), length, flags])
    schedule = jnp.asarray(_message_schedule())

    # A loop, over rows of four words: XLA compiles unrolled rounds slowly, and to slow code.
    def one_round(index: jax.Array, state: State) -> State:
        words = block[schedule[index]]
        a, b, c, d = _mix(state, words[0:8:2], words[1:8:2])
        a, b, c, d = _mix((a, _turn(b, 1), _turn(c, 2), _turn(d, 3)), words[8:16:2], words[9:16:2])
        return a, _turn(b, 3), _turn(c, 2), _turn(d, 1)

    a, b, c, d = lax.fori_loop(0, ROUNDS, one_round, (chaining[:4], chaining[4:], initial, inputs))
    return jnp.concatenate([a ^ c, b ^ d])


def _hash_chunks(
    layout: Layout, trees: Trees, due: tuple[jax.Array, jax.Array]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The nodes of all chunks, the owner of each node, and the digests of arrays of one chunk."""
    lanes = layout.tile_chunks
    tiles = layout.chunk_tiles
    source, first, first_node, owner = map(jnp.asarray, (tiles.source, tiles.first, tiles.node, tiles.owner))
    arrays = [array for tree in trees for array in tree]
    readers = [_packed_reader(layout, tree, trees[tree], due[tree]) for tree in layout.packed_trees]
    readers += [_large_reader(layout, arrays[index]) for index in layout.large]
    lane = jnp.arange(lanes, dtype=jnp.int32)
    initial = jnp.broadcast_to(jnp.asarray(INITIAL[:, None]), (8, lanes))

    def one_tile(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        nodes, owners, roots = state
        words, counter, blocks, last_length, last_flags, node, entry, root = lax.switch(
            source[index], readers, first[index], first_node[index] + lane, jnp.broadcast_to(owner[index], (lanes,))
        )

        def one_block(chaining: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
            position, block = step
            is_last = position == blocks - 1
            length = jnp.where(is_last, last_length, jnp.uint32(BLOCK_BYTES))
            flags = jnp.where(position == 0, jnp.uint32(CHUNK_START), jnp.uint32(0))
            flags |= jnp.where(is_last, last_flags, jnp.uint32(0))
            out = compress(chaining, block, counter, length, flags)
            return jnp.where(position < blocks, out, chaining), None

        by_block = words.reshape(lanes, BLOCKS_PER_CHUNK, WORDS_PER_BLOCK).transpose(1, 2, 0)
        positions = jnp.arange(BLOCKS_PER_CHUNK, dtype=jnp.uint32)
        chaining = lax.scan(one_block, initial, (positions, by_block))[0].T
        return (
            nodes.at[node].set(chaining, mode="drop", unique_indices=True),
            owners.at[node].set(entry, mode="drop", unique_indices=True),
            roots.at[root].set(chaining, mode="drop", unique_indices=True),
        )

    state = (
        jnp.zeros((layout.nodes, 8), jnp.uint32),
        # A node that no chunk takes belongs to an array of no chunks, behind the others.
        jnp.full(layout.nodes, len(layout.entries), jnp.int32),
        jnp.zeros((len(layout.entries), 8), jnp.uint32),
    )
    start, stop = _range_due(due, tiles.tree_0, len(tiles.source))
    nodes, owners, roots = lax.fori_loop(start, stop, one_tile, state)
    return nodes, owners, roots


def _hash_parents(
    layout: Layout, due: tuple[jax.Array, jax.Array], nodes: jax.Array, owners: jax.Array, roots: jax.Array
) -> jax.Array:
    """The digests of all arrays, from the nodes of their chunks."""
    lanes = layout.tile_chunks
    tiles = layout.parent_tiles
    if not len(tiles.base):
        return roots
    base, first, pairs, level = map(jnp.asarray, (tiles.base, tiles.first, tiles.pairs, tiles.level))
    entry_node = jnp.asarray(np.array([entry.node for entry in layout.entries] + [0], np.int32))
    entry_chunks = jnp.asarray(np.array([entry.chunks for entry in layout.entries] + [0], np.int32))
    lane = jnp.arange(lanes, dtype=jnp.int32)
    initial = jnp.broadcast_to(jnp.asarray(INITIAL[:, None]), (8, lanes))
    zeros, full = jnp.zeros(lanes, jnp.uint32), jnp.full(lanes, BLOCK_BYTES, jnp.uint32)

    def one_tile(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        nodes, owners, roots = state
        below = base[index] + 2 * first[index]
        children = lax.dynamic_slice_in_dim(nodes, below, 2 * lanes).reshape(lanes, 16)
        owner = lax.dynamic_slice_in_dim(owners, below, 2 * lanes).reshape(lanes, 2)[:, 0]
        # The pair's place in its array; an array of c chunks has ceil(c / 2^level) nodes on the level of the children.
        pair = first[index] + lane - (entry_node[owner] >> (level[index] + 1))
        count = -(-entry_chunks[owner] >> level[index])
        has_right = (2 * pair + 1 < count) & (first[index] + lane < pairs[index])
        is_root = has_right & (count == 2)
        flags = jnp.where(is_root, jnp.uint32(PARENT | ROOT), jnp.uint32(PARENT))
        out = compress(initial, children.T, zeros, full, flags).T
        # A node without a right neighbour goes up as it is.
        parents = jnp.where(has_right[:, None], out, children[:, :8])
        above = base[index] + first[index]
        return (
            lax.dynamic_update_slice_in_dim(nodes, parents, above, 0),
            lax.dynamic_update_slice_in_dim(owners, owner, above, 0),
            roots.at[jnp.where(is_root, owner, layout.out_of_range + lane)].set(out, mode="drop", unique_indices=True),
        )

    start, stop = _range_due(due, tiles.tree_0, len(tiles.base))
    _, _, roots = lax.fori_loop(start, stop, one_tile, (nodes, owners, roots))
    return roots


Reader = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, ...]]
"""From a tile's first chunk in its source, its nodes and their owners (both for large arrays only) to the words, then
counter, blocks, last length, last flags, node, owner and root of each lane, as in `PackedLanes`."""


def _packed_reader(layout: Layout, tree: int, arrays: Sequence[jax.Array], due: jax.Array) -> Reader:
    """Reads the chunks of a tree's small arrays, which are copied side by side first."""
    lanes = layout.packed[tree]
    words = len(lanes.node) * WORDS_PER_CHUNK
    ranges = [entry.packed for entry in layout.entries if entry.tree == tree]
    wanted = [index for index, (start, stop) in enumerate(ranges) if start < stop]

    def pack(pieces: list[jax.Array]) -> jax.Array:
        parts = [_chunk_words(piece, *ranges[index]) for piece, index in zip(pieces, wanted, strict=True)]
        padding = jnp.zeros(words - sum(part.size for part in parts), jnp.uint32)
        return jnp.concatenate([*parts, padding])

    def skip(pieces: list[jax.Array]) -> jax.Array:
        del pieces
        return jnp.zeros(words, jnp.uint32)

    packed = lax.cond(due, pack, skip, [arrays[index] for index in wanted])
    tables = [
        jnp.asarray(table)
        for table in (
            lanes.counter,
            lanes.blocks,
            lanes.last_length,
            lanes.last_flags,
            lanes.node,
            lanes.owner,
            lanes.root,
        )
    ]

    def read(first: jax.Array, node: jax.Array, owner: jax.Array) -> tuple[jax.Array, ...]:
        del node, owner
        tile = layout.tile_chunks
        start, size = first * WORDS_PER_CHUNK, tile * WORDS_PER_CHUNK
        rows = (lax.dynamic_slice_in_dim(table, first, tile) for table in tables)
        return lax.dynamic_slice_in_dim(packed, start, size), *rows

    return read


def _large_reader(layout: Layout, array: jax.Array) -> Reader:
    """Reads full chunks of a large array where it lies."""
    tile = layout.tile_chunks
    elements = _elements(array)
    per_chunk = CHUNK_BYTES // array.dtype.itemsize

    def read(first: jax.Array, node: jax.Array, owner: jax.Array) -> tuple[jax.Array, ...]:
        lane = jnp.arange(tile, dtype=jnp.int32)
        # The start in elements stays below ELEMENTS_MAX, as an unsigned index.
        part = lax.dynamic_slice_in_dim(elements, first * per_chunk, tile * per_chunk)
        return (
            _words(part),
            first + lane.astype(jnp.uint32),
            jnp.full(tile, BLOCKS_PER_CHUNK, jnp.uint32),
            jnp.full(tile, BLOCK_BYTES, jnp.uint32),
            jnp.full(tile, CHUNK_END, jnp.uint32),
            node,
            owner,
            layout.out_of_range + lane,
        )

    return read


def _chunk_words(array: jax.Array, start: int, stop: int) -> jax.Array:
    """The words of chunks `start` up to `stop` of an array, zeros behind its end."""
    per_chunk = CHUNK_BYTES // array.dtype.itemsize
    elements = _elements(array)[start * per_chunk :]
    return _words(jnp.pad(elements, (0, (stop - start) * per_chunk - elements.size)))


def _elements(array: jax.Array) -> jax.Array:
    """The elements in C order, as a view."""
    # Short floats as integers: a platform may move them by way of float32, which changes NaNs.
    flat = array.reshape(-1)
    if flat.dtype.itemsize < 4 and jnp.issubdtype(flat.dtype, jnp.floating):
        return lax.bitcast_convert_type(flat, jnp.uint16 if flat.dtype.itemsize == 2 else jnp.uint8)
    return flat


def _words(elements: jax.Array) -> jax.Array:
    """A flat array of whole words as uint32 words, little-endian."""
    if elements.dtype == jnp.bool_:
        elements = elements.astype(jnp.uint8)
    elif jnp.issubdtype(elements.dtype, jnp.complexfloating):
        elements = jnp.stack([elements.real, elements.imag], axis=-1).reshape(-1)
    per_word = 4 // elements.dtype.itemsize
    if per_word > 1:
        elements = elements.reshape(-1, per_word)
    return lax.bitcast_convert_type(elements, jnp.uint32).reshape(-1)


def _range_due(due: tuple[jax.Array, jax.Array], tree_0: int, total: int) -> tuple[jax.Array, jax.Array]:
    """First and one past the last of the tiles that are due; those of tree 0 stand first."""
    return jnp.where(due[0], 0, tree_0), jnp.where(due[1], total, tree_0)


def _mix(state: State, first: jax.Array, second: jax.Array) -> State:
    """BLAKE3's G on four columns at once; every array of shape `(4, lanes)`."""
    a, b, c, d = state
    a = a + b + first
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b + second
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


def _rotate(words: jax.Array, bits: int) -> jax.Array:
    return (words >> bits) | (words << (32 - bits))


def _turn(rows: jax.Array, places: int) -> jax.Array:
    """Rows moved up by `places`, the first ones to the end."""
    return jnp.concatenate([rows[places:], rows[:places]])


def _message_schedule() -> NDArray[np.int32]:
    """Which message word each round takes in each place, shape `(7, 16)`."""
    rounds = [np.arange(WORDS_PER_BLOCK, dtype=np.int32)]
    while len(rounds) < ROUNDS:
        rounds.append(rounds[-1][list(PERMUTATION)])
    return np.stack(rounds)
