"""Adafactor without its branches on the learning rate and on norms, which are taken as minima and maxima.

The order of the operations is the one of `torch.optim.Adafactor`, so that the results are too (Torch 2.13, one form for
its loop over tensors and one for its lists). Source: Shazeer and Stern, "Adafactor: Adaptive Learning Rates with
Sublinear Memory Cost", arXiv:1804.04235.
"""

from typing import Any

import torch
from torch import Tensor

from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State
from zkdv.torch.optimizers._initial import like, scalar
from zkdv.torch.optimizers._lookup import UnsupportedOptimizerError

__all__ = ["ADAFACTOR"]


def _initial_state(group: Group, param: Tensor) -> State:
    step = scalar(group, param)
    if param.dim() <= 1:
        return {"step": step, "variance": like(param)}
    return {
        "step": step,
        "row_var": param.new_zeros((*param.shape[:-1], 1)),
        "col_var": param.new_zeros((*param.shape[:-2], 1, param.shape[-1])),
    }


def _step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    eps1 = group["eps"][0]
    if eps1 is None:
        if group["foreach"] and len({param.dtype for param in params}) > 1:
            raise UnsupportedOptimizerError(
                "torch.optim.Adafactor with foreach=True takes its first epsilon from whichever dtype comes first; "
                "give eps=(number, number), or groups of one dtype each"
            )
        # The first parameter's, for all of them.
        eps1 = torch.finfo(params[0].dtype).eps
    update = _update_in_list if group["foreach"] else _update
    for param, grad, state in zip(params, grads, states, strict=True):
        update(group, eps1, param, -grad if group["maximize"] else grad, state)
    return params, states


def _update(group: Group, eps1: float, param: Tensor, grad: Tensor, state: State) -> None:
    state["step"] += 1
    step = state["step"].item()
    one_minus_beta2 = step ** group["beta2_decay"]
    norm = _at_least(group["eps"][1], param.norm(2).item() / (param.numel() ** 0.5))
    if group["weight_decay"] != 0:
        param.mul_(1 - group["lr"] * group["weight_decay"])
    if grad.dim() > 1:
        row_var, col_var = state["row_var"], state["col_var"]
        row_var.lerp_(torch.norm(grad, dim=-1, keepdim=True).square_().div_(grad.size(-1)), one_minus_beta2)
        col_var.lerp_(torch.norm(grad, dim=-2, keepdim=True).square_().div_(grad.size(-2)), one_minus_beta2)
        variance = (row_var @ col_var).div_(row_var.mean(dim=-2, keepdim=True).clamp_(min=eps1))
    else:
        variance = state["variance"].lerp_(grad * grad, one_minus_beta2).clone()
    update = variance.clamp_(min=eps1 * eps1).rsqrt_().mul_(grad)
    param.add_(update, alpha=_rate(group, step, norm, update))


def _update_in_list(group: Group, eps1: float, param: Tensor, grad: Tensor, state: State) -> None:
    state["step"] += 1
    step = state["step"].item()
    one_minus_beta2 = step ** group["beta2_decay"]
    norm = _at_least(group["eps"][1], param.norm(2).item() / (param.numel() ** 0.5))
    if group["weight_decay"] != 0:
        param.mul_(1 - group["lr"] * group["weight_decay"])
    if grad.dim() > 1:
        row_var, col_var = state["row_var"], state["col_var"]
        row_norm, col_norm = torch.norm(grad, dim=-1, keepdim=True), torch.norm(grad, dim=-2, keepdim=True)
        row_var.lerp_(row_norm.mul_(row_norm).div_(grad.size(-1)), one_minus_beta2)
        col_var.lerp_(col_norm.mul_(col_norm).div_(grad.size(-2)), one_minus_beta2)
        variance = (row_var @ col_var).div_(row_var.mean(dim=-2, keepdim=True).clamp_min_(eps1))
    else:
        variance = state["variance"].lerp_(grad * grad, one_minus_beta2).clone()
    update = variance.clamp_min_(eps1 * eps1).rsqrt_().mul_(grad)
    param.add_(update.mul_(_rate(group, step, norm, update)))


def _rate(group: Group, step: Any, norm: Any, update: Tensor) -> Any:
    """What the update is scaled by: the relative step size, with the update's own size clipped."""
    lr, decayed = group["lr"], 1 / (step**0.5)
    clipping = _at_least(1.0, update.norm(2).item() / ((update.numel() ** 0.5) * group["d"]))
    if not isinstance(lr, Tensor):
        return -(norm * torch.sym_min(lr, decayed)) / clipping
    # A tensor is multiplied in its own precision, the decayed rate as a double.
    by_lr = (-(norm * lr) / clipping).to(torch.float64)
    by_decayed = torch.scalar_tensor(-(norm * decayed) / clipping, dtype=torch.float64, device=lr.device)
    return torch.where(lr > decayed, by_decayed, by_lr).item()


def _at_least(floor: float, value: Any) -> Any:
    """`max(floor, value)` as Python has it: the floor also where the value is NaN."""
    double = torch.scalar_tensor(value, dtype=torch.float64, device="cpu")
    return torch.where(double > floor, double, floor).item()


ADAFACTOR = FunctionalOptimizer(initial_state=_initial_state, step=_step, switches=("weight_decay",))
"""`torch.optim.Adafactor`."""
