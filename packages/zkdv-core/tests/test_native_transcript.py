"""Transcripts through the native module: written, read back, verified, and refused where they must be."""

import json
import os
import re
import stat
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import blake3
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from zkdv import _native

SNAPSHOT_INTERVAL = 4
MAX_IN_FLIGHT = 2


def root_body(**changes):
    configuration = {
        "sampling": {"probability": 0.0},
        "tolerance": {"absolute": 1e-6, "relative": 1e-5},
        "commit": "parameters",
        "durability": "close",
        "replay-snapshot-interval": SNAPSHOT_INTERVAL,
        "max-in-flight": MAX_IN_FLIGHT,
        "max-check-lag": SNAPSHOT_INTERVAL + 2 * MAX_IN_FLIGHT,
        "rolling-window": 8,
        "probe-ratio": 0.01,
        "evidence": {"batches": False, "components": False, "sampled": False},
    }
    configuration |= changes.pop("configuration", {})
    return {
        "protocol": 1,
        "prover": "whitebox-jax",
        "run": "test run",
        "time": 1_700_000_000_000,
        "ranks": 1,
        "challenger": {"name": "transcript"},
        "schemes": {
            "leaf": "blake3-256",
            "sharded-leaf": "zkdv-sharded-leaf-1",
            "tree": "zkdv-tree-1",
            "batch": "zkdv-batch-1",
            "probe": "zkdv-probe-1",
            "challenge": "zkdv-challenge-1",
        },
        "configuration": configuration,
    } | changes


def pretended(text):
    return blake3.blake3(text.encode()).digest()


def roots(kinds, text):
    return {kind: pretended(f"{kind} {text}") for tree in kinds for kind in (tree, f"{tree.removesuffix('s')}-probes")}


def begin(transcript):
    """The records up to the first update; gives the number of the program's."""
    transcript.append("environment", {"python": "3.11", "cpus": 2, "nested": {"flags": ["a", b"b", 1.5, True]}})
    leaf = {"name": "w", "dtype": "float32", "shape": [16, 3]}
    batch = {
        "rows": 4,
        "width": 5,
        "leaves": [{"name": "x", "dtype": "uint32", "shape": [4, 5], "place": "joined"}],
    }
    transcript.append("schema", {"parameters": [leaf], "optimizer": [leaf], "batch": batch, "scalars": ["rate"]})
    program = {
        "role": "replay",
        "format": "jax-export",
        "digest": pretended("program"),
        "length": 7,
        "extension": "bin",
        "text-digest": pretended("text"),
        "platforms": ["cpu"],
        "convention": "flat",
    }
    seq, _ = transcript.append("program", program)
    transcript.append(
        "state", {"updates": 0, "reason": "start", "roots": roots(["parameters"], "0") | roots(["optimizer"], "0")}
    )
    return seq


def update_body(update, program):
    after = roots(["parameters"], str(update + 1))
    if (update + 1) % SNAPSHOT_INTERVAL == 0:
        after |= roots(["optimizer"], str(update + 1))
    return {
        "update": update,
        "batch": pretended(f"batch {update}"),
        "program": program,
        "after": after,
        "overlap": 1,
        "scalars": {"rate": 0.5 / (update + 1), "step": update},
    }


def finish(transcript, updates):
    last = updates - updates % SNAPSHOT_INTERVAL
    state = roots(["parameters"], str(updates)) | roots(["optimizer"], str(last))
    transcript.append("state", {"updates": updates, "reason": "close", "roots": state})
    counts = {"updates": updates, "sampled": 0, "passed": 0, "failed": 0, "edits": 0}
    transcript.append("close", counts | {"reason": "finished"})


def write_run(folder, updates=10, identity=None):
    identity = identity or _native.Identity.generate(folder.with_name(folder.name + ".pem"))
    transcript = _native.Transcript.create(folder, root_body(), identity)
    program = begin(transcript)
    for update in range(updates):
        transcript.append("update", update_body(update, program))
    finish(transcript, updates)
    return transcript


@pytest.fixture
def identity(tmp_path):
    return _native.Identity.generate(tmp_path / "identity.pem")


