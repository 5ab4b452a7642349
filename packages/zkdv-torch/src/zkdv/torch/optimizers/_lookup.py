"""Which functional optimizer an optimizer class has: the one registered for it, or the one that a plugin declares."""

from collections.abc import Mapping

import torch

from zkdv.errors import ZKDVError
from zkdv.plugins import PluginError, registry
from zkdv.torch.optimizers._functional import FunctionalOptimizer

__all__ = ["HOOK", "UnsupportedOptimizerError", "class_name", "find_functional"]

HOOK = "zkdv_optimizers"

_REASONS: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.LBFGS: "it calls the loss again within a step, as often as the loss demands",
    torch.optim.SparseAdam: "its gradients are sparse, of another size at every step",
}


class UnsupportedOptimizerError(ZKDVError):
    """An optimizer whose step cannot be lowered; says why, and what to do."""


def class_name(optimizer_class: type) -> str:
    """The name that plugins declare a class by: module and qualified name, `torch.optim.adamw.AdamW`."""
    return f"{optimizer_class.__module__}.{optimizer_class.__qualname__}"


def find_functional(
    optimizer_class: type[torch.optim.Optimizer],
    registered: Mapping[type[torch.optim.Optimizer], FunctionalOptimizer],
) -> FunctionalOptimizer:
    """Find how a class is lowered. A subclass may step differently, so it does not take its parent's form.

    Args:
        optimizer_class: The optimizer's own class.
        registered: What the run registered; goes before what plugins declare.

    Returns:
        The functional optimizer.

    Raises:
        UnsupportedOptimizerError: There is none for exactly this class.
        PluginError: Two plugins declare one, or it cannot be loaded, or it is no `FunctionalOptimizer`.
    """
    if optimizer_class in registered:
        return registered[optimizer_class]
    name = class_name(optimizer_class)
    if name not in registry().names(HOOK):
        raise UnsupportedOptimizerError(_refusal(optimizer_class))
    functional = registry().resolve(HOOK, name)
    if not isinstance(functional, FunctionalOptimizer):
        declaration = registry().find(HOOK, name)
        raise PluginError(
            f"{declaration.distribution} declares {name!r} in {HOOK} as {declaration.target}, which is of type "
            f"{type(functional).__name__} and has to be a zkdv.torch.optimizers.FunctionalOptimizer; update or "
            "uninstall that distribution"
        )
    return functional


def _refusal(optimizer_class: type[torch.optim.Optimizer]) -> str:
    name = class_name(optimizer_class)
    reason = _REASONS.get(optimizer_class)
    if reason is None:
        known = registry().names(HOOK)
        parents = [class_name(parent) for parent in optimizer_class.__mro__[1:] if class_name(parent) in known]
        reason = (
            f"it is a subclass of {parents[0]} and may step differently"
            if parents
            else "neither this run nor a plugin says how"
        )
    return (
        f"the step of {name} cannot be lowered: {reason}; call proof.register_functional_optimizer("
        f"{optimizer_class.__name__}, functional) before prepare(), install a plugin that declares {name!r}, or train "
        "with another optimizer (`zkdv plugins` lists those that have a functional form)"
    )
