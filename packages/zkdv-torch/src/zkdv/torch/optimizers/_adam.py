"""Adam and its kin: Adam, AdamW, Adamax, NAdam, as `torch.optim` computes them."""

from torch import Tensor
from torch.optim.adam import adam
from torch.optim.adamax import adamax
from torch.optim.nadam import nadam

from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State
from zkdv.torch.optimizers._initial import any_complex, column, foreach, like, scalar

__all__ = ["ADAM", "ADAMAX", "ADAMW", "NADAM"]


def _adam_state(group: Group, param: Tensor) -> State:
    state = {"step": scalar(group, param), "exp_avg": like(param), "exp_avg_sq": like(param)}
    return state | ({"max_exp_avg_sq": like(param)} if group["amsgrad"] else {})


def _adam_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    beta1, beta2 = group["betas"]
    # A tensor learning rate goes without lists, unless the step counters are on the device.
    lists = foreach(group, params) and (
        group["foreach"] is not None or group["capturable"] or not isinstance(group["lr"], Tensor)
    )
    adam(
        params,
        grads,
        column(states, "exp_avg"),
        column(states, "exp_avg_sq"),
        column(states, "max_exp_avg_sq") if group["amsgrad"] else [],
        column(states, "step"),
        foreach=lists,
        capturable=group["capturable"],
        fused=group["fused"],
        has_complex=any_complex(params),
        decoupled_weight_decay=group["decoupled_weight_decay"],
        amsgrad=group["amsgrad"],
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )
    return params, states


def _adamax_state(group: Group, param: Tensor) -> State:
    return {"step": scalar(group, param), "exp_avg": like(param), "exp_inf": like(param)}


def _adamax_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    beta1, beta2 = group["betas"]
    adamax(
        params,
        grads,
        column(states, "exp_avg"),
        column(states, "exp_inf"),
        column(states, "step"),
        foreach=foreach(group, params),
        maximize=group["maximize"],
        capturable=group["capturable"],
        has_complex=any_complex(params),
        eps=group["eps"],
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
    )
    return params, states


def _nadam_state(group: Group, param: Tensor) -> State:
    return {
        "step": scalar(group, param),
        "mu_product": scalar(group, param, 1.0),
        "exp_avg": like(param),
        "exp_avg_sq": like(param),
    }


def _nadam_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    beta1, beta2 = group["betas"]
    nadam(
        params,
        grads,
        column(states, "exp_avg"),
        column(states, "exp_avg_sq"),
        column(states, "mu_product"),
        column(states, "step"),
        decoupled_weight_decay=group["decoupled_weight_decay"],
        foreach=foreach(group, params),
        capturable=group["capturable"],
        has_complex=any_complex(params),
        maximize=group["maximize"],
        beta1=beta1,
        beta2=beta2,
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        momentum_decay=group["momentum_decay"],
        eps=group["eps"],
    )
    return params, states


_INPUTS = ("lr", "betas.0", "betas.1")
_SWITCHES = ("weight_decay",)

ADAM = FunctionalOptimizer(initial_state=_adam_state, step=_adam_step, inputs=_INPUTS, switches=_SWITCHES)
"""`torch.optim.Adam`."""

ADAMW = ADAM
"""`torch.optim.AdamW`: Adam with `decoupled_weight_decay`, which is an entry of its groups."""

ADAMAX = FunctionalOptimizer(initial_state=_adamax_state, step=_adamax_step, inputs=_INPUTS, switches=_SWITCHES)
"""`torch.optim.Adamax`."""

NADAM = FunctionalOptimizer(initial_state=_nadam_state, step=_nadam_step, inputs=_INPUTS, switches=_SWITCHES)
"""`torch.optim.NAdam`."""
