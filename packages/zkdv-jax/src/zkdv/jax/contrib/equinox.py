"""Equinox under a proof: an update that a proof can see, and a `filter_jit` in the manner of Equinox.

Equinox comes with the extra `zkdv-jax[equinox]`.

Example:
    >>> @zkdv.jax.contrib.equinox.filter_jit(proof)  # doctest: +SKIP
    ... def train_step(model, opt_state, images, labels):
    ...     loss, grads = eqx.filter_value_and_grad(loss_fn)(model, images, labels)
    ...     model, opt_state = zkdv.jax.contrib.equinox.apply_gradients(model, opt_state, grads, optimizer)
    ...     return model, opt_state, loss
"""

import functools
from collections.abc import Callable
from typing import Any, Literal, overload

import equinox as eqx
import jax
import optax

from zkdv.jax._function import JitFunction
from zkdv.jax._proof import ZKDV
from zkdv.jax._transition import mark
from zkdv.signature import FunctionSignature

__all__ = ["FilteredFunction", "apply_gradients", "filter_jit"]

API = "contrib.equinox.apply_gradients"

Donation = Literal["all", "none"]


def apply_gradients(model: Any, opt_state: Any, grads: Any, optimizer: optax.GradientTransformation) -> tuple[Any, Any]:
    """Apply one update of an Optax optimizer to an Equinox model, and declare it.

    Args:
        model: The model; its inexact arrays are the parameters.
        opt_state: The optimizer's state, from `optimizer.init(eqx.filter(model, eqx.is_inexact_array))`.
        grads: Gradients, as `eqx.filter_grad` gives them.
        optimizer: The optimizer.

    Returns:
        Model and optimizer state after the update.

    Raises:
        ZKDVError: The update changes a leaf's shape or dtype.
    """
    parameters = eqx.filter(model, eqx.is_inexact_array)
    updates, after = optimizer.update(grads, opt_state, parameters)
    updated = eqx.apply_updates(model, updates)
    new_parameters, rest = eqx.partition(updated, eqx.is_inexact_array)
    arrays_before, arrays_after = eqx.filter(opt_state, eqx.is_array), eqx.filter(after, eqx.is_array)
    new_parameters, arrays_after = mark(
        api=API,
        batch=None,
        parameters=(parameters, new_parameters),
        optimizer=(arrays_before, arrays_after),
        deltas=updates,
    )
    return eqx.combine(new_parameters, rest), eqx.combine(arrays_after, after)


class FilteredFunction:
    """What `filter_jit` returns: a call runs the function and commits one update.

    Args:
        proof: The proof.
        function: The training function.
        donate: Whether the arrays of all arguments are donated.
    """

    def __init__(self, proof: ZKDV, function: Callable[..., Any], *, donate: Donation) -> None:
        if donate not in {"all", "none"}:
            raise ValueError(f"donate is {donate!r}; it is 'all' or 'none'")
        functools.update_wrapper(self, function)
        self._function = function
        self._signature = FunctionSignature(function, "contrib.equinox.filter_jit")
        # What the results hold beside arrays, for each set of static inputs that was traced.
        self._static_results: dict[Any, Any] = {}
        options: dict[str, Any] = {"static_argnames": ("static",)}
        if donate == "all":
            options["donate_argnames"] = ("arrays",)
        self._jit = JitFunction(proof, self._pure, options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function and commit the update that it makes."""
        values = dict(zip(self._signature.names, self._signature.bind(args, kwargs), strict=True))
        arrays, others = eqx.partition(values, eqx.is_array)
        leaves, tree = jax.tree.flatten(others)
        static = (tuple(leaves), tree)
        results = self._jit(static, arrays)
        return eqx.combine(results, self._static_results[static])

    def _pure(self, static: Any, arrays: dict[str, Any]) -> Any:
        leaves, tree = static
        values = eqx.combine(arrays, jax.tree.unflatten(tree, leaves))
        result = self._signature.call(self._function, [values[name] for name in self._signature.names])
        results, self._static_results[static] = eqx.partition(result, eqx.is_array)
        return results


@overload
def filter_jit(proof: ZKDV, fun: Callable[..., Any], *, donate: Donation = "none") -> FilteredFunction: ...


@overload
def filter_jit(
    proof: ZKDV, fun: None = None, *, donate: Donation = "none"
) -> Callable[[Callable[..., Any]], FilteredFunction]: ...


def filter_jit(
    proof: ZKDV, fun: Callable[..., Any] | None = None, *, donate: Donation = "none"
) -> FilteredFunction | Callable[[Callable[..., Any]], FilteredFunction]:
    """Compile a training function of Equinox models, so that each call commits one update.

    Arrays among the arguments are traced; everything else is static and must be hashable, as for `eqx.filter_jit`.

    Args:
        proof: The proof.
        fun: A function that calls `apply_gradients` once. Without it, a decorator is returned.
        donate: Whether the arrays of all arguments are donated: `"all"` or, by default, `"none"`.

    Raises:
        ValueError: Another `donate`.
    """
    if fun is None:
        return lambda function: FilteredFunction(proof, function, donate=donate)
    return FilteredFunction(proof, fun, donate=donate)
