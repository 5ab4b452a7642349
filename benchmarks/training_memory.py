"""How much memory training takes under a proof and without one: peaks of resident memory, each in a process of its own.

The model, the optimizer and the batches are those of `training_overhead`, everything donated. The process that samples
runs until some updates were checked; every process makes at least as many updates as one needs for its peak.

    python benchmarks/training_memory.py [--case NAME] [--commit parameters|every] [--json]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from _alternating import PROBABILITIES, own_identity
from flax.training import train_state

UPDATES = 30
CHECKS = 2
MIB = 2**20


def peak_bytes() -> int:
    """Return the most resident memory that this process has had."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike the peak of getrusage, this one does not start at that of the process that started this one.
        [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def train(case: str, mode: str, commit: str, folder: Path) -> dict[str, Any]:
    """Train as one of the processes, and return its peak."""
    import jax  # noqa: PLC0415
    import optax  # noqa: PLC0415
    from training_overhead import CASES, train_step  # noqa: PLC0415

    module, make_batches, rows = CASES[case]
    batches = make_batches(rows)
    params = jax.jit(module.init)(jax.random.key(0), next(batches)[0])["params"]
    figures = {"parameters": sum(leaf.size for leaf in jax.tree.leaves(params)), "checks": 0}
    state_options = {"apply_fn": module.apply, "params": params, "tx": optax.adam(1e-3)}
    del params
    if mode == "plain":
        state, step = train_state.TrainState.create(**state_options), jax.jit(train_step, donate_argnums=0)
        del state_options
        for _ in range(UPDATES):
            state, _ = step(state, *next(batches))
        jax.block_until_ready(state)
        return figures | {"peak": peak_bytes()}

    import zkdv  # noqa: PLC0415
    import zkdv.jax  # noqa: PLC0415

    warnings.simplefilter("ignore", zkdv.ZKDVWarning)
    config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy(PROBABILITIES[mode]), commit=commit)
    with zkdv.jax.ZKDV(folder / mode, config) as proof:
        proof.start(rolling_window=4)
        state = zkdv.jax.contrib.TrainState.create(proof=proof, **state_options)
        del state_options
        step = proof.jit(train_step, donate_argnums=0)
        counts = proof.jax_pipeline.counts
        while counts.updates < UPDATES or (mode == "sampled" and counts.passed < CHECKS):
            state, _ = step(state, *next(batches))
            proof.join()
        figures["checks"] = counts.passed
    return figures | {"peak": peak_bytes()}


def measure(case: str, commit: str, folder: Path) -> dict[str, Any]:
    """Run the three processes and return what they say."""
    figures: dict[str, Any] = {"case": case, "commit": commit}
    for mode in ("plain", *PROBABILITIES):
        command = [sys.executable, __file__, "--case", case, "--commit", commit, "--process", mode, str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        result = json.loads(done.stdout)
        figures |= {"parameters": result["parameters"], f"{mode} peak, MiB": result["peak"] / MIB}
    for mode in PROBABILITIES:
        figures[f"{mode} ratio"] = figures[f"{mode} peak, MiB"] / figures["plain peak, MiB"]
    return figures


def main() -> None:
    """Measure the chosen cases."""
    parser = argparse.ArgumentParser(description="memory of training under a proof against plain training")
    parser.add_argument("--case", action="append", help="a case of training_overhead; default: 10 M parameters")
    parser.add_argument("--commit", choices=["parameters", "every"], default="parameters")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--process", nargs=2, metavar=("MODE", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = arguments.case or ["MLP 10 M, batch 32", "MLP 10 M, batch 512"]
    if arguments.process:
        mode, folder = arguments.process
        print(json.dumps(train(cases[0], mode, arguments.commit, Path(folder))))
        return
    with own_identity(), tempfile.TemporaryDirectory() as folder:
        for case in cases:
            figures = measure(case, arguments.commit, Path(tempfile.mkdtemp(dir=folder)))
            if arguments.json:
                print(json.dumps(figures), flush=True)
                continue
            peaks = "   ".join(f"{mode} {figures[f'{mode} peak, MiB']:.0f} MiB" for mode in ("plain", *PROBABILITIES))
            ratios = "   ".join(f"{mode} {figures[f'{mode} ratio']:.2f}" for mode in PROBABILITIES)
            print(f"{case:24} {peaks}   ratio {ratios}", flush=True)


if __name__ == "__main__":
    main()
