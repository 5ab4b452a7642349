"""The state of a run: what was prepared, its tensors with their names, and the hyperparameters of its optimizers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from zkdv.torch._framework import plain_module
from zkdv.torch.optimizers import BoundOptimizer, FunctionalOptimizer, bind

__all__ = ["NamedTensor", "PreparedState", "StateTensors"]


@dataclass(frozen=True)
class NamedTensor:
    """One tensor of the state.

    Attributes:
        name: Its name, as in a state dict.
        tensor: The tensor.
        aliases: Other names of the same tensor.
    """

    name: str
    tensor: torch.Tensor
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class StateTensors:
    """All tensors of the state at one moment.

    Attributes:
        parameters: Parameters and buffers of all modules.
        optimizer: State of all optimizers, one after the other.
        places: Of each tensor of an optimizer: which optimizer, and the tensor's name in it.
    """

    parameters: Sequence[NamedTensor]
    optimizer: Sequence[NamedTensor]
    places: Sequence[tuple[int, str]]

    def all(self) -> list[NamedTensor]:
        """Return every tensor, parameters first."""
        return [*self.parameters, *self.optimizer]


@dataclass
class PreparedState:
    """What `ZKDV.prepare` was given.

    Attributes:
        modules: The modules, without what `torch.compile` puts around them.
        optimizers: The optimizers.
        bound: Their functional forms, in the same order.
        schedulers: The learning-rate schedulers.
        arguments: All of them as they were given, in order: what the attested function is called with.
        registered: Functional optimizers that the run registered, by class.
    """

    modules: list[nn.Module] = field(default_factory=list)
    optimizers: list[Optimizer] = field(default_factory=list)
    bound: list[BoundOptimizer] = field(default_factory=list)
    schedulers: list[LRScheduler] = field(default_factory=list)
    arguments: list[Any] = field(default_factory=list)
    registered: dict[type[Optimizer], FunctionalOptimizer] = field(default_factory=dict)

    def is_new(self, value: object) -> bool:
        """Return whether a value is a module, optimizer or scheduler that was not taken yet."""
        return isinstance(value, nn.Module | Optimizer | LRScheduler) and not any(
            value is known for known in self.arguments
        )

    def add(self, value: nn.Module | Optimizer | LRScheduler) -> None:
        """Take a module, optimizer or scheduler.

        Raises:
            ZKDVError: An optimizer can't be lowered; says what to do.
        """
        if isinstance(value, nn.Module):
            self.modules.append(plain_module(value))
        elif isinstance(value, Optimizer):
            self.bound.append(bind(value, self.registered))
            self.optimizers.append(value)
        else:
            self.schedulers.append(value)
        self.arguments.append(value)

    def tensors(self) -> StateTensors:
        """Return the tensors of the state as they are now.

        Raises:
            ZKDVError: An optimizer holds what can't be committed.
        """
        optimizer: list[NamedTensor] = []
        places: list[tuple[int, str]] = []
        for index, bound in enumerate(self.bound):
            prefix = self.optimizer_prefix(index)
            for name, tensor in bound.state().items():
                optimizer.append(NamedTensor(prefix + name, tensor))
                places.append((index, name))
        return StateTensors(self._module_tensors(), optimizer, places)

    def named_in(self, module: int) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield parameters and buffers of a module under all of their names in it."""
        yield from self.modules[module].named_parameters(remove_duplicate=False)
        yield from self.modules[module].named_buffers(remove_duplicate=False)

    def prefix(self, module: int) -> str:
        """Return what the names of a module's tensors begin with: nothing, where there is one module."""
        return f"modules.{module}." if len(self.modules) > 1 else ""

    def optimizer_prefix(self, optimizer: int) -> str:
        """Return what the names of an optimizer's state and inputs begin with: nothing, where there is one."""
        return f"optimizers.{optimizer}." if len(self.bound) > 1 else ""

    def hyperparameters(self) -> dict[str, torch.Tensor]:
        """Return the hyperparameters that are inputs of the program, as they are now, by name."""
        values: dict[str, torch.Tensor] = {}
        for index, bound in enumerate(self.bound):
            prefix = self.optimizer_prefix(index)
            values |= {prefix + name: value for name, value in bound.inputs().items()}
        return values

    def inputs_of(self, index: int, vector: torch.Tensor, given: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return one optimizer's inputs out of the vector of all hyperparameters, in the form that it has them."""
        prefix = self.optimizer_prefix(index)
        made: dict[str, torch.Tensor] = {}
        for place, (name, value) in enumerate(given.items()):
            if name.startswith(prefix):
                number = vector[place].to(value.dtype).to(value.device)
                made[name.removeprefix(prefix)] = number.reshape(value.shape)
        return made

    def _module_tensors(self) -> list[NamedTensor]:
        names: dict[int, list[str]] = {}
        tensors: list[torch.Tensor] = []
        for index in range(len(self.modules)):
            for name, tensor in self.named_in(index):
                known = names.setdefault(id(tensor), [])
                if not known:
                    tensors.append(tensor)
                known.append(self.prefix(index) + name)
        return [NamedTensor(names[id(tensor)][0], tensor, tuple(names[id(tensor)][1:])) for tensor in tensors]


def vector_of(values: Mapping[str, torch.Tensor]) -> NDArray[np.float64]:
    """Return hyperparameters as the vector that is committed with the batch."""
    return np.array([float(value) for value in values.values()], np.float64)
