"""Copies of the state for checks to replay from, in host memory that compiled programs can address."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

__all__ = ["PINNED_MEMORY", "SnapshotCopies"]

PINNED_MEMORY = "pinned_host"


class SnapshotCopies:
    """Makes copies of state leaves in host memory, and reads them back.

    On CPU the memory of a device is memory of the host. Elsewhere it is `pinned_host` memory, where devices have that.

    A copy is one program, launched before the update that may donate the state: the runtime gives no buffer away that
    an earlier program still reads, so nobody has to wait. It writes over the memory of an earlier copy, which it
    donates, so that a run allocates its copies once.

    Args:
        memory: The kind of memory; None chooses.
    """

    def __init__(self, memory: str | None = None) -> None:
        self._memory = memory
        self._programs: dict[Any, Callable[..., Any]] = {}

    def launch(self, state: Sequence[Any], over: Sequence[Any] | None) -> list[Any]:
        """Launch a copy of state leaves.

        Args:
            state: Arrays of numbers.
            over: An earlier copy of leaves of these shapes and dtypes, whose memory is used again; None allocates.

        Returns:
            The copy: an array for each leaf, laid out over devices as the leaf is.
        """
        shardings = tuple(_on_host(_sharding(leaf), self._memory) for leaf in state)
        if over is not None and not all(map(_is_laid_out, over, shardings)):
            over = None
        return self._run(shardings, over or (), state)

    def restore(self, copy: Sequence[Any]) -> Sequence[Any]:
        """Return a copy's leaves in the default memory of their devices: the copy itself, where it is there."""
        shardings = tuple(_in_memory(leaf.sharding, None) for leaf in copy)
        if all(map(_is_laid_out, copy, shardings)):
            return copy
        return self._run(shardings, (), copy)

    def keep(self, state: Sequence[Any], copy: Sequence[Any]) -> Sequence[Any]:
        """Return state leaves as the copy that they were restored from: themselves, where that was the copy itself."""
        if all(leaf.sharding.memory_kind == old.sharding.memory_kind for leaf, old in zip(state, copy, strict=True)):
            return state
        return self.launch(state, copy)

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
    return leaf.sharding if isinstance(leaf, jax.Array) else jax.sharding.SingleDeviceSharding(jax.local_devices()[0])


def _is_laid_out(leaf: Any, sharding: Any) -> bool:
    same_memory: bool = leaf.sharding.memory_kind == sharding.memory_kind
    return same_memory and bool(leaf.sharding.is_equivalent_to(sharding, leaf.ndim))


def _on_host(sharding: Any, memory: str | None) -> Any:
    on_cpu = next(iter(sharding.addressable_devices)).platform == "cpu"
    return _in_memory(sharding, memory or (None if on_cpu else PINNED_MEMORY))


@functools.lru_cache(maxsize=64)
def _in_memory(sharding: Any, kind: str | None) -> Any:
    """Return a sharding over memory of a kind where its devices have that, else over their default memory."""
    # Of a device of another process nothing is known.
    device = next(iter(sharding.addressable_devices))
    kinds = {memory.kind for memory in device.addressable_memories()}
    return sharding.with_memory_kind(kind if kind in kinds else device.default_memory().kind)
