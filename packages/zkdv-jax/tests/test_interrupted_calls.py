"""An interrupt at any point of a call leaves a proof that goes on: nothing hangs, and the transcript holds together."""

import threading
import warnings

import pytest
from interrupts import InterruptAt
from small_run import batches, check_every, make_state, train_step, verified

import zkdv
import zkdv.jax
from zkdv import overlap
from zkdv.errors import ZKDVWarning
from zkdv.jax._pipeline import JAXPipeline

WAIT_SECONDS = 120
CHECKED_EVERY = 7
STEPS = ("Pipeline.begin", "Pipeline.submit", "PipelineQueue.acquire", "PipelineQueue.submit")
"""What every call goes through."""


def interrupt_at(number, function=None):
    return InterruptAt(number, zkdv, zkdv.jax, function=function)


def interrupt_everywhere(folder, policy, *, stride=1, function=None):
    """Interrupt one call after the other, each a little later, with a whole one after each.

    Returns:
        How many points there were, and the functions that they were in. The transcript is whole.
    """
    given, functions = batches(1_000_000), set()
    with zkdv.jax.ZKDV(folder, check_every(CHECKED_EVERY), replay_snapshot_interval=3) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof).replace(zkdv_overlap=policy)
        state, _ = step(state, *next(given))
        number = 0
        with warnings.catch_warnings():
            # Going on from the state before an update that was made all the same is an edit, and says so.
            warnings.simplefilter("ignore", ZKDVWarning)
            while True:
                with interrupt_at(number, function) as interrupt:
                    try:
                        state, _ = step(state, *next(given))
                    except KeyboardInterrupt:
                        functions.add(interrupt.place[0])
                if interrupt.place is None:
                    break
                state, _ = step(state, *next(given))
                number += stride
        proof.join()
        assert proof.jax_pipeline.updates * stride > number
        for images, labels in batches(CHECKED_EVERY):
            state, _ = step(state, images, labels)
        updates = proof.jax_pipeline.updates
    report = verified(folder, allow_edits=True)
    assert (report.verdict, report.updates) == ("passed", updates), report.violations
    assert report.checks_passed == report.sampled > 0
    return number, functions


# Where a generator ends, Python swallows the interrupt, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("policy", "stride"),
    [
        (overlap.NEVER, 7),
        pytest.param(overlap.NEVER, 1, marks=pytest.mark.slow),
        pytest.param(overlap.ALWAYS, 1, marks=pytest.mark.slow),
    ],
)
def test_a_call_may_be_interrupted_anywhere_and_training_goes_on(tmp_path, policy, stride):
    number, functions = interrupt_everywhere(tmp_path / "proof", policy, stride=stride)
    if stride == 1:
        # Which points there are depends on what happened before, so that some are passed over.
        assert len(functions & set(STEPS)) > 1
    assert len(functions) > 10
    assert number > 50


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("function", STEPS)
def test_a_call_may_be_interrupted_anywhere_within_its_steps(tmp_path, function):
    number, functions = interrupt_everywhere(tmp_path / "proof", overlap.ALWAYS, function=function)
    assert function in functions
    # Its start, and behind something that it calls.
    assert number > 1


def test_join_may_be_interrupted_anywhere(tmp_path):
    given = batches(1_000_000)
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=0), make_state(proof)
        number = 0
        while True:
            state, _ = step(state, *next(given))
            with interrupt_at(number) as interrupt:
                try:
                    proof.join()
                except KeyboardInterrupt:
                    number += 1
            if interrupt.place is None:
                break
        assert number > 10
    assert verified(tmp_path / "proof").verdict == "passed"


def test_closing_may_be_interrupted_while_it_waits_for_a_check(tmp_path, monkeypatch):
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(3))
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step, donate_argnums=0), make_state(proof)
    entered, cancelled = threading.Event(), threading.Event()
    replay, close = JAXPipeline.replay, proof.queue.close

    def held(self, update, state):
        entered.set()
        assert cancelled.wait(WAIT_SECONDS)
        return replay(self, update, state)

    def noted(*, cancel=False):
        if cancel:
            cancelled.set()
        close(cancel=cancel)

    annotate = proof.queue.annotate

    def interrupted(name):
        if name == "zkdv.flow_control.wait":
            raise KeyboardInterrupt
        return annotate(name)

    monkeypatch.setattr(JAXPipeline, "replay", held)
    monkeypatch.setattr(proof.queue, "close", noted)
    for images, labels in batches(3):
        state, _ = step(state, images, labels)
    assert entered.wait(WAIT_SECONDS)
    monkeypatch.setattr(proof.queue, "annotate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates, report.closed) == ("incomplete", 3, False)
    assert not report.violations


def test_a_proof_closed_by_another_thread_in_the_middle_of_training_is_whole(tmp_path):
    """Whatever was handed over is committed before the closing records, and nothing comes after them."""
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(2))
    proof.start(rolling_window=4)
    step, started = proof.jit(train_step), threading.Event()
    refused = []

    def train():
        state = make_state(proof)
        try:
            for number, (images, labels) in enumerate(batches(1_000_000)):
                state, _ = step(state, images, labels)
                if number == 4:
                    started.set()
        except zkdv.ZKDVError as error:
            refused.append(str(error))

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    assert started.wait(WAIT_SECONDS)
    proof.close()
    thread.join(WAIT_SECONDS)
    assert [("is closed" in message) for message in refused] == [True]
    report = verified(tmp_path / "proof")
    assert report.verdict == "passed"
    assert report.updates >= 5


def test_closing_from_within_a_call_gives_up_that_call(tmp_path, monkeypatch):
    """A signal handler may run, and close the proof, at any line."""
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(2))
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step), make_state(proof)
    given = list(batches(4))
    for images, labels in given[:3]:
        state, _ = step(state, images, labels)
    run = zkdv.jax._function.JitFunction._run

    def closing(self, *args):
        proof.close()
        return run(self, *args)

    monkeypatch.setattr(zkdv.jax._function.JitFunction, "_run", closing)
    with pytest.raises(zkdv.ZKDVError, match="closed"):
        step(state, *given[3])
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", 3)
