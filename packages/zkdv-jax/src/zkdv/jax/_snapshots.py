"""Copies of the state for checks to replay from, in host memory that compiled programs can address."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["HOST_MEMORY", "SnapshotCopies"]

HOST_MEMORY = "pinned_host"


class SnapshotCopies:
    """Makes copies of state leaves in host memory, and reads them back.

    A copy is one program, launched before the update that may donate the state: the runtime gives no buffer away that
    an earlier program still reads, so nobody has to wait. It writes over the memory of an earlier copy, which it
    donates, so that a run allocates its copies once.
    """

    def __init__(self) -> None:
        self._programs: dict[Any, Callable[..., Any]] = {}

    def launch(self, state: Sequence[Any], over: Sequence[Any] | None) -> list[Any]:
        """Launch a copy of state leaves.

        Args:
            state: Arrays of numbers.
            over: An earlier copy of leaves of these shapes and dtypes, whose memory is used again; None allocates.

        Returns:
            The copy: an array for each leaf, laid out over devices as the leaf is, in `pinned_host` memory where the
            devices have that, else in their default memory.
        """
        shardings = tuple(_in_memory(_sharding(leaf), HOST_MEMORY) for leaf in state)
        if over is not None and shardings != tuple(leaf.sharding for leaf in over):
            over = None
        return self._run(shardings, over or (), state)

    def restore(self, copy: Sequence[Any]) -> list[Any]:
        """Return a copy's leaves in the default memory of their devices, in arrays that nothing else refers to."""
        return self._run(tuple(_in_memory(leaf.sharding, None) for leaf in copy), (), copy)

    def _run(self, shardings: tuple[Any, ...], over: Sequence[Any], leaves: Sequence[Any]) -> list[Any]:
        program = self._programs.get(shardings)
        if program is None:
            program = jax.jit(_copy, out_shardings=list(shardings), donate_argnums=0, keep_unused=True)
            self._programs[shardings] = program
        copies: list[Any] = program(list(over), list(leaves))
        return copies


def _copy(_over: list[Any], leaves: list[Any]) -> list[Any]:
    return [jnp.copy(leaf) for leaf in leaves]


def _sharding(leaf: Any) -> Any:
    return leaf.sharding if isinstance(leaf, jax.Array) else jax.sharding.SingleDeviceSharding(jax.devices()[0])


@functools.lru_cache(maxsize=64)
def _in_memory(sharding: Any, kind: str | None) -> Any:
    """Return a sharding over memory of a kind where its devices have that, else over their default memory."""
    device = next(iter(sharding.device_set))
    kinds = {memory.kind for memory in device.addressable_memories()}
    return sharding.with_memory_kind(kind if kind in kinds else device.default_memory().kind)
