"""`zkdv.verify` as programs use it."""

import dataclasses
import json
import os
import traceback

import pytest

import zkdv
from zkdv import _native, overlap
from zkdv.verification import RunReport, Verdict

OPTIONS = {"identity": None, "head": None, "allow_edits": False, "require": []}


def test_report_of_a_run_that_passes(transcript):
    report = zkdv.verify(transcript.folder)
    assert report.passed
    assert report.verdict is Verdict.PASSED
    assert report.verdict == "passed"
    assert report.exit_code == 0
    assert report.violations == ()
    (run,) = report.runs
    assert run.path == str(transcript.folder)
    assert (run.run, run.prover, run.level) == ("digits", "whitebox-jax", "record")
    assert (run.root, run.head) == (transcript.root.hex(), transcript.head.hex())
    assert (run.updates, run.records, run.bytes) == (3, 10, transcript.records.stat().st_size)
    assert (run.closed, run.poisoned, run.torn_bytes) == (True, False, 0)
    assert (run.sampled, run.checks_passed, run.checks_failed) == (0, 0, 0)
    assert (run.probability, run.every) == (1e-12, None)
    assert (run.tolerance_absolute, run.tolerance_relative) == (1e-5, 1e-4)
    assert run.identity.key == transcript.public_key.hex()
    assert not run.identity.pinned
    assert (run.challenger.name, run.challenger.key) == ("transcript", None)
    (program,) = run.programs
    assert (program.role, program.updates) == ("replay", 3)
    assert run.environment["devices"] == ["cpu"]
    report.require_passed()


def test_every_form_of_a_path_is_taken(transcript):
    for path in (transcript.folder, str(transcript.folder), transcript.records, os.fspath(transcript.records)):
        assert zkdv.verify(path).passed


def test_identity_and_head_are_pinned_in_every_form(transcript, tmp_path):
    (tmp_path / "key.pem").write_text(transcript.public_pem)
    for key in (transcript.public_key, transcript.public_key.hex(), tmp_path / "key.pem", str(tmp_path / "key.pem")):
        (run,) = zkdv.verify(transcript.folder, identity=key, require=["identity"]).runs
        assert run.identity.pinned
    for head in (transcript.head, transcript.head.hex(), transcript.head.hex().upper()):
        assert zkdv.verify(transcript.folder, head=head).passed


def test_violations_have_code_message_record_and_offset(transcript):
    report = zkdv.verify(transcript.folder, identity=bytes(31) + b"\x01", head=bytes(32))
    assert report.verdict is Verdict.FAILED
    assert report.exit_code == 1
    codes = {violation.code: violation for violation in report.violations}
    assert set(codes) == {"identity-mismatch", "head-mismatch"}
    assert (codes["identity-mismatch"].record, codes["identity-mismatch"].offset) == (0, 0)
    assert all(violation.message for violation in report.violations)
    with pytest.raises(
        zkdv.ZKDVVerificationError, match=r"proof: verification failed: identity-mismatch: .* \(and 1 more\)"
    ):
        report.require_passed()


def test_incomplete_run_says_what_is_missing(write):
    report = zkdv.verify(write("open", closed=False).folder)
    assert report.verdict is Verdict.INCOMPLETE
    assert report.exit_code == 3
    assert not report.passed
    with pytest.raises(zkdv.ZKDVVerificationError, match=r"open: verification incomplete: .*close"):
        report.require_passed()


def test_edits_are_listed(write):
    run = write("edited", edited=True)
    assert [violation.code for violation in zkdv.verify(run.folder).violations] == ["edit-not-allowed"]
    report = zkdv.verify(run.folder, allow_edits=True)
    assert report.passed
    (edit,) = report.runs[0].edits
    assert report.runs[0].edits_total == 1
    assert (edit.update, edit.tree, edit.leaf, edit.name, edit.value) == (1, "optimizer", 0, "w", "00" * 24)
    assert (edit.dtype, edit.elements) == ("float32", (0.0,) * 6)


def test_debug_policy_is_reported_and_warned_about(write):
    config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy.DEBUGCheckEvery(1000))
    (run,) = zkdv.verify(write("debug", config=config).folder).runs
    assert (run.every, run.probability) == (1000, None)
    assert any("every" in warning for warning in run.warnings)


