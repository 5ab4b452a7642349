"""Functional forms of optimizers, by which their steps are lowered into exported programs."""

from zkdv.torch.optimizers._functional import FunctionalOptimizer, FunctionalStep

__all__ = ["FunctionalOptimizer", "FunctionalStep"]
