"""Admission under each overlap policy, poison, and the end of the stage threads."""

import threading
from concurrent.futures import CancelledError

import pytest

from zkdv import overlap
from zkdv.errors import ZKDVError, ZKDVPoisonedError
from zkdv.flowcontrol import PipelineQueue

WAIT_SECONDS = 10


@pytest.fixture
def queue():
    queue = PipelineQueue(2)
    yield queue
    queue.close(cancel=True)


class Successor:
    """A call of acquire on its own thread."""

    def __init__(self, queue, policy):
        self.slot = None
        self.error = None
        self.done = threading.Event()
        self.thread = threading.Thread(target=self.run, args=(queue, policy), daemon=True)
        self.thread.start()

    def run(self, queue, policy):
        try:
            self.slot = queue.acquire(policy)
        except ZKDVError as error:
            self.error = error
        self.done.set()

    @property
    def waits(self):
        return not self.done.wait(0.05)

    @property
    def admitted(self):
        return self.done.wait(WAIT_SECONDS) and self.slot is not None


def test_never_admits_no_successor_before_the_update_retired(queue):
    first = queue.acquire(overlap.NEVER)
    successor = Successor(queue, overlap.NEVER)
    assert successor.waits
    first.draw(sampled=False)
    assert successor.waits
    first.retire()
    assert successor.admitted


def test_unchecked_admits_a_successor_once_the_draw_spares_the_update(queue):
    first = queue.acquire(overlap.UNCHECKED)
    successor = Successor(queue, overlap.UNCHECKED)
    assert successor.waits
    first.draw(sampled=False)
    assert successor.admitted


def test_unchecked_takes_a_sampled_check_for_a_fence(queue):
    first = queue.acquire(overlap.UNCHECKED)
    first.draw(sampled=True)
    successor = Successor(queue, overlap.UNCHECKED)
    first.hold()
    assert successor.waits
    first.retire()
    assert successor.admitted


def test_always_admits_a_successor_while_the_check_runs(queue):
    first = queue.acquire(overlap.ALWAYS)
    first.draw(sampled=True)
    successor = Successor(queue, overlap.ALWAYS)
    assert successor.waits
    first.hold()
    assert successor.admitted


def test_the_strictest_active_policy_decides(queue):
    first = queue.acquire(overlap.ALWAYS)
    first.draw(sampled=True)
    first.hold()
    successor = Successor(queue, overlap.UNCHECKED)
    assert successor.waits
    first.retire()
    assert successor.admitted


def test_capacity_is_the_ceiling_of_unresolved_updates():
    queue = PipelineQueue(1)
    first = queue.acquire(overlap.ALWAYS)
    first.draw(sampled=True)
    first.hold()
    successor = Successor(queue, overlap.ALWAYS)
    assert successor.waits
    first.retire()
    assert successor.admitted
    queue.close(cancel=True)


def test_a_long_check_holds_up_updates_before_its_record_would_be_late():
    queue = PipelineQueue(2, max_lag=3)
    checked = queue.acquire(overlap.ALWAYS)
    checked.draw(sampled=True)
    checked.hold()
    for _ in range(3):
        slot = queue.acquire(overlap.ALWAYS)
        slot.draw(sampled=False)
        slot.retire()
    successor = Successor(queue, overlap.ALWAYS)
    assert successor.waits
    checked.retire()
    assert successor.admitted
    queue.close(cancel=True)


def test_a_failing_stage_poisons_waiting_and_later_calls(queue):
    queue.acquire(overlap.NEVER)
    successor = Successor(queue, overlap.NEVER)

    def fail():
        raise OSError("no space left")

    future = queue.submit("commit", fail)
    assert isinstance(future.exception(WAIT_SECONDS), OSError)
    assert successor.done.wait(WAIT_SECONDS)
    assert isinstance(successor.error, ZKDVPoisonedError)
    assert "no space left" in str(successor.error)
    assert isinstance(successor.error.__cause__, OSError)
    with pytest.raises(ZKDVPoisonedError, match="no space left"):
        queue.check()
    with pytest.raises(ZKDVPoisonedError, match="no space left"):
        queue.join()


