"""Equinox, as in its tutorials, with a transcript that anyone can verify; what differs is marked with `zkdv`."""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import zkdv
import zkdv.jax
import zkdv.jax.contrib.equinox

PROOF = sys.argv[1] if len(sys.argv) > 1 else "proof"

images, labels = load_digits(return_X_y=True)
images, labels = jnp.asarray(images / 16, jnp.float32), jnp.asarray(labels, jnp.int32)
order = np.random.default_rng(0)
training, test = np.split(order.permutation(len(labels)), [1440])

model = eqx.nn.MLP(64, 10, width_size=64, depth=1, key=jax.random.key(0))
optimizer = optax.adam(5e-3)
opt_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))


def loss_fn(model, images, labels):
    logits = jax.vmap(model)(images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


with zkdv.jax.ZKDV(PROOF, zkdv.ZKDVConfig(name="digits")) as proof:  # zkdv
    proof.start(rolling_window=4)  # zkdv

    @zkdv.jax.contrib.equinox.filter_jit(proof)  # zkdv: @eqx.filter_jit
    def train_step(model, opt_state, images, labels):
        loss, grads = eqx.filter_value_and_grad(loss_fn)(model, images, labels)
        # zkdv: optimizer.update and eqx.apply_updates in one call
        model, opt_state = zkdv.jax.contrib.equinox.apply_gradients(model, opt_state, grads, optimizer)
        return model, opt_state, loss

    for _epoch in range(10):
        for batch in order.permutation(training).reshape(-1, 32):
            model, opt_state, loss = train_step(model, opt_state, images[batch], labels[batch])

accuracy = (jax.vmap(model)(images[test]).argmax(-1) == labels[test]).mean()
print(f"loss {loss:.3f}, test accuracy {accuracy:.1%}")
print(zkdv.verify(PROOF).verdict)
