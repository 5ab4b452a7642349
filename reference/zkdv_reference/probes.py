"""Probes, scheme `zkdv-probe-1`."""

import math
import struct
from collections.abc import Sequence

from zkdv_reference.blake3 import digest, xof
from zkdv_reference.leaves import shard_elements, shard_ranges, sharded_digest
from zkdv_reference.numbers import ELEMENT_BYTES, binary32, is_complex, is_double, is_probed, reals
from zkdv_reference.trees import u64


def kept(dimension: int, ratio: float) -> int:
    """How many numbers are kept of a last dimension of so many real numbers."""
    return max(1, math.ceil(ratio * dimension))


def signs(root_digest: bytes, tree: int, leaf: int, dimension: int) -> bytes:
    """The sign stream of a leaf in whole 32-bit words, as many as hold `dimension` bits."""
    return xof("zkdv 1 probe signs", root_digest + bytes([tree]) + u64(leaf), 4 * -(-dimension // 32))


def real_dimension(dtype: str, shape: Sequence[int]) -> int:
    """The last dimension in real numbers; 0 for leaves that take no signs: scalars and those without a probe."""
    if not shape or not is_probed(dtype) or 0 in shape:
        return 0
    return shape[-1] * (2 if is_complex(dtype) else 1)


def probe(dtype: str, shape: Sequence[int], ratio: float, elements: bytes, sign_stream: bytes) -> list[float]:
    """The probe of a leaf; empty where it has none. Sums are taken from left to right."""
    if not is_probed(dtype) or not elements:
        return []
    values = reals(dtype, elements)
    if not shape:
        return values
    dimension = real_dimension(dtype, shape)
    count = kept(dimension, ratio)
    sums = []
    for row in range(0, len(values), dimension):
        for index in range(count):
            columns = range(index * dimension // count, (index + 1) * dimension // count)
            signed = [-values[row + i] if sign_stream[i // 8] >> i % 8 & 1 else values[row + i] for i in columns]
            sums.append(_sum(dtype, signed))
    return sums


def sharded_probe(
    dtype: str, shape: Sequence[int], extents: Sequence[int], elements: bytes, *, ratio: float, sign_stream: bytes
) -> list[list[float]]:
    """The probes of a sharded leaf's shards, each as if it were the leaf; none of a leaf that has none."""
    probes = []
    for ranges in shard_ranges(shape, extents):
        own = shard_elements(elements, ELEMENT_BYTES[dtype], shape, ranges)
        probes.append(probe(dtype, [stop - start for start, stop in ranges], ratio, own, sign_stream))
    return probes


def sharded_probe_digest(
    dtype: str, shape: Sequence[int], extents: Sequence[int], probes: Sequence[Sequence[float]]
) -> bytes:
    """What stands for a sharded leaf in a tree of probes."""
    return sharded_digest(shape, extents, [digest(probe_bytes(dtype, own)) for own in probes])


def probe_bytes(dtype: str, values: Sequence[float]) -> bytes:
    """A probe as it is committed to."""
    return struct.pack(f"<{len(values)}{'d' if is_double(dtype) else 'f'}", *values)


def _sum(dtype: str, values: Sequence[float]) -> float:
    total = values[0]
    for value in values[1:]:
        total = total + value if is_double(dtype) else binary32(total + value)
    return total
