"""The main job on real data: train under a proof, verify the transcript, then see a changed copy refused.

Scikit-learn's handwritten digits (1,797 images of 8 by 8 pixels) come with the package; nothing is downloaded.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import zkdv
import zkdv.torch

BATCH_SIZE = 32
TRAINING_IMAGES = 1_440
ACCURACY_GOAL = 0.95


def classifier() -> nn.Module:
    """A small convolutional network with batch norm: 10 logits for each image of shape (1, 8, 8)."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 10),
    )


def train(folder: Path, epochs: int, console: Console) -> float:
    """Train under a proof in `folder` and return the test accuracy."""
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    order = np.random.default_rng(0)
    shuffled = order.permutation(len(images))
    training, test = shuffled[:TRAINING_IMAGES], shuffled[TRAINING_IMAGES:]
    torch.manual_seed(0)
    model = classifier()

    config = zkdv.ZKDVConfig(name="digits", sampling_policy=zkdv.SamplingPolicy(update_check_probability=0.05))
    with zkdv.torch.ZKDV(folder, config) as proof:
        proof.start(rolling_window=4)
        model, optimizer = proof.prepare(model, torch.optim.AdamW(model.parameters(), lr=2e-3))

        @proof.attest
        def attested_step(model, optimizer, batch):
            images, labels = batch
            proof.backward(cross_entropy(proof.forward(model, images), labels))
            optimizer.step()
            optimizer.zero_grad()

        with Progress(console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("training", total=epochs * (TRAINING_IMAGES // BATCH_SIZE))
            for epoch in range(1, epochs + 1):
                for rows in order.permutation(training).reshape(-1, BATCH_SIZE):
                    batch = images[rows], labels[rows]
                    with proof.transaction(batch=batch):
                        loss = cross_entropy(model(batch[0]), batch[1])
                        proof.backward(loss)
                        optimizer.step()
                        optimizer.zero_grad()
                    progress.advance(task)
                console.print(f"  epoch {epoch:2d} of {epochs}: loss {float(loss):.4f}")
        console.print(
            "  closing; the first time, AOT Inductor takes a minute to compile the update (ZKDV_AOT=off leaves it out)"
        )
    model.eval()
    with torch.no_grad():
        predicted = model(images[test]).argmax(-1)
    return float((predicted == labels[test]).float().mean())


def verify(folder: Path) -> int:
    """Run `zkdv verify` on a folder, as its receiver would, and return the exit code."""
    return subprocess.run([sys.executable, "-m", "zkdv", "verify", str(folder)], check=False).returncode  # noqa: S603


def change_one_byte(folder: Path) -> int:
    """Flip one bit of a batch's digest in the middle of a transcript and return the byte's offset."""
    records = folder / "records.cborl"
    data = bytearray(records.read_bytes())
    offset = data.index(b"batch", len(data) // 2) + 20
    data[offset] ^= 1
    records.write_bytes(data)
    return offset


def main() -> int:
    """Run the demonstration; 0 where everything came out as it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--keep", type=Path, help="keep the proof folder here")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "proof"
        console.print("[bold]1. Train a digit classifier in Torch, each step in proof.transaction(...)[/bold]")
        accuracy = train(folder, arguments.epochs, console)
        console.print(f"  test accuracy {accuracy:.1%}")

        console.print("\n[bold]2. Anyone can verify what the run left behind: zkdv verify proof[/bold]")
        sys.stdout.flush()
        honest = verify(folder)

        copy = Path(scratch) / "changed"
        shutil.copytree(folder, copy)
        offset = change_one_byte(copy)
        console.print(
            f"\n[bold]3. A copy with one bit of a batch's digest changed (byte {offset:,}): zkdv verify changed[/bold]"
        )
        sys.stdout.flush()
        changed = verify(copy)

    if (honest, changed) != (0, 1):
        console.print(f"\nUnexpected: `zkdv verify` ended with {honest} and {changed}, not 0 and 1: please report it.")
        return 1
    console.print("\nThe transcript of the run passed, and the changed copy was refused.")
    expected = accuracy > ACCURACY_GOAL
    if not expected:
        console.print(f"The accuracy of {accuracy:.1%} is below {ACCURACY_GOAL:.0%}: train for more epochs (--epochs).")
    else:
        kept = f"; the transcript is in {folder}" if arguments.keep else " (--keep FOLDER keeps the transcript)"
        console.print(f"Next: README.md has the quick start, the code of this run is examples/torch/demo.py{kept}")
    return 0 if expected else 1


if __name__ == "__main__":
    sys.exit(main())
