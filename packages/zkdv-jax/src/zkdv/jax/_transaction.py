"""An update that a function declares by itself, where it has no training state that does."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from zkdv import overlap as overlap_policies
from zkdv.errors import ZKDVError
from zkdv.jax._transition import mark

__all__ = ["Transaction", "open_transactions"]

API = "Transaction"


class Transaction:
    """One update inside a function under `ZKDV.jit`: what goes into it, and by `update` what comes out.

    Markers are symbolic: tracing or compiling writes nothing, and each call of the function makes one update. Under
    plain `jax.jit` a transaction does nothing.

    Args:
        batch: What the update learns from: a rectangular uint32 matrix, committed as it is, or any pytree of the
            function's inputs, packed into one.
        params: The parameters before the update, a pytree of the function's inputs.
        opt_state: All other state before the update, a pytree of the function's inputs. It must not be donated.
        overlap: The overlap policy, a constant or one of the function's arguments; default
            `zkdv.overlap.UNCHECKED`.

    Raises:
        ValueError: `overlap` is no policy.
    """

    def __init__(self, *, batch: Any, params: Any, opt_state: Any, overlap: Any = overlap_policies.UNCHECKED) -> None:
        self._batch = batch
        self._params = params
        self._opt_state = opt_state
        self._overlap = _checked_overlap(overlap)
        self._updated = False
        if _tracing.opened is not None:
            _tracing.opened.append(self)

    @property
    def updated(self) -> bool:
        """Whether `update` was called."""
        return self._updated

    def update(self, *, deltas: Any, params: Any, opt_state: Any) -> tuple[Any, Any]:
        """Declare the update.

        Args:
            deltas: What was added to the parameters, a pytree like them.
            params: The parameters after the update.
            opt_state: All other state after the update.

        Returns:
            `params` and `opt_state`, unchanged.

        Raises:
            ZKDVError: It was called before, or a tree's structure, or a leaf's shape or dtype, differs before and
                after.
        """
        if self._updated:
            raise ZKDVError(f"{API}.update was called twice; one transaction makes one update")
        self._updated = True
        return mark(
            api=API,
            batch=self._batch,
            parameters=(self._params, params),
            optimizer=(self._opt_state, opt_state),
            deltas=deltas,
            overlap=self._overlap,
            keeps_optimizer=True,
        )


class _Tracing(threading.local):
    """The transactions that the trace at hand has opened; None outside of one."""

    opened: list[Transaction] | None = None


_tracing = _Tracing()


@contextlib.contextmanager
def open_transactions(name: str) -> Iterator[list[Transaction]]:
    """Collect the transactions of a trace, and refuse one that is opened and left without an update.

    Args:
        name: Name of the function that is traced, for the message.

    Raises:
        ZKDVError: At the end, where a transaction was left open.
    """
    opened: list[Transaction] = []
    before, _tracing.opened = _tracing.opened, opened
    try:
        yield opened
        if not all(transaction.updated for transaction in opened):
            raise ZKDVError(f"{name}: a Transaction was opened and never updated; call its update() once")
    finally:
        _tracing.opened = before


def _checked_overlap(overlap: Any) -> Any:
    if isinstance(overlap, jax.Array):
        if overlap.shape or not jnp.issubdtype(overlap.dtype, jnp.integer):
            raise ValueError(f"{API}: overlap is {jax.typeof(overlap).str_short()}; it is an integer scalar")
        return overlap
    return overlap_policies.Policy(overlap)
