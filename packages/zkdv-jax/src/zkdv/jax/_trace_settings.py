"""JAX settings that a `with` block may hold for one thread alone, carried to the threads on which updates are checked.

What a training function was traced under (`with jax.enable_x64(True):`, for one) must hold where its commitments and
replays are traced, and those run on threads of their own, or after the block.
"""

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

import jax
from jax.sharding import Mesh

__all__ = ["HasTraceSettings", "TraceSettings", "under_trace_settings"]

_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True)
class TraceSettings:
    """Settings that change how arrays and random bits are lowered.

    Attributes:
        enable_x64: Whether 64-bit types are on.
        threefry_partitionable: Which of its two streams the default random generator gives.
        mesh: The mesh that `jax.set_mesh` has set; an empty one where none is.
    """

    enable_x64: bool
    threefry_partitionable: bool
    mesh: Mesh

    @classmethod
    def current(cls) -> "TraceSettings":
        """Return those of this thread."""
        config: Any = jax.config
        return cls(bool(config.jax_enable_x64), bool(config.jax_threefry_partitionable), jax.sharding.get_mesh())

    @contextlib.contextmanager
    def applied(self) -> Any:
        """Hold them within a `with` block."""
        with (
            jax.enable_x64(self.enable_x64),
            jax.threefry_partitionable(self.threefry_partitionable),
            contextlib.nullcontext() if self.mesh.empty else jax.set_mesh(self.mesh),
        ):
            yield


class HasTraceSettings(Protocol):
    """What was traced under settings; None before the first trace."""

    trace_settings: TraceSettings | None


def under_trace_settings(method: _Method) -> _Method:
    """Run a method under the settings of its object."""

    @functools.wraps(method)
    def run(self: HasTraceSettings, *args: Any, **kwargs: Any) -> Any:
        if self.trace_settings is None:
            return method(self, *args, **kwargs)
        with self.trace_settings.applied():
            return method(self, *args, **kwargs)

    return cast("_Method", run)
