"""What every reader of a tensor file gives."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zkdv.errors import ZKDVError

__all__ = ["StoredTensor", "Tensors"]


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of a file.

    Attributes:
        dtype: Name of its dtype as a schema record has it; where there is no such dtype, the format's own name for it.
        shape: Its shape.
        file: The file that holds it, for messages.
        read_bytes: Gives its elements as little-endian bytes in C order, any shape, any dtype.
    """

    dtype: str
    shape: tuple[int, ...]
    file: str
    read_bytes: Callable[[], NDArray[Any]] = field(repr=False, compare=False)

    def elements(self) -> NDArray[np.void]:
        """The elements as opaque values of the dtype's size, in the tensor's shape: read anew at every call.

        Raises:
            ZKDVError: The file cannot be read (any more).
        """
        try:
            data = np.ascontiguousarray(self.read_bytes()).reshape(-1).view(np.uint8)
        except OSError as error:
            raise ZKDVError(f"{self.file}: {error.strerror or error}") from error
        except MemoryError:
            raise ZKDVError(f"{self.file}: a tensor of shape {list(self.shape)} does not fit into memory") from None
        size = prod(self.shape)
        itemsize, rest = divmod(data.size, size) if size else (1, data.size)
        if rest or not itemsize:
            raise ZKDVError(f"{self.file}: {data.size} bytes are no tensor of shape {list(self.shape)}")
        elements: NDArray[np.void] = data.view(f"V{itemsize}").reshape(self.shape)
        return elements


Tensors = Mapping[str, StoredTensor]
"""The tensors of a file by name; the parts of a nested name are joined by a dot."""
