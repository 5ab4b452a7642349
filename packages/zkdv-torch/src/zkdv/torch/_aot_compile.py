"""Compile an exported update with AOT Inductor, in a process of its own: `python -m zkdv.torch._aot_compile IN OUT`.

A process, since the compiler changes global settings of Torch and would hold up training by the interpreter's lock.
"""

import os
import sys
from typing import Any

import torch
from torch.export import ExportedProgram

from zkdv.torch._framework import save_package

__all__ = ["compile_program"]

NICENESS = 10


def compile_program(source: str, target: str) -> None:
    """Write the AOT Inductor package of the exported program in `source` to `target`."""
    # Without this a package is not always equal to itself from call to call.
    torch.use_deterministic_algorithms(mode=True)
    program = _without_guarded_operators(torch.export.load(source))
    # The compiler wants examples; zeros say all that it may know of the run.
    program.example_inputs = (tuple(_zeros(node.meta["val"]) for node in _inputs(program)), {})
    save_package(program, target)


def _inputs(program: ExportedProgram) -> list[torch.fx.Node]:
    return [node for node in program.graph.nodes if node.op == "placeholder"]


def _zeros(value: Any) -> torch.Tensor:
    return torch.zeros(value.shape, dtype=value.dtype, device=value.device)


def _without_guarded_operators(program: ExportedProgram) -> ExportedProgram:
    """Replace operators that the compiler would take apart by the value of a number that is an input."""

    def lerp(start: torch.Tensor, end: torch.Tensor, weight: float) -> torch.Tensor:
        return start + (end - start) * weight

    replaced: ExportedProgram = program.run_decompositions({torch.ops.aten.lerp.Scalar: lerp})
    return replaced


if __name__ == "__main__":
    os.nice(NICENESS)
    compile_program(*sys.argv[1:])
