"""Exported programs as text: written where a program is sealed, read and executed where one is audited.

`torch.export.load` unpickles parts of what it reads, so that it may run whatever a stranger has put there. The text
says the same in lines that anyone can read, and executing it calls operators of ATen and arithmetic on numbers, and
nothing else.

    zkdv-graph 1
    input arg0_1 {"dtype": "float32", "shape": [16, 5], "device": "cpu"}
    constant c0 {"dtype": "float32", "shape": [2], "device": "cpu", "data": "AACAPwAAAEA="}
    t = aten.t.default [{"node": "arg0_1"}] {}
    return [{"node": "t"}]
"""

import base64
import json
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import fx

from zkdv.errors import ZKDVError
from zkdv.torch._framework import is_operator
from zkdv.torch._leaves import dtype_name, host_data, numpy_dtype, tensor_of, torch_dtype

__all__ = ["GraphInput", "GraphProgram", "graph_text", "read_graph"]

HEADER: Final = "zkdv-graph 1"
NAMESPACE: Final = "aten"

REFUSED_OPERATORS: Final = frozenset({"from_file"})
"""Operators of ATen that reach beyond tensors: this one maps a file."""

_NUMBER_OPERATORS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        f"operator.{name}": getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "abs"),
            *("eq", "ne", "lt", "le", "gt", "ge", "and_", "or_", "not_", "getitem"),
        )
    },
    **{
        f"torch.{name}": getattr(torch, name)
        for name in ("sym_float", "sym_int", "sym_max", "sym_min", "sym_not", "sym_ite", "sym_sqrt")
        if hasattr(torch, name)
    },
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt", "exp", "log", "pow")},
}
_NUMBER_NAMES: Final = {function: name for name, function in _NUMBER_OPERATORS.items()}
_KINDS: Final[Mapping[str, type]] = {
    "dtype": torch.dtype,
    "layout": torch.layout,
    "memory_format": torch.memory_format,
}
_NAMED: Final[Mapping[str, Mapping[str, Any]]] = {
    kind: {str(value).removeprefix("torch."): value for value in vars(torch).values() if isinstance(value, cls)}
    for kind, cls in _KINDS.items()
}
_LINE: Final = re.compile(r"(\w+) = ([\w.]+) (\[.*\]) (\{.*\})")
_DECLARATION: Final = re.compile(r"(input|constant) (\w+) (\{.*\})")


@dataclass(frozen=True)
class GraphInput:
    """An argument of a program.

    Attributes:
        name: Its name in the graph.
        dtype: Name of its dtype.
        shape: Its shape.
        device: Its device.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str


def graph_text(program: torch.export.ExportedProgram) -> str | None:
    """Write an exported program as text.

    Returns:
        The text; None where the program holds what the text has no words for: control flow, operators of others than
        ATen, or arguments that are changed in place.
    """
    signature = program.graph_signature
    constants = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    if len(signature.user_outputs) != len(signature.output_specs):
        return None
    try:
        lines = [_line(node, program, constants) for node in program.graph.nodes]
    except _WordlessError:
        return None
    return "\n".join([HEADER, *lines, ""])


class _WordlessError(Exception):
    """The text has no words for something."""


def _line(node: fx.Node, program: torch.export.ExportedProgram, constants: Mapping[str, str]) -> str:
    match node.op:
        case "placeholder":
            if node.name not in constants:
                return f"input {node.name} {_json(_described(node.meta['val'], node.name))}"
            tensor = {**program.state_dict, **program.constants}[constants[node.name]]
            if not isinstance(tensor, torch.Tensor):
                raise _WordlessError
            data = base64.b64encode(host_data(tensor).tobytes()).decode()
            return f"constant {node.name} {_json({**_described(tensor, node.name), 'data': data})}"
        case "call_function":
            arguments, named = _json(_value(list(node.args))), _json(_value(dict(node.kwargs)))
            return f"{node.name} = {_target(node.target)} {arguments} {named}"
        case "output":
            results = node.args[0]
            return f"return {_json(_value(list(results) if isinstance(results, list | tuple) else [results]))}"
        case _:
            raise _WordlessError


def _described(tensor: Any, name: str) -> dict[str, Any]:
    if not isinstance(tensor, torch.Tensor) or not all(isinstance(size, int) for size in tensor.shape):
        raise _WordlessError
    try:
        dtype = dtype_name(tensor.dtype, name)
    except ZKDVError as error:
        raise _WordlessError from error
    return {"dtype": dtype, "shape": list(tensor.shape), "device": str(tensor.device)}


def _target(target: Any) -> str:
    if is_operator(target, NAMESPACE):
        return str(target)
    if (name := _NUMBER_NAMES.get(target)) is not None:
        return name
    raise _WordlessError


def _value(value: Any) -> Any:
    """Return an argument as JSON has it."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case fx.Node():
            return {"node": value.name}
        case complex():
            return {"complex": [value.real, value.imag]}
        case list() | tuple():
            return [_value(item) for item in value]
        case torch.device():
            return {"device": str(value)}
        case dict():
            return {name: _value(item) for name, item in value.items()}
        case _:
            for kind, cls in _KINDS.items():
                if isinstance(value, cls):
                    return {kind: str(value).removeprefix("torch.")}
            raise _WordlessError


