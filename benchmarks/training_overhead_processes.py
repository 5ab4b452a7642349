"""What `proof.jit` costs beside `jax.jit` where two processes train together: blocks in turn, in the same processes.

Data-parallel over gloo on one machine, one device for each process. Every rank makes the same steps; the figures are
the owner's. With `--probability` updates are sampled, and what is measured starts after the first check.

    python benchmarks/training_overhead_processes.py [--case NAME] [--blocks N] [--steps N] [--probability P] [--json]
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from _alternating import Train, alternate, own_identity, warm_up
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from training_overhead import CASES, train_step

import zkdv
import zkdv.jax

PROCESSES = 2


def measure(name: str, arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Measure one case on this rank and return its figures."""
    module, make_batches, rows = CASES[name]
    batches = make_batches(rows)
    params = jax.jit(module.init)(jax.random.key(0), next(batches)[0])["params"]
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    whole, by_rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    policy = zkdv.SamplingPolicy(update_check_probability=arguments.probability)
    proof = zkdv.jax.ZKDV(folder, zkdv.ZKDVConfig(name=name, sampling_policy=policy))
    proof.start(rolling_window=4)

    def training(owner: zkdv.jax.ZKDV | None) -> Train:
        state: Any = zkdv.jax.contrib.TrainState.create(
            proof=owner, apply_fn=module.apply, params=params, tx=optax.adam(1e-3)
        )
        state = jax.device_put(jax.tree.map(np.asarray, state), whole)
        step = (jax if owner is None else owner).jit(train_step, donate_argnums=0)

        def train(count: int) -> None:
            nonlocal state
            for _ in range(count):
                batch = [
                    jax.make_array_from_callback(leaf.shape, by_rows, lambda index, leaf=leaf: leaf[index])
                    for leaf in next(batches)
                ]
                state, _ = step(state, *batch)
            jax.block_until_ready(state)
            if owner is not None:
                owner.join()

        return train

    plain, ours = training(None), training(proof)
    pipeline = proof.pipeline
    plain(arguments.steps)
    warm_up(ours, pipeline, sampled=arguments.probability > 0, count=arguments.steps)
    passed = pipeline.counts.passed
    figures = alternate(plain, ours, count=arguments.steps, blocks=arguments.blocks)
    checks = pipeline.counts.passed - passed
    proof.close()
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    return {"parameters": parameters} | figures | {"checks": checks}


def work(arguments: argparse.Namespace) -> None:
    """Be one rank."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(arguments.coordinator, PROCESSES, arguments.rank)
    warnings.simplefilter("ignore", zkdv.errors.ZKDVWarning)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.case or CASES:
            figures = measure(name, arguments, Path(folder) / name.replace(" ", "-"))
            if arguments.rank == 0:
                shown = json.dumps({"case": name} | figures)
                print(shown if arguments.json else f"{name}: {figures}", file=sys.stderr, flush=True)


def main() -> None:
    """Start the ranks, and wait for them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", action="append", choices=list(CASES))
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20, help="steps in a block")
    parser.add_argument("--probability", type=float, default=0.0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank is not None:
        work(arguments)
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    with own_identity():
        command = [sys.executable, *sys.argv, "--coordinator", coordinator]
        # What gloo says of its connections goes to standard output.
        ranks = [
            subprocess.Popen([*command, "--rank", str(rank)], stdout=subprocess.DEVNULL, env=os.environ)
            for rank in range(PROCESSES)
        ]
        statuses = [rank.wait() for rank in ranks]
        if any(statuses):
            raise SystemExit("a rank failed")


if __name__ == "__main__":
    main()
