"""Snapshots: copies in host memory that donation does not touch, made only where a check may need them."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_run import batches, check_every, make_state, records, run, train_step, verified

import zkdv
import zkdv.jax
from zkdv import overlap
from zkdv.errors import ZKDVPoisonedError, ZKDVWarning
from zkdv.jax._pipeline import JAXPipeline
from zkdv.jax._snapshots import SnapshotCopies

WAIT_SECONDS = 120
INTERVALS = [1, 4, 12, 100]
MEMORIES = [None, "pinned_host"]


@pytest.fixture
def launched(monkeypatch):
    """The buffers that snapshots were written to, as addresses of each leaf."""
    addresses = []
    launch = JAXPipeline.launch_snapshot

    def noted(self, state, over):
        copy = launch(self, state, over)
        addresses.append(tuple(leaf.unsafe_buffer_pointer() for leaf in copy))
        return copy

    monkeypatch.setattr(JAXPipeline, "launch_snapshot", noted)
    return addresses


@pytest.fixture
def memory(request, monkeypatch):
    """Put the snapshots of a run into a kind of memory."""
    monkeypatch.setattr(zkdv.jax._pipeline, "SnapshotCopies", lambda: SnapshotCopies(request.param))


def leaves():
    return [jnp.arange(5000, dtype=jnp.float32).reshape(50, 100), jnp.int32(3), jnp.ones((0, 3)), jnp.ones(7, bool)]


def contents(arrays):
    return [np.asarray(jnp.copy(leaf)).tobytes() for leaf in arrays]


@pytest.mark.parametrize("memory", MEMORIES)
def test_copies_survive_the_donation_of_their_source(memory):
    copies, state = SnapshotCopies(memory), leaves()
    change = jax.jit(
        lambda given: [leaf ^ leaf if leaf.dtype == bool else leaf + 1 for leaf in given], donate_argnums=0
    )
    copy = copies.launch(state, None)
    addresses = [leaf.unsafe_buffer_pointer() for leaf in copy]
    for _ in range(30):
        before = contents(state)
        copy = copies.launch(state, copy)
        donated, state = state, change(state)
        assert donated[0].is_deleted()
        assert contents(copy) == before
        assert {leaf.sharding.memory_kind for leaf in copy} == {memory or "device"}
        # Written over the same memory, and no leaf of it is one of training's.
        assert [leaf.unsafe_buffer_pointer() for leaf in copy] == addresses
    assert not {leaf.unsafe_buffer_pointer() for leaf in state if leaf.size} & set(addresses)


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_copy_is_carried_forward_in_its_own_memory(memory):
    copies, state = SnapshotCopies(memory), leaves()
    copy = copies.launch(state, None)
    addresses = [leaf.unsafe_buffer_pointer() for leaf in copy]
    restored = copies.restore(copy)
    assert contents(restored) == contents(state)
    assert {leaf.sharding.memory_kind for leaf in restored} == {"device"}
    after = jax.jit(
        lambda given: [leaf ^ leaf if leaf.dtype == bool else leaf + 1 for leaf in given], donate_argnums=0
    )(restored)
    expected = contents(after)
    copy = copies.keep(after, copy)
    assert contents(copy) == expected
    assert [leaf.unsafe_buffer_pointer() for leaf in copy] == addresses
    assert contents(copies.restore(copies.launch(state, copy))) == contents(state)


@pytest.mark.parametrize(
    ("interval", "memory"),
    [*((interval, None) for interval in INTERVALS), (1, "pinned_host"), (4, "pinned_host")],
    indirect=["memory"],
)
@pytest.mark.parametrize("policy", [overlap.UNCHECKED, overlap.ALWAYS])
@pytest.mark.usefixtures("memory")
def test_a_run_writes_its_snapshots_over_a_bounded_number_of_copies(tmp_path, launched, interval, policy):
    config = check_every(3)
    with zkdv.jax.ZKDV(tmp_path / "proof", config, replay_snapshot_interval=interval, max_in_flight=4) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=0), make_state(proof).replace(zkdv_overlap=policy)
        state, _ = step(state, *next(batches(1)))
        primed = set(launched)
        for images, labels in batches(24):
            state, _ = step(state, images, labels)
    copies = 2 if policy is overlap.ALWAYS else 1
    assert len(launched) == len(range(0, 25, interval)) + copies - 1
    # All memory of snapshots is allocated at the first update.
    assert set(launched) == primed
    assert len(primed) == copies
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_passed) == ("passed", 8)
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))


def test_a_second_check_behind_one_snapshot_goes_on_from_the_first(tmp_path, monkeypatch):
    replayed = []
    replay = JAXPipeline.replay

    def noted(self, update, state):
        replayed.append(update.index)
        return replay(self, update, state)

    monkeypatch.setattr(JAXPipeline, "replay", noted)
    run(tmp_path / "proof", check_every(3), updates=12, replay_snapshot_interval=12)
    assert replayed == list(range(12))
    assert [check["body"]["snapshot"] for check in records(tmp_path / "proof", "check")] == [0] * 4
    assert verified(tmp_path / "proof").checks_passed == 4


def test_a_snapshot_waits_for_room_where_checks_hold_every_copy(tmp_path, monkeypatch, launched):
    gate, entered = threading.Event(), threading.Event()
    replay = JAXPipeline.replay

    def held(self, update, state):
        entered.set()
        assert gate.wait(WAIT_SECONDS)
        return replay(self, update, state)

    monkeypatch.setattr(JAXPipeline, "replay", held)
    waiting = threading.Event()
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(2), replay_snapshot_interval=2, max_in_flight=4) as proof:
        annotate = proof.queue.annotate

        def noticed(name):
            if name == "zkdv.flow_control.wait":
                waiting.set()
            return annotate(name)

        monkeypatch.setattr(proof.queue, "annotate", noticed)
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=0), make_state(proof).replace(zkdv_overlap=overlap.ALWAYS)

        def train():
            nonlocal state
            for images, labels in batches(7):
                state, _ = step(state, images, labels)

        thread = threading.Thread(target=train, daemon=True)
        thread.start()
        assert entered.wait(WAIT_SECONDS)
        proof.queue.wait_until(lambda: proof.jax_pipeline.updates >= 3)
        gate.set()
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
    assert len(set(launched)) == 2
    assert verified(tmp_path / "proof").checks_passed == 3


def test_no_snapshot_is_made_where_nothing_is_ever_checked(tmp_path, launched):
    with pytest.warns(ZKDVWarning, match="no update of this run will be checked"):
        policy = zkdv.SamplingPolicy(update_check_probability=0.0)
    run(tmp_path / "proof", zkdv.ZKDVConfig(sampling_policy=policy), updates=5, replay_snapshot_interval=1)
    assert launched == []


def test_a_copy_that_fails_poisons_the_run(tmp_path, monkeypatch):
    def lost(self, copy):
        raise MemoryError("no pinned memory is left")

    monkeypatch.setattr(JAXPipeline, "await_snapshot", lost)
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(3))
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step, donate_argnums=0), make_state(proof)

    def train():
        nonlocal state
        for images, labels in batches(3):
            state, _ = step(state, images, labels)
        proof.join()

    with pytest.raises(ZKDVPoisonedError, match="no pinned memory is left"):
        train()
    with pytest.raises(ZKDVPoisonedError, match="no pinned memory is left"):
        proof.close()


def test_copies_run_on_their_own_stage(tmp_path, monkeypatch):
    threads = []
    wait = JAXPipeline.await_snapshot

    def noted(self, copy):
        threads.append(threading.current_thread().name.split("_")[0])
        wait(self, copy)

    monkeypatch.setattr(JAXPipeline, "await_snapshot", noted)
    run(tmp_path / "proof", check_every(3), updates=6, replay_snapshot_interval=2)
    assert threads == ["zkdv.snapshot"] * 3


def test_an_attempt_that_came_to_nothing_leaves_no_snapshot_behind(tmp_path, monkeypatch):
    """The state of an attempt may be another than that of the update that is made in the end."""
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1), replay_snapshot_interval=4) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        given = list(batches(6))
        for images, labels in given[:2]:
            state, _ = step(state, images, labels)
        proof.join()
        monkeypatch.setattr(proof.jax_pipeline, "submit", no_thread)
        edited = state.replace(params=jax.tree.map(lambda leaf: leaf * 2, state.params))
        with pytest.raises(RuntimeError, match="no thread"), pytest.warns(ZKDVWarning, match="changed between"):
            step(edited, *given[2])
        monkeypatch.undo()
        for images, labels in given[2:]:
            state, _ = step(state, images, labels)
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates, report.edits) == ("passed", 6, ())
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))


def no_thread(*_):
    raise RuntimeError("no thread")


def refuse(submit, stage):
    def refusing(at, *args, **kwargs):
        if at == stage:
            raise RuntimeError("no thread")
        return submit(at, *args, **kwargs)

    return refusing


@pytest.mark.parametrize("stage", ["commit", "snapshot"])
@pytest.mark.parametrize("donated", [True, False])
def test_an_update_that_can_not_be_handed_over_holds_nothing_up(tmp_path, monkeypatch, stage, donated):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(2), replay_snapshot_interval=1) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=0 if donated else ()), make_state(proof)
        given = list(batches(5))
        for images, labels in given[:2]:
            state, _ = step(state, images, labels)
        proof.join()
        spare = jax.tree.map(jnp.copy, state)
        with monkeypatch.context() as patch:
            patch.setattr(proof.queue, "submit", refuse(proof.queue.submit, stage))
            with pytest.raises(RuntimeError, match="no thread"):
                step(state, *given[2])
        proof.join()
        assert proof.jax_pipeline.counts.updates == (3 if stage == "commit" else 2)
        for images, labels in given[2:]:
            if stage == "commit" and images is given[2][0]:
                # It was handed over all the same; to go on from the state before it is an edit.
                with pytest.warns(ZKDVWarning, match="changed between"):
                    spare, _ = step(spare, images, labels)
                continue
            spare, _ = step(spare, images, labels)
    report = verified(tmp_path / "proof", allow_edits=True)
    assert (report.verdict, report.updates) == ("passed", 6 if stage == "commit" else 5)
