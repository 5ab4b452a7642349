"""The JAX frontend of ZKDV: `proof.jit` for `jax.jit`, and a training run leaves a verifiable transcript."""

from zkdv.compatibility import require_core

require_core("zkdv-jax")

# Only now: an older core may lack what these import.
from zkdv.jax import contrib  # noqa: E402
from zkdv.jax._index import index  # noqa: E402
from zkdv.jax._proof import ZKDV  # noqa: E402
from zkdv.jax._transaction import Transaction  # noqa: E402

__all__ = ["ZKDV", "Transaction", "contrib", "index"]