def test_what_is_written_is_read_back_and_verifies(tmp_path, identity):
    transcript = write_run(tmp_path / "run", updates=10, identity=identity)
    assert transcript.closed
    assert transcript.path == str(tmp_path / "run" / "records.cborl")

    data = (tmp_path / "run" / "records.cborl").read_bytes()
    records = list(_native.RecordReader(tmp_path / "run"))
    assert len(records) == transcript.records == 17
    assert [record["seq"] for record in records] == list(range(17))
    assert [record["number"] for record in records] == list(range(17))
    previous, offset = bytes(32), 0
    for record in records:
        assert record["offset"] == offset
        part = data[offset : offset + record["length"]]
        assert record["digest"] == blake3.blake3(part).digest()
        assert record["prev"] == previous
        assert record["error"] is None
        previous, offset = record["digest"], offset + record["length"]
    assert offset == len(data)
    assert records[0]["digest"] == transcript.root_digest
    assert records[-1]["digest"] == transcript.head

    root = dict(records[0]["body"])
    assert root.pop("identity") == identity.public_key
    assert len(root.pop("session-key")) == 32
    assert root == root_body()
    updates = [record["body"] for record in records if record["type"] == "update"]
    for index, body in enumerate(updates):
        is_due = (index + 1) % SNAPSHOT_INTERVAL == 0
        assert (len(body.pop("next-key", b"")) == 32) == is_due
        assert body == update_body(index, 3)

    report = _native.verify(
        tmp_path / "run" / "records.cborl", {"identity": identity.public_key, "head": transcript.head}
    )
    assert report["verdict"] == "passed", report
    assert report["exit_code"] == 0
    assert report["violations"] == []
    assert report["updates"] == 10
    assert report["head"] == transcript.head.hex()
    json.dumps(report)


@pytest.mark.parametrize("where", [10, 2_000, -10])
def test_a_changed_byte_is_refused(tmp_path, where):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "records.cborl"
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)
    report = _native.verify(path, {})
    assert report["verdict"] == "failed"
    assert report["exit_code"] == 1
    assert report["violations"]


def test_pinned_values_and_requirements_that_do_not_hold_fail(tmp_path):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "records.cborl"
    for options, code in [
        ({"identity": Ed25519PrivateKey.generate().public_key().public_bytes_raw()}, "identity-mismatch"),
        ({"head": bytes(32)}, "head-mismatch"),
        ({"require": ["identity"]}, "requirement-unmet"),
    ]:
        report = _native.verify(path, options)
        assert [violation["code"] for violation in report["violations"]] == [code]


def test_options_that_there_are_not_are_refused_by_name(tmp_path):
    write_run(tmp_path / "run", updates=1)
    with pytest.raises(ValueError, match='options has no "heads"; it takes identity, head, allow_edits and require'):
        _native.verify(tmp_path / "run", {"heads": b""})
    with pytest.raises(ValueError, match='cannot require "everything"'):
        _native.verify(tmp_path / "run", {"require": ["everything"]})
    with pytest.raises(ValueError, match=r'options\["head"\] must have 32 bytes, not 3'):
        _native.verify(tmp_path / "run", {"head": b"abc"})
    with pytest.raises(TypeError, match="progress must be a function of two numbers, or None"):
        _native.verify(tmp_path / "run", {}, 5)


def test_progress_goes_forward_to_the_end_and_may_stop_the_verification(tmp_path):
    write_run(tmp_path / "run", updates=300)
    seen = []
    _native.verify(tmp_path / "run" / "records.cborl", {}, lambda done, total: seen.append((done, total)))
    size = (tmp_path / "run" / "records.cborl").stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)

    class StopError(Exception):
        pass

    def stop(done, total):
        raise StopError

    with pytest.raises(StopError):
        _native.verify(tmp_path / "run" / "records.cborl", {}, stop)


