"""Sealed programs: an update as bytes that any process can load and run again.

A sealed program is what `torch.export` serializes, without the sample inputs (the run's own parameters and batch) and
without what the nodes say of the code that they came from: it holds no data of the run, and equal programs have equal
bytes, whatever file or folder they came from.
"""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch import fx

from zkdv.errors import ZKDVError
from zkdv.torch._graph_text import graph_text

__all__ = ["FORMAT", "SealedUpdate", "load", "seal"]

FORMAT: Final = "torch-export"
EXTENSION: Final = "pt2"
_KEPT_METADATA = frozenset({"val", "tensor_meta", "unbacked_bindings"})


@dataclass(frozen=True)
class SealedUpdate:
    """An update's program, exported: takes parameter, optimizer, batch and hyperparameter leaves, gives the new state.

    Attributes:
        blob: The serialized program, as `load` takes it.
        text: Its graph in words, UTF-8: what an audit executes, where `_graph_text` has words for all of it.
        platforms: Kinds of the devices that its tensors are on.
        convention: How arguments and results are ordered.
    """

    blob: bytes
    text: bytes
    platforms: tuple[str, ...]
    convention: str

    def record(self) -> dict[str, Any]:
        """Return what the program record says beside the digests."""
        return {
            "role": "replay",
            "format": FORMAT,
            "extension": EXTENSION,
            "platforms": list(self.platforms),
            "convention": self.convention,
        }

    @cached_property
    def run(self) -> Callable[..., Sequence[torch.Tensor]]:
        """The sealed bytes, loaded as an auditor would."""
        return load(self.blob)


def seal(graph: fx.GraphModule, arguments: Sequence[torch.Tensor], convention: str) -> SealedUpdate:
    """Export and serialize a traced update.

    Args:
        graph: The graph, over flat tensors.
        arguments: Tensors with the shape, dtype and device of every input.
        convention: How arguments and results are ordered, in words.

    Raises:
        ZKDVError: The graph can't be exported; the message says why.
    """
    try:
        exported = torch.export.export(graph, tuple(arguments), strict=False)
    except Exception as error:  # Torch raises many kinds here.
        raise ZKDVError(f"the attested function can't be exported for replay: {error}") from error
    exported.example_inputs = None
    for module in exported.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                node.meta = {key: value for key, value in node.meta.items() if key in _KEPT_METADATA}
    buffer = io.BytesIO()
    torch.export.save(exported, buffer)
    text = graph_text(exported) or exported.graph_module.print_readable(print_output=False)
    platforms = tuple(sorted({argument.device.type for argument in arguments}))
    return SealedUpdate(buffer.getvalue(), text.encode(), platforms, convention)


def load(blob: bytes) -> Callable[..., Sequence[torch.Tensor]]:
    """Read a sealed program.

    Args:
        blob: `SealedUpdate.blob`. Torch reads it with its own reader: read one that a stranger made in a process of its
            own, with no more rights than it needs.

    Returns:
        A function of flat tensors, in C order, that returns the tensors of the state after the update.

    Raises:
        ZKDVError: The bytes are no program that this version of Torch reads.
    """
    try:
        module = torch.export.load(io.BytesIO(blob)).module(check_guards=False)
    except Exception as error:  # The bytes come from a file; the reader raises whatever they lead it to.
        raise ZKDVError(
            f"{len(blob)} bytes are no exported program that torch {torch.__version__} reads ({error}); read it with "
            "the version that its environment record names"
        ) from error

    def run(*leaves: torch.Tensor) -> Sequence[torch.Tensor]:
        # As in training: operators keep what their backward needs (an LSTM its workspace) only where gradients are on.
        with torch.enable_grad():
            results: Sequence[torch.Tensor] = module(*leaves)
        return results

    return run
