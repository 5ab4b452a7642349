"""How the step of an optimizer class is written for lowering."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

__all__ = ["FunctionalOptimizer", "FunctionalStep"]

Group: TypeAlias = Mapping[str, Any]
State: TypeAlias = dict[str, Any]

FunctionalStep: TypeAlias = Callable[
    [Group, Sequence[torch.Tensor], Sequence[torch.Tensor | None], Sequence[State], Sequence[bool]], None
]
"""One step of one parameter group, `step(group, params, grads, states, fresh)`; see `FunctionalOptimizer`."""


def _no_state(group: Group, param: torch.Tensor) -> dict[str, torch.Tensor]:
    del group, param
    return {}


def _never(group: Group) -> bool:
    del group
    return False


@dataclass(frozen=True)
class FunctionalOptimizer:
    """How the step of one optimizer class is lowered into an exported program: bit for bit what the class does.

    Attributes:
        step: Called once for each parameter group, while the attested function is traced, without gradients. It updates
            `params[i]` and the tensors of `states[i]` in place. `group` is the group's hyperparameters: floats that are
            inputs of the program are `torch.SymFloat`, tensors are traced, everything else is a constant of the
            program. `grads[i]` is None where the parameter has no gradient. `fresh[i]` says whether the live optimizer
            holds no state for the parameter yet, where `first_step_differs`; else it is False.
        initial_state: Called with a group and one of its parameters, outside of the trace; returns the state that the
            class makes just before its first step. It stands for what the live optimizer has not made yet.
        first_step_differs: Whether, with a group's hyperparameters, a parameter's first step computes something else
            than a step from the initial state; it is then lowered into a program of its own.
    """

    step: FunctionalStep
    initial_state: Callable[[Group, torch.Tensor], Mapping[str, torch.Tensor]] = _no_state
    first_step_differs: Callable[[Group], bool] = _never
