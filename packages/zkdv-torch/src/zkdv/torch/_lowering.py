"""From the attested function to a graph of tensors: state before an update and batch in, state after it out.

The function runs once as it is, on stand-ins for the tensors of the state: `make_fx` notes the operators that they go
through. `Lowering.forward` and `Lowering.backward` stand behind `proof.forward` and `proof.backward` meanwhile.
"""

import contextlib
import itertools
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from zkdv.errors import ZKDVError
from zkdv.torch._framework import plain_module, swapped_tensors, trace
from zkdv.torch._left_alone import left_alone
from zkdv.torch._randomness import GeneratorWatch, random_operator
from zkdv.torch._state import PreparedState, StateTensors
from zkdv.torch._trees import Batch

__all__ = ["Lowering", "Variant"]


@dataclass(frozen=True)
class Variant:
    """What a program holds as constants: another value is another program.

    Attributes:
        structure: Structure of the batch, with its constants.
        stepped: For each optimizer, whether it makes a step; a skipped step leaves its tensors as they are.
        zero_grads: For each parameter, whether it has a gradient of zeros before the update, which is not the same as
            none.
        training: Training flag of every module.
        wants_grad: For each parameter, whether it wants a gradient.
        layouts: Strides of inputs that do not lie in C order.
    """

    structure: Hashable
    stepped: tuple[bool, ...]
    zero_grads: tuple[bool, ...]
    training: tuple[bool, ...]
    wants_grad: tuple[bool, ...]
    layouts: tuple[tuple[int, ...] | None, ...]