def test_work_behind_a_failure_is_not_run(queue):
    ran = []
    gate = threading.Event()

    def fail():
        gate.wait(WAIT_SECONDS)
        raise OSError("first")

    queue.submit("commit", fail)
    behind = queue.submit("commit", ran.append, 1)
    gate.set()
    assert isinstance(behind.exception(WAIT_SECONDS), ZKDVPoisonedError)
    assert ran == []


def test_stages_run_on_threads_of_their_name_in_order(queue):
    names = [queue.submit(stage, lambda: threading.current_thread().name) for stage in ("start", "commit", "check")]
    assert [name.result(WAIT_SECONDS).split("_")[0] for name in names] == ["zkdv.start", "zkdv.commit", "zkdv.check"]
    order = []
    for number in range(20):
        last = queue.submit("commit", order.append, number)
    last.result(WAIT_SECONDS)
    assert order == list(range(20))


def test_closing_wakes_who_waits(queue):
    queue.acquire(overlap.NEVER)
    successor = Successor(queue, overlap.NEVER)
    queue.close()
    assert successor.done.wait(WAIT_SECONDS)
    assert "closed" in str(successor.error)


def test_phases_are_annotated():
    seen = []

    class Mark:
        def __init__(self, name):
            seen.append(name)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

    queue = PipelineQueue(1, Mark)
    queue.submit("commit", int).result(WAIT_SECONDS)
    first = queue.acquire(overlap.NEVER)
    successor = Successor(queue, overlap.NEVER)
    assert successor.waits
    first.retire()
    assert successor.admitted
    queue.close()
    assert "zkdv.commit" in seen
    assert "zkdv.flow_control.wait" in seen


def test_capacity_below_one_is_refused():
    with pytest.raises(ValueError, match="capacity is 0"):
        PipelineQueue(0)


def test_slots_of_calls_that_came_to_nothing_are_withdrawn(queue):
    first = queue.acquire(overlap.ALWAYS)
    first.draw(sampled=False)
    lost = queue.acquire(overlap.ALWAYS)
    queue.withdraw(first.number)
    assert (first.retired, lost.retired) == (False, True)
    queue.withdraw(-1)
    assert first.retired
    queue.join()


def test_waiting_ends_where_its_condition_holds_or_the_queue_fails(queue):
    seen, results = [], []

    def wait():
        try:
            queue.wait_until(lambda: bool(seen))
        except ZKDVError as error:
            results.append(str(error))
        else:
            results.append("held")

    def started():
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    thread = started()
    seen.append(1)
    queue.notify()
    thread.join(WAIT_SECONDS)
    seen.clear()
    thread = started()
    queue.poison(OSError("no space left"))
    thread.join(WAIT_SECONDS)
    assert results == ["held", "no space left"]


def test_joining_ends_where_what_is_owed_is_dropped(queue):
    queue.acquire(overlap.NEVER)
    errors = []

    def join():
        try:
            queue.join()
        except ZKDVError as error:
            errors.append(str(error))

    thread = threading.Thread(target=join, daemon=True)
    thread.start()
    queue.close(cancel=True)
    thread.join(WAIT_SECONDS)
    assert len(errors) == 1
    assert "closed" in errors[0]


def test_closing_at_once_drops_checks_and_keeps_commitments(queue):
    commitment, check, ran = threading.Event(), threading.Event(), []
    queue.submit("commit", commitment.wait, WAIT_SECONDS)
    queue.submit("check", check.wait, WAIT_SECONDS)
    queue.submit("commit", ran.append, "commit")
    dropped = queue.submit("check", ran.append, "check")
    closing = threading.Thread(target=queue.close, kwargs={"cancel": True}, daemon=True)
    closing.start()
    with pytest.raises(CancelledError):
        dropped.result(WAIT_SECONDS)
    commitment.set()
    check.set()
    closing.join(WAIT_SECONDS)
    assert not closing.is_alive()
    assert ran == ["commit"]
