"""Runs that are killed, interrupted, forked, run out of disk or meet another writer."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from small_run import batches, check_every, make_state, records, run, train_step, verified

import zkdv
import zkdv.jax
from zkdv.errors import ZKDVError

HERE = Path(__file__).parent
WAIT_SECONDS = 120


def start_training(folder, durability="interval"):
    return subprocess.Popen(
        [sys.executable, str(HERE / "interrupted_run.py"), str(folder), durability],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_updates(process, count):
    for line in process.stdout:
        if int(line) >= count:
            return int(line)
    raise AssertionError(process.stderr.read())


def assert_open_without_loss(folder, promised):
    report = verified(folder)
    assert report.verdict == "incomplete"
    assert not report.violations
    assert not report.closed
    assert report.updates >= promised


@pytest.mark.parametrize("attempt", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 20))])
def test_a_killed_run_verifies_as_open_and_loses_no_committed_update(tmp_path, attempt):
    process = start_training(tmp_path / "proof", ["interval", "record", "close"][attempt % 3])
    promised = wait_for_updates(process, 10)
    time.sleep(attempt / 40)
    process.kill()
    output, _ = process.communicate(timeout=WAIT_SECONDS)
    promised = max([promised, *map(int, output.split())])
    assert_open_without_loss(tmp_path / "proof", promised)


def test_an_interrupted_run_closes_promptly_as_open(tmp_path):
    process = start_training(tmp_path / "proof")
    promised = wait_for_updates(process, 10)
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "KeyboardInterrupt" in errors
    assert_open_without_loss(tmp_path / "proof", promised)


def test_a_full_disk_poisons_with_path_and_cause_and_keeps_what_was_written(tmp_path):
    script = """
import resource, signal, sys
from pathlib import Path
import zkdv.jax
from small_run import batches, check_every, make_state, train_step
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
proof = zkdv.jax.ZKDV(Path(sys.argv[1]), check_every(5))
proof.start(rolling_window=4)
step, state = proof.jit(train_step), make_state(proof)
state, _ = step(state, *next(batches(1)))
proof.join()
resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))
try:
    for images, labels in batches(200):
        state, _ = step(state, images, labels)
except zkdv.ZKDVPoisonedError as error:
    print(error)
try:
    proof.close()
except zkdv.ZKDVPoisonedError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "proof")],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    messages = done.stdout.splitlines()
    assert len(messages) == 2
    assert all("records.cborl" in message and "File too large" in message for message in messages)
    assert_open_without_loss(tmp_path / "proof", 20)
    assert (tmp_path / "proof" / "records.cborl").stat().st_size <= 12_000


def test_a_second_writer_is_told_who_holds_the_transcript(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(5)) as proof:
        proof.start(rolling_window=4)
        other = zkdv.jax.ZKDV(tmp_path / "proof", check_every(5))
        with pytest.raises(ZKDVError, match=str(os.getpid())):
            other.start(rolling_window=4)


def test_a_fork_makes_no_update_and_does_not_close_its_parents_run(tmp_path):
    script = """
import os, sys, warnings
from pathlib import Path
import zkdv.jax
from small_run import batches, check_every, make_state, train_step
warnings.simplefilter("ignore")
with zkdv.jax.ZKDV(Path(sys.argv[1]), check_every(5)) as proof:
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step), make_state(proof)
    for images, labels in batches(3):
        state, _ = step(state, images, labels)
    proof.join()
    child = os.fork()
    if child == 0:
        try:
            step(state, images, labels)
        except zkdv.ZKDVError as error:
            print(error, flush=True)
        proof.close()
        os._exit(0)
    os.waitpid(child, 0)
    state, _ = step(state, images, labels)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "proof")],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "forked" in done.stdout
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", 4)


def test_a_torn_tail_verifies_up_to_the_tear_as_open(tmp_path):
    run(tmp_path / "proof", check_every(2), updates=6)
    file = tmp_path / "proof" / "records.cborl"
    data = file.read_bytes()
    last = records(tmp_path / "proof")[-1]
    file.write_bytes(data[: last["offset"] + 20])
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.torn_bytes, report.updates) == ("incomplete", 20, 6)
    assert not report.violations


def test_updates_from_several_threads_are_taken_one_after_the_other(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(3)) as proof:
        proof.start(rolling_window=4)
        step, states = proof.jit(train_step), [make_state(proof)]
        lock = threading.Lock()

        def work():
            for images, labels in batches(5):
                with lock:
                    states[0], _ = step(states[0], images, labels)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", 15)
