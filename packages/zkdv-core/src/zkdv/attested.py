"""What an attest program gave, against what was committed (docs/protocol/transcript.md, Attested values)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from zkdv import _native
from zkdv.config import FloatTolerance
from zkdv.openings import open_element
from zkdv.schema import LeafSpec, TreeName, element_bytes
from zkdv.sharding import leaf_digest

__all__ = ["Attested", "AttestedComparison"]


@dataclass(frozen=True)
class AttestedComparison:
    """How one attested value compares.

    Attributes:
        coordinate: What the check's coordinate says of it.
        failure: By how much it is off, in words; None where it agrees or can't be compared.
        unresolved: Whether what it stands for is gone.
    """

    coordinate: Mapping[str, Any]
    failure: str | None = None
    unresolved: bool = False


@dataclass(frozen=True)
class Attested:
    """What the user's attest program gave for the coordinates of a check.

    Attributes:
        values: For the parameters the delta, for the optimizer state the element after the update.
        before: The parameter leaf with the drawn coordinate before the update, as it was rebuilt; None where there is
            no parameter.
        digests_before: Committed digests of all parameter leaves before the update.
    """

    values: Mapping[TreeName, float]
    before: NDArray[Any] | None
    digests_before: Sequence[bytes]

    def compare(
        self,
        tree: TreeName,
        spec: LeafSpec,
        *,
        leaf: int,
        element: int,
        committed: bytes | None,
        tolerance: FloatTolerance,
    ) -> AttestedComparison:
        """Compare the value of one tree.

        Args:
            tree: The tree.
            spec: The leaf with the coordinate.
            leaf: Its index in the tree.
            element: The element in the leaf, counted in C order.
            committed: The element's bytes after the update; None where the production value was gone.
            tolerance: How far numbers may be apart, beside the spacing of the leaf's dtype.
        """
        value = self.values[tree]
        coordinate: dict[str, Any] = {"attested": value}
        place = f"{tree} leaf {spec.name}, element {element}"
        if tree == "optimizer":
            if committed is None:
                return AttestedComparison(coordinate, unresolved=True)
            agrees, expected, allowed = _native.attested_element(
                spec.dtype, committed, value, tolerance.abs, tolerance.rel
            )
            gave, stands = f"{value:.9g} for {place}", f"the update left {expected:.9g}"
        else:
            # Where the state was not rebuilt as it was, the committed element is gone.
            rebuilt = self.before is not None and leaf_digest(self.before, spec.sharding) == self.digests_before[leaf]
            if self.before is None or not rebuilt:
                return AttestedComparison(coordinate, unresolved=True)
            before = element_bytes(self.before, element)
            opening = open_element(tree, self.digests_before, spec, self.before, leaf=leaf, element=element)
            coordinate |= {"before": before, "before-opening": opening}
            if committed is None:
                return AttestedComparison(coordinate, unresolved=True)
            agrees, expected, allowed = _native.attested_delta(
                spec.dtype, before, committed, value, tolerance.abs, tolerance.rel
            )
            gave, stands = f"a delta of {value:.9g} for {place}", f"the update moved it by {expected:.9g}"
        failure = None if agrees else f"it gives {gave}, and {stands}; {allowed:.3g} is allowed between them"
        return AttestedComparison(coordinate, failure)
