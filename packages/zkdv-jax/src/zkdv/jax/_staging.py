"""Splits a traced training function at its transition into the step that runs and the program that replays it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun, jaxprs_in_params

from zkdv.errors import ZKDVError
from zkdv.jax._transaction import open_transactions
from zkdv.jax._transition import TransitionLayout, TransitionOperands, leaf_name, transition_p

__all__ = ["StagedFunction", "holds_transition", "stage"]


@dataclass(frozen=True)
class StagedFunction:
    """A training function, split at its transition.

    All index tuples count leaves of the function's dynamic inputs, or of the results of `step`.

    Attributes:
        step: Maps the input leaves to the results: first those that the user's function returns, then the state leaves
            after the update that it does not return.
        result_tree: Structure of what the user's function returns.
        result_count: Number of leaves that the user's function returns.
        layout: Names and counts of the state leaves.
        parameter_inputs: Input of each parameter leaf before the update.
        optimizer_inputs: Input of each optimizer leaf before the update.
        batch_inputs: Inputs that are committed as the batch.
        batch_names: Names of the batch leaves.
        batch_tree: Structure of the batch: that of the value that the user declared, else a dictionary with each
            argument that holds batch leaves, `None` standing for other leaves in it.
        batch_order: For each leaf of that structure, its place among the batch leaves.
        input_names: Names of all input leaves.
        input_arguments: For each input leaf, the argument that it belongs to.
        after_results: Result of `step` that holds each state leaf after the update, parameters first.
        lost: Names of the state leaves that the user's function does not return as they are after the update.
        overlap_input: Input that holds the overlap policy, where one does.
        replay: The program up to the transition: takes parameter, optimizer and batch leaves, in this order, and gives
            the deltas, the new parameter and the new optimizer leaves.
    """

    step: Callable[..., list[Any]]
    result_tree: Any
    result_count: int
    layout: TransitionLayout
    parameter_inputs: tuple[int, ...]
    optimizer_inputs: tuple[int, ...]
    batch_inputs: tuple[int, ...]
    batch_names: tuple[str, ...]
    batch_tree: Any
    batch_order: tuple[int, ...]
    input_names: tuple[str, ...]
    input_arguments: tuple[int, ...]
    after_results: tuple[int, ...]
    lost: tuple[str, ...]
    overlap_input: int | None
    replay: Callable[..., list[Any]]

    @property
    def state_inputs(self) -> tuple[int, ...]:
        """Input of each state leaf before the update, parameters first."""
        return self.parameter_inputs + self.optimizer_inputs

    def state_and_batch(self, leaves: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Return parameters, other state and batch as the user's function has them.

        Args:
            leaves: Parameter, optimizer and batch leaves, in this order.
        """
        parameters, state = len(self.parameter_inputs), len(self.state_inputs)
        batch = leaves[state:]
        return (
            jax.tree.unflatten(self.layout.parameter_tree, leaves[:parameters]),
            jax.tree.unflatten(self.layout.optimizer_tree, leaves[parameters:state]),
            jax.tree.unflatten(self.batch_tree, [batch[place] for place in self.batch_order]),
        )


