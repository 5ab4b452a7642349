"""Which snapshots are kept, and how many copies of the state that takes."""

from types import SimpleNamespace

import pytest

from zkdv.errors import ZKDVError
from zkdv.replay_memory import ReplayMemory, Snapshot


def snapshot(memory, index, *, arrived=True):
    copy = memory.take_room(index) or [object()]
    memory.add_snapshot(Snapshot(index, copy, arrived))
    return copy


def commit(memory, *indexes):
    for index in indexes:
        memory.add_update(SimpleNamespace(index=index))


def test_a_check_replays_from_the_newest_snapshot_at_or_before_its_update():
    memory = ReplayMemory(limit=2)
    snapshot(memory, 0)
    for index in range(6):
        if index == 4:
            snapshot(memory, 4)
        memory.expect_check(index)
        commit(memory, index)
    start, steps = memory.path_to(3)
    assert (start.index, [step.index for step in steps]) == (0, [0, 1, 2, 3])
    start, steps = memory.path_to(5)
    assert (start.index, [step.index for step in steps]) == (4, [4, 5])


def test_a_snapshot_is_written_over_once_no_check_can_start_from_it():
    memory = ReplayMemory()
    first = snapshot(memory, 0)
    memory.expect_check(2)
    assert not memory.make_room(4)
    with pytest.raises(ZKDVError, match="no copy of the state is free"):
        memory.take_room(4)
    memory.settle(2)
    assert memory.make_room(4)
    assert snapshot(memory, 4) is first
    assert memory.primed == 1


def test_a_snapshot_that_has_not_arrived_is_not_written_over():
    memory = ReplayMemory()
    snapshot(memory, 0, arrived=False)
    assert not memory.make_room(1)


def test_a_long_check_keeps_its_snapshot_and_the_others_share_what_is_left():
    memory = ReplayMemory(limit=2)
    held = snapshot(memory, 0)
    memory.expect_check(0)
    commit(memory, 0)
    other = snapshot(memory, 1)
    for index in range(2, 20):
        memory.expect_check(index - 1)
        memory.settle(index - 1)
        assert snapshot(memory, index) is other
    start, steps = memory.path_to(0)
    assert (start.copy, [step.index for step in steps]) == (held, [0])
    assert memory.primed == 2


def test_updates_are_kept_no_longer_than_a_replay_may_come_through_them():
    memory = ReplayMemory()
    snapshot(memory, 0)
    commit(memory, 0, 1)
    snapshot(memory, 2)
    # Committed late, and known to be unsampled.
    commit(memory, 1, 2)
    assert list(memory._updates) == [2]


def test_a_snapshot_is_lacking_until_one_is_complete_and_for_another_attempt():
    memory = ReplayMemory()
    assert memory.lacks_snapshot(0)
    snapshot(memory, 0)
    assert not memory.lacks_snapshot(1)
    assert memory.lacks_snapshot(0)
    memory.take_room(4)
    assert memory.lacks_snapshot(5)
    snapshot(memory, 5)
    assert not memory.lacks_snapshot(6)


def test_a_snapshot_that_a_check_carried_forward_goes_on_from_there():
    memory = ReplayMemory()
    snapshot(memory, 0)
    commit(memory, 0, 1, 2, 3)
    held, _ = memory.path_to(1)
    held.reached = 2
    start, steps = memory.path_to(3)
    assert (start.index, [step.index for step in steps]) == (0, [2, 3])
