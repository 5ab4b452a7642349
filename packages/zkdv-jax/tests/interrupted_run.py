"""Trains until it is stopped; prints the number of submitted updates after each. Run by test_interruptions.py."""

import signal
import sys
from pathlib import Path

from small_run import batches, check_every, make_state, train_step

import zkdv.jax

# A test suite that runs in the background may have been started with interrupts ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)

with zkdv.jax.ZKDV(Path(sys.argv[1]), check_every(5, durability=sys.argv[2])) as proof:
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step, donate_argnums=0), make_state(proof)
    for number, (images, labels) in enumerate(batches(1_000_000), start=1):
        state, _ = step(state, images, labels)
        if number % 10 == 0:
            proof.join()
            print(number, flush=True)
