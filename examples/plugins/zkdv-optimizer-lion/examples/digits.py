"""Train one classifier of handwritten digits with Lion twice, in Torch and in JAX, and verify both transcripts."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from sklearn.datasets import load_digits
from zkdv_optimizer_lion.lion import Lion

import zkdv
import zkdv.jax
import zkdv.torch

LEARNING_RATE, BETAS, WEIGHT_DECAY = 1e-3, (0.9, 0.99), 0.01
FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else "proofs")

random = np.random.default_rng(0)
images, labels = load_digits(return_X_y=True)
images, labels = (images / 16).astype(np.float32), labels.astype(np.int64)
training, test = np.split(random.permutation(len(labels)), [1440])
batches = [batch for _ in range(5) for batch in random.permutation(training).reshape(-1, 32)]
weights = {
    "hidden": random.normal(0, 0.1, (64, 64)).astype(np.float32),
    "output": random.normal(0, 0.1, (64, 10)).astype(np.float32),
}


def accuracy(parameters):
    """Share of the test images that the network with these weights classifies rightly."""
    logits = np.maximum(images[test] @ parameters["hidden"], 0) @ parameters["output"]
    return (logits.argmax(-1) == labels[test]).mean()


def train_torch(folder):
    """Train with the plugin's optimizer; return the weights."""

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.hidden = torch.nn.Parameter(torch.tensor(weights["hidden"]))
            self.output = torch.nn.Parameter(torch.tensor(weights["output"]))

        def forward(self, images):
            return torch.relu(images @ self.hidden) @ self.output

    with zkdv.torch.ZKDV(folder, zkdv.ZKDVConfig(name="digits-torch")) as proof:
        proof.start(rolling_window=4)
        network = Network()
        optimizer = Lion(network.parameters(), lr=LEARNING_RATE, betas=BETAS, weight_decay=WEIGHT_DECAY)
        network, optimizer = proof.prepare(network, optimizer)

        @proof.attest
        def update(network, optimizer, batch):
            images, labels = batch
            proof.backward(torch.nn.functional.cross_entropy(proof.forward(network, images), labels))
            optimizer.step()
            optimizer.zero_grad()

        for chosen in batches:
            batch = torch.from_numpy(images[chosen]), torch.from_numpy(labels[chosen])
            with proof.transaction(batch=batch):
                update(network, optimizer, batch)
    return {name: parameter.detach().numpy() for name, parameter in network.named_parameters()}


def train_jax(folder):
    """Train with `optax.lion`, which needs no plugin; return the weights."""

    def network(parameters, images):
        return jax.nn.relu(images @ parameters["hidden"]) @ parameters["output"]

    with zkdv.jax.ZKDV(folder, zkdv.ZKDVConfig(name="digits-jax")) as proof:
        proof.start(rolling_window=4)
        state = zkdv.jax.contrib.TrainState.create(
            proof=proof,
            apply_fn=network,
            params=jax.tree.map(jnp.asarray, weights),
            tx=optax.lion(LEARNING_RATE, *BETAS, weight_decay=WEIGHT_DECAY),
        )

        @proof.jit(donate_argnums=(0,))
        def update(state, images, labels):
            def loss(parameters):
                logits = state.apply_fn(parameters, images)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            return state.apply_gradients(grads=jax.grad(loss)(state.params))

        for chosen in batches:
            state = update(state, images[chosen], labels[chosen].astype(np.int32))
    return jax.tree.map(np.asarray, state.params)


for name, train in (("torch", train_torch), ("jax", train_jax)):
    trained = train(FOLDER / name)
    report = zkdv.verify(FOLDER / name)
    print(f"{name}: test accuracy {accuracy(trained):.1%}, {len(batches)} updates, transcript {report.verdict}")
    if report.verdict != "passed":
        sys.exit(1)
