"""What a pipeline asks of a frontend: operations on the arrays that it trains with."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from zkdv.errors import ZKDVError
from zkdv.schema import Due, LeafEvidence, TreeName
from zkdv.submission import PendingUpdate

__all__ = ["ArrayOperations"]


class ArrayOperations(ABC):
    """Copies, commitments and replays of state leaves, which come parameters first."""

    @abstractmethod
    def launch_snapshot(self, state: Sequence[Any], over: Sequence[Any] | None) -> Sequence[Any]:
        """Launch a copy of state leaves to host memory, which later donation or in-place writes don't touch.

        Args:
            state: The state leaves, parameters first.
            over: An earlier copy that nothing reads any more, whose memory is used again; None allocates.
        """

    @abstractmethod
    def await_snapshot(self, copy: Sequence[Any]) -> None:
        """Wait until a launched copy is in host memory."""

    @abstractmethod
    def read_snapshot(self, copy: Sequence[Any], *, own: bool) -> Sequence[NDArray[Any]]:
        """Return a copy that is in host memory as arrays.

        Args:
            copy: The copied leaves, parameters first.
            own: Whether the arrays must outlive what is done with the copy; otherwise they may share its memory.
        """

    @abstractmethod
    def restore(self, copy: Sequence[Any]) -> Sequence[Any]:
        """Return the state leaves of a snapshot for `replay`, which may consume them."""

    @abstractmethod
    def keep(self, state: Sequence[Any], copy: Sequence[Any]) -> Sequence[Any]:
        """Return the copy of a snapshot that was carried forward to `state`; `copy` is what it was restored from."""

    @abstractmethod
    def start_evidence(self, state: Sequence[Any], due: Due) -> Any:
        """Launch the commitment of state leaves, parameters first, and return its results, still on the device."""

    @abstractmethod
    def read_evidence(self, results: Any, due: Due) -> LeafEvidence:
        """Wait for the results of a commitment and bring them to the host."""

    @abstractmethod
    def read_leaf(self, leaf: Any) -> NDArray[Any] | None:
        """Return a host copy of one leaf, or None where its buffer is gone."""

    @abstractmethod
    def replay(self, update: PendingUpdate, state: Sequence[Any]) -> Sequence[Any]:
        """Run an update's sealed program on the state before it, which may be consumed; return the leaves after it."""

    def attest(
        self, update: PendingUpdate, state: Sequence[Any], coordinates: Mapping[TreeName, int]
    ) -> Mapping[TreeName, float]:
        """Run the attest program on the state before an update, which it leaves as it is.

        A frontend without attest programs sets no `attest_program`, and has no need of this.

        Args:
            update: The update, which holds the batch.
            state: The state leaves before it, parameters first.
            coordinates: The drawn coordinate in each tree that has elements.

        Returns:
            For each of these trees what the program gives: the delta of the parameter, and the element of the optimizer
            state after the update.
        """
        del state, coordinates
        raise ZKDVError(f"update {update.index}: this frontend runs no attest programs")

    def refuse_moved(self, position: int, leaf: Any) -> None:  # noqa: B027 (one device needs nothing)
        """Refuse a state leaf that was replaced between two updates by one with another layout on devices.

        Args:
            position: Its place among the state leaves, parameters first.
            leaf: The new array.

        Raises:
            ZKDVError: Naming the leaf and both layouts.
        """

    def read_leaf_gone(self, leaf: Any) -> bool:
        """Return whether a leaf's buffer was donated, deleted or written to."""
        return bool(leaf.is_deleted()) if hasattr(leaf, "is_deleted") else False
