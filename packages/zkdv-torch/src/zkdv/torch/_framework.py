"""What this package uses of Torch beyond its documented interface, in one place. Tested with Torch 2.13."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo.eval_frame import OptimizedModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import stateless

__all__ = ["plain_module", "swapped_tensors", "trace", "version_of"]


def plain_module(module: nn.Module) -> nn.Module:
    """Return the module inside of what `torch.compile` returned, any other module as it is."""
    while isinstance(module, OptimizedModule):
        module = module._orig_mod  # noqa: SLF001
    return module


def version_of(tensor: torch.Tensor) -> int:
    """Return the counter of a tensor's in-place writes."""
    return tensor._version  # noqa: SLF001


@contextmanager
def swapped_tensors(module: nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """Have a module use other parameters and buffers, by their dotted names; on leaving it has its own again."""
    with stateless._reparametrize_module(module, dict(tensors)):  # noqa: SLF001
        yield


def trace(function: Callable[..., Any], arguments: tuple[torch.Tensor, ...]) -> fx.GraphModule:
    """Trace a function of tensors into a graph of ATen operators, without computing anything.

    Tensors that the function reads from elsewhere become constants of the graph.
    """
    return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)
