"""Flax NNX, as in its tutorials, with a transcript that anyone can verify; what differs is marked with `zkdv`."""

import sys

import numpy as np
import optax
from flax import nnx
from sklearn.datasets import load_digits

import zkdv
import zkdv.jax
import zkdv.jax.contrib.nnx

PROOF = sys.argv[1] if len(sys.argv) > 1 else "proof"


class Classifier(nnx.Module):
    def __init__(self, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, 64, rngs=rngs)
        self.norm = nnx.BatchNorm(64, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.output = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, images):
        return self.output(self.dropout(nnx.relu(self.norm(self.hidden(images)))))


def loss_fn(model, images, labels):
    return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()


images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int32)
order = np.random.default_rng(0)
training, test = np.split(order.permutation(len(labels)), [1440])

model = Classifier(rngs=nnx.Rngs(0))
optimizer = zkdv.jax.contrib.nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)  # zkdv: nnx.Optimizer

with zkdv.jax.ZKDV(PROOF, zkdv.ZKDVConfig(name="digits")) as proof:  # zkdv
    proof.start(rolling_window=4)  # zkdv

    @zkdv.jax.contrib.nnx.jit(proof)  # zkdv: @nnx.jit
    def train_step(model, optimizer, images, labels):
        loss, grads = nnx.value_and_grad(loss_fn)(model, images, labels)
        optimizer.update(model, grads)
        return loss

    for _epoch in range(10):
        for batch in order.permutation(training).reshape(-1, 32):
            loss = train_step(model, optimizer, images[batch], labels[batch])

model.eval()
accuracy = (model(images[test]).argmax(-1) == labels[test]).mean()
print(f"loss {loss:.3f}, test accuracy {accuracy:.1%}")
print(zkdv.verify(PROOF).verdict)
