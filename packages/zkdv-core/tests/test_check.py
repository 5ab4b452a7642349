"""Comparison of a replay with what was committed: exact, within tolerance, off, and gone."""

import math

import numpy as np
import pytest
from blake3 import blake3
from zkdv_reference import leaves

from zkdv import _native
from zkdv.attested import Attested
from zkdv.batch import BatchLayout
from zkdv.check import OpenedElement, compare
from zkdv.config import FloatTolerance
from zkdv.schema import LeafEvidence, LeafSpec, Schema
from zkdv.sharding import shard_arrays

TOLERANCE = FloatTolerance(abs=1e-3, rel=0.0)


RATIO = 0.5


def schema_of(array, sharding=None):
    return Schema((LeafSpec("w", str(array.dtype), array.shape, sharding),), (), BatchLayout.of([], [], []))


def evidence_of(array, sharding=None):
    pieces = [array] if sharding is None else [np.array(shard) for shard in shard_arrays(array, sharding)]
    digests, probes = [], []
    for piece in pieces:
        signs = np.zeros(_native.probe_sign_words(piece.shape, str(piece.dtype)), np.uint32)
        digest, probe = _native.commit_leaf(piece, str(piece.dtype), piece.shape, RATIO, signs)
        assert digest == blake3(piece.tobytes()).digest()
        digests.append(digest)
        probes.append(probe)
    datas = [blake3(b"" if probe is None else probe.tobytes()).digest() for probe in probes]
    digest, data = (
        found[0] if sharding is None else _native.sharded_leaf_digest(array.shape, sharding, found)
        for found in (digests, datas)
    )
    joined = None if probes[0] is None else np.concatenate(probes)
    return LeafEvidence({"parameters": [digest]}, {"parameters": [data]}, lambda: {"parameters": [joined]})


def outcome_of(committed, replayed, *, element=0, gone=False, rebuilt_exactly=True, sharding=None):
    schema, evidence = schema_of(committed, sharding), evidence_of(committed, sharding)
    production = OpenedElement.read(schema, "parameters", element, None if gone else committed, evidence)
    return compare(
        schema,
        TOLERANCE,
        probe_ratio=RATIO,
        update=5,
        snapshot=3,
        committed=evidence,
        replayed=evidence_of(replayed, sharding),
        rebuilt_exactly=rebuilt_exactly,
        probes_agree=True,
        production={"parameters": production},
        replayed_elements={"parameters": OpenedElement.read(schema, "parameters", element, replayed, None)},
    )


WEIGHTS = np.linspace(-1, 1, 1200, dtype=np.float32).reshape(2, 600)


def test_an_identical_replay_is_exact():
    outcome = outcome_of(WEIGHTS, WEIGHTS.copy(), element=7)
    assert outcome.failure is None
    assert outcome.body == {
        "update": 5,
        "snapshot": 3,
        "exact": True,
        "tolerance": {"absolute": 1e-3, "relative": 0.0},
        "parameter": {"index": 7},
        "verdict": "passed",
    }


def test_an_identical_replay_is_exact_even_where_the_production_leaf_is_gone():
    assert outcome_of(WEIGHTS, WEIGHTS.copy(), gone=True).body["exact"]


def test_a_close_replay_passes_with_an_opening_that_leads_to_the_root():
    element = 1100
    body = outcome_of(WEIGHTS, WEIGHTS + np.float32(1e-5), element=element).body
    assert (body["exact"], body["verdict"], body["probes"]) == (False, "passed", True)
    coordinate, opening = body["parameter"], body["parameter"]["opening"]
    digest = blake3(WEIGHTS.tobytes()).digest()
    assert opening["digest"] == digest
    assert opening["chunk"] == element * 4 // 1024
    assert _native.chunk_verify(digest, WEIGHTS.nbytes, opening["chunk"], opening["bytes"], opening["chain"])
    start = element * 4 % 1024
    assert opening["bytes"][start : start + 4] == coordinate["committed"] == WEIGHTS.reshape(-1)[element].tobytes()


@pytest.mark.parametrize("sharding", [(1, 600), (2, 400), (1, 259), (2, 1)])
@pytest.mark.parametrize("element", [0, 258, 259, 599, 600, 1199])
def test_an_element_of_a_sharded_leaf_is_opened_in_its_shard(sharding, element):
    body = outcome_of(WEIGHTS, WEIGHTS + np.float32(1e-5), element=element, sharding=sharding).body
    assert (body["verdict"], body["probes"]) == ("passed", True)
    coordinate, opening = body["parameter"], body["parameter"]["opening"]
    assert leaves.verify_shard_chunk(
        evidence_of(WEIGHTS, sharding).digests["parameters"][0],
        WEIGHTS.shape,
        sharding,
        element_bytes=4,
        element=element,
        shards=opening["shards"],
        data=opening["bytes"],
        chain=opening["chain"],
    )
    _, inside = leaves.locate(WEIGHTS.shape, sharding, element)
    start = inside * 4 % 1024
    assert opening["chunk"] == inside * 4 // 1024
    assert opening["bytes"][start : start + 4] == coordinate["committed"] == WEIGHTS.reshape(-1)[element].tobytes()


