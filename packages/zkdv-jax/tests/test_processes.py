"""Training over several processes, which leaves one transcript on the owner."""

import numpy as np
import pytest
from processes import Ranks
from small_run import records, verified

from zkdv import _native
from zkdv.sharding import leaf_digest

# A rank that hangs is noticed sooner, by name.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
UPDATES = 7


@pytest.fixture(scope="module", params=[2, 4], ids=["two", "four"])
def ranks(request, owner_identity):
    with Ranks(request.param, devices=2 if request.param == 2 else 1) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def two(owner_identity):
    with Ranks(2) as ranks:
        yield ranks


@pytest.mark.parametrize("layout", ["data", "tensor", "mixed"])
def test_a_run_leaves_one_transcript_with_checks_on_every_rank(ranks, tmp_path, layout):
    size = len(ranks.ranks)
    roots = ranks.open(tmp_path / "proof", layout=layout, every=2, attested=True)
    assert len(set(roots)) == 1
    losses = ranks.do("train", updates=UPDATES)
    assert all(own == losses[0] for own in losses)
    ranks.do("save", folder=str(tmp_path))
    counted = ranks.do("close")

    assert all(own == counted[0] for own in counted)
    assert counted[0] == {
        "updates": UPDATES, "sampled": 3, "passed": 3, "failed": 0, "edits": 0,
        "head": verified(tmp_path / "proof").head,
    }  # fmt: skip
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.violations, report.ranks) == ("passed", (), size)
    assert sorted(path.name for path in tmp_path.iterdir() if "proof" in path.name) == ["proof"]
    checks = [record["body"] for record in records(tmp_path / "proof", "check")]
    assert [(check["exact"], check["verdict"]) for check in checks] == [(True, "passed")] * 3
    assert all("attested" in check["parameter"] for check in checks)
    assert_committed(tmp_path / "proof", np.load(tmp_path / "final.npz"), layout)
    for rank in ranks.ranks:
        assert [line for line in rank.warnings if "DEBUG" not in line] == []


def assert_committed(folder, arrays, layout):
    """Hold the last state record against whole arrays: whoever has them can say what was committed of each shard."""
    [schema] = records(folder, "schema")
    leaves = schema["body"]["parameters"]
    sharded = [leaf["name"] for leaf in leaves if "sharding" in leaf]
    assert bool(sharded) == (layout != "data")
    digests = [leaf_digest(arrays[leaf["name"]], leaf.get("sharding")) for leaf in leaves]
    [_, closing] = records(folder, "state")
    assert _native.tree_root("parameters", digests) == closing["body"]["roots"]["parameters"]


@pytest.mark.parametrize("layout", ["data", "tensor"])
def test_the_folder_alone_is_replayed_on_as_many_processes(two, tmp_path, layout):
    two.open(tmp_path / "proof", layout=layout, commit="every")
    two.do("train", updates=3)
    two.do("close")
    assert two.do("replay", folder=str(tmp_path / "proof")) == [[0, 1, 2], [0, 1, 2]]


def test_elements_of_shards_on_other_ranks_are_opened_where_a_replay_is_not_exact(two, tmp_path):
    two.do("replay_inexactly", relative=2**-20)
    two.open(tmp_path / "proof", layout="mixed", every=1, commit="every")
    two.do("train", updates=4)
    counted = two.do("close")
    two.do("replay_inexactly", relative=0)
    assert counted[0] == counted[1]
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.violations) == ("passed", ())
    checks = [record["body"] for record in records(tmp_path / "proof", "check")]
    assert [(check["exact"], check["probes"]) for check in checks] == [(False, True)] * 4
    assert any("shards" in check["parameter"]["opening"] for check in checks)


def test_under_always_a_check_is_a_fence(two, tmp_path):
    two.open(tmp_path / "proof", every=1)
    two.do("train", updates=3, overlap=2)
    two.do("close")
    assert verified(tmp_path / "proof").verdict == "passed"
    assert [record["body"]["overlap"] for record in records(tmp_path / "proof", "update")] == [1, 1, 1]


@pytest.mark.parametrize("path", [".params['layers_0']['kernel']", ".params['layers_2']['bias']"])
def test_an_edit_on_every_rank_is_recorded(two, tmp_path, path):
    two.open(tmp_path / "proof", layout="tensor")
    two.do("train", updates=2)
    two.do("edit", path=path)
    two.do("train", updates=2)
    counted = two.do("close")
    assert [own["edits"] for own in counted] == [1, 1]
    report = verified(tmp_path / "proof", allow_edits=True)
    assert (report.verdict, report.violations) == ("passed", ())


def test_nan_is_noticed_on_every_rank_and_recorded(two, tmp_path):
    two.open(tmp_path / "proof", layout="mixed")
    two.do("train", updates=1, nan=True)
    two.do("train", updates=2)
    two.do("close")
    for rank in two.ranks:
        assert len([line for line in rank.warnings if "holds NaN since update 0" in line]) == 1
        rank.warnings.clear()
    assert verified(tmp_path / "proof").verdict == "passed"


def test_the_transport_is_one_argument(two, tmp_path):
    two.open(tmp_path / "proof", transport="tcp")
    two.do("train", updates=2)
    two.do("close")
    assert verified(tmp_path / "proof").verdict == "passed"
