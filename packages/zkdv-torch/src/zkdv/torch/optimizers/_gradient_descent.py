"""Adadelta, Adagrad, RMSprop, Rprop and SGD, as `torch.optim` computes them."""

import torch
from torch import Tensor
from torch.optim.adadelta import adadelta
from torch.optim.adagrad import adagrad
from torch.optim.rmsprop import rmsprop
from torch.optim.rprop import rprop
from torch.optim.sgd import sgd

from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State
from zkdv.torch.optimizers._initial import any_complex, column, foreach, like, scalar

__all__ = ["ADADELTA", "ADAGRAD", "RMSPROP", "RPROP", "SGD"]


def _adadelta_state(group: Group, param: Tensor) -> State:
    return {"step": scalar(group, param), "square_avg": like(param), "acc_delta": like(param)}


def _adadelta_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    adadelta(
        params,
        grads,
        column(states, "square_avg"),
        column(states, "acc_delta"),
        column(states, "step"),
        capturable=group["capturable"],
        foreach=foreach(group, params),
        has_complex=any_complex(params),
        lr=group["lr"],
        rho=group["rho"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        maximize=group["maximize"],
    )
    return params, states


def _adagrad_state(group: Group, param: Tensor) -> State:
    start = group["initial_accumulator_value"]
    return {
        "step": scalar(group, param),
        "sum": like(param, complex(start, start) if torch.is_complex(param) else start),
    }


def _adagrad_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    adagrad(
        params,
        grads,
        column(states, "sum"),
        column(states, "step"),
        fused=group["fused"],
        foreach=foreach(group, params),
        has_complex=any_complex(params),
        lr=group["lr"],
        weight_decay=group["weight_decay"],
        lr_decay=group["lr_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
    )
    return params, states


def _rmsprop_state(group: Group, param: Tensor) -> State:
    state = {"step": scalar(group, param), "square_avg": like(param)}
    state |= {"momentum_buffer": like(param)} if group["momentum"] > 0 else {}
    return state | ({"grad_avg": like(param)} if group["centered"] else {})


def _rmsprop_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    rmsprop(
        params,
        grads,
        column(states, "square_avg"),
        column(states, "grad_avg") if group["centered"] else [],
        column(states, "momentum_buffer") if group["momentum"] > 0 else [],
        column(states, "step"),
        foreach=foreach(group, params),
        maximize=group["maximize"],
        capturable=group["capturable"],
        has_complex=any_complex(params),
        lr=group["lr"],
        alpha=group["alpha"],
        eps=group["eps"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        centered=group["centered"],
    )
    return params, states


def _rprop_state(group: Group, param: Tensor) -> State:
    lr = float(group["lr"])
    return {
        "step": scalar(group, param),
        "prev": like(param),
        "step_size": like(param, complex(lr, lr) if torch.is_complex(param) else lr),
    }


def _rprop_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    etaminus, etaplus = group["etas"]
    step_size_min, step_size_max = group["step_sizes"]
    # Where a 0-d tensor is chosen by its sign, the tracer would have to know the sign.
    rprop(
        _vectors(params),
        _vectors(grads),
        _vectors(column(states, "prev")),
        _vectors(column(states, "step_size")),
        column(states, "step"),
        foreach=foreach(group, params),
        capturable=group["capturable"],
        maximize=group["maximize"],
        has_complex=any_complex(params),
        step_size_min=step_size_min,
        step_size_max=step_size_max,
        etaminus=etaminus,
        etaplus=etaplus,
    )
    return params, states


def _vectors(tensors: list[Tensor]) -> list[Tensor]:
    """Views of 0-d tensors as vectors of one element; the others as they are."""
    return [tensor.view(1) if tensor.dim() == 0 else tensor for tensor in tensors]


def _sgd_state(group: Group, param: Tensor) -> State:
    # The first buffer is the gradient. Of all numbers only -0.0 leaves every gradient as it is when it is added, be it
    # 0.0 or -0.0, and momentum leaves it as it is.
    return {"momentum_buffer": like(param, -0.0)} if group["momentum"] != 0 else {}


def _sgd_step(
    group: Group, params: list[Tensor], grads: list[Tensor], states: list[State]
) -> tuple[list[Tensor], list[State]]:
    if group["momentum"] == 0:
        _sgd_update(group, params, grads, [None] * len(params))
        return params, states
    buffers: list[Tensor | None] = column(states, "momentum_buffer")
    if not _sgd_first_step_differs(group):
        _sgd_update(group, params, grads, buffers)
        return params, states
    # The first buffer is not damped: both steps are computed, and each parameter takes its own.
    first_params, first_buffers = [param.clone() for param in params], list[Tensor | None]([None] * len(params))
    _sgd_update(group, first_params, grads, first_buffers)
    _sgd_update(group, params, grads, buffers)
    for position, state in enumerate(states):
        first_buffer = first_buffers[position]
        assert first_buffer is not None  # noqa: S101 (sgd makes the missing ones)
        params[position] = torch.where(state["started"], params[position], first_params[position])
        state["momentum_buffer"] = torch.where(state["started"], state["momentum_buffer"], first_buffer)
    return params, states


def _sgd_update(group: Group, params: list[Tensor], grads: list[Tensor], buffers: list[Tensor | None]) -> None:
    lists = foreach(group, params)
    if lists and group["nesterov"]:
        # The lists would add the momentum to the gradients themselves.
        grads = [grad.clone() for grad in grads]
    sgd(
        params,
        grads,
        buffers,
        foreach=lists,
        fused=group["fused"],
        weight_decay=group["weight_decay"],
        momentum=group["momentum"],
        lr=group["lr"],
        dampening=group["dampening"],
        nesterov=group["nesterov"],
        maximize=group["maximize"],
    )


def _sgd_first_step_differs(group: Group) -> bool:
    return bool(group["momentum"] != 0 and group["dampening"] != 0)


ADADELTA = FunctionalOptimizer(initial_state=_adadelta_state, step=_adadelta_step, switches=("weight_decay",))
"""`torch.optim.Adadelta`."""

ADAGRAD = FunctionalOptimizer(initial_state=_adagrad_state, step=_adagrad_step, switches=("weight_decay",))
"""`torch.optim.Adagrad`."""

RMSPROP = FunctionalOptimizer(initial_state=_rmsprop_state, step=_rmsprop_step, switches=("weight_decay", "momentum"))
"""`torch.optim.RMSprop`."""

RPROP = FunctionalOptimizer(initial_state=_rprop_state, step=_rprop_step)
"""`torch.optim.Rprop`. Its learning rate is the first step size alone."""

SGD = FunctionalOptimizer(
    initial_state=_sgd_state,
    step=_sgd_step,
    switches=("weight_decay", "momentum"),
    first_step_differs=_sgd_first_step_differs,
)
"""`torch.optim.SGD`. A complex parameter's first momentum buffer has 0.0 where the gradient has -0.0."""
