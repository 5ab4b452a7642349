"""The JAX frontend of ZKDV: `proof.jit` for `jax.jit`, and a training run leaves a verifiable transcript."""

from zkdv.jax import contrib
from zkdv.jax._proof import ZKDV

__all__ = ["ZKDV", "contrib"]
