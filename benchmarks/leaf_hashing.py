"""Leaf hashing against the `blake3` package, on the same bytes and threads.

Both sides take turns in one process and the median of each is compared, so that what else the machine does falls on
both alike. Target: at least 80 % of the package's speed.

    python benchmarks/leaf_hashing.py [--rounds N] [--json]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

import blake3
import numpy as np

from zkdv import _native

TARGET = 0.8
THREADS = (1, 2)
SIZES = {
    "4 KiB": 4 << 10,
    "64 KiB": 64 << 10,
    "256 KiB": 256 << 10,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
    "256 MiB": 256 << 20,
}
# As many calls in a row as take some milliseconds, so that the clock's resolution does not count.
BYTES_A_ROUND = 16 << 20
THREADS_VARIABLE = "RAYON_NUM_THREADS"


def main() -> None:
    """Measures with each number of threads in a process of its own, since both sides size their pools once."""
    parser = argparse.ArgumentParser(description="leaf hashing against the blake3 package")
    parser.add_argument("--rounds", type=int, default=15, help="alternating measurements of each case")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--threads", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.threads is not None:
        measure(arguments.threads, arguments.rounds, as_json=arguments.json)
        return
    cores = len(os.sched_getaffinity(0))
    if not arguments.json:
        print(f"{'threads':>7}  {'leaf':>8}  {'zkdv GB/s':>9}  {'blake3 GB/s':>11}  {'ratio':>6}   target {TARGET:.0%}")
    for threads in THREADS:
        if threads > cores:
            print(f"{threads:>7}  not measured: this process may use {cores} processor(s)", file=sys.stderr)
            continue
        command = [sys.executable, __file__, "--threads", str(threads), "--rounds", str(arguments.rounds)]
        command += ["--json"] if arguments.json else []
        subprocess.run(command, check=True, env={**os.environ, THREADS_VARIABLE: str(threads)})


def measure(threads: int, rounds: int, *, as_json: bool) -> None:
    """Measures all sizes with the threads that the environment of this process sets."""
    limit = 1 if threads == 1 else blake3.blake3.AUTO
    generator = np.random.default_rng(0)
    for name, size in SIZES.items():
        leaf = generator.integers(0, 256, size, np.uint8)
        assert _native.leaf_digest(leaf) == blake3.blake3(leaf, max_threads=limit).digest()

        def ours(leaf: np.ndarray = leaf) -> bytes:
            return _native.leaf_digest(leaf)

        def theirs(leaf: np.ndarray = leaf) -> bytes:
            return blake3.blake3(leaf, max_threads=limit).digest()

        calls = max(1, BYTES_A_ROUND // size)
        seconds: dict[object, list[float]] = {ours: [], theirs: []}
        for turn in range(rounds):
            # Who comes first changes with every turn.
            for function in (ours, theirs) if turn % 2 else (theirs, ours):
                start = time.perf_counter()
                for _ in range(calls):
                    function()
                seconds[function].append((time.perf_counter() - start) / calls)
        speed = {function: size / statistics.median(taken) / 1e9 for function, taken in seconds.items()}
        ratio = speed[ours] / speed[theirs]
        if as_json:
            found = {"threads": threads, "bytes": size, "zkdv": speed[ours], "blake3": speed[theirs], "ratio": ratio}
            print(json.dumps(found), flush=True)
        else:
            verdict = "" if ratio >= TARGET else "  below target"
            print(
                f"{threads:>7}  {name:>8}  {speed[ours]:>9.2f}  {speed[theirs]:>11.2f}  {ratio:>6.0%}{verdict}",
                flush=True,
            )


if __name__ == "__main__":
    main()
