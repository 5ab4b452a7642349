"""Comparison of a replayed update with the committed one (docs/protocol/transcript.md, Checks)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.config import FloatTolerance
from zkdv.schema import TREES, LeafEvidence, LeafSpec, Schema, TreeName, element_bytes
from zkdv.sharding import leaf_digest, shard_arrays

__all__ = ["CheckOutcome", "ProductionLeaf", "compare"]

CHUNK_BYTES = 1024


@dataclass(frozen=True)
class ProductionLeaf:
    """The leaf that holds a drawn coordinate, as training left it.

    Attributes:
        coordinate: The drawn coordinate, counted over the whole tree.
        leaf: Index of the leaf in its tree.
        element: The element in the leaf, counted in C order.
        array: A host copy of the leaf after the update; None where the buffer was gone.
    """

    coordinate: int
    leaf: int
    element: int
    array: NDArray[Any] | None


@dataclass(frozen=True)
class CheckOutcome:
    """The result of a check.

    Attributes:
        body: What the check record says.
        failure: Where and by how much the replay is off, in words; None where the check passed.
    """

    body: dict[str, Any]
    failure: str | None


def compare(
    schema: Schema,
    tolerance: FloatTolerance,
    *,
    probe_ratio: float,
    update: int,
    snapshot: int,
    committed: LeafEvidence,
    replayed: LeafEvidence,
    rebuilt_exactly: bool,
    probes_agree: bool,
    production: Mapping[TreeName, ProductionLeaf],
    replayed_leaves: Mapping[TreeName, NDArray[Any]],
) -> CheckOutcome:
    """Compare an update with its replay.

    Args:
        schema: Names, dtypes and shapes of the leaves.
        tolerance: How far numbers may be apart where the replay is not exact.
        probe_ratio: The part of the last dimension that probes keep.
        update: The update's index.
        snapshot: Index of the update before which the snapshot was taken.
        committed: Digests and probes from the training program.
        replayed: The same from the replay.
        rebuilt_exactly: Whether every root on the way from the snapshot was reproduced.
        probes_agree: Whether every probe on the way from the snapshot was within tolerance.
        production: The leaf with the drawn coordinate in each tree that has elements.
        replayed_leaves: The same leaves from the replay.
    """
    exact = rebuilt_exactly and replayed.leaf_roots == committed.leaf_roots
    pairs: dict[TreeName, tuple[bytes, bytes] | None] = {}
    for tree, leaf in production.items():
        theirs = element_bytes(replayed_leaves[tree], leaf.element)
        pairs[tree] = None if leaf.array is None else (element_bytes(leaf.array, leaf.element), theirs)
        exact = exact and (pairs[tree] is None or pairs[tree] == (theirs, theirs))
    exact = exact and all(pairs[tree] is not None or tree in committed.digests for tree in pairs)

    body: dict[str, Any] = {
        "update": update,
        "snapshot": snapshot,
        "exact": exact,
        "tolerance": tolerance.as_record(),
    }
    names = {"parameters": "parameter", "optimizer": "optimizer"}
    if exact:
        body.update({names[tree]: {"index": leaf.coordinate} for tree, leaf in production.items()})
        return CheckOutcome(body | {"verdict": "passed"}, None)

    distances, agree = _probe_distances(schema, tolerance, probe_ratio, committed, replayed)
    probes_agree = probes_agree and agree
    worst = "" if probes_agree else "a probe is out of tolerance"
    unresolved = False
    for tree, leaf in production.items():
        coordinate: dict[str, Any] = {"index": leaf.coordinate}
        pair = pairs[tree]
        if pair is None or leaf.array is None:
            unresolved = True
        else:
            coordinate |= {"committed": pair[0], "replayed": pair[1]}
            if tree in committed.digests:
                coordinate["opening"] = _opening(leaf, leaf.array, schema.tree(tree)[leaf.leaf], tree, committed)
            name = schema.tree(tree)[leaf.leaf].name
            dtype = leaf.array.dtype
            distance, agree = _element_distance(np.frombuffer(pair[0], dtype), np.frombuffer(pair[1], dtype), tolerance)
            distances.append(distance)
            if not agree:
                worst = f"{tree} leaf {name}, element {leaf.element}, is off by {distance:g}"
        body[names[tree]] = coordinate
    body |= {"distance": max(distances, default=0.0), "probes": probes_agree}
    if worst:
        return CheckOutcome(body | {"verdict": "failed"}, worst)
    return CheckOutcome(body | {"verdict": "unresolved" if unresolved else "passed"}, None)


def probes_within(
    schema: Schema, tolerance: FloatTolerance, probe_ratio: float, committed: LeafEvidence, replayed: LeafEvidence
) -> bool:
    """Return whether every probe of the replay is within tolerance of the committed one."""
    return _probe_distances(schema, tolerance, probe_ratio, committed, replayed)[1]


def _opening(
    leaf: ProductionLeaf, array: NDArray[Any], spec: LeafSpec, tree: TreeName, committed: LeafEvidence
) -> dict[str, Any]:
    """Open the chunk with the element, in the leaf or in the shard that holds it."""
    digests = committed.digests[tree]
    opening: dict[str, Any] = {
        "digest": digests[leaf.leaf],
        "path": _native.tree_open(tree, digests, leaf.leaf),
    }
    piece, element = array, leaf.element
    if spec.sharding is not None:
        shards = shard_arrays(array, spec.sharding)
        opening["shards"] = [leaf_digest(shard) for shard in shards]
        shard, element = _native.sharding_locate(spec.shape, spec.sharding, element)
        piece = shards[shard]
    chunk = element * array.dtype.itemsize // CHUNK_BYTES
    contents, chain = _native.chunk_open(np.ascontiguousarray(piece).reshape(-1).view(np.uint8), chunk)
    return opening | {"chunk": chunk, "bytes": contents, "chain": chain}


def _element_distance(ours: NDArray[Any], theirs: NDArray[Any], tolerance: FloatTolerance) -> tuple[float, bool]:
    kind = ours.dtype.kind
    if kind in "biu":
        equal = ours.tobytes() == theirs.tobytes()
        return (0.0 if equal else abs(float(int(ours[0]) - int(theirs[0])))), equal
    wide = np.complex128 if kind == "c" else np.float64
    mine, other = ours.astype(wide).view(np.float64), theirs.astype(wide).view(np.float64)
    return _largest_distance(mine, other, tolerance)


def _largest_distance(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], tolerance: FloatTolerance
) -> tuple[float, bool]:
    """Return the largest difference, and whether all pairs agree; NaN agrees with NaN, an infinity with itself."""
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore", over="ignore"):
        difference = np.where(same, 0.0, np.abs(ours - theirs))
        allowed = tolerance.abs + tolerance.rel * np.maximum(np.abs(ours), np.abs(theirs))
        finite = np.isfinite(ours) & np.isfinite(theirs)
        agree = same | (finite & (difference <= allowed))
    largest = float(np.max(difference, initial=0.0))
    return (math.inf if math.isnan(largest) else largest), bool(np.all(agree))


def _probe_distances(
    schema: Schema, tolerance: FloatTolerance, probe_ratio: float, committed: LeafEvidence, replayed: LeafEvidence
) -> tuple[list[float], bool]:
    distances: list[float] = []
    agree = True
    for tree in TREES:
        if tree not in committed.digests:
            continue
        for leaf, ours, theirs in zip(schema.tree(tree), committed.probes[tree], replayed.probes[tree], strict=True):
            if ours is None or theirs is None:
                continue
            scales = _probe_scales(leaf, probe_ratio)
            distance, within = _largest_distance(
                ours.astype(np.float64) / scales, theirs.astype(np.float64) / scales, tolerance
            )
            distances.append(distance)
            agree = agree and within
    return distances, agree


def _probe_scales(leaf: LeafSpec, probe_ratio: float) -> NDArray[np.float64]:
    """Return the square root of the length of the slice behind each value of a leaf's probe vector."""
    scales: list[NDArray[np.float64]] = []
    for shape in leaf.piece_shapes:
        dimension = (shape[-1] if shape else 1) * (2 if leaf.dtype.startswith("complex") else 1)
        kept = _native.probe_kept(dimension, probe_ratio) if shape else dimension
        bounds = np.arange(kept + 1, dtype=np.int64) * dimension // kept
        scales.append(np.tile(np.sqrt(np.diff(bounds).astype(np.float64)), math.prod(shape[:-1])))
    return np.concatenate(scales)
