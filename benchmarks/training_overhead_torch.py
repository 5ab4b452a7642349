"""What a transaction costs beside plain Torch: the same training step, in alternating blocks in one process.

For each model and batch size it prints the median ratio of block times with nothing sampled, and the ratio of total
times with updates sampled at 1 %, whose excess is the replay of sampled updates from the last snapshot.

    python benchmarks/training_overhead_torch.py [--case NAME] [--blocks N] [--commit parameters|every] [--json]
"""

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import zkdv
import zkdv.torch
from zkdv import _native

BLOCK_SECONDS = 0.5
SAMPLED = 0.01
CLASSES = 10


def mlp(width: int) -> nn.Module:
    """Two hidden layers of one width, from 784 inputs to 10 classes."""
    return nn.Sequential(
        nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


class Transformer(nn.Module):
    """A small decoder without a causal mask; only the amount of arithmetic matters here."""

    def __init__(self, width: int = 256, layers: int = 5, vocabulary: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        options: Any = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, 8, 4 * width, **options) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (rows * tokens, vocabulary), for tokens of shape (rows, tokens)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x).flatten(0, 1)


Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def image_batches(rows: int) -> Batches:
    """Yield the same random images and labels for ever."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(rows, 784, generator=generator)
    labels = torch.randint(CLASSES, (rows,), generator=generator)
    while True:
        yield images, labels


def token_batches(rows: int) -> Batches:
    """Yield the same random tokens and targets for ever."""
    drawn = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, rows, 128)))
    while True:
        yield drawn[0], drawn[1].flatten()


Case = tuple[Callable[[], nn.Module], Callable[[int], Batches], int]
CASES: dict[str, Case] = {
    "MLP 1 M, batch 32": (lambda: mlp(690), image_batches, 32),
    "MLP 1 M, batch 512": (lambda: mlp(690), image_batches, 512),
    "MLP 10 M, batch 32": (lambda: mlp(2_800), image_batches, 32),
    "MLP 10 M, batch 512": (lambda: mlp(2_800), image_batches, 512),
    "transformer 4 M, batch 8x128": (Transformer, token_batches, 8),
}


def plain_training(model: nn.Module, batches: Batches) -> Callable[[int], None]:
    """Return what makes a number of plain steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(count: int) -> None:
        for _ in range(count):
            inputs, targets = next(batches)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def attested_training(proof: zkdv.torch.ZKDV, model: nn.Module, batches: Batches) -> Callable[[int], None]:
    """Return what makes a number of the same steps in transactions, and waits for all that is owed for them."""
    model, optimizer = proof.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3))

    # The package is compiled in a process of its own, which would only add noise here.
    @proof.attest(aot=False)
    def attested(model: Any, optimizer: Any, batch: Any) -> None:
        proof.backward(cross_entropy(proof.forward(model, batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad()

    def train(count: int) -> None:
        for _ in range(count):
            inputs, targets = next(batches)
            with proof.transaction(batch=(inputs, targets)):
                proof.backward(cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
        proof.join()

    return train


def measure(name: str, blocks: int, commit: str, updates: int) -> dict[str, Any]:
    """Measure one case and return its figures."""
    make_model, make_batches, rows = CASES[name]
    batches = make_batches(rows)
    torch.manual_seed(0)
    plain = make_model()
    figures: dict[str, Any] = {
        "case": name,
        "commit": commit,
        "parameters": sum(parameter.numel() for parameter in plain.parameters()),
        "leaves": len(list(plain.parameters())),
        "threads": torch.get_num_threads(),
    }
    train_plainly = plain_training(plain, batches)
    first_plain = seconds(train_plainly, 1)
    count = max(5, int(BLOCK_SECONDS / (seconds(train_plainly, 5) / 5)))
    for label, probability in (("unsampled", 0.0), ("sampled", SAMPLED)):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", zkdv.ZKDVWarning)
            config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy(probability), commit=commit)
            with zkdv.torch.ZKDV(Path(folder) / "proof", config) as proof:
                proof.start(rolling_window=4)
                train = attested_training(proof, copy.deepcopy(plain), batches)
                figures[f"{label} first transaction, s more"] = seconds(train, 1) - first_plain
                train(count)
                while probability and not proof.torch_pipeline.counts.passed:
                    train(count)
                records = Path(folder) / "proof" / "records.cborl"
                before = proof.torch_pipeline.counts.updates, proof.torch_pipeline.counts.passed, records.stat().st_size
                rounds = max(blocks, -(-updates // count)) if probability else blocks
                times = [(seconds(train_plainly, count), seconds(train, count)) for _ in range(rounds)]
                made = proof.torch_pipeline.counts.updates - before[0]
                figures[f"{label} updates"] = made
                figures[f"{label} checks"] = proof.torch_pipeline.counts.passed - before[1]
                figures[f"{label} bytes an update"] = (records.stat().st_size - before[2]) / made
        totals = [sum(column) for column in zip(*times, strict=True)]
        figures["step, ms"] = totals[0] / rounds / count * 1e3
        figures[f"{label} median ratio"] = statistics.median(ours / theirs for theirs, ours in times)
        figures[f"{label} total ratio"] = totals[1] / totals[0]
    return figures


def seconds(train: Callable[[int], None], count: int) -> float:
    """Return how long a number of steps takes."""
    started = time.perf_counter()
    train(count)
    return time.perf_counter() - started


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
                f"first transaction +{figures['unsampled first transaction, s more']:.1f} s   "
                f"{figures['unsampled bytes an update']:.0f} bytes an update",
                flush=True,
            )


if __name__ == "__main__":
    main()
