"""RAdam without its branch on the step count: both updates are computed, and the step count selects one.

The order of the operations is the one of `torch.optim.RAdam`, so that the results are too (Torch 2.13, one form for its
loop over tensors and one for its lists). Source: Liu et al., "On the Variance of the Adaptive Learning Rate and
Beyond", arXiv:1908.03265.
"""

from typing import Any

import torch
from torch import Tensor

from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State
from zkdv.torch.optimizers._initial import as_real, foreach, like, scalar

__all__ = ["RADAM"]


def _initial_state(group: Group, param: Tensor) -> State:
    return {"step": scalar(group, param), "exp_avg": like(param), "exp_avg_sq": like(param)}


def _step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    lists = foreach(group, params)
    for param, grad, state in zip(params, grads, states, strict=True):
        _update(group, as_real(param), as_real(-grad if group["maximize"] else grad), state, lists=lists)
    return params, states


def _update(group: Group, param: Tensor, grad: Tensor, state: State, *, lists: bool) -> None:
    beta1, beta2 = group["betas"]
    lr, decay = group["lr"], group["weight_decay"]
    exp_avg, exp_avg_sq = as_real(state["exp_avg"]), as_real(state["exp_avg_sq"])
    state["step"] += 1
    step = state["step"].item()
    if decay != 0:
        if group["decoupled_weight_decay"]:
            param.mul_(1 - lr * decay)
        else:
            grad = grad.add(param, alpha=decay)
    exp_avg.lerp_(grad, 1 - beta1)
    exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    bias_correction1 = 1 - beta1**step
    bias_correction2 = 1 - beta2**step
    # The length of the approximated moving average: at most `rho_inf`, which it nears as steps go by.
    rho_inf = 2 / (1 - beta2) - 1
    if rho_inf <= 5:
        _unrectified(group, param, state, bias_correction1, lists=lists)
        return
    rho = rho_inf - 2 * step * (beta2**step) / bias_correction2
    square = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho)
    rect = torch.sym_max(square, 0.0) ** 0.5
    plain, rectified = param.clone(), param.clone()
    _unrectified(group, plain, state, bias_correction1, lists=lists)
    root = exp_avg_sq.sqrt().add_(group["eps"])
    if lists:
        step_size = (bias_correction2**0.5) * (lr * rect / bias_correction1) * -1
        # The lists add the other update's step size, which is none here.
        buffer = root.div_(step_size).reciprocal_().add_((lr * 0 / bias_correction1) * -1)
        rectified.addcmul_(exp_avg, buffer)
    else:
        rectified.add_(exp_avg / bias_correction1 * lr * ((bias_correction2**0.5) / root) * rect, alpha=-1.0)
    long_enough = torch.scalar_tensor(rho, dtype=torch.float64, device=param.device) > 5.0
    param.copy_(torch.where(long_enough, rectified, plain))


def _unrectified(group: Group, param: Tensor, state: State, bias_correction1: Any, *, lists: bool) -> None:
    """The update of the first steps, whose average is too short for its variance to be known."""
    exp_avg, exp_avg_sq, lr = as_real(state["exp_avg"]), as_real(state["exp_avg_sq"]), group["lr"]
    if not lists:
        param.add_(exp_avg / bias_correction1 * lr, alpha=-1.0)
        return
    # The lists divide by a step size of zero, and take the reciprocal of the infinities.
    buffer = exp_avg_sq.sqrt().add_(group["eps"]).div_((lr * 0 / bias_correction1) * -1).reciprocal_()
    param.addcmul_(exp_avg, buffer.add_((lr * 1.0 / bias_correction1) * -1))


RADAM = FunctionalOptimizer(
    initial_state=_initial_state,
    step=_step,
    # The second of the betas says how long averages can get, and so which updates there are.
    inputs=("lr", "betas.0"),
    switches=("weight_decay",),
)
"""`torch.optim.RAdam`."""
