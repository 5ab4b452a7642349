"""Leaves in the form in which they are committed, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

__all__ = ["CommittedLeaves", "committed_form"]


def committed_form(leaf: Any) -> Any:
    """Return a leaf as it is committed: a typed random key as its words, everything else as it is."""
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(leaf)
    return leaf


@dataclass(frozen=True)
class CommittedLeaves:
    """How the leaves of a program's inputs are committed.

    Attributes:
        abstract: Shape and dtype of each in its committed form.
        implementations: For each typed random key its implementation; None for other leaves.
    """

    abstract: tuple[jax.ShapeDtypeStruct, ...]
    implementations: tuple[Any | None, ...]

    @classmethod
    def of(cls, leaves: Sequence[Any], places: Sequence[NamedSharding | None] | None = None) -> "CommittedLeaves":
        """Describe leaves; only their shapes and dtypes matter.

        Args:
            leaves: The leaves.
            places: Where each lies on several devices; None where it lies on one, or anywhere.
        """
        forms = [jax.eval_shape(committed_form, leaf) for leaf in leaves]
        return cls(
            tuple(
                jax.ShapeDtypeStruct(form.shape, form.dtype, sharding=place)
                for form, place in zip(forms, places or [None] * len(forms), strict=True)
            ),
            tuple(
                jax.random.key_impl(leaf)
                if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
                else None
                for leaf in leaves
            ),
        )

    def restore(self, leaves: Sequence[Any]) -> list[Any]:
        """Return leaves in their committed form as what they were."""
        return [
            leaf if implementation is None else jax.random.wrap_key_data(leaf, impl=implementation)
            for leaf, implementation in zip(leaves, self.implementations, strict=True)
        ]
