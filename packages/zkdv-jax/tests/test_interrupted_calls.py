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


def interrupt_at(number):
    return InterruptAt(number, zkdv, zkdv.jax)


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
    given, places = batches(1_000_000), set()
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(7), replay_snapshot_interval=3) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof).replace(zkdv_overlap=policy)
        state, _ = step(state, *next(given))
        number = 0
        with warnings.catch_warnings():
            # Going on from the state before an update that was made all the same is an edit, and says so.
            warnings.simplefilter("ignore", ZKDVWarning)
            while True:
                with interrupt_at(number) as interrupt:
                    try:
                        state, _ = step(state, *next(given))
                    except KeyboardInterrupt:
                        places.add(interrupt.place)
                if interrupt.place is None:
                    break
                state, _ = step(state, *next(given))
                number += stride
        proof.join()
        updates = proof.jax_pipeline.updates
    functions = {name for name, _ in places}
    if stride == 1:
        # Which points there are depends on what happened before, so that some are passed over.
        assert (
            len(functions & {"Pipeline.begin", "Pipeline.submit", "PipelineQueue.acquire", "PipelineQueue.submit"}) > 1
        )
    assert len(functions) > 10
    assert updates * stride > number > 50
    report = verified(tmp_path / "proof", allow_edits=True)
    assert (report.verdict, report.updates) == ("passed", updates), report.violations
    assert report.checks_passed == report.sampled > 0


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
