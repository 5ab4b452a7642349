"""What an audit runs of this frontend: sealed programs, loaded and executed in a process of the auditor's own."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import jax
import numpy as np
from jax import export
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from zkdv.auditing.frontend import LoadedProgram, SealedFiles
from zkdv.dtypes import named_dtype
from zkdv.environment import installed_versions
from zkdv.errors import ZKDVError
from zkdv.jax import _replay_export
from zkdv.jax._proof import FRAMEWORK_DISTRIBUTIONS, RESULT_FLAGS
from zkdv.schema import TREES, Schema

__all__ = ["ALLOWED_CUSTOM_CALLS", "JAXAudit"]

DEVICES_LIMIT: Final = 256

ALLOWED_CUSTOM_CALLS: Final = frozenset(
    {
        "Sharding",
        "SPMDFullToShardShape",
        "SPMDShardToFullShape",
        "annotate_device_placement",
        "mhlo.topk",
        "mhlo.erf",
        "chlo.top_k",
        "cu_threefry2x32",
        "cu_threefry2x32_ffi",
    }
)
"""Targets of custom calls that compute what the text says; those of linear algebra (`lapack_…`) come beside them."""

_ALGEBRA = re.compile(r"(lapack|cusolver|cublas|hipsolver|hipblas)_\w+|Qr|ProductOfElementaryHouseholderReflectors")
_CUSTOM_CALL = re.compile(
    r"custom_call\s+@(?:\"((?:[^\"\\]|\\.)*)\"|([\w.$-]+))|call_target_name\s*=\s*\"((?:[^\"\\]|\\.)*)\""
)


class JAXAudit:
    """Loads the programs that `zkdv.jax` has sealed."""

    flags: Sequence[str] = RESULT_FLAGS

    @property
    def framework(self) -> Mapping[str, str]:
        """Versions of the distributions that numbers depend on."""
        return installed_versions(FRAMEWORK_DISTRIBUTIONS)

    def prepare(self, devices: Sequence[str]) -> Sequence[str]:
        """Turn 64-bit types on, which programs may hold, and make as many CPU devices as the run had."""
        jax.config.update("jax_enable_x64", val=True)
        if set(devices) == {"cpu"} and 1 < len(devices) <= DEVICES_LIMIT:
            jax.config.update("jax_num_cpu_devices", len(devices))
        return [device.device_kind for device in jax.local_devices()]

    def load(self, files: SealedFiles, schema: Schema) -> LoadedProgram:
        """Load a program: the serialized one where this version of JAX reads it, else its text."""
        if files.format != "jax-export":
            raise ZKDVError(f"the program is {files.format!r}, and this frontend executes 'jax-export'")
        notes: list[str] = []
        if files.blob is not None:
            try:
                exported = _replay_export.load(files.blob)
                _refuse_custom_calls(exported.mlir_module())
                return _JAXProgram(exported, schema, "program", notes)
            except _CustomCallError:
                raise
            except ZKDVError as error:
                if files.text is None:
                    raise
                notes.append(f"{error}; its text is executed in place of it")
        if files.text is None:
            raise ZKDVError("neither the program nor its text is there")
        text = files.text.decode(errors="replace")
        _refuse_custom_calls(text)
        if "sdy." in text:
            raise ZKDVError(
                "the program runs on several devices, and such programs are executed from their serialized form alone, "
                "with a version of JAX that reads it"
            )
        exported = _replay_export.load_text(files.text, _abstract_inputs(schema), files.platforms)
        return _JAXProgram(exported, schema, "text", notes)


class _CustomCallError(ZKDVError):
    """A program calls something that is no part of it."""


def _refuse_custom_calls(text: str) -> None:
    for found in _CUSTOM_CALL.finditer(text):
        target = next(group for group in found.groups() if group is not None)
        if target not in ALLOWED_CUSTOM_CALLS and not _ALGEBRA.fullmatch(target):
            raise _CustomCallError(
                f"the program makes the custom call {target!r}, which is not among those that are known to compute "
                "what a program says; it is not executed"
            )


def _abstract_inputs(schema: Schema) -> list[jax.ShapeDtypeStruct]:
    state = [jax.ShapeDtypeStruct(leaf.shape, named_dtype(leaf.dtype)) for tree in TREES for leaf in schema.tree(tree)]
    batch = [jax.ShapeDtypeStruct(leaf.shape, named_dtype(leaf.dtype)) for leaf in schema.batch.leaves]
    return [*state, *batch]


def _mesh(exported: export.Exported) -> Mesh:
    """Return a mesh of devices that are here in the form of the one that a program was sealed for.

    Raises:
        ZKDVError: There are fewer devices.
    """
    count, devices = exported.nr_devices, jax.devices()
    if len(devices) < count:
        raise ZKDVError(f"the program runs on {count} devices, and there are {len(devices)} here")
    form = next((leaf.sharding.mesh for leaf in exported.in_avals if leaf.sharding.mesh.axis_names), None)
    if form is None or form.size != count:
        raise ZKDVError(f"the program runs on {count} devices and names no mesh of them")
    return Mesh(np.array(devices[:count]).reshape(form.axis_sizes), form.axis_names, axis_types=form.axis_types)


class _JAXProgram(LoadedProgram):
    """A program that takes parameter, optimizer and batch leaves, and gives deltas and the new state leaves."""

    def __init__(self, exported: export.Exported, schema: Schema, source: str, notes: Sequence[str]) -> None:
        self._exported = exported
        self._parameters = len(schema.parameters)
        self.source, self.notes = source, notes
        inputs = [(leaf.shape, leaf.dtype) for leaf in exported.in_avals]
        expected = [(leaf.shape, leaf.dtype) for leaf in _abstract_inputs(schema)]
        results = [(leaf.shape, leaf.dtype) for leaf in exported.out_avals[self._parameters :]]
        if inputs != expected or results != expected[: len(expected) - len(schema.batch.leaves)]:
            raise ZKDVError("the program takes or gives other arrays than the schema has")

    @cached_property
    def _run(self) -> Callable[..., Any]:
        def zkdv_replay(*leaves: Any) -> list[Any]:
            # Without the deltas, as in training (see SealedReplay.run).
            return list(self._exported.call(*leaves)[self._parameters :])

        return jax.jit(zkdv_replay)

    @cached_property
    def _shardings(self) -> Sequence[Any]:
        """Where each input lies; None where the program runs on one device."""
        if self._exported.nr_devices == 1:
            return [None] * len(self._exported.in_avals)
        mesh = _mesh(self._exported)
        everywhere = NamedSharding(mesh, PartitionSpec())
        return [everywhere if place is None else place for place in self._exported.in_shardings_jax(mesh)]

    def _placed(self, arrays: Sequence[Any], places: Sequence[Any]) -> list[Any]:
        return [
            jax.numpy.asarray(array) if place is None else jax.device_put(array, place)
            for array, place in zip(arrays, places, strict=True)
        ]

    def place(self, state: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return state leaves as arrays of JAX."""
        return self._placed(state, self._shardings[: len(state)])

    def run(self, state: Sequence[Any], batch: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return the state leaves after one update."""
        results: list[Any] = self._run(
            *self._placed(state, self._shardings[: len(state)]), *self._placed(batch, self._shardings[len(state) :])
        )
        return results

    def read(self, leaf: Any) -> NDArray[Any]:
        """Return a leaf as an array on the host."""
        return np.asarray(leaf)
