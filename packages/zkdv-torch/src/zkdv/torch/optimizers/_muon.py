"""Muon, as `torch.optim` computes it."""

from torch import Tensor

from zkdv.torch._framework import muon
from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State
from zkdv.torch.optimizers._initial import column, like

__all__ = ["MUON"]


def _initial_state(group: Group, param: Tensor) -> State:
    del group
    return {"momentum_buffer": like(param)}


def _step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    muon(
        params,
        grads,
        column(states, "momentum_buffer"),
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        nesterov=group["nesterov"],
        ns_coefficients=group["ns_coefficients"],
        ns_steps=group["ns_steps"],
        eps=group["eps"],
        adjust_lr_fn=group["adjust_lr_fn"],
        has_complex=False,
    )
    return params, states


MUON = FunctionalOptimizer(initial_state=_initial_state, step=_step, inputs=("lr", "weight_decay", "momentum"))
"""`torch.optim.Muon`."""