def stage(
    function: Callable[..., Any], arguments: tuple[Any, ...], name: str, argument_names: Sequence[str]
) -> StagedFunction:
    """Trace `function` over `arguments` and split it at its one transition.

    Args:
        function: A function of positional pytrees of arrays.
        arguments: Example arguments; only shapes and dtypes matter.
        name: The function's name, for messages.
        argument_names: Names of the arguments.

    Raises:
        TypeError: An argument holds something else than arrays and numbers.
        ZKDVError: There is no transition, more than one, one inside a control-flow primitive, or one whose state leaves
            are not inputs of the function.
    """
    paths, input_arguments = _input_names(arguments, argument_names)
    _refuse_other_than_arrays(name, paths, jax.tree.leaves(arguments))
    with open_transactions(name):
        closed, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
    result_tree = jax.tree.structure(shapes)
    flat = _inline(closed, name)
    layout, operands = flat.layout, flat.operands
    inputs = {variable: index for index, variable in enumerate(closed.jaxpr.invars)}

    parameter_inputs = _input_indices(operands.parameters_before, layout.parameters, inputs, layout.api, "parameter")
    optimizer_inputs = _input_indices(operands.optimizer_before, layout.optimizer, inputs, layout.api, "optimizer")
    state = set(parameter_inputs) | set(optimizer_inputs)
    if layout.batch is None:
        batch_inputs = tuple(index for index in range(len(inputs)) if index not in state)
        batch_tree, batch_order = _batch_by_argument(arguments, argument_names, batch_inputs)
    else:
        names = tuple(f"leaf {index}" for index in range(layout.batch))
        batch_inputs = _input_indices(operands.batch, names, inputs, layout.api, "batch")
        batch_tree, batch_order = layout.batch_tree, tuple(range(layout.batch))

    results, after_results = _place_after(closed, flat)
    # The user's effects (debugging output, callbacks) stay in the step; a replay keeps what its results depend on.
    step = flat.program(closed.jaxpr.invars, results, flat.equations)
    replay_inputs = [closed.jaxpr.invars[index] for index in (*parameter_inputs, *optimizer_inputs, *batch_inputs)]
    replay_results = [*operands.deltas, *operands.parameters_after, *operands.optimizer_after]
    unavailable = _missing_inputs(flat, closed.jaxpr.invars, replay_inputs, replay_results)
    if unavailable:
        raise ZKDVError(
            f"{layout.api}: the update of {name} depends on input {paths[inputs[unavailable[0]]]}, "
            "which is neither state nor in the batch; add it to the transaction's batch"
        )
    return StagedFunction(
        step=step,
        result_tree=result_tree,
        result_count=len(closed.jaxpr.outvars),
        layout=layout,
        parameter_inputs=parameter_inputs,
        optimizer_inputs=optimizer_inputs,
        batch_inputs=batch_inputs,
        batch_names=tuple(paths[index] for index in batch_inputs),
        batch_tree=batch_tree,
        batch_order=batch_order,
        input_names=tuple(paths),
        input_arguments=tuple(input_arguments),
        after_results=after_results,
        lost=_lost(closed, flat, after_results),
        overlap_input=_overlap_input(operands, inputs, layout.api),
        replay=flat.program(replay_inputs, replay_results, _needed(flat.equations, replay_results)),
    )


def _batch_by_argument(
    arguments: tuple[Any, ...], argument_names: Sequence[str], batch_inputs: Sequence[int]
) -> tuple[Any, tuple[int, ...]]:
    """Return the structure of a batch that is every argument without its state, and where its leaves are."""
    places = {index: place for place, index in enumerate(batch_inputs)}
    leaves, tree = jax.tree.flatten(arguments)
    parts = jax.tree.unflatten(tree, [places.get(index) for index in range(len(leaves))])
    named = {name: part for name, part in zip(argument_names, parts, strict=True) if jax.tree.leaves(part)}
    order, batch_tree = jax.tree.flatten(named)
    return batch_tree, tuple(order)


def _refuse_other_than_arrays(name: str, paths: Sequence[str], leaves: Sequence[Any]) -> None:
    for path, leaf in zip(paths, leaves, strict=True):
        try:
            jax.typeof(leaf)
        except TypeError:
            raise TypeError(
                f"{name}: input {path} is {leaf!r} ({type(leaf).__name__}), which is no array; name an argument that "
                "selects what the function does in static_argnames, and make such a field of a state static with "
                "flax.struct.field(pytree_node=False)"
            ) from None


