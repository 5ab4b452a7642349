"""What the Torch frontend declares to the plugin registry; imports no framework."""

from zkdv.hooks import Declarations, hookimpl


@hookimpl
def zkdv_optimizers() -> Declarations:
    """The functional forms of the optimizers in `torch.optim`, by the name of the class."""
    return {}
