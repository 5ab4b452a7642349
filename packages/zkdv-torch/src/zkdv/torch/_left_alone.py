"""Modules that hold afterwards what they held before: what lowering does to them is not training's."""

import operator
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["left_alone"]

_CONTAINERS = (dict, list, set, deque)


@contextmanager
def left_alone(roots: Sequence[nn.Module]) -> Iterator[None]:
    """Give modules back their attributes on leaving, and what is in the lists, sets and dicts among them.

    A forward pass may keep what it computed (a mask, the last output) or count its calls. On stand-ins it would leave
    stand-ins there, which eager training would go on with.
    """
    modules = {id(module): module for root in roots for module in root.modules()}
    attributes = [vars(module) for module in modules.values()]
    kept = [(container, _elements(container)) for container in (*attributes, *_containers_in(attributes))]
    try:
        yield
    finally:
        for container, elements in kept:
            _refill(container, elements)


def _containers_in(attributes: Sequence[dict[str, Any]]) -> list[Any]:
    """Return the lists, sets and dicts among the values, and those that are in them."""
    found: dict[int, Any] = {}
    waiting: list[Any] = [value for values in attributes for value in values.values()]
    while waiting:
        value = waiting.pop()
        if id(value) not in found and isinstance(value, (*_CONTAINERS, tuple)):
            found[id(value)] = value
            waiting += value.values() if isinstance(value, dict) else value
    return [value for value in found.values() if not isinstance(value, tuple)]


def _elements(container: Any) -> list[Any]:
    return list(container.items()) if isinstance(container, dict) else list(container)


def _refill(container: Any, elements: Sequence[Any]) -> None:
    # Most are as they were, and somebody may be going through one.
    if _same(_elements(container), elements):
        return
    container.clear()
    if isinstance(container, (dict, set)):
        container.update(elements)
    else:
        container.extend(elements)


def _same(some: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether both are the same objects; pairs of a dict are made anew, so their parts are compared."""
    if len(some) != len(other):
        return False
    return all(
        one is two or (type(one) is type(two) is tuple and len(one) == len(two) and all(map(operator.is_, one, two)))
        for one, two in zip(some, other, strict=True)
    )
