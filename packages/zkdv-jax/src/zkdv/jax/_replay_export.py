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
        exported = export.export(jax.jit(replay, out_shardings=out_shardings))(*abstract_leaves)
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


def _without_locations(module_bytes: bytes, *, on_mesh: bool) -> tuple[bytes, str]:
    """A serialized module without source locations, and its text; on a mesh it holds a dialect of shardings too."""
    with ir.Context() as context:
        stablehlo.register_dialect(context)
        sdy.register_dialect(context)
        module = stablehlo.deserialize_portable_artifact(context, module_bytes)
        passmanager.PassManager.parse(STRIP_LOCATIONS).run(module.operation)
        # The version that jax.export itself writes.
        version = stablehlo.get_version_from_compatibility_requirement(
            stablehlo.StablehloCompatibilityRequirement.WEEK_4
        )
        text = str(module.operation.get_asm(enable_debug_info=False))
        return stablehlo.serialize_portable_artifact(module, version, allow_other_dialects=on_mesh), text
