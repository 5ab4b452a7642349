"""The Torch frontend of ZKDV: a training loop in `proof.transaction(...)` leaves a verifiable transcript."""

from zkdv.compatibility import require_core

require_core("zkdv-torch")

# Only now: an older core may lack what these import.
from zkdv.torch import optimizers  # noqa: E402
from zkdv.torch._proof import ZKDV  # noqa: E402
from zkdv.torch._transaction import Transaction  # noqa: E402

__all__ = ["ZKDV", "Transaction", "optimizers"]
