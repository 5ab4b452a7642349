"""ASGD without its branch on the averaging weight, which is taken with `torch.where`.

The order of the operations is the one of `torch.optim.ASGD`, so that the results are too (Torch 2.13, one form for its
loop over tensors and one for its lists). Source: Polyak and Juditsky, "Acceleration of Stochastic Approximation by
Averaging", SIAM Journal on Control and Optimization 30 (1992).
"""

from typing import Any

import torch
from torch import Tensor

from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State
from zkdv.torch.optimizers._initial import as_real, foreach, like

__all__ = ["ASGD"]


def _initial_state(group: Group, param: Tensor) -> State:
    # These are beside the parameter whatever the options are.
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    return {
        "step": torch.zeros((), dtype=dtype, device=param.device),
        "eta": torch.full((), float(group["lr"]), dtype=dtype, device=param.device),
        "mu": torch.ones((), dtype=dtype, device=param.device),
        "ax": like(param),
    }


def _step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    lists = foreach(group, params)
    for param, grad, state in zip(params, grads, states, strict=True):
        update = _update_in_list if lists else _update
        update(group, as_real(param), as_real(-grad if group["maximize"] else grad), state)
    return params, states


def _update(group: Group, param: Tensor, grad: Tensor, state: State) -> None:
    ax, mu, eta = as_real(state["ax"]), state["mu"], state["eta"]
    state["step"] += 1
    if group["weight_decay"] != 0:
        grad = grad.add(param, alpha=group["weight_decay"])
    if group["capturable"]:
        param.mul_(1 - group["lambd"] * eta)
        param.addcmul_(grad, eta, value=-1)
        ax.add_(param.sub(ax).mul_(mu))
    else:
        rate = eta.item()
        param.mul_(1 - group["lambd"] * rate)
        param.add_(grad, alpha=-rate)
        ax.copy_(torch.where(mu != 1, ax.add(param.sub(ax).mul_(mu)), param))
    step = state["step"] if group["capturable"] else state["step"].item()
    _set_rates(group, state, step, step)


def _update_in_list(group: Group, param: Tensor, grad: Tensor, state: State) -> None:
    ax = as_real(state["ax"])
    state["step"] += 1
    if group["weight_decay"] != 0:
        grad = grad.add(param, alpha=group["weight_decay"])
    param.addcmul_(grad.add(param, alpha=group["lambd"]), state["eta"], value=-1)
    ax.addcmul_(param.sub(ax), state["mu"])
    # In lists the rate is computed from the counter's tensor, in its precision.
    _set_rates(group, state, state["step"], state["step"] if group["capturable"] else state["step"].item())


def _set_rates(group: Group, state: State, eta_step: Any, mu_step: Any) -> None:
    lr, lambd = group["lr"], group["lambd"]
    _set(state["eta"], lr / ((1 + lambd * lr * eta_step) ** group["alpha"]))
    if isinstance(mu_step, Tensor):
        _set(state["mu"], 1 / torch.maximum(mu_step - group["t0"], torch.ones_like(mu_step)))
    else:
        _set(state["mu"], 1 / torch.sym_max(1, mu_step - group["t0"]))


def _set(target: Tensor, value: Any) -> None:
    if not isinstance(value, Tensor):
        # As Torch does: a number becomes a tensor of the default dtype first.
        value = torch.scalar_tensor(value, dtype=torch.get_default_dtype(), device=target.device)
    target.copy_(value)


ASGD = FunctionalOptimizer(initial_state=_initial_state, step=_step, switches=("weight_decay",))
"""`torch.optim.ASGD`."""