def test_verification_can_be_interrupted(tmp_path):
    write_run(tmp_path / "run", updates=100)
    path = tmp_path / "run" / "records.cborl"
    # Whatever it finds wrong, it has to look at all of it.
    path.write_bytes(path.read_bytes() * 2000)
    script = """
        import signal, sys
        from zkdv import _native
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        try:
            _native.verify(sys.argv[1], {}, lambda done, total: None)
        except KeyboardInterrupt:
            print("interrupted")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "interrupted\n", done.stderr


def test_a_transcript_that_is_there_is_not_overwritten(tmp_path, identity):
    write_run(tmp_path / "run", identity=identity)
    before = (tmp_path / "run" / "records.cborl").read_bytes()
    with pytest.raises(
        _native.TranscriptExistsError, match=r"holds a transcript already.*10 updates.*choose another path"
    ):
        _native.Transcript.create(tmp_path / "run", root_body(), identity)
    assert (tmp_path / "run" / "records.cborl").read_bytes() == before


def test_a_second_writer_is_told_who_holds_the_transcript(tmp_path, identity):
    transcript = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    begin(transcript)
    with pytest.raises(_native.TranscriptLockedError, match=rf"is being written by .*{os.getpid()}"):
        _native.Transcript.create(tmp_path / "run", root_body(), identity)
    transcript.release()
    transcript.release()
    with pytest.raises(_native.TranscriptExistsError):
        _native.Transcript.create(tmp_path / "run", root_body(), identity)
    with pytest.raises(_native.NativeError, match="was released by this writer"):
        transcript.append("environment", {})


def test_a_run_of_which_nothing_was_recorded_is_set_aside(tmp_path, identity):
    first = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    assert first.set_aside is None
    first.release()
    before = (tmp_path / "run" / "records.cborl").read_bytes()
    second = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    assert second.set_aside == str(tmp_path / "run" / f"records.cborl.unused-{first.root_digest.hex()}")
    assert Path(second.set_aside).read_bytes() == before
    second.release()


def test_exceptions_form_one_small_hierarchy():
    for kind in (_native.TranscriptExistsError, _native.TranscriptLockedError, _native.TranscriptWriteError):
        assert issubclass(kind, _native.NativeError)
    assert issubclass(_native.NativeError, Exception)


def test_a_full_disk_is_a_write_error_and_what_was_written_stays_valid(tmp_path):
    script = """
        import resource, signal, sys
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from zkdv import _native
        import test_native_transcript as helper
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        folder = Path(sys.argv[1])
        identity = _native.Identity.generate(folder / "key.pem")
        transcript = _native.Transcript.create(folder / "run", helper.root_body(), identity)
        program = helper.begin(transcript)
        transcript.append("update", helper.update_body(0, program))
        size = Path(transcript.path).stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, size + 20))
        for _ in range(2):
            try:
                transcript.append("update", helper.update_body(1, program))
            except _native.TranscriptWriteError as error:
                print("refused:", error)
        assert Path(transcript.path).stat().st_size == size
    """
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(tmp_path), here],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(
        r"refused: writing to .*records.cborl failed: File too large.*\nrefused: nothing more is written to .*\n",
        done.stdout,
    )
    assert _native.verify(tmp_path / "run" / "records.cborl", {})["verdict"] == "incomplete"


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            {"a": object()},
            TypeError,
            "body.a is of type object; a record holds dict, list, bytes, str, int, float, bool",
        ),
        ({"a": [1, {"b": {1: 2}}]}, TypeError, "body.a[1].b has a key of type int; keys are str"),
        ({"a": 2**64}, ValueError, "body.a is an integer outside -2^63 … 2^64-1; write it as bytes or str"),
        ({"a": -(2**63) - 1}, ValueError, "body.a is an integer outside"),
        ({"a": "\ud800"}, ValueError, "body.a holds text with lone surrogates"),
        ({"\ud800": 1}, ValueError, "body holds text with lone surrogates"),
        ({"a": bytearray(b"x")}, TypeError, "body.a is of type bytearray"),
        ({"a": {1, 2}}, TypeError, "body.a is of type set"),
        ({"a key": {"é": {1, 2}}}, TypeError, 'body."a key"."é" is of type set'),
        (None, _native.NativeError, "expected a map"),
        ([], _native.NativeError, "expected a map"),
    ],
)
def test_values_that_records_cannot_hold_are_refused_with_their_place(tmp_path, identity, body, kind, message):
    transcript = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    with pytest.raises(kind, match=re.escape(message)):
        transcript.append("environment", body)
    assert transcript.records == 1
    transcript.release()


def test_values_nested_without_end_are_refused(tmp_path, identity):
    transcript = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    endless = {}
    endless["again"] = endless
    with pytest.raises(ValueError, match="is nested more than 16 deep, which is the limit of the format"):
        transcript.append("environment", endless)
    transcript.append("environment", {"a": {"b": ["c", {"d": {}}]}})
    transcript.release()


def test_values_of_every_kind_survive_the_way_to_disk_and_back(tmp_path, identity):
    body = {
        "integers": [0, 1, 23, 24, 255, 256, 2**32, 2**64 - 1, -1, -24, -25, -(2**63)],
        "floats": [0.0, -0.0, 1.0, 0.1, 1e300, 5e-324, float("inf"), float("-inf")],
        "booleans": [True, False],
        "texts": ["", "a", "é", "\U0001f600", "\0"],
        "bytes": [b"", b"\0", bytes(300)],
        "maps": {"a": {}, "long key" * 7: []},
    }
    transcript = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    transcript.append("environment", body)
    transcript.release()
    read = list(_native.RecordReader(tmp_path / "run"))[1]["body"]
    assert read == body
    assert [str(number) for number in read["floats"]] == [str(number) for number in body["floats"]]
    assert all(type(value) is bool for value in read["booleans"])
    assert all(type(value) is float for value in read["floats"])


def test_grammar_and_order_are_checked_before_anything_is_written(tmp_path, identity):
    with pytest.raises(_native.NativeError, match="max-check-lag"):
        _native.Transcript.create(tmp_path / "bad", root_body(configuration={"max-check-lag": 1}), identity)
    with pytest.raises(_native.NativeError, match="identity"):
        _native.Transcript.create(tmp_path / "bad", root_body(identity=bytes(32)), identity)
    transcript = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    with pytest.raises(ValueError, match='there is no record type "updates"'):
        transcript.append("updates", {})
    with pytest.raises(_native.NativeError, match="update"):
        transcript.append("update", update_body(0, 3))
    program = begin(transcript)
    with pytest.raises(_native.NativeError, match=r"body\.after\.parameters: expected .*32"):
        transcript.append("update", update_body(0, program) | {"after": {"parameters": b"short"}})
    records = transcript.records
    transcript.append("update", update_body(0, program))
    assert transcript.records == records + 1
    with pytest.raises(_native.NativeError, match="close"):
        transcript.append(
            "close", {"updates": 9, "sampled": 0, "passed": 0, "failed": 0, "edits": 0, "reason": "finished"}
        )
    transcript.release()


def test_many_threads_may_append_at_once(tmp_path, identity):
    transcript = _native.Transcript.create(tmp_path / "run", root_body(), identity)
    begin(transcript)
    seen = []

    def work(worker):
        for step in range(50):
            body = {"update": 0, "files": {f"{worker} {step}": pretended("file")}}
            seen.append(transcript.append("checkpoint", body))
            assert transcript.records > 0
            assert len(transcript.head) == 32

    threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    transcript.release()
    digests = {record["seq"]: record["digest"] for record in _native.RecordReader(tmp_path / "run")}
    assert len(seen) == 200
    assert all(digests[seq] == digest for seq, digest in seen)


def test_a_forked_process_cannot_write_and_leaves_the_writer_alone(tmp_path):
    script = """
        import os, sys, threading
        sys.path.insert(0, sys.argv[2])
        from pathlib import Path
        from zkdv import _native
        import blake3
        import test_native_transcript as helper
        folder = Path(sys.argv[1])
        data = bytes(8 << 20)
        assert _native.leaf_digest(data) == blake3.blake3(data).digest()
        identity = _native.Identity.generate(folder / "key.pem")
        transcript = _native.Transcript.create(folder / "run", helper.root_body(), identity)
        # A thread of the parent is inside the transcript most of the time, so that the child may find its mutex locked.
        stop = threading.Event()
        def keep_busy():
            while not stop.is_set():
                transcript.sync()
        thread = threading.Thread(target=keep_busy)
        thread.start()
        for _ in range(5):
            child = os.fork()
            if child == 0:
                status = 1
                try:
                    for use in (lambda: transcript.append("environment", {}), lambda: transcript.head, transcript.sync):
                        try:
                            use()
                        except _native.NativeError as error:
                            assert f"is written by process {os.getppid()}" in str(error), error
                        else:
                            raise AssertionError("no error")
                    assert transcript.path and len(transcript.root_digest) == 32
                    transcript.release()
                    # The threads of the parent's pool are gone; the child's own do the work.
                    assert _native.leaf_digest(data) == blake3.blake3(data).digest()
                    own = _native.Transcript.create(folder / f"child-{os.getpid()}", helper.root_body(), identity)
                    helper.begin(own)
                    own.release()
                    del transcript, own
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        thread.join()
        program = helper.begin(transcript)
        transcript.append("update", helper.update_body(0, program))
        try:
            _native.Transcript.create(folder / "run", helper.root_body(), identity)
        except _native.TranscriptLockedError:
            print("still locked")
    """
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(tmp_path), here],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "still locked\n", done.stderr


def test_paths_that_are_no_text_are_given_as_python_gives_them(tmp_path, identity):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    transcript = _native.Transcript.create(folder, root_body(), identity)
    assert transcript.path == f"{folder}/records.cborl"
    transcript.release()
    assert len(list(_native.RecordReader(folder))) == 1


def test_identity_keys_are_private_files_that_other_libraries_read(tmp_path):
    path = tmp_path / "keys" / "identity.pem"
    identity = _native.Identity.generate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    private = serialization.load_pem_private_key(path.read_bytes(), None)
    assert private.public_key().public_bytes_raw() == identity.public_key
    public = serialization.load_pem_public_key(identity.public_pem().encode())
    assert public.public_bytes_raw() == identity.public_key
    assert _native.Identity.load(path).public_key == identity.public_key
    with pytest.raises(_native.NativeError, match="is there already and is not overwritten"):
        _native.Identity.generate(path)
    path.chmod(0o644)
    with pytest.raises(_native.NativeError, match="open to others"):
        _native.Identity.load(path)
    with pytest.raises(_native.NativeError, match="there is no identity key at"):
        _native.Identity.load(tmp_path / "none.pem")
    shown = repr(identity)
    assert identity.public_key.hex() in shown
    assert private.private_bytes_raw().hex() not in shown


def test_keys_that_other_libraries_wrote_are_read(tmp_path):
    key = Ed25519PrivateKey.generate()
    path = tmp_path / "key.pem"
    path.touch(0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    assert _native.Identity.load(path).public_key == key.public_key().public_bytes_raw()


def test_an_identity_may_be_held_elsewhere(tmp_path):
    key = Ed25519PrivateKey.generate()
    identity = _native.Identity.external(key.public_key().public_bytes_raw(), key.sign)
    write_run(tmp_path / "run", identity=identity)
    report = _native.verify(tmp_path / "run" / "records.cborl", {"identity": identity.public_key})
    assert report["verdict"] == "passed"


def test_signers_that_fail_say_why(tmp_path):
    public_key = Ed25519PrivateKey.generate().public_key().public_bytes_raw()

    def create(sign):
        return _native.Transcript.create(tmp_path / "run", root_body(), _native.Identity.external(public_key, sign))

    def unplugged(message):
        raise RuntimeError("the token is not plugged in")

    with pytest.raises(_native.NativeError, match="the signer failed: RuntimeError: the token is not") as caught:
        create(unplugged)
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(_native.NativeError, match="the signer gave 3 bytes where a signature has 64"):
        create(lambda _: b"abc")
    with pytest.raises(_native.NativeError, match="what the signer returns must be bytes, not str"):
        create(lambda _: "signature")
    with pytest.raises(_native.NativeError, match="does not verify; it may hold another key"):
        create(Ed25519PrivateKey.generate().sign)

    def interrupted(message):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        create(interrupted)
    with pytest.raises(_native.NativeError, match="is no Ed25519 key"):
        _native.Identity.external(bytes(32), unplugged)
    with pytest.raises(ValueError, match="public_key must have 32 bytes, not 5"):
        _native.Identity.external(b"short", unplugged)
    with pytest.raises(TypeError, match="sign must be a function"):
        _native.Identity.external(public_key, None)
    assert not (tmp_path / "run" / "records.cborl").exists()


def test_reading_stops_at_the_first_byte_that_belongs_to_no_record(tmp_path):
    write_run(tmp_path / "run", updates=2)
    path = tmp_path / "run" / "records.cborl"
    whole = path.read_bytes()
    reader = _native.RecordReader(path)
    records = list(reader)
    assert (reader.offset, reader.error, reader.torn) == (len(whole), None, False)

    path.write_bytes(whole[:-10])
    reader = _native.RecordReader(path)
    assert list(reader) == records[:-1]
    assert reader.torn
    assert reader.offset == records[-1]["offset"]
    assert f"the record at byte {reader.offset} is cut off" in reader.error
    assert next(reader, None) is None

    path.write_bytes(whole + b"garbage that is no record")
    reader = _native.RecordReader(path)
    assert list(reader) == records
    assert not reader.torn
    assert f"the bytes from {len(whole)} on are no record" in reader.error


def test_a_payload_that_cannot_be_read_is_given_with_its_error(tmp_path):
    write_run(tmp_path / "run", updates=1)
    path = tmp_path / "run" / "records.cborl"
    data = path.read_bytes()
    # The payload's map of four entries, said to have five.
    start = data.index(b"\xa4\x01\x00")
    path.write_bytes(data[:start] + b"\xa5" + data[start + 1 :])
    first, second, *_ = _native.RecordReader(path)
    assert first["error"]
    assert first["body"] is None
    assert second["error"] is None


def test_files_that_cannot_be_read_are_the_errors_of_python(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"/none: there is no such file or folder; name a run's folder"):
        _native.RecordReader(tmp_path / "none")
    with pytest.raises(OSError, match=r"records\.cborl"):
        _native.RecordReader(tmp_path)
    with pytest.raises(_native.NativeError, match=r"cannot read .*/none: there is no such file or folder"):
        _native.verify(tmp_path / "none", {})


def test_an_identity_of_another_type_is_refused(tmp_path):
    with pytest.raises(TypeError):
        _native.Transcript.create(tmp_path / "run", root_body(), b"no identity")
