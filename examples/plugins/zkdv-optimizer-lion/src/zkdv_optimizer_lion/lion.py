"""The optimizer and its functional form; imported, and Torch with it, when they are used.

Source: Chen et al., "Symbolic Discovery of Optimization Algorithms", arXiv:2302.06675, algorithm 2.
"""

import torch

from zkdv.torch.optimizers import FunctionalOptimizer


def initial_state(group, param):
    """What Lion starts from, whatever the group says: no momentum."""
    del group
    return {"momentum": torch.zeros_like(param)}


def step(group, params, grads, states):
    """One step of one parameter group, in place. It branches on no value, so that it can be traced."""
    beta1, beta2 = group["betas"]
    for param, grad, state in zip(params, grads, states, strict=True):
        direction = (state["momentum"] * beta1 + grad * (1 - beta1)).sign_()
        param.add_(direction.add_(param * group["weight_decay"]), alpha=-group["lr"])
        state["momentum"].mul_(beta2).add_(grad * (1 - beta2))
    return params, states


FUNCTIONAL = FunctionalOptimizer(
    initial_state=initial_state, step=step, inputs=("lr", "betas.0", "betas.1", "weight_decay")
)


class Lion(torch.optim.Optimizer):
    """Steps of one size, in the direction of the sign of an average of momentum and gradient."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        """Step the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            params = [param for param in group["params"] if param.grad is not None]
            for param in params:
                if not self.state[param]:
                    self.state[param].update(initial_state(group, param))
            step(group, params, [param.grad for param in params], [self.state[param] for param in params])
        return loss
