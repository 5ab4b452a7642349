"""Transcripts that nothing is wrong with and that do not pass either: something is missing that may still be shown."""

import pytest
from retelling import each, on, resumed, retell
from victims import Attacked


@pytest.fixture
def verdict(cpu_runs, folder):
    """Verify the run `checked` as it is told, and give what is missing."""

    def verified(lie, **options):
        run = cpu_runs["checked"]
        report = Attacked(run, retell(run, lie, **options)).verify(folder)
        assert report.violations == ()
        assert (report.verdict, report.exit_code) == ("incomplete", 3)
        [missing] = report.incomplete
        return missing

    return verified


def test_a_transcript_that_is_not_closed(verdict):
    assert "no close record" in verdict(lambda record: [record] * (record.kind != "close"))
    assert "no close record" in verdict(lambda record: [record] * (record.kind == "root"))
    last = on("check", 11, lambda _: [])
    assert "1 check" in verdict(lambda record: last(record) if record.kind != "close" else [])


def test_checks_whose_values_were_gone(verdict):
    def gone(record):
        if record.kind == "check" and record.body["update"] in {3, 4}:
            return [record.but(exact=False, verdict="unresolved", distance=0.0, probes=True)]
        if record.kind == "close":
            return [record.but(passed=record.body["passed"] - 2)]
        return [record]

    assert "2 checks" in verdict(each(gone))


def test_a_resume_that_leaves_sampled_updates_behind(cpu_runs, verdict):
    """Whoever dislikes what is drawn can go back and train on; that it happened does not go away."""
    records = resumed(cpu_runs["checked"], 10)
    kept = {}

    def another_batch(record):
        if record.kind == "check" and record.body["update"] in {10, 11}:
            kept[record.body["update"]] = kept.get(record.body["update"], 0) + 1
            if kept[record.body["update"]] == 1:
                return []
        if record.kind == "update" and record.body["update"] == 10 and record.body["batch"] in kept:
            return [record.but(batch=b"\x5a" * 32)]
        if record.kind == "update":
            kept[record.body["batch"]] = True
        if record.kind == "close":
            return [record.but(passed=record.body["passed"] - 2)]
        return [record]

    assert "1 sampled update" in verdict(each(another_batch), records=records)


def test_a_resume_from_an_optimizer_state_that_is_committed_nowhere(cpu_runs, verdict):
    records = resumed(cpu_runs["checked"], 5)
    optimizer = {"optimizer": b"\x5a" * 32, "optimizer-probes": b"\x5a" * 32}

    resumes = []

    def unlinked(record):
        if record.kind == "resume":
            resumes.append(record)
            return [record.but(linked=False)]
        if record.kind == "check" and record.body["update"] == 5 and resumes:
            return [record.but(snapshot=5)]
        if record.kind == "state" and record.body["reason"] == "resume":
            return [record.but(roots=record.body["roots"] | optimizer)]
        return [record]

    assert "committed nowhere" in verdict(each(unlinked), records=records)


def test_a_resume_in_another_layout(cpu_runs, verdict):
    """Its roots cannot be compared with those before, so that it could be any state."""
    run = cpu_runs["checked"]
    schema = run.records[run.index("schema")]
    first, *rest = schema.body["parameters"]
    other = schema.but(parameters=[first | {"shape": [*first["shape"], 1]}, *rest])
    lie = on("environment", 1, lambda record: [record, other])
    assert "in another layout" in verdict(lie, records=resumed(run, 12))
