"""The commit call as one custom call into `zkdv._native`, for CPU: digests and probes in one pass over memory."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import jax
import numpy as np

from zkdv import _native
from zkdv.jax._commitment_plan import CommitmentPlan

TARGET: Final = "zkdv_commit"
"""Name of the custom call in programs."""


def commit(
    plan: CommitmentPlan, due: jax.Array, leaves: Sequence[jax.Array], signs: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Digests and probes of a state's leaves, as `zkdv.jax._lowerings.Commit` says."""
    plan.check_leaves(leaves)
    register()
    call = jax.ffi.ffi_call(
        TARGET,
        (
            jax.core.ShapedArray((2 * len(plan.leaves), 8), np.dtype(np.uint32)),
            jax.core.ShapedArray((plan.probes32_size,), np.dtype(np.float32)),
            jax.core.ShapedArray((plan.probes64_size,), np.dtype(np.float64)),
        ),
    )
    digests, probes32, probes64 = call(
        due, *leaves, signs, parameters=np.int64(plan.parameters), probe_ratio=np.float64(plan.probe_ratio)
    )
    return digests, probes32, probes64


@cache
def register() -> None:
    """Make the native handler known to XLA, once for the process."""
    handler: Any = _native.xla_ffi_handler()
    jax.ffi.register_ffi_target(TARGET, handler, platform="cpu")
