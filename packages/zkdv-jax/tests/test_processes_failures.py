"""What becomes of a run over several processes where one of them fails: real processes, and what is left on disk."""

import queue

import pytest
from processes import Ranks
from small_run import records, verified

# A rank that hangs is noticed sooner, by name.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
LATE_SECONDS = 31
BEYOND = " beyond the partition"


@pytest.fixture(scope="module")
def lasting(owner_identity):
    """Two processes that outlive the failures of their proofs."""
    with Ranks(2) as ranks:
        yield ranks


@pytest.fixture
def doomed(owner_identity):
    """Two processes of which one is going to end."""
    with Ranks(2) as ranks:
        yield ranks


def assert_open(folder, updates):
    """The folder holds so many updates, and its transcript is unbroken and not closed."""
    report = verified(folder)
    assert (report.verdict, report.violations, report.closed) == ("incomplete", (), False)
    assert report.updates == updates


def test_a_follower_with_another_configuration_is_refused_before_anything_is_written(lasting, tmp_path):
    owner, follower = lasting.ranks
    owner.ask("open", folder=str(tmp_path / "proof"), every=2)
    follower.ask("open", folder=str(tmp_path / "proof"), every=3)
    errors = lasting.errors()
    assert [error.kind for error in errors] == ["ZKDVError"] * 2
    for error in errors:
        assert (
            "rank 1 differs from the owner in what it was started with: configuration.sampling.every is 3, on the "
            "owner 2"
        ) in error.message
    assert not (tmp_path / "proof").exists()


def test_a_follower_with_another_program_is_refused_before_its_first_update(lasting, tmp_path):
    owner, follower = lasting.ranks
    owner.ask("open", folder=str(tmp_path / "proof"), rate=1e-2)
    follower.ask("open", folder=str(tmp_path / "proof"), rate=2e-2)
    for rank in lasting.ranks:
        rank.answer()
    lasting.ask("train")
    for error in lasting.errors():
        assert "rank 1 differs from the owner in what train_step does: line " in error.message
        assert "of program is " in error.message
        assert "stablehlo.constant dense<" in error.message
    assert_open(tmp_path / "proof", 0)


def test_processes_that_would_train_each_by_itself_are_refused(lasting, tmp_path):
    lasting.open(tmp_path / "proof", apart=True)
    lasting.ask("train")
    for error in lasting.errors():
        assert error.kind == "ZKDVError"
        assert "the run has 2 processes, and the state lies on devices of 1 of them; place state and" in error.message
    assert_open(tmp_path / "proof", 0)


def test_what_the_owner_can_not_open_is_said_on_every_rank(lasting, tmp_path):
    lasting.open(tmp_path / "proof")
    lasting.do("train", updates=1)
    lasting.do("close")
    lasting.ask("open", folder=str(tmp_path / "proof"))
    own, other = lasting.errors()
    assert "holds a transcript" in own.message
    assert other.message == f"the owner, rank 0, could not open the transcript: ZKDVError: {own.message}"
    assert verified(tmp_path / "proof").verdict == "passed"


def test_other_elements_of_a_replica_are_reported_with_rank_and_leaf(lasting, tmp_path):
    lasting.open(tmp_path / "proof")
    lasting.do("train", updates=2)
    lasting.ranks[1].ask("flip_a_bit", path=".params['layers_2']['bias']")
    lasting.ranks[1].answer()
    lasting.do("train")
    lasting.ask("close")
    for error in lasting.errors():
        assert error.kind == "ZKDVPoisonedError"
        assert "has other elements on rank 1 (" in error.message
        assert "than on rank 0 (" in error.message
        assert "parameters leaf layers_" in error.message
    assert_open(tmp_path / "proof", 2)


def test_input_that_differs_by_rank_is_reported_with_rank_and_name(lasting, tmp_path):
    lasting.open(tmp_path / "proof")
    lasting.do("train", updates=1)
    for number, rank in enumerate(lasting.ranks):
        rank.ask("train", scale=1 + number)
    for rank in lasting.ranks:
        rank.answer()
    lasting.ask("close")
    for error in lasting.errors():
        assert error.kind == "ZKDVPoisonedError"
        assert "input scale has other elements on rank 1 (" in error.message
    assert_open(tmp_path / "proof", 1)


