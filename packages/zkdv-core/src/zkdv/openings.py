"""Openings: what shows that an element stands in a committed leaf (docs/protocol/transcript.md, Checks)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.schema import LeafSpec, TreeName
from zkdv.sharding import leaf_digest, shard_arrays

__all__ = ["open_element"]

CHUNK_BYTES = 1024


def open_element(
    tree: TreeName, digests: Sequence[bytes], spec: LeafSpec, array: NDArray[Any], *, leaf: int, element: int
) -> dict[str, Any]:
    """Open the chunk with an element, in the leaf or in the shard that holds it, as it stands in a record.

    Args:
        tree: The tree.
        digests: Digests of all its leaves, 32 bytes each.
        spec: The leaf.
        array: Its whole contents.
        leaf: Its index in the tree.
        element: Index of the element in the leaf, in C order.
    """
    opening: dict[str, Any] = {"digest": digests[leaf], "path": _native.tree_open(tree, digests, leaf)}
    piece = array
    if spec.sharding is not None:
        shards = shard_arrays(array, spec.sharding)
        opening["shards"] = [leaf_digest(shard) for shard in shards]
        shard, element = _native.sharding_locate(spec.shape, spec.sharding, element)
        piece = shards[shard]
    chunk = element * array.dtype.itemsize // CHUNK_BYTES
    contents, chain = _native.chunk_open(np.ascontiguousarray(piece).reshape(-1).view(np.uint8), chunk)
    return opening | {"chunk": chunk, "bytes": contents, "chain": chain}