def _input_names(arguments: tuple[Any, ...], argument_names: Sequence[str]) -> tuple[list[str], list[int]]:
    names: list[str] = []
    owners: list[int] = []
    for position, (argument, name) in enumerate(zip(arguments, argument_names, strict=True)):
        for path, _ in jax.tree_util.tree_flatten_with_path(argument)[0]:
            names.append(f"{name}.{leaf_name(path)}" if path else name)
            owners.append(position)
    return names, owners


@dataclass(frozen=True)
class _FlatProgram:
    """A jaxpr whose transition stands at the top level, taken out of the equations."""

    jaxpr: Jaxpr
    equations: list[JaxprEqn]
    constants: dict[Var, Any]
    results: list[Any]
    marked: dict[Var, int]
    layout: TransitionLayout
    operands: TransitionOperands

    def program(
        self, inputs: Sequence[Var], results: Sequence[Any], equations: list[JaxprEqn]
    ) -> Callable[..., list[Any]]:
        """Return the part made of `equations` that computes `results` from `inputs`, as a function of leaves."""
        read = {atom for equation in equations for atom in equation.invars if not isinstance(atom, Literal)}
        read.update(atom for atom in results if not isinstance(atom, Literal))
        constants = {variable: value for variable, value in self.constants.items() if variable in read}
        effects = frozenset().union(*(equation.effects for equation in equations))
        jaxpr = self.jaxpr.replace(
            constvars=list(constants),
            invars=list(inputs),
            outvars=list(results),
            eqns=equations,
            effects=effects,
            debug_info=self.jaxpr.debug_info.with_unknown_names(),
        )
        compute: Callable[..., list[Any]] = jaxpr_as_fun(ClosedJaxpr(jaxpr, list(constants.values())))
        return compute