class Lowering:
    """One run of the attested function on stand-ins.

    Args:
        prepared: What the run prepared.
        function: The attested function.
        variant: The constants of the program.
        tensors: The state before the update; only shapes, dtypes and places matter.
        batch: The batch, likewise.
        hyperparameters: Those that are inputs, likewise.
    """

    def __init__(
        self,
        prepared: PreparedState,
        function: Callable[..., Any],
        *,
        variant: Variant,
        tensors: StateTensors,
        batch: Batch,
        hyperparameters: Mapping[str, torch.Tensor],
    ) -> None:
        self._prepared = prepared
        self._function = function
        self._variant = variant
        self._tensors = tensors
        self._batch = batch
        self._hyperparameters = hyperparameters
        self._modules = {id(module) for module in every_module(prepared)}
        self._thread = threading.get_ident()
        self._stand_ins: dict[int, torch.Tensor] = {}
        self._steps = [0] * len(prepared.optimizers)

    def trace(self, arguments: Sequence[torch.Tensor]) -> fx.GraphModule:
        """Return the graph of the update.

        Args:
            arguments: Tensors with the shape, dtype and device of every input: state, batch, hyperparameters.

        Raises:
            ZKDVError: The function can't be lowered; says which line and why.
        """
        watch = GeneratorWatch()
        hook = register_module_forward_pre_hook(self._refuse_unprepared)
        try:
            with left_alone(self._prepared.modules):
                graph = trace(lambda *flat: self._update(list(flat)), tuple(arguments))
        except ZKDVError:
            raise
        except Exception as error:
            raise ZKDVError(self._describe(error)) from error
        finally:
            hook.remove()
            moved = watch.moved()
        if moved is not None:
            raise ZKDVError(
                f"the attested function draws from {moved}, and the numbers drawn while it is lowered would be "
                "constants of the program; put random values into the batch"
            )
        self._refuse_random(graph)
        self._refuse_captured(graph)
        for index, (steps, expected) in enumerate(zip(self._steps, self._variant.stepped, strict=True)):
            if steps != 1 and expected:
                raise ZKDVError(
                    f"the attested function calls step() of {self._optimizer_name(index)} {steps} times; an update is "
                    "one step of every prepared optimizer"
                )
        return graph

    # What `proof.forward` and `proof.backward` are meanwhile.

    def forward(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call a prepared module."""
        return plain_module(model)(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradients of a loss to those of the parameters that want one."""
        leaves = [leaf for leaf in self._stand_ins.values() if leaf.requires_grad]
        grads: Sequence[torch.Tensor | None] = torch.autograd.grad(loss, leaves, allow_unused=True)
        for leaf, grad in zip(leaves, grads, strict=True):
            if grad is None:
                continue
            with torch.no_grad():
                leaf.grad = _as_laid_out(grad, leaf) if leaf.grad is None else leaf.grad + grad

    # The update.

    def _update(self, flat: list[torch.Tensor]) -> list[torch.Tensor]:
        tensors = self._tensors
        parameters = len(tensors.parameters)
        state = parameters + len(tensors.optimizer)
        inputs = [_restored(tensor, strides) for tensor, strides in zip(flat, self._variant.layouts, strict=True)]
        *leaves, hyperparameters = inputs[state:]
        batch = self._batch.rebuild(
            [
                made.item() if isinstance(given, float) else made
                for made, given in zip(leaves, self._batch.leaves, strict=True)
            ]
        )
        self._stand_ins = {
            id(named.tensor): stand_in.detach().requires_grad_(wants)
            for named, stand_in, wants in zip(
                tensors.parameters, inputs[:parameters], self._variant.wants_grad, strict=True
            )
        }
        for named, zero in zip(tensors.parameters, self._variant.zero_grads, strict=True):
            if zero:
                stand_in = self._stand_ins[id(named.tensor)]
                stand_in.grad = torch.zeros_like(stand_in)
        self._states: list[dict[str, torch.Tensor]] = [{} for _ in self._prepared.optimizers]
        for (optimizer, name), stand_in in zip(tensors.places, inputs[parameters:state], strict=True):
            self._states[optimizer][name] = stand_in

        # By the end of the block that the update is made in they may be others.
        for inner, training in zip(every_module(self._prepared), self._variant.training, strict=True):
            inner.training = training
        with contextlib.ExitStack() as stack:
            for index, module in enumerate(self._prepared.modules):
                swapped = {name: self._stand_ins[id(tensor)] for name, tensor in self._prepared.named_in(index)}
                stack.enter_context(swapped_tensors(module, swapped))
            for index in range(len(self._prepared.optimizers)):
                stack.enter_context(self._swapped_optimizer(index, hyperparameters))
            for scheduler in self._prepared.schedulers:
                stack.enter_context(_replaced(scheduler, "step", _do_nothing))
            self._function(*call_arguments(self._prepared, self._function), batch)
            after = self._parameters_after()
        after.extend(self._states[optimizer][name] for optimizer, name in tensors.places)
        return [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in after]

    def _parameters_after(self) -> list[torch.Tensor]:
        """Return parameters and buffers as the modules hold them now: a forward may have put another tensor there."""
        after: dict[str, torch.Tensor] = {}
        for index in range(len(self._prepared.modules)):
            prefix = self._prepared.prefix(index)
            after.update({prefix + name: tensor for name, tensor in self._prepared.named_in(index)})
        return [after[named.name] for named in self._tensors.parameters]

    @contextlib.contextmanager
    def _swapped_optimizer(self, index: int, hyperparameters: torch.Tensor) -> Iterator[None]:
        """Have an optimizer hold the stand-ins, and step in its functional form."""
        optimizer, bound = self._prepared.optimizers[index], self._prepared.bound[index]
        saved = [list(group["params"]) for group in optimizer.param_groups]
        state = optimizer.state

        def step(closure: Callable[[], Any] | None = None) -> None:
            if closure is not None:
                raise ZKDVError(f"step() of {self._optimizer_name(index)} was given a closure, which can't be lowered")
            self._steps[index] += 1
            if not self._variant.stepped[index]:
                return
            stand_ins = [self._stand_ins[id(parameter)] for parameter in bound.parameters]
            inputs = self._prepared.inputs_of(index, hyperparameters, self._hyperparameters)
            grads = [stand_in.grad for stand_in in stand_ins]
            stepped, self._states[index] = bound.step(stand_ins, grads, self._states[index], inputs)
            with torch.no_grad():
                for stand_in, made, grad in zip(stand_ins, stepped, grads, strict=True):
                    if grad is not None:
                        stand_in.copy_(made)

        try:
            for group in optimizer.param_groups:
                group["params"] = [self._stand_ins[id(parameter)] for parameter in group["params"]]
            optimizer.state = defaultdict(dict)
            with _replaced(optimizer, "step", step):
                yield
        finally:
            for group, parameters in zip(optimizer.param_groups, saved, strict=True):
                group["params"] = parameters
            optimizer.state = state

    # What can't be lowered.

    def _refuse_unprepared(self, module: nn.Module, inputs: Any) -> None:
        del inputs
        # The hook is the whole process's; other threads may run models of their own.
        if id(module) in self._modules or threading.get_ident() != self._thread:
            return
        held = [name for name, _ in module.named_parameters(recurse=False)]
        held += [name for name, _ in module.named_buffers(recurse=False)]
        if held:
            raise ZKDVError(
                f"the attested function uses {self._captured_name(module)}, which holds {', '.join(held[:3])} and was "
                "not prepared, so it is not part of what is committed; give it to proof.prepare(), or make it part "
                "of a module that was"
            )

    def _captured_name(self, module: nn.Module) -> str:
        """Return what a module is called where the attested function finds it."""
        kind = type(module).__name__
        code = self._function.__code__
        captured = {name: self._function.__globals__.get(name) for name in code.co_names}
        for name, cell in zip(code.co_freevars, self._function.__closure__ or (), strict=True):
            # A cell is empty where its variable was not assigned to yet.
            with contextlib.suppress(ValueError):
                captured[name] = cell.cell_contents
        for name, value in captured.items():
            if isinstance(value, nn.Module):
                for inner, candidate in value.named_modules():
                    if candidate is module:
                        return f"the module {f'{name}.{inner}' if inner else name} ({kind})"
        return f"a module of type {kind}"

    def _refuse_random(self, graph: fx.GraphModule) -> None:
        found = random_operator(graph)
        if found is not None:
            raise ZKDVError(
                f"the attested function uses {found}, whose result is random: replaying it would draw other numbers. "
                "Put what is random into the batch (a dropout mask, noise, indices), or switch it off (dropout with "
                "probability 0, or model.eval() for those modules)"
            )

    def _refuse_captured(self, graph: fx.GraphModule) -> None:
        # The tracer keeps what it captures in buffers, or in plain attributes.
        for name, value in itertools.chain(graph.named_buffers(), vars(graph).items()):
            if name.startswith("_tensor_constant") and isinstance(value, torch.Tensor) and value.requires_grad:
                raise ZKDVError(self._captured_tensor(value))
        for _, parameter in graph.named_parameters():
            raise ZKDVError(self._captured_tensor(parameter))

    @staticmethod
    def _captured_tensor(tensor: torch.Tensor) -> str:
        return (
            f"the attested function reads a tensor of shape {list(tensor.shape)} that wants a gradient and belongs to "
            "no prepared module; give its module to proof.prepare(), or use it through the prepared one"
        )

    def _optimizer_name(self, index: int) -> str:
        kind = type(self._prepared.optimizers[index]).__name__
        return kind if len(self._prepared.optimizers) == 1 else f"{kind} (optimizer {index})"

    def _describe(self, error: Exception) -> str:
        """Say which line of the user's code can't be lowered, and why."""
        where = _innermost_line_of_user(error)
        reason = str(error).strip().split("\n\n")[0].split("\n")[0] or type(error).__name__
        kind = type(error).__name__
        if isinstance(error, LookupError):
            # What is missing says little by itself: of a KeyError it is the key alone.
            reason = f"{kind}: {reason}"
        if kind in {"GuardOnDataDependentSymNode", "DataDependentOutputException", "DynamicOutputShapeException"}:
            reason = (
                "its course depends on the values of tensors, which are not known while it is lowered; use tensor "
                f"operations such as torch.where instead of Python branches and .item() ({reason})"
            )
        return f"the attested function {self._function.__qualname__} can't be lowered at {where}: {reason}"


def every_module(prepared: PreparedState) -> Iterator[nn.Module]:
    """Yield the prepared modules and those inside of them."""
    for root in prepared.modules:
        yield from root.modules()


def call_arguments(prepared: PreparedState, function: Callable[..., Any]) -> list[Any]:
    """Return what an attested function is called with before the batch: all that was prepared, or all but schedulers.

    Raises:
        ZKDVError: The function takes another number of arguments.
    """
    code = function.__code__
    wanted = code.co_argcount - 1
    everything = prepared.arguments
    essential = [value for value in everything if not any(value is scheduler for scheduler in prepared.schedulers)]
    for candidate in (everything, essential):
        if len(candidate) == wanted:
            return list(candidate)
    kinds = ", ".join(type(value).__name__ for value in everything) or "nothing"
    raise ZKDVError(
        f"the attested function {function.__qualname__} takes {code.co_argcount} arguments; it is called with what was "
        f"prepared, in that order ({kinds}; schedulers may be left out), and the batch"
    )


def _restored(tensor: torch.Tensor, strides: tuple[int, ...] | None) -> torch.Tensor:
    """Return a copy of an input, laid out in memory as training has it."""
    if strides is None:
        return tensor.clone()
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _as_laid_out(grad: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:
    """Return a first gradient as autograd stores it: in the parameter's layout."""
    if grad.stride() == leaf.stride():
        return grad.detach()
    return torch.empty_strided(leaf.shape, leaf.stride(), dtype=grad.dtype, device=grad.device).copy_(grad)


def _do_nothing(*_args: Any, **_kwargs: Any) -> None:
    """Stand for a scheduler's step: what it sets is an input of the next update."""


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


def _innermost_line_of_user(error: Exception) -> str:
    libraries = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith((*libraries, "<"))
    ]
    if not frames:
        return "an unknown line"
    return f"{frames[-1].filename}:{frames[-1].lineno} (`{frames[-1].line}`)"
