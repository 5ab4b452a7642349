"""Short runs of an optimizer beside its functional form, called as it is and exported."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from zkdv.torch.optimizers import bind

STEPS = 20
SHAPES = ((4, 3), (5,), ())


@dataclass
class Differences:
    """Names of the leaves that were not the eager optimizer's, bit for bit, by step; one set for each way to step."""

    called: dict[int, list[str]] = field(default_factory=dict)
    exported: dict[int, list[str]] = field(default_factory=dict)


def parameters(shapes=SHAPES, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in shapes]


def gradients(params, step):
    """Gradients with zeros of both signs among them, as ReLUs and masks leave them."""
    generator = torch.Generator().manual_seed(1000 + step)
    return [
        torch.randn(param.shape, generator=generator).to(param.dtype)
        * (torch.rand(param.shape, generator=generator) > 0.3)
        for param in params
    ]


def optimizer_of(optimizer_class, params, options, second_group=None):
    groups = [{"params": params[:1]}, {"params": params[1:], **(second_group or {})}]
    return optimizer_class(groups, **options)


def bits(tensor):
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def export(bound, params, grads, state, inputs):
    """The step as an exported program, as the frontend lowers it."""
    arguments = (params, grads, state, inputs)

    def step(params, grads, state, inputs):
        return bound.step(params, grads, state, inputs)

    # A bound method has one argument more than it is given.
    traced = make_fx(step, tracing_mode="fake")(*arguments)
    return torch.export.export(traced, arguments, strict=False)


def differing(params, state, expected_params, expected_state):
    """Names of the leaves whose bits differ."""
    assert list(state) == list(expected_state)
    names = [f"params.{position}" for position in range(len(params))] + list(state)
    values = [*params, *state.values()]
    expected = [*expected_params, *expected_state.values()]
    for value, other in zip(values, expected, strict=True):
        assert (value.shape, value.dtype) == (other.shape, other.dtype)
    return [
        name
        for name, value, other in zip(names, values, expected, strict=True)
        if not torch.equal(bits(value), bits(other))
    ]


def compare(
    optimizer: torch.optim.Optimizer,
    *,
    schedule: Any = None,
    steps: int = STEPS,
    change: Any = None,
    exporting: bool = True,
) -> Differences:
    """Step an optimizer and its functional form side by side, each from its own values.

    Args:
        optimizer: The eager optimizer.
        schedule: Makes its scheduler, after it was bound.
        steps: Number of steps.
        change: Called with the inputs of the functional form, which it may change: for differences that must show.
        exporting: Whether to run the exported program too.
    """
    bound = bind(optimizer)
    scheduler = schedule(optimizer) if schedule is not None else None
    called = exported = (
        [param.detach().clone() for param in bound.parameters],
        {name: leaf.clone() for name, leaf in bound.state().items()},
    )
    differences = Differences()
    program = None
    for step in range(steps):
        grads = gradients(bound.parameters, step)
        bound.check()
        inputs = bound.inputs()
        if change is not None:
            change(inputs)
        if exporting and program is None:
            program = export(bound, exported[0], grads, exported[1], inputs).module()
        called = bound.step(called[0], grads, called[1], inputs)
        if program is not None:
            exported = program(exported[0], grads, exported[1], inputs)
        assert all(map(torch.equal, grads, gradients(bound.parameters, step))), "the step wrote to its gradients"
        for param, grad in zip(bound.parameters, grads, strict=True):
            param.grad = grad.clone()
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        state = bound.state()
        for found, values in ((differences.called, called), (differences.exported, exported)):
            names = differing(*values, bound.parameters, state) if values is called or program is not None else []
            if names:
                found[step] = names
    return differences
