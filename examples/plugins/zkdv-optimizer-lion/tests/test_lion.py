"""Lion itself: against the paper's algorithm, against optax, and against its own functional form exported."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx
from zkdv_optimizer_lion.lion import Lion

from zkdv.torch.optimizers import bind

OPTIONS = {"lr": 0.01, "betas": (0.9, 0.99), "weight_decay": 0.1}


def values(seed, shapes=((4, 3), (5,))):
    random = np.random.default_rng(seed)
    return [random.normal(size=shape).astype(np.float32) for shape in shapes]


def algorithm_of_the_paper(params, steps):
    """Algorithm 2 of arXiv:2302.06675, in double precision."""
    (beta1, beta2), lr, decay = OPTIONS["betas"], OPTIONS["lr"], OPTIONS["weight_decay"]
    params = [param.astype(np.float64) for param in params]
    momenta = [np.zeros_like(param) for param in params]
    for step in range(steps):
        for at, grad in enumerate(values(100 + step)):
            direction = np.sign(beta1 * momenta[at] + (1 - beta1) * grad)
            params[at] = params[at] - lr * (direction + decay * params[at])
            momenta[at] = beta2 * momenta[at] + (1 - beta2) * grad
    return params


def algorithm_of_optax(params, steps):
    transformation = optax.lion(OPTIONS["lr"], *OPTIONS["betas"], weight_decay=OPTIONS["weight_decay"])
    params = list(map(jnp.asarray, params))
    state = transformation.init(params)
    for step in range(steps):
        updates, state = transformation.update(list(map(jnp.asarray, values(100 + step))), state, params)
        params = optax.apply_updates(params, updates)
    return params


@pytest.mark.parametrize("algorithm", [algorithm_of_the_paper, algorithm_of_optax])
def test_steps_are_those_of_the_algorithm(algorithm):
    params = [torch.nn.Parameter(torch.tensor(value)) for value in values(0)]
    optimizer = Lion(params, **OPTIONS)
    for step in range(20):
        for param, grad in zip(params, values(100 + step), strict=True):
            param.grad = torch.tensor(grad)
        optimizer.step()
    for param, expected, start in zip(params, algorithm(values(0), 20), values(0), strict=True):
        np.testing.assert_allclose(param.detach(), expected, atol=1e-6)
        assert np.abs(param.detach().numpy() - start).max() > 0.05


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_exported_steps_are_the_eager_ones_bit_for_bit_while_a_scheduler_changes_rate_and_momentum(weight_decay):
    params = [torch.nn.Parameter(torch.tensor(value)) for value in values(0)]
    groups = [{"params": params[:1]}, {"params": params[1:], "lr": 0.1}]
    optimizer = Lion(groups, **{**OPTIONS, "weight_decay": weight_decay})
    bound = bind(optimizer)
    scheduler = torch.optim.lr_scheduler.CyclicLR(optimizer, 1e-3, 1e-2, step_size_up=3)
    current = [param.detach().clone() for param in params], bound.state()
    program = None
    for number in range(20):
        grads = [torch.tensor(grad) for grad in values(100 + number)]
        arguments = (current[0], grads, current[1], bound.inputs())
        bound.check()
        if program is None:

            def step(params, grads, state, inputs):
                return bound.step(params, grads, state, inputs)

            traced = make_fx(step, tracing_mode="fake")(*arguments)
            program = torch.export.export(traced, arguments, strict=False).module()
        current = program(*arguments)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        optimizer.step()
        scheduler.step()
        eager = [*params, *bound.state().values()]
        for leaf, expected in zip([*current[0], *current[1].values()], eager, strict=True):
            assert torch.equal(leaf.view(torch.int32), expected.detach().view(torch.int32))


def test_closures_are_called_and_parameters_without_gradient_left_alone():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer = Lion(params, lr=0.5)

    def closure():
        optimizer.zero_grad()
        loss = (params[0] ** 2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 2.0
    assert [param.tolist() for param in params] == [[0.5, 0.5], [1.0, 1.0]]
    assert list(optimizer.state_dict()["state"]) == [0]
