"""What the benchmarks of training share: the same steps without and with a proof, in alternating blocks."""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

from zkdv import _native
from zkdv.pipeline import Pipeline

BLOCK_SECONDS = 0.5
PROBABILITIES = {"unsampled": 0.0, "sampled": 0.01}
CLASSES = 10

Train = Callable[[int], object]
"""Makes a number of steps, and waits for them and for all that a proof owes for them."""


@contextlib.contextmanager
def own_identity() -> Iterator[None]:
    """Sign the runs of a benchmark with a key of its own."""
    with tempfile.TemporaryDirectory() as folder:
        identity = Path(folder) / "identity.pem"
        _native.Identity.generate(str(identity))
        os.environ["ZKDV_IDENTITY"] = str(identity)
        yield


def seconds(train: Train, count: int) -> float:
    """Return how long a number of steps takes."""
    started = time.perf_counter()
    train(count)
    return time.perf_counter() - started


def steps_of_a_block(train: Train) -> int:
    """Return how many steps fill a block."""
    return max(5, int(BLOCK_SECONDS / (seconds(train, 5) / 5)))


def warm_up(ours: Train, pipeline: Pipeline, *, sampled: bool, count: int) -> None:
    """Make steps under a proof until all is compiled: where updates are sampled, until one is checked."""
    ours(count)
    while sampled and not pipeline.counts.passed:
        ours(count)


def alternate(plain: Train, ours: Train, *, count: int, blocks: int) -> dict[str, float]:
    """Measure both trainings in turn, in so many blocks of so many steps."""
    times = [(seconds(plain, count), seconds(ours, count)) for _ in range(blocks)]
    totals = [sum(column) for column in zip(*times, strict=True)]
    return {
        "step, ms": totals[0] / blocks / count * 1e3,
        "median ratio": statistics.median(mine / theirs for theirs, mine in times),
        "total ratio": totals[1] / totals[0],
    }


def compare(
    plain: Train, ours: Train, pipeline: Pipeline, *, sampled: bool, count: int, blocks: int, updates: int
) -> dict[str, float]:
    """Measure the ratio of both trainings.

    Where updates are sampled, what is measured starts after the first check, for which the replay program is compiled.

    Args:
        plain: The training without a proof.
        ours: The training under the proof.
        pipeline: The proof's.
        sampled: Whether updates are sampled.
        count: Steps in a block.
        blocks: Blocks of each, at least.
        updates: Updates of a sampled training, at least: with few of them chance decides how many are checked.
    """
    warm_up(ours, pipeline, sampled=sampled, count=count)
    records = pipeline.core.path / "records.cborl"
    made, passed, size = pipeline.counts.updates, pipeline.counts.passed, records.stat().st_size
    rounds = max(blocks, -(-updates // count)) if sampled else blocks
    figures = alternate(plain, ours, count=count, blocks=rounds)
    made = pipeline.counts.updates - made
    return figures | {
        "updates": made,
        "checks": pipeline.counts.passed - passed,
        "bytes an update": (records.stat().st_size - size) / made,
    }


def run(
    description: str, cases: Collection[str], measure: Callable[[str, argparse.Namespace], dict[str, Any]], first: str
) -> None:
    """Measure the cases that the command line chooses, and print their figures.

    Args:
        description: What the benchmark measures.
        cases: Names of its cases.
        measure: Takes a case and the arguments `blocks`, `updates` and `commit`, and returns its figures: those of
            `compare` and `first` for each of `PROBABILITIES`, behind its name.
        first: What the first step is called.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--case", choices=list(cases), action="append", help="default: all")
    parser.add_argument("--blocks", type=int, default=15, help="alternating blocks of each case")
    parser.add_argument("--updates", type=int, default=1000, help="updates of each sampled case, at least")
    parser.add_argument("--commit", choices=["parameters", "every"], default="parameters")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    arguments = parser.parse_args()
    with own_identity():
        for name in arguments.case or cases:
            figures = {"case": name, "commit": arguments.commit} | measure(name, arguments)
            if arguments.json:
                print(json.dumps(figures), flush=True)
                continue
            print(
                f"{name:30} {figures['unsampled step, ms']:8.2f} ms a step   "
                f"unsampled {figures['unsampled median ratio']:.2f}   "
                f"sampled {figures['sampled total ratio']:.2f} "
                f"({figures['sampled checks']} checks of {figures['sampled updates']} updates)   "
                f"{first} {figures[f'unsampled {first}, s more']:+.1f} s   "
                f"{figures['unsampled bytes an update']:.0f} bytes an update",
                flush=True,
            )
