"""What `proof.jit` costs beside `jax.jit`: the same donated training step, in alternating blocks in one process.

For each model and batch size it prints the median ratio of block times with nothing sampled, and the ratio of total
times with updates sampled at 1 %, whose excess is the replay of sampled updates from the last snapshot. The sampled run
starts to count after its first check, for which the replay program is compiled, and goes on for a number of updates:
with few of them chance decides how many are checked.

    python benchmarks/training_overhead.py [--case NAME] [--blocks N] [--commit parameters|every] [--json]
"""

import argparse
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from _alternating import CLASSES, PROBABILITIES, Train, compare, run, seconds, steps_of_a_block

import zkdv
import zkdv.jax


class MLP(nn.Module):
    """Two hidden layers of one width."""

    width: int

    @nn.compact
    def __call__(self, inputs: Any) -> Any:
        """Return logits, shape (rows, 10), for inputs of shape (rows, 784)."""
        for _ in range(2):
            inputs = nn.relu(nn.Dense(self.width)(inputs))
        return nn.Dense(CLASSES)(inputs)


class Transformer(nn.Module):
    """A small decoder without a causal mask; only the amount of arithmetic matters here."""

    width: int = 256
    layers: int = 5
    vocabulary: int = 256

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        """Return logits, shape (rows, tokens, vocabulary), for tokens of shape (rows, tokens)."""
        x = nn.Embed(self.vocabulary, self.width)(tokens)
        for _ in range(self.layers):
            x = x + nn.MultiHeadDotProductAttention(num_heads=8)(nn.LayerNorm()(x))
            x = x + nn.Dense(self.width)(nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x))))
        return nn.Dense(self.vocabulary)(x)


def image_batches(rows: int) -> Iterator[tuple[Any, Any]]:
    """Yield the same random images and labels for ever."""
    generator = np.random.default_rng(0)
    images = generator.normal(size=(rows, 784)).astype(np.float32)
    labels = generator.integers(0, CLASSES, rows).astype(np.int32)
    while True:
        yield images, labels


def token_batches(rows: int) -> Iterator[tuple[Any, Any]]:
    """Yield the same random tokens and targets for ever."""
    generator = np.random.default_rng(0)
    tokens = generator.integers(0, 256, (2, rows, 128)).astype(np.int32)
    while True:
        yield tokens[0], tokens[1]


Case = tuple[nn.Module, Callable[[int], Iterator[tuple[Any, Any]]], int]
CASES: dict[str, Case] = {
    "MLP 1 M, batch 32": (MLP(690), image_batches, 32),
    "MLP 1 M, batch 512": (MLP(690), image_batches, 512),
    "MLP 10 M, batch 32": (MLP(2_800), image_batches, 32),
    "MLP 10 M, batch 512": (MLP(2_800), image_batches, 512),
    "transformer 4 M, batch 8x128": (Transformer(), token_batches, 8),
}


def train_step(state: Any, inputs: Any, targets: Any) -> tuple[Any, Any]:
    """One step of Adam on cross entropy."""

    def loss(params: Any) -> Any:
        logits = state.apply_fn({"params": params}, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, targets).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one case and return its figures."""
    module, make_batches, rows = CASES[name]
    batches = make_batches(rows)
    params = jax.jit(module.init)(jax.random.key(0), next(batches)[0])["params"]
    leaves = jax.tree.leaves(params)
    figures: dict[str, Any] = {"parameters": sum(leaf.size for leaf in leaves), "leaves": len(leaves)}

    def training(step: Callable[..., Any], proof: zkdv.jax.ZKDV | None) -> Train:
        state = zkdv.jax.contrib.TrainState.create(
            proof=proof, apply_fn=module.apply, params=jax.tree.map(jnp.copy, params), tx=optax.adam(1e-3)
        )

        def train(count: int) -> None:
            nonlocal state
            for _ in range(count):
                state, _ = step(state, *next(batches))
            jax.block_until_ready(state)
            if proof is not None:
                proof.join()

        return train

    plain = training(jax.jit(train_step, donate_argnums=0), None)
    first_plain = seconds(plain, 1)
    count = steps_of_a_block(plain)
    for label, probability in PROBABILITIES.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", zkdv.ZKDVWarning)
            config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy(probability), commit=arguments.commit)
            with zkdv.jax.ZKDV(Path(folder) / "proof", config) as proof:
                proof.start(rolling_window=4)
                ours = training(proof.jit(train_step, donate_argnums=0), proof)
                figures[f"{label} first call, s more"] = seconds(ours, 1) - first_plain
                compared = compare(
                    plain,
                    ours,
                    proof.jax_pipeline,
                    sampled=probability > 0,
                    count=count,
                    blocks=arguments.blocks,
                    updates=arguments.updates,
                )
            figures |= {f"{label} {figure}": value for figure, value in compared.items()}
    return figures


if __name__ == "__main__":
    run("training under a proof against plain training", CASES, measure, "first call")
