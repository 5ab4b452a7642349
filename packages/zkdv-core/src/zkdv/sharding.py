"""Leaves that are spread over devices: their shards, and their digests from whole arrays.

The schema record gives a leaf's `sharding` as the extent of a shard in every dimension; the last shard along one may be
shorter. Shards are counted in C order. See "Sharded leaves" on the protocol's page about commitments.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.schema import TreeName

__all__ = ["leaf_digest", "probe_digest", "probe_signs", "shard_arrays", "shard_digests"]


def leaf_digest(array: NDArray[Any], sharding: Sequence[int] | None = None) -> bytes:
    """The committed digest of a leaf, from the whole array.

    Args:
        array: The leaf, any shape and dtype.
        sharding: The leaf's `sharding` in the schema record, one extent for each dimension; None where it has none.

    Returns:
        32 bytes.

    Raises:
        ValueError: The extents do not cut an array of this shape into 2 to 65,536 shards.

    Example:
        >>> leaf_digest(np.arange(8.0), [4]) == leaf_digest(np.arange(8.0))
        False
    """
    if sharding is None:
        return _native.leaf_digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
    return _native.sharded_leaf_digest(array.shape, sharding, shard_digests(array, sharding))


def shard_digests(array: NDArray[Any], sharding: Sequence[int]) -> list[bytes]:
    """The plain digests of a leaf's shards, 32 bytes each, in the order of the shards.

    Args:
        array: The whole leaf.
        sharding: The extent of a shard in every dimension.

    Raises:
        ValueError: The extents do not cut an array of this shape into 2 to 65,536 shards.
    """
    return [leaf_digest(shard) for shard in shard_arrays(array, sharding)]


def shard_arrays(array: NDArray[Any], sharding: Sequence[int]) -> list[NDArray[Any]]:
    """The shards of a leaf as views of it, in their order.

    Args:
        array: The whole leaf.
        sharding: The extent of a shard in every dimension.

    Raises:
        ValueError: The extents do not cut an array of this shape into 2 to 65,536 shards.
    """
    return [
        array[tuple(slice(start, stop) for start, stop in ranges)]
        for ranges in _native.sharding_ranges(array.shape, sharding)
    ]


def probe_digest(
    shape: Sequence[int], dtype: str, sharding: Sequence[int] | None, vector: NDArray[Any] | None, probe_ratio: float
) -> bytes:
    """The committed digest of a leaf's probe vector.

    Args:
        shape: The leaf's shape.
        dtype: Name of its dtype.
        sharding: Its `sharding` in the schema record; None where it has none.
        vector: The probe vector, that of a sharded leaf joined from those of its shards; None where it has none.
        probe_ratio: The run's probe ratio.

    Returns:
        32 bytes.

    Raises:
        ValueError: The vector does not have the numbers that the leaf's probe has.
    """
    pieces = (
        [tuple(shape)]
        if sharding is None
        else [
            tuple(stop - start for start, stop in ranges) for ranges in _native.sharding_ranges(list(shape), sharding)
        ]
    )
    lengths = [_native.probe_length(piece, dtype, probe_ratio) for piece in pieces]
    flat = np.empty(0, np.float32) if vector is None else vector.reshape(-1)
    if flat.size != sum(lengths):
        raise ValueError(f"it has {flat.size} numbers in place of {sum(lengths)}")
    ends = np.cumsum(lengths)
    digests = [
        _native.leaf_digest(np.ascontiguousarray(flat[end - length : end]))
        for end, length in zip(ends, lengths, strict=True)
    ]
    return digests[0] if sharding is None else _native.sharded_leaf_digest(list(shape), sharding, digests)


def probe_signs(root_digest: bytes, tree: TreeName, index: int, shape: Sequence[int], dtype: str) -> NDArray[np.uint32]:
    """The signs of a leaf's probe, or of the probe of one of its shards, as `_native.commit_leaf` takes them.

    Args:
        root_digest: Digest of the run's root record, 32 bytes.
        tree: The leaf's tree.
        index: Its place in the tree.
        shape: Shape of what is summed: the leaf, or the shard.
        dtype: Name of its dtype.

    Returns:
        One bit for each real number in the last dimension, in words of uint32; none where the leaf is not summed with
        signs.
    """
    if not _native.probe_sign_words(shape, dtype):
        return np.empty(0, np.uint32)
    dimension = shape[-1] * (2 if dtype.startswith("complex") else 1)
    return _native.probe_signs(root_digest, 0 if tree == "parameters" else 1, index, dimension)
