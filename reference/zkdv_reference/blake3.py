"""BLAKE3 after its specification (O'Connor, Aumasson, Neves, Wilcox-O'Hearn, 2020), in the modes that zkdv uses."""

import struct

CHUNK_BYTES = 1024
BLOCK_BYTES = 64
WORD = 0xFFFFFFFF

# Section 2.1, tables 1 to 3.
IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)
CHUNK_START, CHUNK_END, PARENT, ROOT = 1, 2, 4, 8
DERIVE_KEY_CONTEXT, DERIVE_KEY_MATERIAL = 32, 64

# Which words each of a round's eight quarter rounds mixes: the columns, then the diagonals.
QUARTER_ROUNDS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)

Words = tuple[int, ...]
# What a node hands to its compression: chaining value, block words, counter, block length, flags.
Node = tuple[Words, Words, int, int, int]


def digest(data: bytes) -> bytes:
    """The plain digest of `data`, 32 bytes."""
    return _read(_tree(data, IV, 0), 32)


def derive(context: str, data: bytes) -> bytes:
    """The digest of `data` in key-derivation mode, 32 bytes."""
    return xof(context, data, 32)


def xof(context: str, data: bytes, length: int) -> bytes:
    """The first `length` bytes of the stream that key-derivation mode gives for `data`."""
    key = struct.unpack("<8I", _read(_tree(context.encode(), IV, DERIVE_KEY_CONTEXT), 32))
    return _read(_tree(data, key, DERIVE_KEY_MATERIAL), length)


def chaining_value(data: bytes, first_chunk: int) -> bytes:
    """The chaining value of the subtree over `data`, which starts at chunk `first_chunk` of a plain digest's input."""
    return struct.pack("<8I", *_chaining_value(_tree(data, IV, 0, first_chunk)))


def join(left: bytes, right: bytes) -> bytes:
    """The chaining value of the parent of two chaining values in a plain digest."""
    return struct.pack("<8I", *_chaining_value(_parent(left, right)))


def join_at_top(left: bytes, right: bytes) -> bytes:
    """The plain digest whose topmost node has these two chaining values."""
    return _read(_parent(left, right), 32)


def left_bytes(length: int) -> int:
    """How many bytes stand under the left child of a node over `length` bytes, more than one chunk."""
    chunks = (length - 1) // CHUNK_BYTES
    return CHUNK_BYTES << (chunks.bit_length() - 1)


def _parent(left: bytes, right: bytes) -> Node:
    return IV, struct.unpack("<16I", left + right), 0, BLOCK_BYTES, PARENT


def _tree(data: bytes, key: Words, flags: int, first_chunk: int = 0) -> Node:
    if len(data) <= CHUNK_BYTES:
        return _chunk(data, key, flags, first_chunk)
    middle = left_bytes(len(data))
    left = _chaining_value(_tree(data[:middle], key, flags, first_chunk))
    right = _chaining_value(_tree(data[middle:], key, flags, first_chunk + middle // CHUNK_BYTES))
    return key, left + right, 0, BLOCK_BYTES, flags | PARENT


def _chunk(data: bytes, key: Words, flags: int, counter: int) -> Node:
    value = key
    start = CHUNK_START
    while len(data) > BLOCK_BYTES:
        value = _chaining_value((value, _block(data[:BLOCK_BYTES]), counter, BLOCK_BYTES, flags | start))
        data = data[BLOCK_BYTES:]
        start = 0
    return value, _block(data), counter, len(data), flags | start | CHUNK_END


def _block(data: bytes) -> Words:
    return struct.unpack("<16I", data.ljust(BLOCK_BYTES, b"\0"))


def _chaining_value(node: Node) -> Words:
    return _compress(node)[:8]


def _read(node: Node, length: int) -> bytes:
    """The output of a root node: it is compressed again and again with a growing counter."""
    value, block, _, block_length, flags = node
    blocks = [
        struct.pack("<16I", *_compress((value, block, counter, block_length, flags | ROOT)))
        for counter in range(-(-length // BLOCK_BYTES))
    ]
    return b"".join(blocks)[:length]


def _compress(node: Node) -> Words:
    value, block, counter, block_length, flags = node
    state = [*value, *IV[:4], counter & WORD, counter >> 32, block_length, flags]
    message = block
    for _ in range(7):
        for quarter, places in enumerate(QUARTER_ROUNDS):
            _mix(state, places, message[2 * quarter], message[2 * quarter + 1])
        message = tuple(message[place] for place in PERMUTATION)
    return (*(state[i] ^ state[i + 8] for i in range(8)), *(state[i + 8] ^ value[i] for i in range(8)))


def _mix(state: list[int], places: tuple[int, int, int, int], first: int, second: int) -> None:
    a, b, c, d = places
    state[a] = (state[a] + state[b] + first) & WORD
    state[d] = _rotate(state[d] ^ state[a], 16)
    state[c] = (state[c] + state[d]) & WORD
    state[b] = _rotate(state[b] ^ state[c], 12)
    state[a] = (state[a] + state[b] + second) & WORD
    state[d] = _rotate(state[d] ^ state[a], 8)
    state[c] = (state[c] + state[d]) & WORD
    state[b] = _rotate(state[b] ^ state[c], 7)


def _rotate(word: int, bits: int) -> int:
    return word >> bits | word << (32 - bits) & WORD
