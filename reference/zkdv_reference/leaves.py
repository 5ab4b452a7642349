"""Leaves: schemes `blake3-256` and `zkdv-sharded-leaf-1`, and openings of chunks."""

import itertools
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

Ranges = tuple[tuple[int, int], ...]
"""Start and stop of a shard in every dimension."""


def leaf_digest(elements: bytes) -> bytes:
    """The digest of a leaf's elements as little-endian bytes in C order."""
    return digest(elements)


def shard_ranges(shape: Sequence[int], extents: Sequence[int]) -> list[Ranges]:
    """The shards of a leaf, in the order of their starts; the last along a dimension may be shorter."""
    cuts = [
        [(start, min(start + extent, size)) for start in range(0, size, extent)]
        for size, extent in zip(shape, extents, strict=True)
    ]
    return list(itertools.product(*cuts))


def sharded_digest(shape: Sequence[int], extents: Sequence[int], shard_digests: Sequence[bytes]) -> bytes:
    """The digest of a leaf that is spread over devices, from the plain digest of each shard's own elements."""
    shards = shard_ranges(shape, extents)
    data = u64(len(shape)) + u64(len(shards))
    for ranges, digest_of_shard in zip(shards, shard_digests, strict=True):
        data += b"".join(u64(start) + u64(stop) for start, stop in ranges) + digest_of_shard
    return derive("zkdv 1 sharded leaf", data)


def shard_elements(elements: bytes, element_bytes: int, shape: Sequence[int], ranges: Ranges) -> bytes:
    """A shard's own elements in C order, out of those of the whole leaf."""
    inside = itertools.product(*(range(start, stop) for start, stop in ranges))
    places = (flat_index(shape, position) * element_bytes for position in inside)
    return b"".join(elements[place : place + element_bytes] for place in places)


def locate(shape: Sequence[int], extents: Sequence[int], element: int) -> tuple[int, int]:
    """The shard that holds an element of the leaf, and the element's index among the shard's own; both in C order."""
    position = []
    for size in reversed(shape):
        position.insert(0, element % size)
        element //= size
    for shard, ranges in enumerate(shard_ranges(shape, extents)):
        if all(start <= place < stop for place, (start, stop) in zip(position, ranges, strict=True)):
            own_shape = [stop - start for start, stop in ranges]
            own = [place - start for place, (start, _) in zip(position, ranges, strict=True)]
            return shard, flat_index(own_shape, own)
    raise IndexError(element)


def flat_index(shape: Sequence[int], position: Sequence[int]) -> int:
    """The index in C order of an element at `position`."""
    index = 0
    for size, place in zip(shape, position, strict=True):
        index = index * size + place
    return index


def verify_shard_chunk(
    expected: bytes,
    shape: Sequence[int],
    extents: Sequence[int],
    *,
    element_bytes: int,
    element: int,
    shards: Sequence[bytes],
    data: bytes,
    chain: Sequence[bytes],
) -> bool:
    """Whether `data` is the chunk with an element of the sharded leaf with this digest."""
    ranges = shard_ranges(shape, extents)
    if len(shards) != len(ranges) or sharded_digest(shape, extents, shards) != expected:
        return False
    shard, own = locate(shape, extents, element)
    length = element_bytes
    for start, stop in ranges[shard]:
        length *= stop - start
    return verify_chunk(shards[shard], length, own * element_bytes // CHUNK_BYTES, data, chain)


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
