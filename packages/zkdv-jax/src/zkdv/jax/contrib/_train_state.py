"""Flax's `TrainState`, with an update that a proof can see."""

import dataclasses
from collections.abc import Callable
from typing import Any, Self

import jax.numpy as jnp
import optax
from flax import struct
from flax.training import train_state

from zkdv import overlap
from zkdv.errors import ZKDVError
from zkdv.jax._overlap import UntracedPolicy
from zkdv.jax._proof import ZKDV
from zkdv.jax._transition import mark

__all__ = ["TrainState"]

API = "TrainState.apply_gradients"


class TrainState(train_state.TrainState):  # type: ignore[misc]  # flax ships no complete types
    """A `flax.training.train_state.TrainState` whose `apply_gradients` declares the update of a proof.

    Its update is the ordinary Optax one. Under plain `jax.jit` it does the same and declares nothing. Subclasses may
    add fields; every field that is no static one is state: it is committed with the optimizer state, and a new value
    goes through `apply_gradients(grads=…, field=…)`.

    Attributes:
        zkdv_overlap: Overlap policy of the update; default `zkdv.overlap.UNCHECKED`. It is read on the host before each
            call and is no part of the traced program: `state.replace(zkdv_overlap=...)` never compiles anew.
        zkdv_proof: The proof that the state is trained under; under another one it is refused. Its folder is kept, not
            the proof. None for a state of no proof, which any may train.
    """

    # By keyword only, so that a subclass may add fields without a default, as one of Flax's may.
    zkdv_overlap: overlap.Policy | UntracedPolicy = struct.field(
        pytree_node=False, default=UntracedPolicy(overlap.UNCHECKED), kw_only=True
    )

    zkdv_proof: ZKDV | str | None = struct.field(pytree_node=False, default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Keep the policy out of what traces and caches compare, and of a proof its folder alone."""
        if isinstance(self.zkdv_proof, ZKDV):
            object.__setattr__(self, "zkdv_proof", self.zkdv_proof.location)
        if not isinstance(self.zkdv_overlap, UntracedPolicy):
            object.__setattr__(self, "zkdv_overlap", UntracedPolicy(self.zkdv_overlap))

    @classmethod
    def create(
        cls,
        *,
        apply_fn: Callable[..., Any],
        params: Any,
        tx: optax.GradientTransformation,
        proof: ZKDV | None = None,
        zkdv_overlap: overlap.Policy = overlap.UNCHECKED,
        **extra: Any,
    ) -> Self:
        """Create a state before its first update.

        Args:
            apply_fn: The model's function, usually `model.apply`.
            params: The parameters, a pytree of arrays.
            tx: The optimizer.
            proof: The proof under which the state is trained.
            zkdv_overlap: Overlap policy of its updates.
            **extra: Fields of a subclass.

        Raises:
            TypeError: `proof` is no `zkdv.jax.ZKDV`.
        """
        if proof is not None and not isinstance(proof, ZKDV):
            raise TypeError(f"proof is {proof!r} ({type(proof).__name__}); it is a zkdv.jax.ZKDV")
        # An int32 array, since a Python int makes the first call's types differ from those of all others.
        return cls(
            step=jnp.zeros((), jnp.int32),
            apply_fn=apply_fn,
            params=params,
            tx=tx,
            opt_state=tx.init(params),
            zkdv_overlap=UntracedPolicy(zkdv_overlap),
            zkdv_proof=proof,
            **extra,
        )

    def apply_gradients(self, *, grads: Any, **kwargs: Any) -> Self:
        """Return the state after one update, and declare it.

        Args:
            grads: Gradients, a pytree like `params`.
            **kwargs: New values of other fields.

        Raises:
            ZKDVError: A new value has another structure, shape or dtype than the old one.
        """
        fields = self._other_state()
        unknown = set(kwargs) - set(fields)
        if unknown:
            raise ZKDVError(f"{API}: {min(unknown)} is no field of {type(self).__name__} that an update changes")
        updates, opt_state = self.tx.update(grads, self.opt_state, self.params)
        params = optax.apply_updates(self.params, updates)
        before = {"opt_state": self.opt_state} | fields
        after = {"opt_state": opt_state} | fields | {"step": self.step + 1} | kwargs
        params, after = mark(
            api=API, batch=None, parameters=(self.params, params), optimizer=(before, after), deltas=updates
        )
        state: Self = self.replace(params=params, **after)
        return state

    def _other_state(self) -> dict[str, Any]:
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata.get("pytree_node", True) and field.name not in {"params", "opt_state"}
        }
