"""What an optimizer class is to an exported program: an initial state and a step."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

__all__ = ["FunctionalOptimizer", "Group", "State", "Step"]

Group: TypeAlias = Mapping[str, Any]
"""The entries of a parameter group by name, `params` left out."""

State: TypeAlias = dict[str, Tensor]
"""What the optimizer holds for one parameter, by the names of its `state_dict()`."""

Step: TypeAlias = Callable[[Group, list[Tensor], list[Tensor], list[State]], tuple[list[Tensor], list[State]]]
"""The step of one parameter group: `(group, params, grads, states) -> (params, states)`."""


def _never(group: Group) -> bool:
    del group
    return False


@dataclass(frozen=True, kw_only=True)
class FunctionalOptimizer:
    """An optimizer class as two functions of values, which must compute bit for bit what the class does.

    The pair is the one of optax, with Torch's names: what the optimizer starts from, and what a step makes of it.

    Attributes:
        initial_state: `(group, param) -> state`: what the class holds for a parameter just before that
            parameter's first step. Called outside of a trace, with the entries of the live group.
        step: `(group, params, grads, states) -> (params, states)`: one step of one parameter group, of its parameters
            that have a gradient. All three lists have the same order. `params` and `states` are copies: they may be
            updated in place and returned; `grads` must be left as they are. Returned tensors keep shape and dtype. The
            function is run with fake tensors to trace it, so it may not branch on values; numbers among the inputs are
            then `torch.SymFloat`, which take part in arithmetic like floats.
        inputs: Entries of the group that are inputs of the program, for a scheduler may change them: `"lr"`, and
            `"betas.0"` for the first element of `betas`. What is named nowhere is a constant of the program. Default:
            the learning rate.
        switches: Further inputs, never negative, whose zero leaves a term out, so that the step may branch on
            `group["weight_decay"] != 0`: zero is a constant of the program, and anything else a positive input.
            Default: none.
        first_step_differs: Whether, with a group's entries, a parameter's first step is another computation than a
            step from `initial_state`. Then each state has a further leaf `started`, 0-d bool, False for that step.
    """

    initial_state: Callable[[Group, Tensor], State]
    step: Step
    inputs: tuple[str, ...] = ("lr",)
    switches: tuple[str, ...] = ()
    first_step_differs: Callable[[Group], bool] = _never
