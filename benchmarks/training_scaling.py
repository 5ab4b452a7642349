"""How the cost of a proof grows: with parameters, leaves, words of a batch, and updates made.

Every point is the excess of `proof.jit` over `jax.jit` for one update of the same donated step, in alternating blocks
in one process with nothing sampled; a straight line is fitted to each series. `--plot` writes points and lines as SVG.

    python benchmarks/training_scaling.py [--series NAME] [--blocks N] [--plot FILE] [--json]
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import matplotlib as mpl
import numpy as np
import optax
from _alternating import own_identity
from matplotlib.figure import Figure

import zkdv
import zkdv.jax

# The lists of what is varied: the number on the horizontal axis, leaves of parameters, elements of a leaf, rows of a
# batch. A row has as many words as a handwritten digit of MNIST has pixels.
ROW_WORDS = 784
Point = tuple[int, int, int, int]
SERIES: dict[str, tuple[str, str, list[Point]]] = {
    "parameters": (
        "million parameters",
        "ms",
        [(millions, 4, millions * 250_000, 32) for millions in (1, 2, 4, 8, 16)],
    ),
    "leaves": ("leaves of parameters", "µs", [(count, count, 64, 8) for count in (10, 50, 100, 250, 500, 1000)]),
    "words": (
        "thousand words in a batch",
        "ms",
        [(rows * ROW_WORDS // 1000, 4, 25_000, rows) for rows in (32, 128, 512, 1024)],
    ),
}
UPDATES = "updates"
BLOCK_SECONDS = 0.25
# Enough arithmetic that no step is so short that XLA runs it on the calling thread.
SQUARE = 500


def train_step(state: Any, inputs: Any) -> Any:
    """One step of Adam; its gradient costs little and depends on all of the batch."""
    scale = jnp.tanh(jnp.full((SQUARE, SQUARE), inputs.mean()) @ jnp.full((SQUARE, SQUARE), 1e-3))[0, 0]
    return state.apply_gradients(grads=jax.tree.map(lambda leaf: leaf * scale, state.params))


class Pair:
    """The same training, plain and under a proof with nothing sampled."""

    def __init__(self, folder: Path, leaves: int, elements: int, rows: int) -> None:
        generator = np.random.default_rng(0)
        self.inputs = generator.normal(size=(rows, ROW_WORDS)).astype(np.float32)
        params = {f"leaf{index:04}": jnp.full((elements,), 0.5) for index in range(leaves)}
        config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy(0.0))
        self.proof = zkdv.jax.ZKDV(folder / "proof", config)
        self.proof.start(rolling_window=32)

        def fresh(proof: zkdv.jax.ZKDV | None) -> Any:
            return zkdv.jax.contrib.TrainState.create(
                proof=proof, apply_fn=None, params=jax.tree.map(jnp.copy, params), tx=optax.adam(1e-3)
            )

        self.steps: list[Callable[..., Any]] = [
            jax.jit(train_step, donate_argnums=0),
            self.proof.jit(train_step, donate_argnums=0),
        ]
        self.states = [fresh(None), fresh(self.proof)]
        for which in (0, 1):
            self.run(which, 3)
        started = time.perf_counter()
        self.run(0, 5)
        self.count = max(3, int(BLOCK_SECONDS / ((time.perf_counter() - started) / 5)))

    def run(self, which: int, count: int) -> float:
        """Make `count` updates, 0 plain or 1 under the proof, and return the seconds that one took."""
        step, state = self.steps[which], self.states[which]
        started = time.perf_counter()
        for _ in range(count):
            state = step(state, self.inputs)
        self.states[which] = jax.block_until_ready(state)
        if which:
            self.proof.join()
        return (time.perf_counter() - started) / count

    def excess(self, blocks: int) -> float:
        """Return the median of what an update takes longer under the proof, in seconds."""
        return statistics.median(-self.run(0, self.count) + self.run(1, self.count) for _ in range(blocks))

    def dispatch(self, calls: int) -> tuple[float, float]:
        """Return the CPU time of the calling thread for one call, plain and under the proof, in seconds.

        Whatever was called before has ended, so that a call waits for nothing.
        """
        times: list[list[float]] = [[], []]
        for _ in range(calls):
            for which in (0, 1):
                started = time.thread_time()
                state = self.steps[which](self.states[which], self.inputs)
                times[which].append(time.thread_time() - started)
                self.states[which] = jax.block_until_ready(state)
                self.proof.join()
        return statistics.median(times[0]), statistics.median(times[1])


def pairs(points: list[Point]) -> Iterator[tuple[int, Pair]]:
    """Yield each point's number and its training, which is closed before the next."""
    for number, leaves, elements, rows in points:
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(Path(folder), leaves, elements, rows)
            with pair.proof:
                yield number, pair


