"""Train a classifier of handwritten digits in JAX, with a transcript that anyone can verify."""

import sys

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import zkdv
import zkdv.jax

PROOF = sys.argv[1] if len(sys.argv) > 1 else "proof"

model = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(10)])
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
order = np.random.default_rng(0)
training, test = np.split(order.permutation(len(labels)), [1440])
params = model.init(jax.random.key(0), jnp.zeros((1, 64)))["params"]

with zkdv.jax.ZKDV(PROOF, zkdv.ZKDVConfig(name="digits")) as proof:
    proof.start(rolling_window=4)
    state = zkdv.jax.contrib.TrainState.create(proof=proof, apply_fn=model.apply, params=params, tx=optax.adam(1e-2))

    @proof.jit(donate_argnums=(0,))
    def train_step(state, images, labels):
        def loss(params):
            logits = state.apply_fn({"params": params}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    for _epoch in range(10):
        for batch in order.permutation(training).reshape(-1, 32):
            state, value = train_step(state, images[batch], labels[batch])

accuracy = (model.apply({"params": state.params}, images[test]).argmax(-1) == labels[test]).mean()
print(f"loss {value:.3f}, test accuracy {accuracy:.1%}")
print(zkdv.verify(PROOF).verdict)
