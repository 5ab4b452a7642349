"""The marker that says where a traced function applies its update.

A transaction binds one `zkdv_transition` equation over the state before and after the update. It is an identity: under
plain `jax.jit` it lowers to nothing. `zkdv.jax` finds the equation in the traced program and splits the program there.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from zkdv.errors import ZKDVError
from zkdv.overlap import Policy

__all__ = ["TransitionLayout", "mark", "transition_p"]


@dataclass(frozen=True)
class TransitionLayout:
    """How the operands of the marker are divided; they follow in this order.

    Attributes:
        api: What the user called, for messages.
        parameters: Names of the parameter leaves; one operand each before the update, one update each, one each after.
        optimizer: Names of the optimizer leaves (all other state); one operand each before and one each after.
        batch: Number of operands that the user declared as the batch, or None where every other input is the batch.
        overlap: The overlap policy where it is a constant of the function.
        overlap_operand: Whether the overlap policy is the last operand.
        keeps_optimizer: Whether the optimizer leaves before the update must not be donated.
        parameter_tree: Structure of the parameters.
        optimizer_tree: Structure of all other state.
        batch_tree: Structure of the batch that the user declared, or None.
    """

    api: str
    parameters: tuple[str, ...]
    optimizer: tuple[str, ...]
    batch: int | None
    overlap: Policy | None = None
    overlap_operand: bool = False
    keeps_optimizer: bool = False
    # What is in a structure need not be hashable; the names say what differs.
    parameter_tree: Any = field(default=None, compare=False)
    optimizer_tree: Any = field(default=None, compare=False)
    batch_tree: Any = field(default=None, compare=False)

    def split(self, operands: Sequence[Any]) -> "TransitionOperands":
        """Divide the marker's operands."""
        parameters, optimizer = len(self.parameters), len(self.optimizer)
        stops = [parameters, optimizer, self.batch or 0, parameters, parameters, optimizer, int(self.overlap_operand)]
        parts: list[list[Any]] = []
        start = 0
        for length in stops:
            parts.append(list(operands[start : start + length]))
            start += length
        return TransitionOperands(*parts)


@dataclass(frozen=True)
class TransitionOperands:
    """The operands of a marker, or what stands for them."""

    parameters_before: list[Any]
    optimizer_before: list[Any]
    batch: list[Any]
    deltas: list[Any]
    parameters_after: list[Any]
    optimizer_after: list[Any]
    overlap: list[Any]


def mark(
    *,
    api: str,
    batch: Any | None,
    parameters: tuple[Any, Any],
    optimizer: tuple[Any, Any],
    deltas: Any,
    overlap: Any | None = None,
    keeps_optimizer: bool = False,
) -> tuple[Any, Any]:
    """Mark a transition and return the state after it.

    Args:
        api: What the user called, for messages.
        batch: The batch as a pytree, or None where every other input of the function is the batch.
        parameters: Parameter trees before and after the update; same structure, shapes and dtypes.
        optimizer: Trees of all other state before and after the update; same structure, shapes and dtypes.
        deltas: The update that was applied, a tree like the parameters.
        overlap: The overlap policy, a `Policy` or an integer scalar among the function's inputs; None where the host
            takes it from the state.
        keeps_optimizer: Whether the optimizer leaves before the update must not be donated.

    Returns:
        Parameters and other state after the update, unchanged.

    Raises:
        ZKDVError: A tree's structure, or a leaf's shape or dtype, differs before and after the update.
    """
    parameter_names, before, after, parameter_tree = _pair(api, "parameters", *parameters)
    optimizer_names, optimizer_before, optimizer_after, optimizer_tree = _pair(api, "optimizer state", *optimizer)
    _, _, delta_leaves, _ = _pair(api, "deltas", parameters[0], deltas)
    batch_leaves, batch_tree = jax.tree.flatten(batch)
    overlap_operands = [] if overlap is None or isinstance(overlap, Policy) else [overlap]
    layout = TransitionLayout(
        api,
        parameter_names,
        optimizer_names,
        None if batch is None else len(batch_leaves),
        overlap if isinstance(overlap, Policy) else None,
        bool(overlap_operands),
        keeps_optimizer,
        parameter_tree,
        optimizer_tree,
        None if batch is None else batch_tree,
    )
    results = transition_p.bind(
        *before,
        *optimizer_before,
        *batch_leaves,
        *delta_leaves,
        *after,
        *optimizer_after,
        *overlap_operands,
        layout=layout,
    )
    count = len(parameter_names)
    return (
        jax.tree.unflatten(parameter_tree, results[:count]),
        jax.tree.unflatten(optimizer_tree, results[count:]),
    )


def leaf_name(path: tuple[Any, ...]) -> str:
    """Return the dotted name of a leaf, as in a state dict."""
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


def _pair(api: str, kind: str, before: Any, after: Any) -> tuple[tuple[str, ...], list[Any], list[Any], Any]:
    paths, tree = jax.tree_util.tree_flatten_with_path(before)
    after_leaves = jax.tree.leaves(after)
    after_tree: Any = jax.tree.structure(after)
    if after_tree != tree:
        raise ZKDVError(
            f"{api}: the update changes the structure of the {kind} from {tree} to {after_tree}; "
            "it must have the same structure before and after"
        )
    names: list[str] = []
    leaves: list[Any] = []
    for (path, leaf), new in zip(paths, after_leaves, strict=True):
        name = leaf_name(path)
        old_aval, new_aval = jax.typeof(leaf), jax.typeof(new)
        if (old_aval.shape, old_aval.dtype) != (new_aval.shape, new_aval.dtype):
            raise ZKDVError(
                f"{api}: the update changes {kind} leaf {name} from {old_aval.str_short()} to {new_aval.str_short()}; "
                "shape and dtype must stay"
            )
        names.append(name)
        leaves.append(leaf)
    return tuple(names), leaves, after_leaves, tree


def _after(operands: Sequence[Any], layout: TransitionLayout) -> list[Any]:
    split = layout.split(operands)
    return [*split.parameters_after, *split.optimizer_after]


transition_p = Primitive("zkdv_transition")
transition_p.multiple_results = True


def _run_transition(*operands: Any, layout: TransitionLayout) -> list[Any]:
    return _after(operands, layout)


def _abstract_transition(*operands: Any, layout: TransitionLayout) -> list[Any]:
    return _after(operands, layout)


def _lower_transition(*operands: Any, layout: TransitionLayout) -> list[Any]:
    return _after(operands, layout)


def _refuse_derivative(_primals: Any, _tangents: Any, *, layout: TransitionLayout) -> NoReturn:
    raise ZKDVError(f"{layout.api}: an update can't be differentiated; take gradients of the loss before it")


def _refuse_batching(_operands: Any, _dimensions: Any, *, layout: TransitionLayout) -> NoReturn:
    raise ZKDVError(f"{layout.api}: an update can't be under jax.vmap; one call of the function makes one update")


transition_p.def_impl(_run_transition)
transition_p.def_abstract_eval(_abstract_transition)
mlir.register_lowering(transition_p, mlir.lower_fun(_lower_transition, multiple_results=True))
ad.primitive_jvps[transition_p] = _refuse_derivative
batching.primitive_batchers[transition_p] = _refuse_batching
