"""Flax NNX under a proof: an `Optimizer` whose update a proof can see, and a `jit` in the manner of `nnx.jit`.

Example:
    >>> optimizer = zkdv.jax.contrib.nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)  # doctest: +SKIP
    >>> @zkdv.jax.contrib.nnx.jit(proof)  # doctest: +SKIP
    ... def train_step(model, optimizer, images, labels):
    ...     loss, grads = nnx.value_and_grad(loss_fn)(model, images, labels)
    ...     optimizer.update(model, grads)
    ...     return loss
"""

import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, overload

import jax
from flax import nnx

from zkdv.errors import ZKDVError
from zkdv.jax._function import JitFunction
from zkdv.jax._proof import ZKDV
from zkdv.jax._transition import mark
from zkdv.signature import FunctionSignature

__all__ = ["NNXFunction", "Optimizer", "jit"]

API = "contrib.nnx.Optimizer.update"


@dataclass
class _Updates(threading.local):
    """The updates of the trace at hand; None outside of one."""

    made: list[tuple[Any, Any, Any]] | None = field(default=None)


_updates = _Updates()


class Optimizer(nnx.Optimizer):  # type: ignore[misc]  # flax ships no complete types
    """An `nnx.Optimizer` whose `update` is the update of a proof. Outside of `jit` it is an ordinary one."""

    def update(self, model: Any, grads: Any, /, **kwargs: Any) -> Any:
        """Update model and optimizer in place, as `nnx.Optimizer.update` does, and declare it."""
        deltas = super().update(model, grads, **kwargs)
        if _updates.made is not None:
            _updates.made.append((self, model, deltas))
        return deltas


class NNXFunction:
    """What `jit` returns: a call runs the function on live modules, updates them in place and commits one update.

    Args:
        proof: The proof.
        function: The training function.
        options: Options of `jax.jit` that concern no single argument.
        donate: Whether the state of modules and optimizers is donated.
    """

    def __init__(self, proof: ZKDV, function: Callable[..., Any], options: dict[str, Any], *, donate: bool) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = FunctionSignature(function, "contrib.nnx.jit")
        self._jit = JitFunction(
            proof,
            self._pure,
            {"static_argnames": ("structure",), "donate_argnames": ("state",) if donate else ()} | options,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function and commit the update that it makes."""
        values = dict(zip(self._signature.names, self._signature.bind(args, kwargs), strict=True))
        nodes = {name: value for name, value in values.items() if isinstance(value, (nnx.Module, nnx.Optimizer))}
        batch = {name: value for name, value in values.items() if name not in nodes}
        structure, state = nnx.split(nodes)
        result, after = self._jit(structure, state, batch)
        nnx.update(nodes, after)
        return result

    def _pure(self, structure: Any, state: Any, batch: dict[str, Any]) -> tuple[Any, Any]:
        # A copy of the tree, since the modules that are merged from one are changed in place.
        nodes = nnx.merge(structure, jax.tree.map(lambda leaf: leaf, state))
        outer, _updates.made = _updates.made, []
        try:
            values = nodes | batch
            result = self._signature.call(self._function, [values[name] for name in self._signature.names])
            made = _updates.made
        finally:
            _updates.made = outer
        if len(made) != 1:
            raise ZKDVError(
                f"{self._signature.name}: the function makes {len(made) or 'no'} updates; it makes exactly one, with "
                "zkdv.jax.contrib.nnx.Optimizer.update"
            )
        optimizer, model, deltas = made[0]
        name = next((name for name, node in nodes.items() if node is model), None)
        if name is None:
            raise ZKDVError(f"{API}: the model that was updated is no argument of {self._signature.name}")
        after = nnx.state(nodes)
        before_parameters, before_rest = _divide(state, optimizer.wrt, name)
        after_parameters, after_rest = _divide(after, optimizer.wrt, name)
        mark(
            api=API,
            batch=batch,
            parameters=(before_parameters, after_parameters),
            optimizer=(before_rest, after_rest),
            deltas=jax.tree.unflatten(jax.tree.structure(before_parameters), jax.tree.leaves(deltas)),
        )
        return result, after


@overload
def jit(proof: ZKDV, fun: Callable[..., Any], *, donate: bool = False, **jax_jit_options: Any) -> NNXFunction: ...


@overload
def jit(
    proof: ZKDV, fun: None = None, *, donate: bool = False, **jax_jit_options: Any
) -> Callable[[Callable[..., Any]], NNXFunction]: ...


def jit(
    proof: ZKDV, fun: Callable[..., Any] | None = None, *, donate: bool = False, **jax_jit_options: Any
) -> NNXFunction | Callable[[Callable[..., Any]], NNXFunction]:
    """Compile a training function of NNX modules, so that each call updates them in place and commits one update.

    Args:
        proof: The proof.
        fun: A function that takes modules and an `Optimizer` as arguments and calls `optimizer.update(model, grads)`
            once. Without it, a decorator is returned.
        donate: Whether the arrays of modules and optimizers are donated; default False, as for `nnx.jit`.
        **jax_jit_options: What `jax.jit` takes for all arguments, for one `compiler_options`.
    """
    if fun is None:
        return lambda function: NNXFunction(proof, function, dict(jax_jit_options), donate=donate)
    return NNXFunction(proof, fun, dict(jax_jit_options), donate=donate)


def _divide(state: Any, wrt: Any, model: str) -> tuple[Any, Any]:
    """Return the model's parameters, and everything else, as plain dictionaries."""
    parameters, rest = nnx.split_state(state[model], wrt, ...)
    others = {name: nnx.to_pure_dict(part) for name, part in state.items() if name != model}
    return nnx.to_pure_dict(parameters), {model: nnx.to_pure_dict(rest)} | others
