"""What the standard optimizers start from, and the forms in which their functions take tensors."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zkdv.torch.optimizers._functional import Group, State

__all__ = ["any_complex", "as_real", "column", "foreach", "like", "scalar"]


def column(states: Sequence[State], name: str) -> list[Any]:
    """One entry of each state, in order."""
    return [state[name] for state in states]


def like(param: Tensor, value: complex = 0.0) -> Tensor:
    """A tensor of `value` with the parameter's shape, dtype, device and strides."""
    filling: Any = value  # Complex numbers too, which the signature leaves out.
    return torch.full_like(param, filling, memory_format=torch.preserve_format)


def scalar(group: Group, param: Tensor, value: float = 0.0) -> Tensor:
    """A counter or product as optimizers keep it: 0-d, and on the CPU unless a kernel needs it beside the parameter.

    float32, or float64 where that is Torch's default dtype and no fused kernel counts.
    """
    fused = bool(group.get("fused"))
    double = torch.get_default_dtype() == torch.float64 and not fused
    device = param.device if fused or group.get("capturable") else torch.device("cpu")
    return torch.full((), value, dtype=torch.float64 if double else torch.float32, device=device)


def foreach(group: Group, params: Sequence[Tensor]) -> bool:
    """Whether the step runs over lists of tensors: as the user said, else on CUDA and unless a fused kernel runs.

    Torch decides by the types of the parameters too, which are others while a step is traced.
    """
    if group["foreach"] is not None or group.get("fused") is not None:
        return bool(group["foreach"])
    return all(param.device.type == "cuda" for param in params)


def any_complex(params: Sequence[Tensor]) -> bool:
    """Whether a parameter is complex."""
    return any(torch.is_complex(param) for param in params)


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor's real and imaginary parts as a view with one more dimension; any other tensor as it is."""
    return torch.view_as_real(tensor) if torch.is_complex(tensor) else tensor