def test_gravest_verdict_of_several_runs_is_that_of_all(transcript, write):
    unfinished, edited = write("open", closed=False), write("edited", edited=True)
    report = zkdv.verify(transcript.folder, unfinished.folder)
    assert (report.verdict, report.exit_code) == (Verdict.INCOMPLETE, 3)
    report = zkdv.verify(unfinished.folder, edited.folder, transcript.folder)
    assert (report.verdict, report.exit_code) == (Verdict.FAILED, 1)
    assert [run.verdict for run in report.runs] == ["incomplete", "failed", "passed"]


def test_report_has_every_field_of_the_native_one_and_is_json(transcript):
    native = _native.verify(str(transcript.folder), OPTIONS, None)
    fields = {field.name for field in dataclasses.fields(RunReport)}
    assert fields - {"path"} == set(native)
    report = zkdv.verify(transcript.folder)
    printed = json.loads(json.dumps(report.as_json()))["runs"][0]
    assert {name: printed[name] for name in native} == native
    assert json.loads(json.dumps(report.as_json()))["runs"][0]["root"] == transcript.root.hex()
    assert hash(report) == hash(zkdv.verify(transcript.folder))


def test_progress_ends_with_all_bytes(transcript):
    seen = []
    zkdv.verify(transcript.folder, progress=lambda done, total: seen.append((done, total)))
    size = transcript.records.stat().st_size
    assert seen[-1] == (size, size)
    assert all(0 <= done <= total == size for done, total in seen)


def test_exception_from_progress_stops_the_verification(transcript):
    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        zkdv.verify(transcript.folder, progress=stop)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"identity": "abc"}, ValueError, "'abc' is no public key"),
        ({"identity": b"abc"}, ValueError, "a public key of 3 bytes"),
        ({"head": "abc"}, ValueError, "'abc' is no digest"),
        ({"head": bytes(31)}, ValueError, "is no digest"),
        ({"require": ["shiny"]}, ValueError, "shiny"),
        ({"require": "closed"}, TypeError, r"it is a list of conditions, such as \['closed'\]"),
        ({"challenger": "ab" * 32}, zkdv.ZKDVError, "leave `challenger` out"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        zkdv.verify(tmp_path / "missing", **options)


def test_head_is_refused_with_several_paths(transcript):
    with pytest.raises(ValueError, match="there are 2 paths"):
        zkdv.verify(transcript.folder, transcript.folder, head=transcript.head)


def test_a_path_without_a_transcript_is_one_error_that_says_what_to_name(tmp_path):
    for path, reason in ((tmp_path / "missing", "there is no such file"), (tmp_path, "the folder holds no transcript")):
        with pytest.raises(zkdv.ZKDVError, match=rf"{path.name}.*: {reason}.*; name a run's folder") as raised:
            zkdv.verify(path)
        assert "".join(traceback.format_exception(raised.value)).count(reason) == 1


def test_a_run_without_updates_says_so(transcript, write):
    empty, unfinished = write("empty", updates=0), write("open", updates=0, closed=False)
    for run, verdict, said in (
        (empty, Verdict.PASSED, True),
        (unfinished, Verdict.INCOMPLETE, True),
        (transcript, Verdict.PASSED, False),
    ):
        [report] = zkdv.verify(run.folder).runs
        assert report.verdict is verdict
        assert any("holds no update" in warning for warning in report.warnings) is said


def test_a_strangers_file_gives_a_report_and_no_exception(tmp_path):
    path = tmp_path / "file"
    for content in (b"", b"\xd2" * 1000, b"\xd2\x84\x43\xa1\x01\x27\xa0\x5b" + b"\xff" * 8, bytes(range(256)) * 10):
        path.write_bytes(content)
        report = zkdv.verify(path)
        assert report.verdict is Verdict.FAILED
        assert report.runs[0].root is None
        assert report.runs[0].identity is None


def test_verify_and_overlap_are_reached_through_the_package():
    # `zkdv.verify` is the function, whatever was imported before.
    import zkdv.verification

    assert callable(zkdv.verify)
    assert zkdv.overlap is overlap
