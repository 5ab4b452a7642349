"""One live optimizer as the values and the pure step that a program is made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zkdv.errors import ZKDVError
from zkdv.torch._framework import state_positive, version_of
from zkdv.torch.optimizers._functional import FunctionalOptimizer, State
from zkdv.torch.optimizers._lookup import UnsupportedOptimizerError, class_name, find_functional

__all__ = ["BoundOptimizer", "bind"]

STARTED = "started"


def bind(
    optimizer: torch.optim.Optimizer,
    registered: Mapping[type[torch.optim.Optimizer], FunctionalOptimizer] | None = None,
) -> "BoundOptimizer":
    """Bind a live optimizer to the functional form of its class. The optimizer itself is left as it is.

    Args:
        optimizer: The optimizer.
        registered: What the run registered, by exact class; goes before what plugins declare. Default: nothing.

    Returns:
        The bound optimizer.

    Raises:
        UnsupportedOptimizerError: The class has no functional form, or an entry of a group cannot be lowered.
        PluginError: A plugin declares one that cannot be used.
    """
    return BoundOptimizer(optimizer, find_functional(type(optimizer), registered or {}))


@dataclass(frozen=True)
class _BoundGroup:
    """What `bind` found in one parameter group.

    Attributes:
        index: Its position in `optimizer.param_groups`.
        positions: Positions of its parameters among all.
        constants: Entries that the program has baked in; tuples are whole here, also where elements are inputs.
        inputs: Paths of the entries that are inputs (`lr`, `betas.0`).
        tensors: Those that the step gets as tensors, not as numbers.
    """

    index: int
    positions: range
    constants: dict[str, Any]
    inputs: tuple[str, ...]
    tensors: frozenset[str]


class BoundOptimizer:
    """One live optimizer, read as named leaves, with its step as a pure function of them.

    Attributes:
        parameters: Its parameters in the order of `state_dict()`, group by group.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, functional: FunctionalOptimizer) -> None:
        self._optimizer = optimizer
        self._functional = functional
        self._names: tuple[str, ...] | None = None
        self._initial: dict[int, tuple[Any, State]] = {}
        self._started = tuple(torch.tensor(value, device="cpu") for value in (False, True))
        self.parameters: list[Tensor] = [param for group in optimizer.param_groups for param in group["params"]]
        self._groups: list[_BoundGroup] = []
        start = 0
        for index, group in enumerate(optimizer.param_groups):
            positions = range(start, start + len(group["params"]))
            self._groups.append(self._bind_group(index, group, positions))
            start = positions.stop

    def state(self) -> dict[str, Tensor]:
        """The optimizer's state now.

        A parameter that has no state yet shows what the class will start from; the optimizer still makes its own at
        that parameter's first step. So there are the same leaves before the first update as after it.

        Returns:
            The live tensors, not copies, as `state.{position}.{name}`, in order of position and name.

        Raises:
            ZKDVError: The optimizer holds other names than before, or something that is no tensor.
        """
        leaves: dict[str, Tensor] = {}
        for bound in self._groups:
            group = self._optimizer.param_groups[bound.index]
            started = self._functional.first_step_differs(bound.constants)
            for position in bound.positions:
                param = self.parameters[position]
                held = {
                    name: value for name, value in self._optimizer.state.get(param, {}).items() if value is not None
                }
                state = held or self._initial_state(position, group)
                if started:
                    state = state | {STARTED: self._started[bool(held)]}
                for name, value in sorted(state.items()):
                    if not isinstance(value, Tensor):
                        raise ZKDVError(
                            f"{self._name} holds {name!r} of parameter {position} as {type(value).__name__}; only "
                            "tensors can be committed: keep it as a 0-d tensor"
                        )
                    leaves[f"state.{position}.{name}"] = value.detach()
        names = tuple(leaves)
        if self._names is None:
            self._names = names
        elif names != self._names:
            changed = ", ".join(sorted(set(names) ^ set(self._names)))
            raise ZKDVError(
                f"the state of {self._name} has other leaves than when the run started: {changed}; load state_dicts "
                "that were made with the same options"
            )
        return leaves

    def inputs(self) -> dict[str, Tensor]:
        """The hyperparameters that are inputs of the program, now.

        Returns:
            Copies, as `param_groups.{group}.{entry}` (`param_groups.0.lr`, `param_groups.0.betas.0`): numbers as 0-d
            float64 on the CPU, tensors as they are.
        """
        return {
            f"param_groups.{bound.index}.{path}": _as_input(_entry(self._optimizer.param_groups[bound.index], path))
            for bound in self._groups
            for path in bound.inputs
        }

    def check(self) -> None:
        """Refuse to go on where the program no longer is the optimizer's step; called before each step.

        Raises:
            ZKDVError: Parameters were added or replaced, a constant changed, or an input became what it cannot be; says
                which, and from what to what.
        """
        groups = self._optimizer.param_groups
        current = [param for group in groups for param in group["params"]]
        if len(groups) != len(self._groups) or list(map(id, current)) != list(map(id, self.parameters)):
            raise ZKDVError(
                f"the parameters of {self._name} are not those that were prepared; add groups and replace parameters "
                "before prepare()"
            )
        for bound in self._groups:
            group = groups[bound.index]
            for path, before in _without(bound.constants, bound.inputs).items():
                now = _entry(group, path)
                if not _same(before, now):
                    raise ZKDVError(self._changed(bound, path, before, now))
            for path in bound.inputs:
                before, now = _entry(bound.constants, path), _entry(group, path)
                if isinstance(now, Tensor) != isinstance(before, Tensor) or not _is_input(now):
                    raise ZKDVError(self._changed(bound, path, before, now))
                if path in self._functional.switches and now <= 0:
                    raise ZKDVError(self._changed(bound, path, before, now))

    def step(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        state: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
    ) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The optimizer's step as a pure function; on values, or under `make_fx(..., tracing_mode="fake")`.

        Args:
            params: Parameters, in the order of `parameters`.
            grads: Their gradients; where None, parameter and state are handed back as they are.
            state: As `state()` gives it.
            inputs: As `inputs()` gives it.

        Returns:
            The new parameters and the new state, with the names and the order of `state`.

        Raises:
            UnsupportedOptimizerError: A gradient is sparse, or the functional form breaks its contract.
        """
        new_params, new_state = list(params), dict(state)
        names: dict[int, list[str]] = {}
        for leaf in state:
            _, at, leaf_name = leaf.split(".", 2)
            names.setdefault(int(at), []).append(leaf_name)
        with torch.no_grad():
            for bound in self._groups:
                members = [position for position in bound.positions if grads[position] is not None]
                if not members:
                    continue
                group = self._group_values(bound, inputs)
                before = [params[position].detach().clone() for position in members]
                states: list[State] = [
                    {name: state[f"state.{position}.{name}"].detach().clone() for name in names.get(position, ())}
                    for position in members
                ]
                expected = [_signature(param, kept) for param, kept in zip(before, states, strict=True)]
                after, states = self._functional.step(group, before, self._gradients(grads, members), states)
                if expected != [_signature(param, kept) for param, kept in zip(after, states, strict=False)]:
                    raise UnsupportedOptimizerError(
                        f"the functional form of {self._name} returned other parameters or states than it was given; "
                        "the names, shapes and dtypes have to stay"
                    )
                for position, param, kept in zip(members, after, states, strict=True):
                    new_params[position] = param
                    if self._functional.first_step_differs(bound.constants):
                        kept[STARTED] = torch.ones_like(kept[STARTED])
                    new_state |= {f"state.{position}.{name}": kept[name] for name in names.get(position, ())}
        return new_params, new_state

    @property
    def _name(self) -> str:
        return class_name(type(self._optimizer))

    def _initial_state(self, position: int, group: Mapping[str, Any]) -> State:
        """What a parameter without state starts from: the same tensors again, unless the group changed them."""
        param = self.parameters[position]
        entries = [(name, _fact(value)) for name, value in group.items() if name != "params"]
        origin = (version_of(param), param.data_ptr(), torch.get_default_dtype(), entries)
        made_of, kept = self._initial.get(position, (None, None))
        # A frozen parameter never gets a state: making it for every update would cost more than the commitment.
        if kept is not None and made_of == origin:
            return kept
        made = self._functional.initial_state(group, param.detach())
        if kept is None or made.keys() != kept.keys() or not all(torch.equal(made[name], kept[name]) for name in made):
            kept = made
        self._initial[position] = origin, kept
        return kept

    def _bind_group(self, index: int, group: Mapping[str, Any], positions: range) -> _BoundGroup:
        # Schedulers leave entries of their own in the groups; what the class knows is in its defaults.
        constants = {name: group[name] for name in self._optimizer.defaults}
        where = f"{self._name}: param_groups[{index}]"
        if constants.get("differentiable"):
            raise UnsupportedOptimizerError(
                f"{where} has differentiable=True, which cannot be lowered; construct the optimizer without it"
            )
        fused = bool(constants.get("fused"))
        paths = [path for path in self._functional.inputs if path == "lr" or not fused]
        paths += [path for path in self._functional.switches if not fused and _entry(constants, path) != 0]
        for path in paths:
            if not _is_input(_entry(constants, path)):
                raise UnsupportedOptimizerError(
                    f"{where} has {path}={_entry(constants, path)!r}, which cannot be an input of the program; give a "
                    "float, or a tensor of one element for the learning rate"
                )
        tensors = {path for path in paths if isinstance(_entry(constants, path), Tensor)}
        for path, value in constants.items():
            elements = {path: value} if not isinstance(value, tuple | list) else _elements(path, value)
            for name, element in elements.items():
                if isinstance(element, Tensor) and (name not in paths or name in self._functional.switches):
                    raise UnsupportedOptimizerError(f"{where} has a tensor as {name}; give a float")
        frozen = {
            name: value.detach().clone() if isinstance(value, Tensor) else value for name, value in constants.items()
        }
        # The fused kernels take the learning rate as a double or as a tensor, and a symbolic float is neither.
        return _BoundGroup(index, positions, frozen, tuple(paths), frozenset(tensors | ({"lr"} if fused else set())))

    def _group_values(self, bound: _BoundGroup, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        values = dict(bound.constants)
        for path in bound.inputs:
            value: Any = inputs[f"param_groups.{bound.index}.{path}"]
            value = value.reshape(()) if path in bound.tensors else value.item()
            if path in self._functional.switches:
                # `check` has seen the value of this step.
                state_positive(value)
            name, _, element = path.partition(".")
            if element:
                whole = list(values[name])
                whole[int(element)] = value
                value = tuple(whole)
            values[name] = value
        return values

    def _gradients(self, grads: Sequence[Tensor | None], members: list[int]) -> list[Tensor]:
        found = []
        for position in members:
            grad = grads[position]
            if grad is None or grad.layout != torch.strided:
                raise UnsupportedOptimizerError(
                    f"the gradient of parameter {position} of {self._name} is sparse; construct the embedding with "
                    "sparse=False"
                )
            found.append(grad.detach())
        return found

    def _changed(self, bound: _BoundGroup, path: str, before: Any, now: Any) -> str:
        fused = " of a fused optimizer" if bound.constants.get("fused") else ""
        return (
            f"{self._name}: {path} of param_groups[{bound.index}] changed from {before!r} to {now!r}; the sealed "
            f"program has it as {'a constant' if path not in bound.inputs else 'an input of another kind'}{fused}: set "
            "it before the first transaction and keep it"
        )


def _fact(value: Any) -> Any:
    """What is equal to an earlier fact of a value only where the value is what it was then."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.dtype, value.device, value.shape, value.item()
    if isinstance(value, tuple | list):
        return [_fact(element) for element in value]
    if value is None or isinstance(value, bool | int | float | complex | str):
        return type(value), value
    return object()  # It may change within.


