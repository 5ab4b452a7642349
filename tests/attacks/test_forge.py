"""The forge tells honest runs again, so that what it tells otherwise is caught for the lie alone."""

import cbor2
import pytest
from forge import BODY, KIND, PREV, SEQ, encode, payload, read, split
from retelling import inexact, resumed, retell
from sharded import told_in_shards
from trained import PLANS
from victims import Attacked
from zkdv_reference import challenges


@pytest.fixture(params=PLANS)
def run(request, runs):
    return runs[request.param]


def assert_passes(attacked, folder):
    report = attacked.verify(folder)
    assert report.violations == ()
    assert report.verdict == "passed", report.incomplete
    return report


def test_the_runs_themselves_pass(run, folder):
    report = assert_passes(Attacked(run, run.data, {"allow_edits": True, "head": run.head}), folder)
    assert report.checks_passed == report.sampled == len(run.bodies("check")) > 0


def test_other_peoples_cbor_is_encoded_the_same(run):
    for record in run.raw:
        fields = cbor2.loads(payload(record))
        assert encode(fields) == cbor2.dumps(fields, canonical=True) == payload(record)
        assert [fields[SEQ], fields[PREV], fields[KIND], fields[BODY]] == list(fields.values())


def test_every_draw_of_the_run_is_what_the_reference_draws(run):
    schema, sampling = run.bodies("schema")[0], run.records[0].body["configuration"]["sampling"]
    sizes = {tree: sum(array.size for array in run.states[0][tree]) for tree in run.states[0]}
    assert [len(schema[tree]) for tree in sizes] == [len(run.states[0][tree]) for tree in sizes]
    checks = {check["update"]: check for check in run.bodies("check")}
    for number, record in enumerate(run.records):
        if record.kind == "update":
            update = record.body["update"]
            digest = cbor2.loads(payload(run.raw[number + 1]))[PREV]
            is_sampled, parameter, optimizer = challenges.draw(digest, b"", sampling, update=update, **sizes)
            assert is_sampled == (update in checks)
            if is_sampled:
                assert checks[update]["parameter"]["index"] == parameter
                assert checks[update]["optimizer"]["index"] == optimizer


def test_a_run_told_again_with_other_keys_passes(run, folder):
    told = retell(run)
    assert told != run.data
    report = assert_passes(Attacked(run, told, {"allow_edits": True}), folder)
    assert (report.updates, report.sampled) == (run.plan.updates, len(run.bodies("check")))


def test_a_run_told_with_receipts_passes(run, folder):
    report = assert_passes(Attacked(run, retell(run, receipts=True), {"allow_edits": True}), folder)
    assert report.challenger.name == "forged"


def test_a_run_told_with_checks_that_are_near_passes(runs, folder):
    openings = []
    for run in (runs["checked"], runs["sampled"]):
        told = retell(run, lambda record, run=run: [inexact(run, record) if record.kind == "check" else record])
        checks = [record.body for record in map(read, split(told)) if record.kind == "check"]
        openings += [check[tree].get("opening") for check in checks for tree in ("parameter", "optimizer")]
        report = assert_passes(Attacked(run, told), folder)
        assert report.checks_passed == run.plan.updates
    # Of leaves of one chunk and of two, and where no root is that they could lead to.
    assert {len(opening["chain"]) if opening else None for opening in openings} == {None, 0, 1}


def test_a_run_told_in_shards_passes(runs, folder):
    run = runs["sampled"]
    told = told_in_shards(run)
    checks = [record.body for record in map(read, split(told)) if record.kind == "check"]
    openings = [check[tree]["opening"] for check in checks for tree in ("parameter", "optimizer")]
    assert any("shards" in opening for opening in openings)
    assert assert_passes(Attacked(run, told), folder).checks_passed == run.plan.updates


@pytest.mark.parametrize("keep", [4, 6, 12])
def test_a_run_told_with_a_resume_passes(runs, keep, folder):
    run = runs["checked"]
    report = assert_passes(Attacked(run, retell(run, records=resumed(run, keep))), folder)
    assert (report.resumes, report.updates) == (1, 24 - keep)
