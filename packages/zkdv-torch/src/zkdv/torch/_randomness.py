"""Finding randomness in an attested function: operators that draw numbers, and generators of Python and NumPy."""

import random
from typing import Any

import numpy as np
import torch
from torch import fx

from zkdv.torch._framework import arguments_of, draws_random_numbers

__all__ = ["GeneratorWatch", "random_operator"]

_PROBABILITIES = ("p", "dropout_p", "dropout")
_SWITCHES = ("train", "training")


def random_operator(graph: fx.GraphModule) -> str | None:
    """Return the name of the first operator in a graph, or in a graph inside of it, that draws random numbers.

    Operators are known by Torch's own tag. One that may draw (dropout, attention, recurrent cells) and is told not to,
    by probability 0 or by a training flag that is off, draws nothing.
    """
    for module in graph.modules():
        if not isinstance(module, fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if draws_random_numbers(node.target) and not _switched_off(node):
                return str(node.target)
    return None


def _switched_off(node: fx.Node) -> bool:
    given = arguments_of(node)
    return any(given.get(name) == 0 and given.get(name) is not False for name in _PROBABILITIES) or any(
        given.get(name) is False for name in _SWITCHES
    )


class GeneratorWatch:
    """Notes the states of Python's, NumPy's and Torch's global generators, to see later whether one was drawn from."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002 (the generator that user code may use)
        self._torch = torch.get_rng_state()

    def moved(self) -> str | None:
        """Return which generator was drawn from since, and set all back; None where none was."""
        moved = None
        if random.getstate() != self._python:
            moved = "Python's random module"
        elif _comparable(np.random.get_state(legacy=False)) != _comparable(self._numpy):  # noqa: NPY002
            moved = "numpy.random"
        elif not torch.equal(torch.get_rng_state(), self._torch):
            moved = "torch's default generator"
        if moved is not None:
            random.setstate(self._python)
            np.random.set_state(self._numpy)  # noqa: NPY002
            torch.set_rng_state(self._torch)
        return moved


def _comparable(state: Any) -> tuple[bytes, int, int, float]:
    """Return what NumPy's generator state holds, in a form that compares."""
    inner = state["state"]
    return inner["key"].tobytes(), int(inner["pos"]), int(state["has_gauss"]), float(state["gauss"])
