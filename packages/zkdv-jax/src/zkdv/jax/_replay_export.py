"""Sealed programs: a function as bytes that any process can load and run again.

A sealed program is what `jax.export` serializes, without the source locations in it, and the text of its StableHLO:
serialized programs expire with JAX releases, while the text goes on saying what was computed. Equal programs have equal
bytes, whatever file or folder they came from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
from jax import export
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import sdy, stablehlo

from zkdv.errors import ZKDVError

STRIP_LOCATIONS: Final = "builtin.module(strip-debuginfo)"


@dataclass(frozen=True, slots=True)
class SealedProgram:
    """A program over flat lists of arrays.

    Attributes:
        blob: The serialized program, as `load` takes it.
        text: Its StableHLO text, UTF-8.
        platforms: The platforms that it was lowered for, as JAX names them.
    """

    blob: bytes
    text: bytes
    platforms: tuple[str, ...]

    def record(self, role: str, convention: str) -> dict[str, Any]:
        """Return what a program record says beside the digests.

        Args:
            role: What the program is for in the transcript.
            convention: Its inputs and results, in words.
        """
        return {
            "role": role,
            "format": "jax-export",
            "extension": "jaxexport",
            "platforms": list(self.platforms),
            "convention": convention,
        }


def seal(
    function: Callable[..., Any], abstract_leaves: Sequence[Any], purpose: str = "replay", out_shardings: Any = None
) -> SealedProgram:
    """Trace a function and serialize it, for the platform of the default backend.

    Args:
        function: Takes arrays as positional arguments, and returns arrays in any pytree: the sealed program returns its
            leaves as a list, so that no pytree type has to be known where it is loaded.
        abstract_leaves: Shape and dtype of each argument, for one as `jax.ShapeDtypeStruct`; with a sharding where it
            lies on several devices. The program then runs on as many.
        purpose: What it is sealed for, for the message.
        out_shardings: How the results lie, a list of shardings and None; None leaves all to JAX.

    Raises:
        ZKDVError: If the function can't be exported; the message says why.
    """

    def replay(*leaves: Any) -> list[Any]:
        return jax.tree.leaves(function(*leaves))

    try:
        # The text alone then says which argument is which.
        jitted = jax.jit(replay, out_shardings=out_shardings, keep_unused=True)
        exported = export.export(jitted)(*abstract_leaves)
    except (NotImplementedError, ValueError) as error:
        raise ZKDVError(f"the program can't be exported for {purpose}: {error}") from error
    module, text = _without_locations(exported.mlir_module_serialized, on_mesh=exported.nr_devices > 1)
    blob = bytes(replace(exported, mlir_module_serialized=module).serialize())
    return SealedProgram(blob, text.encode(), tuple(exported.platforms))


def load(blob: bytes) -> export.Exported:
    """Read a sealed program.

    JAX reads it with native code, which a crafted program can crash: read one that a stranger made in a process of its
    own, with no more rights than it needs.

    Args:
        blob: `SealedProgram.blob`.

    Returns:
        The program: `call(*leaves)` runs it, also inside `jax.jit`, and returns its results as a list.

    Raises:
        ZKDVError: If the bytes are no program that this version of JAX reads.
    """
    try:
        return export.deserialize(bytearray(blob))
    except Exception as error:  # The bytes come from a file; the reader raises whatever they lead it to.
        raise ZKDVError(
            f"{len(blob)} bytes are no exported program that jax {jax.__version__} reads ({error}); read it with the "
            "version that its environment record names"
        ) from error


def load_text(text: bytes, abstract_leaves: Sequence[Any], platforms: Sequence[str]) -> export.Exported:
    """Make a program of its text, which outlives the serialized form.

    What surrounds the module in an exported program (calling convention, pytrees) is that of this version of JAX: it is
    taken from a program that is exported here for the same arguments and results.

    Args:
        text: `SealedProgram.text`, of a program for one device.
        abstract_leaves: Shape and dtype of each argument.
        platforms: The platforms that it was lowered for.

    Returns:
        The program, as `load` does.

    Raises:
        ZKDVError: The text is no such program; the message says why.
    """

    def surroundings(function: Callable[..., Any]) -> export.Exported:
        return export.export(jax.jit(function, keep_unused=True), platforms=tuple(platforms))(*abstract_leaves)

    try:
        with ir.Context() as context:
            stablehlo.register_dialect(context)
            # Reading any module makes the other dialects known that the text is written in.
            stablehlo.deserialize_portable_artifact(context, surroundings(_as_list).mlir_module_serialized)
            module = ir.Module.parse(text.decode())
            results = _results(module)
            serialized = stablehlo.serialize_portable_artifact(module, _portable_version())
        template = surroundings(lambda *_: [jax.numpy.zeros(shape, dtype) for shape, dtype in results])
        return replace(template, fun_name="replay", mlir_module_serialized=serialized)
    except Exception as error:  # The text comes from a file; the reader raises whatever it leads it to.
        raise ZKDVError(
            f"{len(text)} bytes are no text of a program that jax {jax.__version__} reads ({error})"
        ) from error


def _as_list(*leaves: Any) -> list[Any]:
    return list(leaves)


def _results(module: ir.Module) -> list[tuple[tuple[int, ...], Any]]:
    """Return shape and dtype of each result of a module's public function."""
    for operation in module.body.operations:
        if "sym_name" in operation.attributes and ir.StringAttr(operation.attributes["sym_name"]).value == "main":
            kind = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
            tensors = [ir.RankedTensorType(result) for result in kind.results]
            return [(tuple(tensor.shape), _DTYPES[str(tensor.element_type)]) for tensor in tensors]
    raise ValueError("it has no function `main`")


_DTYPES: Final = {
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bf16": "bfloat16",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
    **{
        f"f8{kind}": f"float8_{kind.lower()}"
        for kind in ("E3M4", "E4M3", "E4M3FN", "E4M3B11FNUZ", "E4M3FNUZ", "E5M2", "E5M2FNUZ", "E8M0FNU")
    },
}


def _portable_version() -> str:
    """Return the version of the portable form that `jax.export` itself writes."""
    version: str = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_4
    )
    return version


def _without_locations(module_bytes: bytes, *, on_mesh: bool) -> tuple[bytes, str]:
    """A serialized module without source locations, and its text; on a mesh it holds a dialect of shardings too."""
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        sdy.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, module_bytes)
        passmanager.PassManager.parse(STRIP_LOCATIONS).run(module.operation)
        text = str(module.operation.get_asm(enable_debug_info=False))
        return stablehlo.serialize_portable_artifact(module, _portable_version(), allow_other_dialects=on_mesh), text
