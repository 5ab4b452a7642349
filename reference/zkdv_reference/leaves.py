"""Leaves: schemes `blake3-256` and `zkdv-sharded-leaf-1`, and openings of chunks."""

from collections.abc import Sequence

from zkdv_reference.blake3 import (
    CHUNK_BYTES,
    chaining_value,
    derive,
    digest,
    join,
    join_at_top,
    left_bytes,
)
from zkdv_reference.trees import u64

# Start and stop in every dimension, and the plain digest of the shard's own elements.
Shard = tuple[Sequence[tuple[int, int]], bytes]


def leaf_digest(elements: bytes) -> bytes:
    """The digest of a leaf's elements as little-endian bytes in C order."""
    return digest(elements)


def sharded_digest(dimensions: int, shards: Sequence[Shard]) -> bytes:
    """The digest of a leaf that is spread over devices; shards are ordered by start, and disjoint."""
    data = u64(dimensions) + u64(len(shards))
    for ranges, shard_digest in shards:
        data += b"".join(u64(start) + u64(stop) for start, stop in ranges) + shard_digest
    return derive("zkdv 1 sharded leaf", data)


def open_chunk(elements: bytes, chunk: int) -> tuple[bytes, list[bytes]]:
    """The bytes of a chunk, and the chaining values beside its path to the top from the bottom up."""
    inside, first_chunk = elements, 0
    chain = []
    while len(inside) > CHUNK_BYTES:
        middle = left_bytes(len(inside))
        middle_chunk = first_chunk + middle // CHUNK_BYTES
        if chunk < middle_chunk:
            chain.append(chaining_value(inside[middle:], middle_chunk))
            inside = inside[:middle]
        else:
            chain.append(chaining_value(inside[:middle], first_chunk))
            inside, first_chunk = inside[middle:], middle_chunk
    return inside, chain[::-1]


def verify_chunk(expected: bytes, length: int, chunk: int, data: bytes, chain: Sequence[bytes]) -> bool:
    """Whether `data` is chunk number `chunk` of the leaf with this digest, which has `length` bytes.

    The length is known from the schema: an opening shows it only where the chunk is the last.
    """
    width = max(1, -(-length // CHUNK_BYTES))
    if not 0 <= chunk < width or len(data) != min(CHUNK_BYTES, length - chunk * CHUNK_BYTES):
        return False
    if width == 1:
        return not chain and digest(data) == expected
    node = chaining_value(data, chunk)
    siblings = list(chain)
    while width > 1:
        if chunk ^ 1 < width:
            if not siblings:
                return False
            sibling = siblings.pop(0)
            pair = (sibling, node) if chunk % 2 else (node, sibling)
            node = join_at_top(*pair) if width == 2 else join(*pair)
        chunk //= 2
        width = (width + 1) // 2
    return not siblings and node == expected
