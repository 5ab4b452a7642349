"""Functional forms of optimizers, by which their steps are lowered into exported programs.

Of `torch.optim`, Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, ASGD, Muon, NAdam, RAdam, RMSprop, Rprop and SGD
have one, which computes bit for bit what the class does on the CPU. `proof.register_functional_optimizer` adds one for
a run, and a plugin for an environment (docs/guides/plugins.md).
"""

from zkdv.torch.optimizers._bound import BoundOptimizer, bind
from zkdv.torch.optimizers._functional import FunctionalOptimizer, Group, State, Step
from zkdv.torch.optimizers._lookup import UnsupportedOptimizerError

__all__ = ["BoundOptimizer", "FunctionalOptimizer", "Group", "State", "Step", "UnsupportedOptimizerError", "bind"]
