"""The main job on real data: train under a proof, verify the transcript, then see a changed copy refused.

Scikit-learn's handwritten digits (1,797 images of 8 by 8 pixels) come with the package; nothing is downloaded.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import Progress
from sklearn.datasets import load_digits

import zkdv
import zkdv.jax

BATCH_SIZE = 32
TRAINING_IMAGES = 1_440
ACCURACY_GOAL = 0.95


class Classifier(nn.Module):
    """A small convolutional network."""

    @nn.compact
    def __call__(self, images):
        """Return logits, shape (images, 10), for images of shape (images, 8, 8, 1)."""
        x = nn.relu(nn.Conv(16, (3, 3))(images))
        x = nn.relu(nn.Conv(32, (3, 3), strides=(2, 2))(x))
        x = nn.relu(nn.Dense(64)(x.reshape(x.shape[0], -1)))
        return nn.Dense(10)(x)


def train(folder: Path, epochs: int, console: Console) -> float:
    """Train under a proof in `folder` and return the test accuracy."""
    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[..., None]
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(0)
    shuffled = order.permutation(len(images))
    training, test = shuffled[:TRAINING_IMAGES], shuffled[TRAINING_IMAGES:]
    model = Classifier()
    params = model.init(jax.random.key(0), jnp.zeros((1, 8, 8, 1)))["params"]

    config = zkdv.ZKDVConfig(name="digits", sampling_policy=zkdv.SamplingPolicy(update_check_probability=0.05))
    with zkdv.jax.ZKDV(folder, config) as proof:
        proof.start(rolling_window=4)
        state = zkdv.jax.contrib.TrainState.create(
            proof=proof, apply_fn=model.apply, params=params, tx=optax.adam(2e-3)
        )

        @proof.jit(donate_argnums=(0,))
        def train_step(state, images, labels):
            def loss(params):
                logits = state.apply_fn({"params": params}, images)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            value, grads = jax.value_and_grad(loss)(state.params)
            return state.apply_gradients(grads=grads), value

        with Progress(console=console, disable=not console.is_terminal) as progress:
            task = progress.add_task("training", total=epochs * (TRAINING_IMAGES // BATCH_SIZE))
            for epoch in range(1, epochs + 1):
                for batch in order.permutation(training).reshape(-1, BATCH_SIZE):
                    state, value = train_step(state, images[batch], labels[batch])
                    progress.advance(task)
                console.print(f"  epoch {epoch:2d} of {epochs}: loss {float(value):.4f}")
        predicted = model.apply({"params": state.params}, images[test]).argmax(-1)
    return float((predicted == labels[test]).mean())


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
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--keep", type=Path, help="keep the proof folder here")
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)

    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch) / "proof"
        console.print("[bold]1. Train a digit classifier with @proof.jit in place of @jax.jit[/bold]")
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
        console.print(f"Next: README.md has the quick start, the code of this run is examples/jax/demo.py{kept}")
    return 0 if expected else 1


if __name__ == "__main__":
    sys.exit(main())
