"""Batches as trees: their leaves in a fixed order with names, and the same tree with other leaves."""

import copy
import dataclasses
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from zkdv.errors import ZKDVError
from zkdv.torch._leaves import BatchLeaf

__all__ = ["Batch", "flatten"]

Rebuild = Callable[[list[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Batch:
    """A batch taken apart.

    Attributes:
        names: The dotted name of each leaf.
        leaves: Its arrays and floats, in order.
        structure: Everything else: containers, keys, and values that are constants of the program.
        rebuild: Makes the same tree of other leaves.
    """

    names: tuple[str, ...]
    leaves: tuple[BatchLeaf, ...]
    structure: Hashable
    rebuild: Rebuild


def flatten(value: Any, name: str = "batch") -> Batch:
    """Take a batch apart: tuples, lists, mappings, named tuples and dataclasses of arrays and plain values.

    Args:
        value: Tensors, NumPy arrays and floats are leaves; integers, booleans, text and None are constants.
        name: What the batch is called in names and errors.

    Raises:
        ZKDVError: A value of another type.
    """
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic, float)):
        return Batch((name,), (value,), "*", lambda leaves: leaves[0])
    if value is None or isinstance(value, (bool, int, str, bytes)):
        return Batch((), (), (type(value).__name__, value), lambda _leaves: value)
    kind: Any = type(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        keys = [field.name for field in dataclasses.fields(value)]
        return _joined(name, keys, [getattr(value, key) for key in keys], kind, kind)
    if isinstance(value, Mapping):
        keys = list(value)
        if not all(isinstance(key, str) for key in keys):
            raise ZKDVError(f"{name} is a mapping with keys that are no text; the arrays of a batch are named by text")
        return _joined(name, keys, [value[key] for key in keys], kind, lambda **made: _mapping_like(value, made))
    if isinstance(value, (tuple, list)):
        if hasattr(value, "_fields"):
            return _joined(name, list(value._fields), list(value), kind, kind)
        keys = [str(index) for index in range(len(value))]
        return _joined(name, keys, list(value), kind, lambda **made: kind(made.values()))
    raise ZKDVError(
        f"{name} is a {type(value).__name__}; a batch holds tensors, NumPy arrays, numbers and text in tuples, lists, "
        "mappings and dataclasses"
    )


def _mapping_like(value: Mapping[str, Any], made: dict[str, Any]) -> Any:
    if not isinstance(value, MutableMapping):
        kind: Any = type(value)
        return kind(made)
    # A copy keeps what else there is to it: the factory of a defaultdict, the attributes of a tokenizer's encoding.
    copied = copy.copy(value)
    copied.update(made)
    return copied


def _joined(name: str, keys: list[str], parts: list[Any], kind: type, make: Callable[..., Any]) -> Batch:
    batches = [flatten(part, f"{name}.{key}") for key, part in zip(keys, parts, strict=True)]

    def rebuild(leaves: list[Any]) -> Any:
        made, start = {}, 0
        for key, batch in zip(keys, batches, strict=True):
            end = start + len(batch.leaves)
            made[key] = batch.rebuild(leaves[start:end])
            start = end
        return make(**made)

    return Batch(
        tuple(inner for batch in batches for inner in batch.names),
        tuple(leaf for batch in batches for leaf in batch.leaves),
        (kind, tuple(keys), tuple(batch.structure for batch in batches)),
        rebuild,
    )