def _json(value: Any) -> str:
    return json.dumps(value)


# Reading.


@dataclass(frozen=True)
class _Step:
    name: str
    function: Callable[..., Any]
    arguments: Any
    named: Any
    # What nobody needs after it.
    spent: tuple[str, ...]


@dataclass(frozen=True)
class GraphProgram:
    """A program that was read from text.

    Attributes:
        inputs: Its arguments, in order.
    """

    inputs: tuple[GraphInput, ...]
    _constants: Mapping[str, torch.Tensor]
    _steps: Sequence[_Step]
    _results: Any

    def run(self, *leaves: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the results for arguments with the shapes, dtypes and devices of the inputs."""
        held: dict[str, Any] = {given.name: leaf for given, leaf in zip(self.inputs, leaves, strict=True)}
        held |= self._constants
        # As in training, and as the serialized program runs: some operators keep what backward needs only then.
        with torch.enable_grad():
            for step in self._steps:
                held[step.name] = step.function(*_filled(step.arguments, held), **_filled(step.named, held))
                for name in step.spent:
                    del held[name]
            results: Sequence[torch.Tensor] = _filled(self._results, held)
        return results


def read_graph(text: str) -> GraphProgram:
    """Read a program from its text.

    Raises:
        ZKDVError: It is no such text, or calls what no program may.
    """
    header, *lines = text.splitlines() or [""]
    if header != HEADER:
        raise ZKDVError(
            "the program's text is for reading alone: it holds control flow, or operators of others than ATen, and an "
            "audit executes neither"
        )
    inputs: list[GraphInput] = []
    constants: dict[str, torch.Tensor] = {}
    calls: list[tuple[str, str, Any, Any]] = []
    results: Any = None
    try:
        for line in lines:
            if found := _DECLARATION.fullmatch(line):
                said = json.loads(found[3])
                given = GraphInput(found[2], said["dtype"], tuple(said["shape"]), said["device"])
                if found[1] == "input":
                    inputs.append(given)
                else:
                    constants[given.name] = _constant(given, said["data"])
            elif found := _LINE.fullmatch(line):
                calls.append((found[1], found[2], json.loads(found[3]), json.loads(found[4])))
            elif line.startswith("return "):
                results = json.loads(line.removeprefix("return "))
            else:
                raise ZKDVError(f"the program's text has a line that means nothing: {line[:100]!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise ZKDVError(f"the program's text can't be read: {error}") from error
    return GraphProgram(tuple(inputs), constants, _steps(calls, results), results)


def _steps(calls: Sequence[tuple[str, str, Any, Any]], results: Any) -> list[_Step]:
    kept = set(_names(results))
    last: dict[str, int] = {}
    for position, (_, _, arguments, named) in enumerate(calls):
        last |= dict.fromkeys((*_names(arguments), *_names(named)), position)
    spent: dict[int, list[str]] = {}
    for name, position in last.items():
        if name not in kept:
            spent.setdefault(position, []).append(name)
    return [
        _Step(name, _function(target), arguments, named, tuple(spent.get(position, ())))
        for position, (name, target, arguments, named) in enumerate(calls)
    ]


def _function(target: str) -> Callable[..., Any]:
    known = _NUMBER_OPERATORS.get(target)
    if known is not None:
        return known
    namespace, _, rest = target.partition(".")
    name, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, name, None) if namespace == NAMESPACE and name not in REFUSED_OPERATORS else None
    function: Callable[..., Any] | None = getattr(packet, overload, None) if overload else None
    if function is None or not is_operator(function, NAMESPACE):
        raise ZKDVError(f"the program calls {target}, which is no operator of ATen that an audit executes")
    return function


def _constant(given: GraphInput, data: str) -> torch.Tensor:
    array = np.frombuffer(base64.b64decode(data, validate=True), numpy_dtype(given.dtype)).reshape(given.shape)
    return tensor_of(array, torch_dtype(given.dtype), torch.device(given.device))


def _names(value: Any) -> list[str]:
    """Return the names of the nodes in an argument."""
    if isinstance(value, list):
        return [name for item in value for name in _names(item)]
    if isinstance(value, dict):
        if set(value) == {"node"}:
            return [value["node"]]
        return [name for item in value.values() for name in _names(item)]
    return []


def _filled(value: Any, held: Mapping[str, Any]) -> Any:
    """Return an argument as the operator takes it."""
    if isinstance(value, list):
        return [_filled(item, held) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((kind, said),) = value.items()
        if kind == "node":
            return held[said]
        if kind == "complex":
            return complex(*said)
        if kind == "device" and isinstance(said, str):
            return torch.device(said)
        if kind in _NAMED and isinstance(said, str):
            return _NAMED[kind][said]
    return {name: _filled(item, held) for name, item in value.items()}
