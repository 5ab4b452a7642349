"""Tensors as they are committed: names of dtypes, bytes in C order on the host, and what tells of writes to them."""

from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy

from zkdv.errors import ZKDVError
from zkdv.torch._framework import version_of

__all__ = [
    "BatchLeaf",
    "HeldLeaf",
    "array_of",
    "batch_dtype",
    "dtype_name",
    "host_array",
    "host_data",
    "layout_of",
    "numpy_dtype",
    "refuse_unreadable",
    "tensor_like",
    "tensor_of",
    "torch_dtype",
]

BatchLeaf = torch.Tensor | np.ndarray[Any, Any] | np.generic | float
"""What is an input of a program: floats change from step to step (a loss scale), so they are inputs too."""

_DTYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint8: "uint8",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz",
    torch.float8_e5m2: "float8_e5m2",
    torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.float8_e8m0fnu: "float8_e8m0fnu",
}
_BY_NAME = {name: dtype for dtype, name in _DTYPES.items()}


def dtype_name(dtype: torch.dtype, leaf: str) -> str:
    """Return the name of a dtype as it stands in the schema record.

    Raises:
        ZKDVError: The protocol has no such dtype; `leaf` names the tensor in the message.
    """
    try:
        return _DTYPES[dtype]
    except KeyError:
        raise ZKDVError(
            f"{leaf} has dtype {dtype}, which a transcript cannot hold; there are: {', '.join(_BY_NAME)}"
        ) from None


def refuse_unreadable(tensor: torch.Tensor, name: str) -> None:
    """Refuse a tensor whose elements don't lie in memory as an array, or whose writes aren't counted.

    Raises:
        ZKDVError: Names the tensor and says what it is.
    """
    kind = None
    if is_lazy(tensor):
        kind = "not initialised yet; run one forward pass before the first transaction"
    elif tensor.layout != torch.strided:
        kind = f"stored as {tensor.layout}; only dense tensors can be committed"
    elif type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind = f"a {type(tensor).__name__}, which is stored in a way of its own; only plain tensors can be committed"
    elif tensor.is_inference():
        kind = "made under torch.inference_mode(), where writes aren't counted; make it outside of it"
    elif tensor.is_meta:
        kind = "on the meta device and holds nothing; move the module to a real device first"
    elif tensor.is_quantized:
        kind = "quantized; only plain tensors can be committed"
    if kind is not None:
        raise ZKDVError(f"{name} is {kind}")
    dtype_name(tensor.dtype, name)


def torch_dtype(name: str) -> torch.dtype:
    """Return the dtype that a schema record names."""
    return _BY_NAME[name]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return NumPy's dtype of the same name, one of `ml_dtypes` where NumPy has none."""
    return np.dtype(getattr(ml_dtypes, name, name))


def host_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's elements in C order on the host: a view of its memory where that is how they lie."""
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    name = _DTYPES[plain.dtype]
    if plain.numel() == 0:
        return np.empty(tuple(plain.shape), numpy_dtype(name))
    data: NDArray[Any] = plain.reshape(-1).view(torch.uint8).numpy()
    return data.view(numpy_dtype(name)).reshape(tuple(plain.shape))


def host_data(tensor: torch.Tensor) -> NDArray[np.uint8]:
    """Return a tensor's elements as bytes in C order on the host."""
    array = host_array(tensor)
    return array.reshape(-1).view(np.uint8) if array.size else np.empty(0, np.uint8)


def tensor_of(array: NDArray[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor with the elements of an array, in memory of its own."""
    data = torch.frombuffer(bytearray(np.ascontiguousarray(array).tobytes()), dtype=torch.uint8) if array.size else None
    if data is None:
        return torch.empty(array.shape, dtype=dtype, device=device)
    return data.view(dtype).reshape(array.shape).to(device)


def batch_dtype(leaf: BatchLeaf, name: str) -> str:
    """Return the name of a batch leaf's dtype.

    Raises:
        ZKDVError: It can't be committed; `name` names it in the message.
    """
    if isinstance(leaf, torch.Tensor):
        refuse_unreadable(leaf, name)
        return dtype_name(leaf.dtype, name)
    if isinstance(leaf, float):
        return "float64"
    if str(leaf.dtype) not in _BY_NAME or not leaf.dtype.isnative:
        raise ZKDVError(
            f"{name} has dtype {leaf.dtype.str}, which a transcript cannot hold; there are: {', '.join(_BY_NAME)}"
        )
    return str(leaf.dtype)


def array_of(leaf: BatchLeaf) -> NDArray[Any]:
    """Return a batch leaf's elements on the host, where they may lie in memory that is written to again."""
    return host_array(leaf) if isinstance(leaf, torch.Tensor) else np.asarray(leaf)


def tensor_like(leaf: BatchLeaf) -> torch.Tensor:
    """Return a batch leaf as the tensor that a program takes for it."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().contiguous()
    array = np.asarray(leaf)
    return tensor_of(array, torch_dtype(str(array.dtype)), torch.device("cpu"))


@dataclass(eq=False)
class HeldLeaf:
    """A state tensor as it was at one moment: two of them are the same object where nothing was written in between.

    Attributes:
        tensor: The tensor, which training goes on to update in place.
        version: Its counter of in-place writes at that moment.
        address: Where its memory was.
    """

    tensor: torch.Tensor
    version: int = field(init=False)
    address: int = field(init=False)
    _memory: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        self.version = version_of(self.tensor)
        self.address = self.tensor.data_ptr()

    def at_this_moment(self, tensor: torch.Tensor, *, uncounted: bool = False) -> "HeldLeaf":
        """Return what holds `tensor` now: this very object where it is the same one and nothing was written to it.

        With `uncounted` there may have been writes that Torch did not count, so it is another object in any case.
        """
        held = HeldLeaf(tensor)
        # This one keeps its memory alive, so that nothing else can have come to lie there.
        if held.address != self.address or not _same_form(tensor, self.tensor):
            return held
        if held.version == self.version and not uncounted:
            return self
        held._memory = self._memory
        return held

    def is_deleted(self) -> bool:
        """Return whether the tensor was written to since, so that its value then is gone."""
        return version_of(self.tensor) != self.version or self.tensor.data_ptr() != self.address

    def data(self) -> NDArray[np.uint8]:
        """Return the elements as bytes in C order on the host: of a contiguous CPU tensor the very memory."""
        if self._memory is not None:
            return self._memory
        data = host_data(self.tensor)
        if self.tensor.is_cpu and self.tensor.is_contiguous():
            # It goes on showing the tensor's memory, so later moments can use it too.
            self._memory = data
        return data


def _same_form(some: torch.Tensor, other: torch.Tensor) -> bool:
    return some.dtype == other.dtype and some.shape == other.shape and some.stride() == other.stride()


def layout_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the strides of a tensor that does not lie in C order; None where it does, or where elements overlap.

    Strides of dimensions of length 1 count: operators choose their kernels by them (channels last).
    """
    strides, expected = tensor.stride(), 1
    in_order = True
    for stride, size in zip(reversed(strides), reversed(tensor.shape), strict=True):
        in_order = in_order and stride == expected
        expected *= max(size, 1)
    if in_order:
        return None
    needed = 1
    for stride, size in sorted(zip(strides, tensor.shape, strict=True)):
        if size > 1 and stride < needed:
            return None
        needed = max(needed, stride * size)
    return strides