def fit(xs: list[float], ys: list[float]) -> dict[str, float]:
    """Return slope and intercept of the straight line through the points, and the share of variance it explains."""
    slope, intercept = np.polyfit(xs, ys, 1)
    residuals = np.asarray(ys) - (slope * np.asarray(xs) + intercept)
    spread = float(np.var(ys)) or 1.0
    return {"slope": float(slope), "intercept": float(intercept), "r2": 1 - float(np.var(residuals)) / spread}


def measure(name: str, blocks: int) -> dict[str, Any]:
    """Measure one series: its points in the unit of the series, and the line through them."""
    if name == UPDATES:
        return measure_updates(blocks)
    axis, unit, points = SERIES[name]
    scale = {"ms": 1e3, "µs": 1e6}[unit]
    xs, ys, dispatch = [], [], {}
    for number, pair in pairs(points):
        xs.append(float(number))
        ys.append(pair.excess(blocks) * scale)
        if name == "leaves":
            plain, proof = pair.dispatch(100)
            dispatch[number] = {"plain": plain * 1e6, "proof": proof * 1e6}
    figures = {"series": name, "axis": axis, "unit": unit, "x": xs, "y": ys} | fit(xs, ys)
    return figures | ({"dispatch, µs": dispatch} if dispatch else {})


def measure_updates(blocks: int) -> dict[str, Any]:
    """Measure whether an update costs more the longer the run is."""
    xs, ys = [], []
    for _, pair in pairs([(0, 4, 25_000, 8)]):
        for block in range(4 * blocks):
            ys.append((pair.run(1, pair.count) - pair.run(0, pair.count)) * 1e6)
            xs.append((block + 0.5) * pair.count / 1000)
    return {"series": UPDATES, "axis": "thousand updates made", "unit": "µs", "x": xs, "y": ys} | fit(xs, ys)


def plot(results: list[dict[str, Any]], target: Path) -> None:
    """Draw each series and its line."""
    # Text stays text, and the same figures give the same file.
    mpl.rcParams["svg.fonttype"] = "none"
    mpl.rcParams["svg.hashsalt"] = "zkdv"
    figure = Figure(figsize=(9, 6.5), layout="constrained")
    for axes, result in zip(figure.subplots(2, 2).flat, results, strict=False):
        xs = np.asarray(result["x"])
        axes.plot(xs, result["y"], "o", markersize=4)
        axes.plot(xs, result["slope"] * xs + result["intercept"], linewidth=1)
        axes.set_xlabel(result["axis"])
        axes.set_ylabel(f"added to an update, {result['unit']}")
        axes.set_ylim(bottom=0)
    figure.savefig(target, metadata={"Date": None})


def main() -> None:
    """Measure the chosen series."""
    names = [*SERIES, UPDATES]
    parser = argparse.ArgumentParser(description="how the cost of a proof grows")
    parser.add_argument("--series", choices=names, action="append", help="default: all")
    parser.add_argument("--blocks", type=int, default=9, help="alternating blocks of each point")
    parser.add_argument("--plot", type=Path, help="SVG file that is written")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", zkdv.ZKDVWarning)
    results = []
    with own_identity():
        for name in arguments.series or names:
            result = measure(name, arguments.blocks)
            results.append(result)
            if arguments.json:
                print(json.dumps(result), flush=True)
                continue
            print(
                f"{name:12} {result['intercept']:.3g} + {result['slope']:.3g} x {result['unit']}, "
                f"x in {result['axis']} (R² {result['r2']:.3f})",
                flush=True,
            )
            for count, times in result.get("dispatch, µs", {}).items():
                print(
                    f"    a call at {count} leaves: {times['plain']:.0f} µs plain, {times['proof']:.0f} µs", flush=True
                )
    if arguments.plot is not None:
        plot(results, arguments.plot)


if __name__ == "__main__":
    main()
