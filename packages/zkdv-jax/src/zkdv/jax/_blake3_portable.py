"""BLAKE3-256 of many inputs inside a JAX program, from 32-bit integer operations alone.

The hash is that of O'Connor, Aumasson, Neves and Wilcox-O'Hearn, "BLAKE3: one function, fast everywhere" (2020). A
program holds two compressions however many inputs it hashes, each run in a loop over tiles of lanes:

1. *Chunks.* A tile chains the blocks of its chunks. It lies either in one large array, which is read in place, or in
   the packed words of a tree: its small arrays, the last partial chunks of the large ones, and joined inputs.
2. *Parents.* Chaining values stand in one buffer, which each level overwrites with the level above it.

Which tiles run is decided at run time, by tree. `_blake3_layout` says what stands where.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from zkdv.jax._blake3_layout import (
    BLOCK_BYTES,
    BLOCKS_PER_CHUNK,
    CHUNK_BYTES,
    CHUNK_END,
    ROOT,
    WORD_BYTES,
    Entry,
    Input,
    Layout,
    PackedLane,
    lay_out,
)

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

State = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


@dataclass(frozen=True, slots=True)
class Joined:
    """Inputs that stand one after the other in a flat array.

    Attributes:
        array: Their elements, of 4 or 8 bytes each, shape `(sum(sizes),)`.
        sizes: Elements of each.
    """

    array: jax.Array
    sizes: Sequence[int]


@dataclass(frozen=True, slots=True)
class TreeInputs:
    """What is hashed of one tree.

    Attributes:
        due: Whether it is hashed, shape `()`, bool.
        arrays: Arrays that are one input each, of any shape and of any element type that fills whole bytes.
        joined: Further inputs.
    """

    due: jax.Array
    arrays: Sequence[jax.Array]
    joined: Sequence[Joined] = ()

    @property
    def count(self) -> int:
        """Number of inputs."""
        return len(self.arrays) + sum(len(joined.sizes) for joined in self.joined)

    def inputs(self) -> Iterator[Input]:
        """Lengths of all inputs: those of the arrays, then those of the joined ones."""
        for array in self.arrays:
            yield Input(array.size * array.dtype.itemsize, in_place=True)
        for joined in self.joined:
            for size in joined.sizes:
                yield Input(size * joined.array.dtype.itemsize, in_place=False)


def digests(arrays: Sequence[jax.Array], *, tile_chunks: int = 512) -> jax.Array:
    """The BLAKE3-256 digests of arrays, each of its elements as little-endian bytes in C order.

    Args:
        arrays: Arrays of any shape and of any element type that fills whole bytes.
        tile_chunks: As in `tree_digests`.

    Returns:
        Shape `(len(arrays), 8)`, uint32: each digest as little-endian words.

    Raises:
        ValueError: If an array has `ELEMENTS_MAX` elements or more.
    """
    yes = jnp.array(True)  # noqa: FBT003 (an array of the program)
    return tree_digests((TreeInputs(yes, arrays), TreeInputs(yes, ())), tile_chunks=tile_chunks)


def tree_digests(trees: tuple[TreeInputs, TreeInputs], *, tile_chunks: int = 512) -> jax.Array:
    """The BLAKE3-256 digests of the inputs of two trees, of which either may not be due.

    Args:
        trees: The two trees.
        tile_chunks: Chunks that are hashed side by side, a power of two; arrays of fewer full chunks are copied first.

    Returns:
        Shape `(inputs of both trees, 8)`, uint32: each digest as little-endian words, zeros where a tree is not due.

    Raises:
        ValueError: If an array has `ELEMENTS_MAX` elements or more.
    """
    for array in (*trees[0].arrays, *trees[1].arrays):
        if array.size >= ELEMENTS_MAX:
            raise ValueError(
                f"an array of {array.size} elements, {array.dtype}{list(array.shape)}, is too large for the portable "
                f"lowering, which reaches {ELEMENTS_MAX - 1}: split the array, or shard it over devices"
            )
    layout = lay_out((tuple(trees[0].inputs()), tuple(trees[1].inputs())), tile_chunks)
    if not layout.entries:
        return jnp.zeros((0, 8), jnp.uint32)
    return _hash_parents(layout, trees, *_hash_chunks(layout, trees))


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


def _hash_chunks(layout: Layout, trees: tuple[TreeInputs, TreeInputs]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The nodes of all chunks, the owner of each node, and the digests of inputs of one chunk."""
    lanes = layout.tile_chunks
    tiles = layout.chunk_tiles
    source, first, first_node, owner = map(jnp.asarray, (tiles.source, tiles.first, tiles.node, tiles.owner))
    readers = [_packed_reader(layout, tree, trees[tree]) for tree in layout.packed_trees]
    arrays = _by_entry(trees)
    readers += [_large_reader(layout, arrays[index]) for index in layout.large]
    # One row more than needed, where no chunk is packed: it is read, and not used.
    table = jnp.asarray(np.pad(layout.packed_lanes, ((0, 0 if layout.packed_trees else lanes), (0, 0))))
    lane = jnp.arange(lanes, dtype=jnp.uint32)
    initial = jnp.broadcast_to(jnp.asarray(INITIAL[:, None]), (8, lanes))

    def one_tile(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        nodes, owners, roots = state
        is_packed = source[index] < len(layout.packed_trees)
        packed = lax.dynamic_slice_in_dim(table, jnp.where(is_packed, first[index], 0), lanes)

        def column(position: int, in_large: jax.Array | int) -> jax.Array:
            return jnp.where(is_packed, packed[:, position], jnp.asarray(in_large, jnp.uint32))

        counter = column(PackedLane.COUNTER, first[index] + lane)
        blocks = column(PackedLane.BLOCKS, BLOCKS_PER_CHUNK)
        last_length = column(PackedLane.LAST_LENGTH, BLOCK_BYTES)
        last_flags = column(PackedLane.LAST_FLAGS, CHUNK_END)
        words = lax.switch(source[index], readers, first[index], packed)

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
        node = column(PackedLane.NODE, first_node[index] + lane)
        entry = column(PackedLane.OWNER, owner[index])
        root = column(PackedLane.ROOT, layout.out_of_range + lane)
        return (
            nodes.at[node].set(chaining, mode="drop", unique_indices=True),
            owners.at[node].set(entry, mode="drop", unique_indices=True),
            roots.at[root].set(chaining, mode="drop", unique_indices=True),
        )

    state = (
        jnp.zeros((layout.nodes, 8), jnp.uint32),
        # A node that no chunk takes belongs to an input of no chunks, behind the others.
        jnp.full(layout.nodes, len(layout.entries), jnp.uint32),
        jnp.zeros((len(layout.entries), 8), jnp.uint32),
    )
    start, stop = _range_due(trees, tiles.tree_0, len(tiles.source))
    nodes, owners, roots = lax.fori_loop(start, stop, one_tile, state)
    return nodes, owners, roots


def _hash_parents(
    layout: Layout, trees: tuple[TreeInputs, TreeInputs], nodes: jax.Array, owners: jax.Array, roots: jax.Array
) -> jax.Array:
    """The digests of all inputs, from the nodes of their chunks."""
    lanes = layout.tile_chunks
    tiles = layout.parent_tiles
    if not len(tiles.base):
        return roots
    base, first, pairs, level = map(jnp.asarray, (tiles.base, tiles.first, tiles.pairs, tiles.level))
    # Nodes from the start of the tree.
    entry_node = jnp.asarray(
        np.array([entry.node - layout.bases[entry.tree] for entry in layout.entries] + [0], np.int32)
    )
    entry_chunks = jnp.asarray(np.array([entry.chunks for entry in layout.entries] + [0], np.int32))
    lane = jnp.arange(lanes, dtype=jnp.int32)
    initial = jnp.broadcast_to(jnp.asarray(INITIAL[:, None]), (8, lanes))
    zeros, full = jnp.zeros(lanes, jnp.uint32), jnp.full(lanes, BLOCK_BYTES, jnp.uint32)

    def one_tile(index: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        nodes, owners, roots = state
        below = base[index] + 2 * first[index]
        children = lax.dynamic_slice_in_dim(nodes, below, 2 * lanes).reshape(lanes, 16)
        owner = lax.dynamic_slice_in_dim(owners, below, 2 * lanes).reshape(lanes, 2)[:, 0]
        # The pair's place in its input; an input of c chunks has ceil(c / 2^level) nodes on the level of the children.
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

    start, stop = _range_due(trees, tiles.tree_0, len(tiles.base))
    _, _, roots = lax.fori_loop(start, stop, one_tile, (nodes, owners, roots))
    return roots


Reader = Callable[[jax.Array, jax.Array], jax.Array]
"""From a tile's first chunk, and its rows of `Layout.packed_lanes` where it is packed, to its words, those of each lane
one after the other, zeros behind the end of a chunk."""


def _packed_reader(layout: Layout, tree: int, given: TreeInputs) -> Reader:
    """Reads the chunks of a tree's small inputs, which are copied side by side first."""
    entries = [entry for entry in layout.entries if entry.tree == tree]

    def pack(arrays: Sequence[jax.Array], joined: Sequence[jax.Array]) -> jax.Array:
        # Runs of one element type are joined before they become words: fewer operations to compile.
        parts = [_packed_elements(array, entry) for array, entry in zip(arrays, entries, strict=False)]
        runs: list[list[jax.Array]] = []
        for part in parts:
            if not runs or runs[-1][0].dtype != part.dtype:
                runs.append([])
            runs[-1].append(part)
        words = [_words(lax.concatenate(run, 0)) for run in runs] + [_words(array) for array in joined]
        # A chunk is read whole, the last one too.
        return lax.concatenate([*words, jnp.zeros(WORDS_PER_CHUNK, jnp.uint32)], 0)

    def skip(arrays: Sequence[jax.Array], joined: Sequence[jax.Array]) -> jax.Array:
        return jnp.zeros(jax.eval_shape(pack, arrays, joined).shape, jnp.uint32)

    packed = lax.cond(given.due, pack, skip, list(given.arrays), [joined.array for joined in given.joined])

    def read(first: jax.Array, lanes: jax.Array) -> jax.Array:
        del first
        chunks = jax.vmap(lambda start: lax.dynamic_slice_in_dim(packed, start, WORDS_PER_CHUNK))(
            lanes[:, PackedLane.WORD]
        )
        length = (lanes[:, PackedLane.BLOCKS] - 1) * BLOCK_BYTES + lanes[:, PackedLane.LAST_LENGTH]
        is_inside = jnp.arange(WORDS_PER_CHUNK, dtype=jnp.uint32) * WORD_BYTES < length[:, None]
        return jnp.where(is_inside, chunks, 0).reshape(-1)

    return read


def _large_reader(layout: Layout, array: jax.Array) -> Reader:
    """Reads full chunks of a large array where it lies."""
    elements = array.reshape(-1)
    per_chunk = CHUNK_BYTES // array.dtype.itemsize

    def read(first: jax.Array, lanes: jax.Array) -> jax.Array:
        del lanes
        # The start in elements stays below ELEMENTS_MAX, as an unsigned index. Bits are taken in here, where XLA takes
        # those of the slice alone, and not of the whole array ahead of the loop.
        part = lax.dynamic_slice_in_dim(_bits(elements), first * per_chunk, layout.tile_chunks * per_chunk)
        return _words(part)

    return read


def _packed_elements(array: jax.Array, entry: Entry) -> jax.Array:
    """The packed elements of an array, padded to whole words."""
    start = entry.packed_chunks.start * (CHUNK_BYTES // array.dtype.itemsize)
    elements = _bits(array.reshape(-1))[start:]
    return jnp.pad(elements, (0, -elements.size % max(1, WORD_BYTES // elements.dtype.itemsize)))


def _bits(elements: jax.Array) -> jax.Array:
    """Elements in a type that keeps its bits when they are moved."""
    # XLA may slice and join short floats by way of longer ones, which changes NaNs.
    size = elements.dtype.itemsize
    if elements.dtype == jnp.bool_:
        return elements.astype(jnp.uint8)
    if size < WORD_BYTES and jnp.issubdtype(elements.dtype, jnp.floating):
        return lax.bitcast_convert_type(elements, jnp.uint16 if size == 2 else jnp.uint8)
    return elements


def _words(elements: jax.Array) -> jax.Array:
    """Bits of whole words as uint32 words, little-endian."""
    if jnp.issubdtype(elements.dtype, jnp.complexfloating):
        elements = jnp.stack([elements.real, elements.imag], axis=-1).reshape(-1)
    if elements.dtype.itemsize < WORD_BYTES:
        elements = elements.reshape(-1, WORD_BYTES // elements.dtype.itemsize)
    return lax.bitcast_convert_type(elements, jnp.uint32).reshape(-1)


def _by_entry(trees: tuple[TreeInputs, TreeInputs]) -> dict[int, jax.Array]:
    """The arrays of both trees by their entry."""
    return {
        start + index: array
        for start, tree in ((0, trees[0]), (trees[0].count, trees[1]))
        for index, array in enumerate(tree.arrays)
    }


def _range_due(trees: tuple[TreeInputs, TreeInputs], tree_0: int, total: int) -> tuple[jax.Array, jax.Array]:
    """First and one past the last of the tiles that are due; those of tree 0 stand first."""
    return jnp.where(trees[0].due, 0, tree_0), jnp.where(trees[1].due, total, tree_0)


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
