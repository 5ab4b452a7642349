"""Files that `torch.save` wrote, of tensors alone: Torch's reader that unpickles nothing but them."""

import functools
import pickle
import zipfile
from collections.abc import Iterator, Mapping
from numbers import Number
from pathlib import Path
from typing import Any

import torch

from zkdv.errors import ZKDVError
from zkdv.tensor_files import StoredTensor, Tensors
from zkdv.torch._leaves import host_data, refuse_unreadable

__all__ = ["read"]

MAX_DEPTH = 32
MAX_VALUES = 1 << 20


def read(path: Path) -> Tensors:
    """Read a file with `torch.load(weights_only=True)`.

    Args:
        path: The file: a tensor, or dictionaries and lists of tensors, numbers and text.

    Returns:
        Its tensors by name, keys and positions joined by dots. Numbers and text are no tensors, and are left out.

    Raises:
        ZKDVError: It holds something else, which only code could rebuild, or a tensor that is not dense.
    """
    try:
        # Tensors stay in the file until they are asked for, which the older format can't do.
        loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        reason = " ".join(str(error).split()).split(" Please file an issue")[0][:300]
        raise ZKDVError(
            f"{path} holds more than tensors, numbers and text, and is not read, since that could run code: {reason}; "
            "save the state dict by itself"
        ) from error
    return {name: _stored(tensor, name, path) for name, tensor in _tensors(loaded, path)}


def _tensors(loaded: Any, path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    pending: list[tuple[str, Any, int]] = [("", loaded, 0)]
    taken: set[str] = set()
    for _ in range(MAX_VALUES):
        if not pending:
            return
        name, value, depth = pending.pop()
        if isinstance(value, torch.Tensor):
            if name in taken:
                raise ZKDVError(f"{path} holds two tensors of the name {name!r}, once keys are joined by dots")
            taken.add(name)
            yield name or "tensor", value
        elif isinstance(value, Mapping | list | tuple) and depth < MAX_DEPTH:
            inner = value.items() if isinstance(value, Mapping) else enumerate(value)
            nested = [(f"{name}.{key}" if name else str(key), item, depth + 1) for key, item in inner]
            pending.extend(reversed(nested))
        elif not isinstance(value, Number | str | bytes | None | torch.dtype | torch.device):
            raise ZKDVError(f"{path}: {name or 'it'} is a {type(value).__name__}, nested {depth} deep, and no tensor")
    raise ZKDVError(f"{path} holds more than {MAX_VALUES} values")


def _stored(tensor: torch.Tensor, name: str, path: Path) -> StoredTensor:
    refuse_unreadable(tensor.detach(), f"{path}: {name}")
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise ZKDVError(f"{path}: {name} repeats its elements (it was expanded); save a copy of it")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return StoredTensor(dtype, tuple(tensor.shape), str(path), functools.partial(host_data, tensor))
