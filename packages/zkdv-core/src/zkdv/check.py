"""Comparison of a replayed update with the committed one (docs/protocol/transcript.md, Checks)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from zkdv import _native
from zkdv.attested import Attested
from zkdv.config import FloatTolerance
from zkdv.errors import ZKDVError
from zkdv.openings import open_element
from zkdv.schema import TREES, LeafEvidence, LeafSpec, Schema, TreeName, element_bytes

__all__ = ["CheckOutcome", "OpenedElement", "array_distance", "compare", "probes_within"]


@dataclass(frozen=True)
class OpenedElement:
    """The element at a drawn coordinate after an update, with its opening.

    It is opened before it is known whether the opening is needed, since a leaf that waited for that through the replay
    would be a large part of a check's memory.

    Attributes:
        coordinate: The drawn coordinate, counted over the whole tree.
        leaf: Index of the leaf in its tree.
        element: The element in the leaf, counted in C order.
        contents: Its bytes, little-endian; None where the leaf's buffer was gone.
        dtype: Its dtype; None where the leaf's buffer was gone.
        opening: Its opening under the committed root of the tree; None where there is none, or none was asked for.
    """

    coordinate: int
    leaf: int
    element: int
    contents: bytes | None
    dtype: np.dtype[Any] | None
    opening: dict[str, Any] | None

    @classmethod
    def read(
        cls, schema: Schema, tree: TreeName, coordinate: int, array: NDArray[Any] | None, committed: LeafEvidence | None
    ) -> Self:
        """Read the element from its leaf.

        Args:
            schema: Names, dtypes and shapes of the leaves.
            tree: The tree that the coordinate was drawn from.
            coordinate: The drawn coordinate.
            array: A host copy of the leaf; None where the buffer was gone.
            committed: What is committed of the state with that leaf; None where no opening is wanted.
        """
        leaf, element = schema.locate(tree, coordinate)
        if array is None:
            return cls(coordinate, leaf, element, None, None, None)
        opening = None
        if committed is not None and tree in committed.digests:
            spec = schema.tree(tree)[leaf]
            opening = open_element(tree, committed.digests[tree], spec, array, leaf=leaf, element=element)
        return cls(coordinate, leaf, element, element_bytes(array, element), array.dtype, opening)

    def as_committed(self) -> dict[str, Any]:
        """Return what a check record says of the committed element."""
        return {"committed": self.contents} | ({} if self.opening is None else {"opening": self.opening})


@dataclass(frozen=True)
class CheckOutcome:
    """The result of a check.

    Attributes:
        body: What the check record says.
        failure: What is wrong with the update, where and by how much, in words that follow its name; None where the
            check did not fail.
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
    production: Mapping[TreeName, OpenedElement],
    replayed_elements: Mapping[TreeName, OpenedElement],
    attested: Attested | None = None,
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
        production: The element at the drawn coordinate of each tree that has elements, as training left it.
        replayed_elements: The same elements from the replay.
        attested: What the user's attest program gave, where there is one.
    """
    exact = rebuilt_exactly and replayed.leaf_roots == committed.leaf_roots
    pairs: dict[TreeName, tuple[bytes, bytes] | None] = {}
    for tree, leaf in production.items():
        theirs = replayed_elements[tree].contents
        if theirs is None:
            raise ZKDVError(f"the replayed {tree} leaf with the coordinate {leaf.coordinate} is gone")
        pairs[tree] = None if leaf.contents is None else (leaf.contents, theirs)
        exact = exact and (pairs[tree] is None or pairs[tree] == (theirs, theirs))
    exact = exact and all(pairs[tree] is not None or tree in committed.digests for tree in pairs)

    body: dict[str, Any] = {
        "update": update,
        "snapshot": snapshot,
        "exact": exact,
        "tolerance": tolerance.as_record(),
    }
    coordinates: dict[TreeName, dict[str, Any]] = {
        tree: {"index": leaf.coordinate} for tree, leaf in production.items()
    }
    failure: str | None = None
    unresolved = False
    if not exact:
        distances, agree = _probe_distances(schema, tolerance, probe_ratio, committed, replayed)
        probes_agree = probes_agree and agree
        worst = "" if probes_agree else f"a probe is out of tolerance, off by up to {max(distances, default=0.0):g}"
        for tree, leaf in production.items():
            pair = pairs[tree]
            if pair is None:
                unresolved = True
                continue
            spec = schema.tree(tree)[leaf.leaf]
            coordinates[tree] |= leaf.as_committed() | {"replayed": pair[1]}
            values = [np.frombuffer(element, leaf.dtype) for element in pair]
            distance, agree = array_distance(values[0], values[1], tolerance)
            distances.append(distance)
            if not agree:
                worst = f"{tree} leaf {spec.name}, element {leaf.element}, is off by {distance:g}"
        body |= {"distance": max(distances, default=0.0), "probes": probes_agree}
        if worst:
            failure = f"does not replay to what was committed: {worst}; look for what is not reproducible in it"
    if attested is not None:
        for tree, leaf in production.items():
            # An exact replay is what was committed, also where the production value is gone.
            after = replayed_elements[tree] if exact else leaf
            spec = schema.tree(tree)[leaf.leaf]
            if exact:
                coordinates[tree] |= after.as_committed()
            comparison = attested.compare(
                tree, spec, leaf=leaf.leaf, element=leaf.element, committed=after.contents, tolerance=tolerance
            )
            coordinates[tree] |= comparison.coordinate
            unresolved = unresolved or comparison.unresolved
            if comparison.failure is not None:
                failure = failure or f"is not the one that the attest program describes: {comparison.failure}"
    names: dict[TreeName, str] = {"parameters": "parameter", "optimizer": "optimizer"}
    body |= {names[tree]: coordinate for tree, coordinate in coordinates.items()}
    if failure is not None:
        return CheckOutcome(body | {"verdict": "failed"}, failure)
    return CheckOutcome(body | {"verdict": "unresolved" if unresolved else "passed"}, None)


def probes_within(
    schema: Schema, tolerance: FloatTolerance, probe_ratio: float, committed: LeafEvidence, replayed: LeafEvidence
) -> bool:
    """Return whether every probe of the replay is within tolerance of the committed one."""
    return _probe_distances(schema, tolerance, probe_ratio, committed, replayed)[1]


def array_distance(ours: NDArray[Any], theirs: NDArray[Any], tolerance: FloatTolerance) -> tuple[float, bool]:
    """Return how far two arrays of one dtype and shape are apart at most, and whether all elements agree.

    Integers and booleans agree with themselves only, NaN with NaN, an infinity with itself.
    """
    ours, theirs = np.ascontiguousarray(ours).reshape(-1), np.ascontiguousarray(theirs).reshape(-1)
    if ours.dtype.kind in "biu":
        apart = ours != theirs
        # As Python's integers: a difference of unsigned numbers would wrap.
        exact = np.abs(ours[apart].astype(object) - theirs[apart].astype(object))
        return (float(exact.max()) if exact.size else 0.0), not exact.size
    wide = np.complex128 if ours.dtype.kind == "c" else np.float64
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
