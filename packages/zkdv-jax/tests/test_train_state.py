"""Subclasses of `TrainState`, as training scripts write them."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from small_run import ROWS, WIDTH, batches, check_every, verified

import zkdv.jax


class Normalised(nn.Module):
    """Has statistics of its batches, and dropout."""

    @nn.compact
    def __call__(self, x, *, train):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.Dropout(0.3, deterministic=not train)(x))


class NormalisedState(zkdv.jax.contrib.TrainState):
    """Its fields have no defaults, as in Flax's own examples."""

    batch_stats: Any
    key: jax.Array


def test_a_subclass_carries_statistics_and_a_key_through_checked_updates(tmp_path):
    model = Normalised()
    variables = model.init(jax.random.key(0), jnp.zeros((ROWS, WIDTH)), train=False)

    def train_step(state, images, labels):
        key, dropout = jax.random.split(state.key)

        def loss(params):
            logits, changed = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                images,
                train=True,
                mutable=["batch_stats"],
                rngs={"dropout": dropout},
            )
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed["batch_stats"]

        (value, batch_stats), grads = jax.value_and_grad(loss, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads, batch_stats=batch_stats, key=key), value

    with zkdv.jax.ZKDV(tmp_path / "run", check_every(1)) as proof:
        proof.start(rolling_window=4)
        state = NormalisedState.create(
            proof=proof,
            apply_fn=model.apply,
            params=variables["params"],
            tx=optax.adam(1e-2),
            batch_stats=variables["batch_stats"],
            key=jax.random.key(1),
        )
        step = proof.jit(train_step, donate_argnums=(0,))
        for images, labels in batches(5):
            state, _ = step(state, images, labels)

    report = verified(tmp_path / "run")
    assert (report.verdict, report.sampled, report.checks_passed, report.edits) == ("passed", 5, 5, ())
