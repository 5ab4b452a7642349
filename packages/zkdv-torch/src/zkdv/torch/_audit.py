"""What an audit runs of this frontend: the text of sealed programs, executed in a process of the auditor's own.

The serialized form is not read: Torch unpickles parts of it, which may run anything.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from zkdv.auditing.frontend import LoadedProgram, SealedFiles
from zkdv.environment import installed_versions
from zkdv.errors import ZKDVError
from zkdv.schema import TREES, Schema
from zkdv.torch._graph_text import GraphProgram, read_graph
from zkdv.torch._leaves import host_array, tensor_of, torch_dtype
from zkdv.torch._program_export import FORMAT
from zkdv.torch._proof import FRAMEWORK_DISTRIBUTIONS, RESULT_FLAGS, device_kinds

__all__ = ["TorchAudit"]


class TorchAudit:
    """Loads the programs that `zkdv.torch` has sealed."""

    flags: Sequence[str] = RESULT_FLAGS

    @property
    def framework(self) -> Mapping[str, str]:
        """Versions of the distributions that numbers depend on."""
        return installed_versions(FRAMEWORK_DISTRIBUTIONS)

    def prepare(self, devices: Sequence[str]) -> Sequence[str]:
        """Return kinds of the devices that are here; there is nothing to make ready."""
        del devices
        return device_kinds()

    def load(self, files: SealedFiles, schema: Schema) -> LoadedProgram:
        """Load a program from its text."""
        if files.format != FORMAT:
            raise ZKDVError(f"the program is {files.format!r}, and this frontend executes {FORMAT!r}")
        if files.text is None:
            raise ZKDVError(
                "the program's text is not there, and the serialized program is not read: Torch unpickles parts of it"
            )
        return _TorchProgram(read_graph(files.text.decode(errors="replace")), schema)


class _TorchProgram(LoadedProgram):
    """A program that takes parameter, optimizer and batch leaves, and gives the new state leaves."""

    source = "text"

    def __init__(self, graph: GraphProgram, schema: Schema) -> None:
        self._graph = graph
        state = [(leaf.dtype, leaf.shape) for tree in TREES for leaf in schema.tree(tree)]
        batch = [(leaf.dtype, leaf.shape) for leaf in schema.batch.leaves]
        if [(given.dtype, given.shape) for given in graph.inputs] != [*state, *batch]:
            raise ZKDVError("the program takes other arrays than the schema has")
        self._leaves = len(state)

    def place(self, state: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return state leaves as tensors on the devices of the program."""
        return self._tensors(state, 0)

    def run(self, state: Sequence[Any], batch: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return the state leaves after one update."""
        after = self._graph.run(*state, *self._tensors(batch, self._leaves))
        before = self._graph.inputs[: self._leaves]
        if [(leaf.dtype, tuple(leaf.shape)) for leaf in after] != [
            (torch_dtype(given.dtype), given.shape) for given in before
        ]:
            raise ZKDVError("the program gives other arrays than the schema has")
        return [leaf.contiguous() for leaf in after]

    def read(self, leaf: Any) -> NDArray[Any]:
        """Return a leaf as an array on the host."""
        return host_array(leaf)

    def _tensors(self, arrays: Sequence[NDArray[Any]], start: int) -> list[torch.Tensor]:
        return [
            tensor_of(array, torch_dtype(given.dtype), torch.device(given.device))
            for array, given in zip(arrays, self._graph.inputs[start:], strict=False)
        ]
