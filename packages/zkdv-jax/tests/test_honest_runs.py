"""An honest run never fails by itself: long, donated, never joined, at every overlap policy, on a busy machine."""

import multiprocessing
import os
import time

import jax
import numpy as np
import pytest
from small_run import batches, check_every, make_state, records, train_step, verified

import zkdv
import zkdv.jax
from zkdv import overlap

UPDATES = 2_000
EVERY_10TH, ONE_PERCENT = zkdv.SamplingPolicy.DEBUGCheckEvery(10), zkdv.SamplingPolicy(0.01)


def burn(stop):
    while not stop.is_set():
        sum(range(10_000))


@pytest.fixture(scope="module")
def busy_machine():
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    processes = [context.Process(target=burn, args=(stop,), daemon=True) for _ in range(os.cpu_count() or 1)]
    for process in processes:
        process.start()
    yield
    stop.set()
    for process in processes:
        process.join()


@pytest.fixture(scope="module")
def plain_result():
    state, step = make_state(), jax.jit(train_step, donate_argnums=0)
    for images, labels in batches(UPDATES):
        state, _ = step(state, images, labels)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


def train(folder, config, policy, updates, **options):
    with zkdv.jax.ZKDV(folder, config, **options) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=0), make_state(proof).replace(zkdv_overlap=policy)
        for images, labels in batches(updates):
            state, _ = step(state, images, labels)
        assert proof.jax_pipeline._memory.primed <= (2 if policy is overlap.ALWAYS else 1)
    return state


@pytest.mark.slow
@pytest.mark.usefixtures("busy_machine")
@pytest.mark.parametrize(
    ("policy", "sampling", "interval"),
    [
        *((policy, EVERY_10TH, 12) for policy in overlap.Policy),
        *((policy, ONE_PERCENT, 12) for policy in overlap.Policy),
        # A copy before every update, one of them beside a check.
        (overlap.ALWAYS, EVERY_10TH, 1),
    ],
)
def test_thousands_of_donated_updates_pass_and_equal_plain_training(tmp_path, plain_result, policy, sampling, interval):
    config = zkdv.ZKDVConfig(sampling_policy=sampling)
    state = train(tmp_path / "proof", config, policy, UPDATES, replay_snapshot_interval=interval)
    assert [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)] == plain_result
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", UPDATES)
    assert report.checks_passed == report.sampled > 0
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))


def test_a_check_that_outlasts_many_updates_is_never_late(tmp_path, monkeypatch):
    honest = zkdv.jax._pipeline.JAXPipeline.replay

    def slow(self, update, state):
        time.sleep(0.3)  # Long enough for hundreds of these updates.
        return honest(self, update, state)

    monkeypatch.setattr(zkdv.jax._pipeline.JAXPipeline, "replay", slow)
    train(tmp_path / "proof", check_every(40), overlap.ALWAYS, 100)
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_passed) == ("passed", 2)
