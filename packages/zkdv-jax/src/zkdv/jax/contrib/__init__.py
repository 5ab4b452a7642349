"""Training states that declare their update by themselves."""

from zkdv.jax.contrib._train_state import TrainState

__all__ = ["TrainState"]
