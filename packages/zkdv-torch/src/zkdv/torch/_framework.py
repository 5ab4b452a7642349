"""What this package uses of Torch beyond its documented interface, in one place. Tested with Torch 2.13."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo import config as dynamo_config
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import stateless
from torch.optim._muon import muon

__all__ = [
    "arguments_of",
    "draws_random_numbers",
    "is_operator",
    "is_stand_in",
    "load_package",
    "muon",
    "plain_module",
    "save_package",
    "state_positive",
    "swapped_tensors",
    "trace",
    "version_of",
]


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

    Tensors that the function reads from elsewhere become constants of the graph, and what `torch.compile` would compile
    runs as it was written.
    """
    with (
        torch.compiler.set_stance("force_eager"),
        dynamo_config.patch(error_on_nested_fx_trace=False),
        warnings.catch_warnings(),
    ):
        # A hook on all modules would be called twice for a compiled one; nothing is compiled here.
        warnings.filterwarnings("ignore", message="Using `torch.compile", category=UserWarning)
        return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*arguments)


def is_stand_in(tensor: object) -> bool:
    """Return whether a tensor is one that `trace` made to stand for values: it has a shape, and holds nothing."""
    return isinstance(tensor, FakeTensor)


def draws_random_numbers(operator: object) -> bool:
    """Return whether a node's target is an operator that Torch tags as one that may draw random numbers."""
    return isinstance(operator, torch._ops.OpOverload) and torch.Tag.nondeterministic_seeded in operator.tags  # noqa: SLF001


def is_operator(target: object, namespace: str) -> bool:
    """Return whether a node's target is an operator of a namespace, `aten` for one."""
    return isinstance(target, torch._ops.OpOverload) and target.namespace == namespace  # noqa: SLF001


def arguments_of(node: fx.Node) -> dict[str, Any]:
    """Return the arguments of an operator's call by name, those that were left out with their default values."""
    operator: Any = node.target
    given = dict(node.kwargs)
    for argument, value in zip(operator._schema.arguments, node.args, strict=False):  # noqa: SLF001
        given.setdefault(argument.name, value)
    for argument in operator._schema.arguments:  # noqa: SLF001
        if argument.has_default_value():
            given.setdefault(argument.name, argument.default_value)
    return given


def state_positive(number: float | torch.SymFloat) -> None:
    """Tell the tracer that a number is above 0, so that it knows how a branch on the number goes.

    Raises:
        RuntimeError: It is a number, and not above 0.
    """
    torch._check(number > 0)  # noqa: SLF001
    torch._check(number != 0)  # noqa: SLF001


def save_package(program: ExportedProgram, path: str) -> None:
    """Compile an exported program with AOT Inductor into a package at `path`."""
    torch._inductor.aoti_compile_and_package(program, package_path=path)  # noqa: SLF001


def load_package(path: str) -> Callable[..., Sequence[torch.Tensor]]:
    """Load a package of AOT Inductor, which is native code."""
    loaded: Callable[..., Sequence[torch.Tensor]] = torch._inductor.aoti_load_package(path)  # noqa: SLF001
    return loaded
