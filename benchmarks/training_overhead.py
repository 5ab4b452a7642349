"""What `proof.jit` costs beside `jax.jit`: the same donated training step, in alternating blocks in one process.

For each model and batch size it prints the median ratio of block times with nothing sampled, and the ratio of total
times with updates sampled at 1 %, whose excess is the replay of sampled updates from the last snapshot. The sampled run
starts to count after its first check, for which the replay program is compiled, and goes on for a number of updates:
with few of them chance decides how many are checked.

    python benchmarks/training_overhead.py [--case NAME] [--blocks N] [--commit parameters|every] [--json]
"""

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

import zkdv
import zkdv.jax
from zkdv import _native

BLOCK_SECONDS = 0.5
SAMPLED = 0.01
CLASSES = 10


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


def measure(name: str, blocks: int, commit: str, updates: int) -> dict[str, Any]:
    """Measure one case and return its figures."""
    module, make_batches, rows = CASES[name]
    batches = make_batches(rows)
    params = jax.jit(module.init)(jax.random.key(0), next(batches)[0])["params"]
    figures: dict[str, Any] = {
        "case": name,
        "commit": commit,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "leaves": len(jax.tree.leaves(params)),
    }

    def fresh(proof: zkdv.jax.ZKDV | None = None) -> Any:
        return zkdv.jax.contrib.TrainState.create(
            proof=proof, apply_fn=module.apply, params=jax.tree.map(jnp.copy, params), tx=optax.adam(1e-3)
        )

    def run(step: Callable[..., Any], state: Any, count: int) -> Any:
        for _ in range(count):
            state, _ = step(state, *next(batches))
        return jax.block_until_ready(state)

    plain, plain_state = jax.jit(train_step, donate_argnums=0), fresh()
    started = time.perf_counter()
    plain_state = run(plain, plain_state, 1)
    first_plain = time.perf_counter() - started
    started = time.perf_counter()
    plain_state = run(plain, plain_state, 5)
    count = max(5, int(BLOCK_SECONDS / ((time.perf_counter() - started) / 5)))
    for label, probability in (("unsampled", 0.0), ("sampled", SAMPLED)):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", zkdv.ZKDVWarning)
            config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy(probability), commit=commit)
            with zkdv.jax.ZKDV(Path(folder) / "proof", config) as proof:
                proof.start(rolling_window=4)
                step, state = proof.jit(train_step, donate_argnums=0), fresh(proof)
                started = time.perf_counter()
                state = run(step, state, 1)
                figures[f"{label} first call, s more"] = time.perf_counter() - started - first_plain
                state = run(step, state, count)
                proof.join()
                while probability and not proof.jax_pipeline.counts.passed:
                    state = run(step, state, count)
                    proof.join()
                records = Path(folder) / "proof" / "records.cborl"
                before = proof.jax_pipeline.counts.updates, proof.jax_pipeline.counts.passed, records.stat().st_size
                rounds = max(blocks, -(-updates // count)) if probability else blocks
                ratios, totals = [], [0.0, 0.0]
                for _ in range(rounds):
                    started = time.perf_counter()
                    plain_state = run(plain, plain_state, count)
                    between = time.perf_counter()
                    state = run(step, state, count)
                    proof.join()
                    ended = time.perf_counter()
                    ratios.append((ended - between) / (between - started))
                    totals[0] += between - started
                    totals[1] += ended - between
                figures["step, ms"] = totals[0] / rounds / count * 1e3
                figures[f"{label} median ratio"] = statistics.median(ratios)
                figures[f"{label} total ratio"] = totals[1] / totals[0]
                made = proof.jax_pipeline.counts.updates - before[0]
                figures[f"{label} updates"] = made
                figures[f"{label} checks"] = proof.jax_pipeline.counts.passed - before[1]
                figures[f"{label} bytes an update"] = (records.stat().st_size - before[2]) / made
    return figures


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description="training under a proof against plain training")
    parser.add_argument("--case", choices=list(CASES), action="append", help="default: all")
    parser.add_argument("--blocks", type=int, default=15, help="alternating blocks of each case")
    parser.add_argument("--updates", type=int, default=1000, help="updates of each sampled case, at least")
    parser.add_argument("--commit", choices=["parameters", "every"], default="parameters")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        identity = Path(folder) / "identity.pem"
        _native.Identity.generate(str(identity))
        os.environ["ZKDV_IDENTITY"] = str(identity)
        for name in arguments.case or CASES:
            figures = measure(name, arguments.blocks, arguments.commit, arguments.updates)
            if arguments.json:
                print(json.dumps(figures), flush=True)
                continue
            print(
                f"{name:30} {figures['step, ms']:8.2f} ms a step   unsampled {figures['unsampled median ratio']:.2f}   "
                f"sampled {figures['sampled total ratio']:.2f} "
                f"({figures['sampled checks']} checks of {figures['sampled updates']} updates)   "
                f"first call +{figures['unsampled first call, s more']:.1f} s   "
                f"{figures['unsampled bytes an update']:.0f} bytes an update",
                flush=True,
            )


if __name__ == "__main__":
    main()
