"""Which form of the commit call a platform takes.

The commit call gives digests and probes of a state's leaves inside the training program, so that they describe the
arrays that training used. Every form takes the same operands and gives the same results; `Commit` says which.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

import jax

from zkdv.errors import ZKDVError
from zkdv.jax._commitment_plan import CommitmentPlan
from zkdv.plugins import Registry, registry

HOOK: Final = "zkdv_lowerings"
OPERATION: Final = "jax/commit/"
"""What the names of lowerings of the commit call start with; a platform's name, or another form's, follows."""

PORTABLE: Final = "portable"
VARIABLE: Final = "ZKDV_LOWERING"
"""Environment variable that names the form to take, whatever the platform."""

Commit = Callable[
    [CommitmentPlan, jax.Array, Sequence[jax.Array], jax.Array],
    tuple[jax.Array, jax.Array, jax.Array],
]
"""`commit(plan, due, leaves, signs) -> (digests, probes32, probes64)`, traceable under `jax.jit`.

Operands:
    plan: The `L` leaves, parameters first.
    due: Shape `(1,)`, uint32: bit 0 where the parameters are due, bit 1 where the optimizer's leaves are.
    leaves: The leaves, in plan order.
    signs: Shape `(plan.sign_words,)`, uint32: `zkdv.jax._commitment_plan.sign_words`.

Results:
    digests: Shape `(2 * L, 8)`, uint32: the digests of the leaves, then those of the bytes of their probes, each as
        little-endian words; zeros in the rows of leaves that are not due.
    probes32: Shape `(plan.probes32_size,)`, float32: the float32 probes in plan order; zeros where not due.
    probes64: Shape `(plan.probes64_size,)`, float64: the same of float64 probes.
"""


def commit_lowering(
    platform: str, *, environment: Mapping[str, str] = os.environ, plugins: Registry | None = None
) -> Commit:
    """The form of the commit call for a platform.

    Args:
        platform: Name of the platform as JAX gives it: `cpu`, `cuda`, `rocm`, `tpu`, or a plugin's.
        environment: Where `ZKDV_LOWERING` may name another form; default: that of the process.
        plugins: Where forms are declared; default: the installed plugins.

    Returns:
        The form declared for the platform, else the portable one.

    Raises:
        ZKDVError: If `ZKDV_LOWERING` names a form that nobody declares; the message lists those that there are.
        zkdv.plugins.PluginError: If two distributions declare the form, or it can't be loaded.
    """
    plugins = registry() if plugins is None else plugins
    known = [name.removeprefix(OPERATION) for name in plugins.names(HOOK) if name.startswith(OPERATION)]
    form = environment.get(VARIABLE) or (platform if platform in known else PORTABLE)
    if form not in known:
        raise ZKDVError(
            f"{VARIABLE}={form!r} names no form of the commitments; there are: {', '.join(known) or 'none'}. "
            f"Unset {VARIABLE} to take the one for {platform}, or install the plugin that declares it"
        )
    return cast("Commit", plugins.resolve(HOOK, OPERATION + form))
