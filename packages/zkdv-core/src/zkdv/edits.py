"""State that was changed between two updates other than by an update (docs/protocol/transcript.md, Edits)."""

from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from zkdv.errors import ZKDVError, warn
from zkdv.schema import LeafEvidence, LeafSpec, Schema, TreeName
from zkdv.sharding import leaf_digest

__all__ = ["EDIT_VALUE_LIMIT_BYTES", "EditFinder"]

EDIT_VALUE_LIMIT_BYTES = 64

ReadLeaf = Callable[[Any], NDArray[Any] | None]


class EditFinder:
    """Finds the edits before each update of one run, and warns of every edited leaf once."""

    def __init__(self) -> None:
        self._noticed: set[tuple[TreeName, int]] = set()

    def find(
        self,
        state: Sequence[Any],
        after: Sequence[Any],
        *,
        index: int,
        schema: Schema,
        evidence: LeafEvidence | None,
        read_leaf: ReadLeaf,
        attested: bool = False,
    ) -> list[dict[str, Any]]:
        """List the edits before update `index`, as its record holds them.

        Args:
            state: The state leaves that it starts from, parameters first.
            after: Those that the preceding update left behind. A leaf that is the same object was not edited.
            index: The update's index.
            schema: Names of the leaves.
            evidence: What was committed of them.
            read_leaf: Returns a host copy of a leaf, or None where its buffer is gone.
            attested: Whether an attest program is in force. The parameters before each update then need a root, so that
                no edit of a parameter keeps its bytes, and a `state` record stands in their place.

        Raises:
            ZKDVError: A leaf that the update starts from is gone, or has another shape or dtype.
        """
        edits: list[dict[str, Any]] = []
        for position, (leaf, expected) in enumerate(zip(state, after, strict=True)):
            if leaf is expected:
                continue
            tree, number = schema.tree_leaf(position)
            spec = schema.tree(tree)[number]
            array = read_leaf(leaf)
            if array is None:
                raise ZKDVError(
                    f"{tree} leaf {spec.name} was donated or deleted before the update; go on with the state that the "
                    "last update returned"
                )
            if (array.dtype.name, array.shape) != (spec.dtype, spec.shape):
                raise ZKDVError(
                    f"{tree} leaf {spec.name} was {spec.dtype}{list(spec.shape)} at the first update and is now "
                    f"{array.dtype.name}{list(array.shape)}; a run keeps shapes and dtypes of its first update: "
                    f"replace it by an array of {spec.dtype}{list(spec.shape)}"
                )
            digest = leaf_digest(array, spec.sharding)
            committed = evidence.digests[tree][number] if evidence is not None and tree in evidence.digests else None
            if digest == _committed_digest(spec, committed, expected, read_leaf):
                continue
            edit: dict[str, Any] = {"tree": tree, "leaf": number, "digest": digest}
            if array.nbytes <= EDIT_VALUE_LIMIT_BYTES and not (attested and tree == "parameters"):
                edit["value"] = array.tobytes()
            edits.append(edit)
        self._notice(schema, index, edits)
        return edits

    def _notice(self, schema: Schema, index: int, edits: Sequence[dict[str, Any]]) -> None:
        """Warn of leaves that were edited for the first time: a loop that edits each time says so once."""
        leaves = {(edit["tree"], edit["leaf"]) for edit in edits}
        if leaves <= self._noticed:
            return
        self._noticed |= leaves
        names = [schema.tree(edit["tree"])[edit["leaf"]].name for edit in edits]
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        warn(
            f"{', '.join(names[:5])}{more} changed between updates {index - 1} and {index} other than by "
            "the update. The transcript records every such edit, and `zkdv verify` fails because of it unless it is "
            "given --allow-edits; a value that the update itself changes is no edit. If you changed nothing, look "
            "whether the update got the state that the last one returned. Further edits of the same leaves are "
            "recorded without a warning"
        )


def _committed_digest(leaf: LeafSpec, committed: bytes | None, expected: Any, read_leaf: ReadLeaf) -> bytes | None:
    """Return a leaf's digest after the last update: the committed one, else that of its array if it is there."""
    if committed is not None:
        return committed
    array = read_leaf(expected)
    return None if array is None else leaf_digest(array, leaf.sharding)
