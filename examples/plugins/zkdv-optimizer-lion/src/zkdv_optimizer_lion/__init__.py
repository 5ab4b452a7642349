"""Lion for Torch, in runs that ZKDV proves: `from zkdv_optimizer_lion.lion import Lion`."""

from zkdv.hooks import Declarations, hookimpl


@hookimpl
def zkdv_optimizers() -> Declarations:
    """The class by its full name, and the object that says how its steps are lowered."""
    return {"zkdv_optimizer_lion.lion.Lion": "zkdv_optimizer_lion.lion:FUNCTIONAL"}
