"""What a transaction costs beside plain Torch: the same training step, in alternating blocks in one process.

For each model and batch size it prints the median ratio of block times with nothing sampled, and the ratio of total
times with updates sampled at 1 %, whose excess is the replay of sampled updates from the last snapshot.

    python benchmarks/training_overhead_torch.py [--case NAME] [--blocks N] [--commit parameters|every] [--json]
"""

import argparse
import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _alternating import CLASSES, PROBABILITIES, Train, compare, run, seconds, steps_of_a_block
from torch import nn
from torch.nn.functional import cross_entropy

import zkdv
import zkdv.torch


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


def plain_training(model: nn.Module, batches: Batches) -> Train:
    """Return what makes a number of plain steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train(count: int) -> None:
        for _ in range(count):
            inputs, targets = next(batches)
            cross_entropy(model(inputs), targets).backward()
            optimizer.step()
            optimizer.zero_grad()

    return train


def attested_training(proof: zkdv.torch.ZKDV, model: nn.Module, batches: Batches) -> Train:
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


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one case and return its figures."""
    make_model, make_batches, rows = CASES[name]
    batches = make_batches(rows)
    torch.manual_seed(0)
    model = make_model()
    figures: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "leaves": len(list(model.parameters())),
        "threads": torch.get_num_threads(),
    }
    plain = plain_training(model, batches)
    first_plain = seconds(plain, 1)
    count = steps_of_a_block(plain)
    for label, probability in PROBABILITIES.items():
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", zkdv.ZKDVWarning)
            config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy(probability), commit=arguments.commit)
            with zkdv.torch.ZKDV(Path(folder) / "proof", config) as proof:
                proof.start(rolling_window=4)
                ours = attested_training(proof, copy.deepcopy(model), batches)
                figures[f"{label} first transaction, s more"] = seconds(ours, 1) - first_plain
                compared = compare(
                    plain,
                    ours,
                    proof.torch_pipeline,
                    sampled=probability > 0,
                    count=count,
                    blocks=arguments.blocks,
                    updates=arguments.updates,
                )
            figures |= {f"{label} {figure}": value for figure, value in compared.items()}
    return figures


if __name__ == "__main__":
    run("training in transactions against plain training", CASES, measure, "first transaction")