def _entry(group: Mapping[str, Any], path: str) -> Any:
    name, _, element = path.partition(".")
    return group[name][int(element)] if element else group[name]


def _elements(path: str, values: Sequence[Any]) -> dict[str, Any]:
    return {f"{path}.{index}": value for index, value in enumerate(values)}


def _without(constants: Mapping[str, Any], inputs: tuple[str, ...]) -> dict[str, Any]:
    """The entries that are no inputs; of a tuple with inputs in it, the other elements."""
    kept: dict[str, Any] = {}
    for name, value in constants.items():
        if any(path.startswith(f"{name}.") for path in inputs):
            kept |= {path: element for path, element in _elements(name, value).items() if path not in inputs}
        elif name not in inputs:
            kept[name] = value
    return kept


def _same(before: Any, now: Any) -> bool:
    """Whether a constant is what it was; 0 and 0.0 are, and lists and tuples of the same."""
    if isinstance(before, tuple | list) and isinstance(now, tuple | list):
        return len(before) == len(now) and all(map(_same, before, now))
    number = _is_number(before) and _is_number(now)
    return bool((number or type(before) is type(now)) and before == now)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_input(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return _is_number(value)


def _as_input(value: Any) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return torch.tensor(float(value), dtype=torch.float64, device="cpu")


def _signature(param: Tensor, state: State) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [
        ("", param.shape, param.dtype),
        *((name, value.shape, value.dtype) for name, value in sorted(state.items())),
    ]
