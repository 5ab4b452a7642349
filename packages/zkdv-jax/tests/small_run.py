"""A small classifier trained under a proof, for the tests of this package."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import zkdv
import zkdv.jax
from zkdv import _native

MODEL = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)])
ROWS, WIDTH = 8, 5


def make_state(proof=None, tx=None):
    params = MODEL.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
    return zkdv.jax.contrib.TrainState.create(
        proof=proof, apply_fn=MODEL.apply, params=params, tx=tx or optax.adam(1e-2)
    )


def batches(count):
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield generator.normal(size=(ROWS, WIDTH)).astype(np.float32), generator.integers(0, 3, ROWS).astype(np.int32)


def train_step(state, images, labels):
    def loss(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def check_every(n, **options):
    return zkdv.ZKDVConfig(name="test", sampling_policy=zkdv.SamplingPolicy.DEBUGCheckEvery(n), **options)


def run(folder, config, updates=10, **options):
    with zkdv.jax.ZKDV(folder, config, **options) as proof:
        proof.start(rolling_window=4)
        step = proof.jit(train_step, donate_argnums=(0,))
        state = make_state(proof)
        for images, labels in batches(updates):
            state, _ = step(state, images, labels)
    return state


def verified(folder, **options):
    [report] = zkdv.verify(folder, **options).runs
    return report


def records(folder, kind=None):
    found = list(_native.RecordReader(str(folder / "records.cborl")))
    return [record for record in found if kind is None or record["type"] == kind]
