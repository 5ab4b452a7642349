"""Declare each update by hand, with a `Transaction`: no training state, no Flax, plain functions of arrays.

Trains a small network on handwritten digits, which come with scikit-learn, and leaves a transcript that anyone can
verify.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import zkdv
import zkdv.jax

PROOF = sys.argv[1] if len(sys.argv) > 1 else "proof"
HIDDEN, CLASSES, BATCH_SIZE, EPOCHS = 64, 10, 32, 10

images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
order = np.random.default_rng(0)
training, test = np.split(order.permutation(len(labels)), [1440])

first, second = jax.random.split(jax.random.key(0))
params = {
    "hidden": {"w": jax.random.normal(first, (64, HIDDEN)) / 8, "b": jnp.zeros(HIDDEN)},
    "output": {"w": jax.random.normal(second, (HIDDEN, CLASSES)) / 8, "b": jnp.zeros(CLASSES)},
}
optimizer = optax.adamw(5e-3)
opt_state = optimizer.init(params)


def logits_of(params, images):
    hidden = jax.nn.relu(images @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["output"]["w"] + params["output"]["b"]


def loss_of(params, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits_of(params, images), labels).mean()


sampling = zkdv.SamplingPolicy(update_check_probability=0.05)
with zkdv.jax.ZKDV(PROOF, zkdv.ZKDVConfig(name="digits", sampling_policy=sampling)) as proof:
    proof.start(rolling_window=4)

    # The parameters may be donated. The optimizer state may not: a check may need it as it was before the update.
    @proof.jit(donate_argnames=("params",))
    def train_step(params, opt_state, images, labels):
        transaction = zkdv.jax.Transaction(
            batch=(images, labels), params=params, opt_state=opt_state, overlap=zkdv.overlap.ALWAYS
        )
        loss, grads = jax.value_and_grad(loss_of)(params, images, labels)
        deltas, opt_state = optimizer.update(grads, opt_state, params)
        params = optax.apply_updates(params, deltas)
        params, opt_state = transaction.update(deltas=deltas, params=params, opt_state=opt_state)
        return params, opt_state, loss

    for _epoch in range(EPOCHS):
        for batch in order.permutation(training).reshape(-1, BATCH_SIZE):
            params, opt_state, loss = train_step(params, opt_state, images[batch], labels[batch])

accuracy = (logits_of(params, images[test]).argmax(-1) == labels[test]).mean()
print(f"loss {loss:.3f}, test accuracy {accuracy:.1%}")
report = zkdv.verify(PROOF)
print(f"{report.runs[0].updates} updates, {report.runs[0].checks_passed} of them executed again and equal")
print(report.verdict)