def test_input_of_another_shape_on_one_rank_is_refused_at_the_start(lasting, tmp_path):
    lasting.open(tmp_path / "proof")
    for number, rank in enumerate(lasting.ranks):
        rank.ask("train", drop=4 * number)
    for error in lasting.errors():
        assert "rank 1 differs from the owner in what train_step does: state and batch.batch" in error.message
    assert_open(tmp_path / "proof", 0)


@pytest.mark.parametrize(
    ("failing", "gone"), [(1, "rank 1 is gone: rank 1"), (0, "the owner, rank 0, is gone: rank 0")]
)
def test_an_exception_on_one_rank_ends_the_run_on_every_rank(lasting, tmp_path, failing, gone):
    lasting.open(tmp_path / "proof")
    lasting.do("train", updates=2)
    lasting.ranks[failing].ask("fail")
    assert lasting.ranks[failing].error().kind == "FileNotFoundError"
    other = lasting.ranks[1 - failing]
    other.ask("close")
    assert f"{gone}: FileNotFoundError: the next shard of the data set is gone" in other.error().message
    assert_open(tmp_path / "proof", 2)


def test_a_check_that_fails_closes_the_run_as_poisoned_on_every_rank(lasting, tmp_path):
    lasting.do("replay_inexactly", relative=0.1)
    lasting.open(tmp_path / "proof", layout="mixed")
    lasting.do("train", updates=2)
    lasting.ask("close")
    errors = lasting.errors()
    lasting.do("replay_inexactly", relative=0)
    assert [error.kind for error in errors] == ["ZKDVPoisonedError"] * 2
    assert errors[0].message == errors[1].message
    assert "update 1 does not replay to what was committed" in errors[0].message
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.closed, report.checks_failed) == ("failed", True, 1)


def test_a_partition_ends_every_rank_after_the_timeout(lasting, tmp_path):
    lasting.open(tmp_path / "proof", transport="silent")
    lasting.do("train", updates=2)
    lasting.do("join")
    lasting.ranks[1].ask("cut_off")
    lasting.ranks[1].answer()
    lasting.do("train")
    lasting.ask("close")
    own, other = lasting.errors()
    mine, theirs = (f"rank {rank} of 2, round 'zkdv/update/2{cut}'" for rank, cut in enumerate(["", BEYOND]))
    timed_out = (
        f"{mine}: no answer from rank 1 in 20 s" in own.message,
        f"{theirs}: no decision from the owner, rank 0, in 20 s" in other.message,
    )
    # Both wait for as long, and who gives up first may still be heard.
    assert any(timed_out)
    assert timed_out[0] or f"{mine}: rank 1 is gone: {theirs} failed: TimeoutError" in own.message
    assert timed_out[1] or f"{theirs}: the owner, rank 0, is gone: {mine} failed: TimeoutError" in other.message
    # The owner had written the record before it asked.
    assert_open(tmp_path / "proof", 3)


def test_a_follower_that_is_late_is_waited_for(lasting, tmp_path):
    lasting.open(tmp_path / "proof", every=1)
    owner, follower = lasting.ranks
    owner.ask("train", updates=2)
    with pytest.raises(queue.Empty):
        owner.answer(timeout=LATE_SECONDS)
    follower.ask("train", updates=2)
    assert owner.answer() == follower.answer()
    lasting.do("close")
    assert verified(tmp_path / "proof").verdict == "passed"


def test_a_follower_that_is_killed_ends_the_owner_and_leaves_the_transcript_open(doomed, tmp_path):
    doomed.open(tmp_path / "proof")
    doomed.do("train", updates=3)
    # Records are written behind the training.
    doomed.do("join")
    owner, follower = doomed.ranks
    follower.process.kill()
    owner.ask("train", updates=3)
    # JAX may end the process before Python learns what has happened.
    error = owner.error()
    assert error.kind in {"ended", "ZKDVPoisonedError", "JaxRuntimeError", "XlaRuntimeError", "ValueError"}
    owner.wait()
    assert_open(tmp_path / "proof", 3)
    assert len(records(tmp_path / "proof", "check")) == 1


def test_an_owner_that_is_killed_ends_its_followers_and_leaves_the_transcript_open(doomed, tmp_path):
    doomed.open(tmp_path / "proof")
    doomed.do("train", updates=3)
    # Records are written behind the training.
    doomed.do("join")
    owner, follower = doomed.ranks
    owner.process.kill()
    follower.ask("train", updates=3)
    assert follower.error().kind in {"ended", "ZKDVPoisonedError", "JaxRuntimeError", "XlaRuntimeError", "ValueError"}
    follower.wait()
    assert_open(tmp_path / "proof", 3)
