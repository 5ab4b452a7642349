"""What a follower compares with the owner's decisions, over a control in memory."""

import json

import pytest

from zkdv.errors import ZKDVError
from zkdv.session import OwnerChallenge, OwnerSubmission

DIGEST = bytes(range(32))
UPDATE = {"window": [{"bits": b"\x01\x02"}, None], "overlap": 1, "roots": {"parameters": b"\x03" * 32}}
CHECK = {"verdict": "passed", "exact": True, "update": 3}
DRAWN = {"param_idx": 5, "state_idx": None, "tolerance_abs": 1e-6, "tolerance_rel": 0.0}


class MemoryControl:
    """One rank's; the owner's decisions are there before a follower asks for them, as JSON gives them back."""

    size = 2

    def __init__(self, rank, decisions):
        self.rank, self.decisions = rank, decisions

    def exchange(self, key, value=None):
        if self.rank == 0:
            self.decisions[key] = json.dumps(value)
        return json.loads(self.decisions[key])


class Records:
    """The owner's transcript: what was written to it."""

    def __init__(self):
        self.written = []

    def append(self, kind, body):
        self.written.append((kind, body))
        return len(self.written), DIGEST

    def sync(self):
        pass


@pytest.fixture
def ranks():
    decisions = {}
    return MemoryControl(0, decisions), MemoryControl(1, decisions)


def test_an_update_on_which_ranks_agree_has_the_owners_digest_on_both(ranks):
    records = Records()
    owner, follower = ranks
    assert OwnerSubmission(owner, 3, records).append(UPDATE) == DIGEST
    assert OwnerSubmission(follower, 3, None).append(dict(reversed(UPDATE.items()))) == DIGEST
    assert records.written == [("update", UPDATE)]


@pytest.mark.parametrize(
    ("mine", "named"),
    [
        (UPDATE | {"overlap": 2}, "overlap"),
        (UPDATE | {"window": [{"bits": b"\x01\x03"}, None]}, "window"),
        (UPDATE | {"roots": {"parameters": b"\x03" * 31 + b"\x04"}, "overlap": 0}, "overlap, roots"),
        (UPDATE | {"edits": []}, "edits"),
        ({key: UPDATE[key] for key in ("window", "roots")}, "overlap"),
    ],
    ids=["number", "bytes", "two", "more", "less"],
)
def test_a_follower_refuses_an_update_that_it_would_have_recorded_otherwise(ranks, mine, named):
    owner, follower = ranks
    OwnerSubmission(owner, 3, Records()).append(UPDATE)
    with pytest.raises(ZKDVError, match=f"rank 1 and the owner .* of update 3: they differ in {named}$"):
        OwnerSubmission(follower, 3, None).append(mine)


def test_where_one_process_is_the_whole_run_nothing_is_prepared_for_others():
    # What only the transcript can hold is a fingerprint's failure.
    body = {"known to the transcript alone": object()}
    assert OwnerSubmission(None, 3, Records()).append(body) == DIGEST
    OwnerChallenge(None, 3, Records(), DRAWN).append(body)


def test_a_follower_refuses_a_check_of_other_elements_and_another_verdict(ranks):
    owner, follower = ranks
    records = Records()
    OwnerChallenge(owner, 3, records, DRAWN).append(CHECK)
    assert records.written == [("check", CHECK)]
    OwnerChallenge(follower, 3, None, DRAWN).append(CHECK)
    with pytest.raises(ZKDVError, match=r"the check of update 3 on rank 1 .* in verdict: the verdict here is failed"):
        OwnerChallenge(follower, 3, None, DRAWN).append(CHECK | {"verdict": "failed"})
    with pytest.raises(ZKDVError, match=r"rank 1 would check update 3 for .*'param_idx': 6.* the owner for .*: 5"):
        OwnerChallenge(follower, 3, None, DRAWN | {"param_idx": 6})