def _inline(closed: ClosedJaxpr, name: str) -> _FlatProgram:
    """Inline every nested jit that holds the transition, so that the transition's operands are visible."""
    equations: list[JaxprEqn] = []
    constants: dict[Var, Any] = {}
    replaced: dict[Var, Any] = {}
    marked: dict[Var, int] = {}
    found: list[tuple[TransitionLayout, list[Any]]] = []

    def read(atom: Any) -> Any:
        return atom if isinstance(atom, Literal) else replaced.get(atom, atom)

    def visit(jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            operands = [read(atom) for atom in equation.invars]
            if equation.primitive is transition_p:
                layout: TransitionLayout = equation.params["layout"]
                found.append((layout, operands))
                split = layout.split(operands)
                after = [*split.parameters_after, *split.optimizer_after]
                for index, (variable, atom) in enumerate(zip(equation.outvars, after, strict=True)):
                    replaced[variable] = atom
                    marked[variable] = index
            elif not _equation_holds_transition(equation):
                equations.append(equation.replace(invars=operands))
            elif equation.primitive.name in {"pjit", "jit"}:
                inner: ClosedJaxpr = equation.params["jaxpr"]
                constants.update(zip(inner.jaxpr.constvars, inner.consts, strict=True))
                replaced.update(zip(inner.jaxpr.invars, operands, strict=True))
                visit(inner.jaxpr)
                for variable, atom in zip(equation.outvars, inner.jaxpr.outvars, strict=True):
                    replaced[variable] = read(atom)
                    if not isinstance(atom, Literal) and atom in marked:
                        marked[variable] = marked[atom]
            else:
                raise ZKDVError(
                    f"{name}: the update stands inside {equation.primitive.name}; one call of the function makes "
                    "one update, so apply it outside of scan, cond, while_loop, remat and custom derivatives"
                )

    constants.update(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    visit(closed.jaxpr)
    if len(found) != 1:
        raise ZKDVError(
            f"{name}: the function declares {len(found) or 'no'} updates; it must declare exactly one, with "
            "zkdv.jax.contrib.TrainState.apply_gradients (Flax's own TrainState declares none) or a "
            "zkdv.jax.Transaction; what makes no update, like an evaluation, stays under jax.jit"
        )
    layout, operands = found[0]
    results = [read(atom) for atom in closed.jaxpr.outvars]
    return _FlatProgram(closed.jaxpr, equations, constants, results, marked, layout, layout.split(operands))


def holds_transition(jaxpr: Jaxpr) -> bool:
    """Return whether a transition stands in a program, at whatever depth."""
    return any(equation.primitive is transition_p or _equation_holds_transition(equation) for equation in jaxpr.eqns)


def _equation_holds_transition(equation: JaxprEqn) -> bool:
    return any(holds_transition(jaxpr) for jaxpr in jaxprs_in_params(equation.params))


def _needed(equations: list[JaxprEqn], results: Sequence[Any]) -> list[JaxprEqn]:
    """Return the equations that `results` depend on."""
    wanted = {atom for atom in results if not isinstance(atom, Literal)}
    kept: list[JaxprEqn] = []
    for equation in reversed(equations):
        if any(variable in wanted for variable in equation.outvars):
            kept.append(equation)
            wanted.update(atom for atom in equation.invars if not isinstance(atom, Literal))
    return kept[::-1]


def _missing_inputs(
    flat: _FlatProgram, inputs: Sequence[Var], given: Sequence[Var], results: Sequence[Any]
) -> list[Var]:
    needed = {
        atom
        for equation in _needed(flat.equations, results)
        for atom in equation.invars
        if not isinstance(atom, Literal)
    }
    needed.update(atom for atom in results if not isinstance(atom, Literal))
    return [variable for variable in inputs if variable in needed and variable not in set(given)]


def _input_indices(
    atoms: Sequence[Any], names: Sequence[str], inputs: dict[Var, int], api: str, kind: str
) -> tuple[int, ...]:
    indices: list[int] = []
    for atom, name in zip(atoms, names, strict=True):
        index = None if isinstance(atom, Literal) else inputs.get(atom)
        if index is None:
            raise ZKDVError(
                f"{api}: {kind} {name} before the update is not an input of the function; "
                "pass the state through the function's arguments, unchanged up to the update"
            )
        indices.append(index)
    return tuple(indices)


def _overlap_input(operands: TransitionOperands, inputs: dict[Var, int], api: str) -> int | None:
    if not operands.overlap:
        return None
    [atom] = operands.overlap
    if isinstance(atom, Literal) or atom not in inputs:
        raise ZKDVError(
            f"{api}: the overlap policy is computed inside the function; it is read before each call, so give a "
            "constant or pass it as an argument"
        )
    return inputs[atom]


def _place_after(closed: ClosedJaxpr, flat: _FlatProgram) -> tuple[list[Any], tuple[int, ...]]:
    """Find each state leaf after the update among the results; those that are not returned are added at the end."""
    results = list(flat.results)
    place: dict[int, int] = {}
    for index, atom in enumerate(closed.jaxpr.outvars):
        if not isinstance(atom, Literal) and atom in flat.marked:
            place.setdefault(flat.marked[atom], index)
    after = [*flat.operands.parameters_after, *flat.operands.optimizer_after]
    # Whoever goes on with the arrays that went into the transaction returns the same values.
    returned = {atom: index for index, atom in enumerate(flat.results) if not isinstance(atom, Literal)}
    for index, atom in enumerate(after):
        if index not in place and not isinstance(atom, Literal) and atom in returned:
            place[index] = returned[atom]
        if index not in place:
            place[index] = len(results)
            results.append(atom)
    return results, tuple(place[index] for index in range(len(after)))


def _lost(closed: ClosedJaxpr, flat: _FlatProgram, after_results: Sequence[int]) -> tuple[str, ...]:
    """Name the state leaves after the update, constants apart, that had to be added to what the function returns."""
    after = [*flat.operands.parameters_after, *flat.operands.optimizer_after]
    names = [*flat.layout.parameters, *flat.layout.optimizer]
    return tuple(
        name
        for name, atom, place in zip(names, after, after_results, strict=True)
        if place >= len(closed.jaxpr.outvars) and not isinstance(atom, Literal)
    )