def test_probes_of_unequal_shards_are_scaled_by_their_own_slices():
    replayed = WEIGHTS.copy()
    # The last shard has 81 columns, in slices of one or two; elsewhere slices have two.
    replayed[0, 599] += 1
    distance = outcome_of(WEIGHTS, replayed, sharding=(2, 173)).body["distance"]
    dimension, kept = 600 - 3 * 173, -(-(600 - 3 * 173) // 2)
    width = dimension - (kept - 1) * dimension // kept
    assert distance == pytest.approx(1 / math.sqrt(width))


def test_a_coordinate_out_of_tolerance_fails_and_says_where():
    replayed = WEIGHTS.copy()
    replayed[0, 3] += 1
    outcome = outcome_of(WEIGHTS, replayed, element=3)
    assert outcome.body["verdict"] == "failed"
    assert "leaf w, element 3" in outcome.failure
    assert outcome.body["distance"] == pytest.approx(1.0)


def test_a_difference_elsewhere_is_found_by_the_probes():
    replayed = WEIGHTS.copy()
    replayed[1, 599] += 1
    outcome = outcome_of(WEIGHTS, replayed, element=0)
    assert outcome.body["verdict"] == "failed"
    assert outcome.body["probes"] is False
    assert "probe" in outcome.failure


def test_a_difference_whose_production_value_is_gone_is_unresolved():
    outcome = outcome_of(WEIGHTS, WEIGHTS + np.float32(1e-6), gone=True)
    assert (outcome.body["verdict"], outcome.failure) == ("unresolved", None)


def test_a_step_on_the_way_that_was_not_reproduced_is_never_exact():
    body = outcome_of(WEIGHTS, WEIGHTS.copy(), rebuilt_exactly=False).body
    assert (body["exact"], body["verdict"], body["distance"]) == (False, "passed", 0.0)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (np.nan, np.nan, "passed"),
        (np.nan, 0.0, "failed"),
        (np.inf, np.inf, "passed"),
        (np.inf, -np.inf, "failed"),
        (np.inf, 1e38, "failed"),
        (0.0, -0.0, "passed"),
    ],
)
def test_nan_agrees_with_nan_only_and_an_infinity_with_itself(ours, theirs, verdict):
    committed, replayed = (np.array([[value, 2.0]], np.float32) for value in (ours, theirs))
    outcome = outcome_of(committed, replayed, rebuilt_exactly=False)
    assert outcome.body["verdict"] == verdict


@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_integers_and_booleans_agree_with_themselves_only(dtype):
    committed = np.ones((1, 4), dtype)
    replayed = np.zeros((1, 4), dtype)
    assert outcome_of(committed, replayed).body["verdict"] == "failed"
    assert outcome_of(committed, committed.copy(), rebuilt_exactly=False).body["verdict"] == "passed"


def attested_outcome(before, after, *, delta, replayed=None, gone=False, rebuilt=None, element=5):
    """The check of an update of one leaf, with what an attest program gives for it."""
    replayed = after if replayed is None else replayed
    schema, evidence = schema_of(after), evidence_of(after)

    def read(array):
        return {"parameters": OpenedElement.read(schema, "parameters", element, array, evidence)}

    return compare(
        schema,
        TOLERANCE,
        probe_ratio=0.5,
        update=5,
        snapshot=3,
        committed=evidence,
        replayed=evidence_of(replayed),
        rebuilt_exactly=True,
        probes_agree=True,
        production=read(None if gone else after),
        replayed_elements=read(replayed),
        attested=Attested(
            {"parameters": delta}, before if rebuilt is None else rebuilt, [blake3(before.tobytes()).digest()]
        ),
    )


def test_an_attested_delta_stands_beside_the_element_before_and_after_each_opened_under_its_root():
    after = WEIGHTS + np.float32(0.25)
    body = attested_outcome(WEIGHTS, after, delta=0.25).body
    assert (body["exact"], body["verdict"]) == (True, "passed")
    coordinate = body["parameter"]
    assert coordinate["before"] == WEIGHTS.reshape(-1)[5].tobytes()
    assert coordinate["committed"] == after.reshape(-1)[5].tobytes()
    for opening, leaf in ((coordinate["before-opening"], WEIGHTS), (coordinate["opening"], after)):
        digest = blake3(leaf.tobytes()).digest()
        assert opening["digest"] == digest
        assert _native.chunk_verify(digest, leaf.nbytes, opening["chunk"], opening["bytes"], opening["chain"])


def test_an_attested_delta_that_is_off_fails_an_exact_replay_with_both_numbers():
    outcome = attested_outcome(WEIGHTS, WEIGHTS + np.float32(0.25), delta=0.5)
    assert (outcome.body["exact"], outcome.body["verdict"]) == (True, "failed")
    assert outcome.failure == (
        "is not the one that the attest program describes: it gives a delta of 0.5 for parameters leaf w, element 5, "
        "and the update moved it by 0.25; 0.001 is allowed between them"
    )


def test_an_attested_delta_is_compared_beside_a_replay_that_is_near():
    after = WEIGHTS + np.float32(0.25)
    near = after + np.float32(1e-5)
    assert attested_outcome(WEIGHTS, after, delta=0.25, replayed=near).body["verdict"] == "passed"
    assert attested_outcome(WEIGHTS, after, delta=0.5, replayed=near).body["verdict"] == "failed"


def test_an_attested_delta_whose_start_is_gone_is_unresolved():
    after = WEIGHTS + np.float32(0.25)
    near = after + np.float32(1e-5)
    outcome = attested_outcome(WEIGHTS, after, delta=0.25, replayed=near, rebuilt=WEIGHTS + np.float32(1e-6))
    assert (outcome.body["verdict"], outcome.failure) == ("unresolved", None)
    assert not {"before", "before-opening"} & set(outcome.body["parameter"])
    assert outcome.body["parameter"]["attested"] == 0.25


def test_an_exact_replay_stands_for_a_production_value_that_is_gone():
    after = WEIGHTS + np.float32(0.25)
    body = attested_outcome(WEIGHTS, after, delta=0.25, gone=True).body
    assert (body["exact"], body["verdict"]) == (True, "passed")
    assert body["parameter"]["committed"] == after.reshape(-1)[5].tobytes()
