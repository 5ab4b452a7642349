"""The command `zkdv` as its users meet it: processes, streams and exit codes."""

import json
import os
import pty
import re
import select
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from zkdv import _native
from zkdv.cli import ExitCode, main

ESCAPE = "\x1b"


@pytest.fixture
def home(tmp_path):
    return tmp_path / "configuration"


@pytest.fixture
def zkdv(home):
    """Run `zkdv` in a process of its own, with an empty user configuration folder."""
    return lambda *arguments, **options: run_zkdv(home, *arguments, **options)


def variables(home, **changes):
    dropped = ("ZKDV_", "NO_COLOR", "FORCE_COLOR", "TTY_", "COLUMNS", "PYTHONIOENCODING", "TERM")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"XDG_CONFIG_HOME": str(home), "TERM": "xterm-256color"} | changes


def run_zkdv(home, *arguments, environment=None, **options):
    return subprocess.run(
        [sys.executable, "-m", "zkdv", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=variables(home, **(environment or {})),
        **options,
    )


def run_on_terminal(home, *arguments, **changes):
    """Run with standard output and error on a terminal; return the exit code and what the terminal got."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "zkdv", *map(str, arguments)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=variables(home, **changes),
    )
    os.close(follower)
    received = b""
    while select.select([leader], [], [], 60)[0]:
        try:
            received += os.read(leader, 65536)
        except OSError:  # The other end is closed.
            break
    os.close(leader)
    return process.wait(60), received.decode()


def assert_one_line_error(finished, code=2):
    assert finished.returncode == code, finished.stderr
    assert finished.stdout == ""
    assert re.fullmatch(r"error: [^\n]+\n", finished.stderr), finished.stderr


def test_command_is_installed_as_zkdv():
    (script,) = entry_points(group="console_scripts", name="zkdv")
    assert script.value == "zkdv.cli:main"


def test_version_is_that_of_the_distribution(zkdv):
    finished = zkdv("--version")
    assert (finished.returncode, finished.stdout) == (0, f"zkdv {version('zkdv-core')}\n")


def test_no_command_prints_help_and_is_wrong_usage(zkdv):
    finished = zkdv()
    assert (finished.returncode, finished.stderr) == (2, "")
    assert finished.stdout.startswith("Usage: zkdv")


@pytest.mark.parametrize(
    "command", ["verify", "inspect", "match", "membership prove", "membership verify", "key new", "key show", "plugins"]
)
def test_every_command_has_help_json_and_debug(zkdv, command):
    finished = zkdv(*command.split(), "--help")
    assert finished.returncode == 0
    for option in ("--json", "--debug", "--help"):
        assert option in finished.stdout
    assert ESCAPE not in finished.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("verfy",),
        ("key",),
        ("verify",),
        ("verify", "--no-such-option", "proof"),
        ("inspect",),
        ("inspect", "proof", "--update", "-1"),
        ("inspect", "proof", "--update", "one"),
        ("inspect", "proof", "--update", "1", "--records"),
        ("verify", "proof", "--identity", "not a key"),
        ("verify", "proof", "--head", "abc"),
        ("verify", "one", "two", "--head", "ab" * 32),
    ],
)
def test_wrong_usage_is_one_line_that_says_where_help_is(zkdv, arguments):
    finished = zkdv(*arguments)
    assert_one_line_error(finished)
    assert "--help`" in finished.stderr


def test_unknown_requirement_is_wrong_usage_that_lists_those_there_are(zkdv, transcript):
    finished = zkdv("verify", transcript.folder, "--require", "closed,shiny")
    assert_one_line_error(finished)
    assert "shiny" in finished.stderr
    assert "no-edits" in finished.stderr


@pytest.mark.parametrize("command", ["verify", "inspect"])
@pytest.mark.parametrize("made", ["nothing", "empty folder"])
def test_path_without_a_transcript_is_unreadable(zkdv, tmp_path, command, made):
    path = tmp_path / "nothing here"
    if made == "empty folder":
        path.mkdir()
    finished = zkdv(command, path)
    assert_one_line_error(finished)
    assert "nothing here" in finished.stderr
    if command == "verify":
        assert "name a run's folder or its records.cborl" in finished.stderr


def test_verify_passes_in_plain_words(zkdv, transcript):
    finished = zkdv("verify", transcript.folder)
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert lines[0] == (
        f"PASSED  {transcript.folder}: 3 updates in one unbroken, signed chain that is closed; nothing is wrong with it"
    )
    assert any(line.startswith("Shown (level record)  One unbroken chain of records") for line in lines)
    assert any(line.startswith("Not shown  That the values came from running the program") for line in lines)
    text = finished.stdout
    assert "  warning  the sample follows from the transcript itself" in text
    assert re.search(
        r"^run +digits, written by whitebox-jax, started \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", text, re.MULTILINE
    )
    assert re.search(rf"(?m)^root +{transcript.root.hex()}$", text)
    assert re.search(rf"(?m)^head +{transcript.head.hex()}  ", text)
    assert re.search(
        rf"^identity +{transcript.public_key.hex()}  \(not pinned: anyone can make a key", text, re.MULTILINE
    )
    assert re.search(r"(?m)^updates +3$", text)
    assert re.search(r"(?m)^  program +[0-9a-f]{64} \(replay\): 3 updates$", text)
    assert re.search(r"(?m)^sampling +each update with p = 1e-12, drawn by transcript$", text)
    assert re.search(r"(?m)^checks +0 sampled, 0 passed, 0 failed$", text)
    assert re.search(r"(?m)^tolerance +1e-05 absolute, 0.0001 relative", text)
    assert re.search(r"(?m)^commits to +parameters every update, optimizer state every 12 updates$", text)
    assert re.search(r"(?m)^edits +none$", text)
    assert ESCAPE not in text


def test_verify_takes_the_records_file_too(zkdv, transcript):
    assert zkdv("verify", transcript.records).returncode == 0


def test_identity_is_pinned_by_digits_and_by_file(zkdv, transcript, tmp_path):
    (tmp_path / "public.pem").write_text(transcript.public_pem)
    for key in (transcript.public_key.hex(), tmp_path / "public.pem"):
        finished = zkdv("verify", transcript.folder, "--identity", key, "--require", "identity")
        assert finished.returncode == 0, finished.stdout
        assert "(pinned)" in finished.stdout


def test_another_identity_fails_by_its_code(zkdv, transcript):
    finished = zkdv("verify", transcript.folder, "--identity", "ab" * 32)
    assert finished.returncode == 1
    lines = finished.stdout.splitlines()
    assert lines[0].startswith("FAILED  ")
    assert "must not be believed as it stands, for one reason" in lines[0]
    assert lines[1].startswith("  identity-mismatch  record 0, byte 0: ")
    assert "Shown" not in finished.stdout
    assert "What the transcript says of itself:" in lines


def test_head_is_pinned(zkdv, transcript):
    assert zkdv("verify", transcript.folder, "--head", transcript.head.hex()).returncode == 0
    finished = zkdv("verify", transcript.folder, "--head", transcript.root.hex())
    assert finished.returncode == 1
    assert "head-mismatch" in finished.stdout


@pytest.mark.parametrize(
    ("condition", "code"),
    [
        ("closed", 0),
        ("closed,no-edits", 0),
        ("closed, level=record", 0),
        ("identity", 1),
        ("probability>=0.5", 1),
        ("level=audited", 1),
    ],
)
def test_requirements_that_are_not_met_fail(zkdv, transcript, condition, code):
    finished = zkdv("verify", transcript.folder, "--require", condition)
    assert finished.returncode == code
    assert ("requirement-unmet" in finished.stdout) == (code == 1)


def test_requirements_may_be_given_apart(zkdv, transcript):
    finished = zkdv("verify", transcript.folder, "--require", "closed", "--require", "identity")
    assert finished.returncode == 1
    assert finished.stdout.count("requirement-unmet") == 1


def test_open_transcript_is_incomplete(zkdv, write):
    run = write("open", closed=False)
    finished = zkdv("verify", run.folder)
    assert finished.returncode == 3
    lines = finished.stdout.splitlines()
    assert lines[0].startswith(
        f"INCOMPLETE  {run.folder}: nothing is wrong with 8 records, but the transcript is not complete"
    )
    assert lines[1].startswith("  incomplete  ")
    assert any(line.startswith("Shown (level record)") for line in lines)


@pytest.mark.parametrize(("closed", "code", "verdict"), [(True, 0, "PASSED"), (False, 3, "INCOMPLETE")])
def test_a_run_without_updates_says_so_in_the_first_line(zkdv, write, closed, code, verdict):
    run = write("empty", updates=0, closed=closed)
    finished = zkdv("verify", run.folder)
    assert finished.returncode == code
    first = finished.stdout.splitlines()[0]
    assert first.startswith(f"{verdict}  {run.folder}: nothing was trained under this transcript: it holds no update")


def test_edits_fail_unless_allowed_and_are_listed(zkdv, write):
    run = write("edited", edited=True)
    finished = zkdv("verify", run.folder)
    assert finished.returncode == 1
    assert "edit-not-allowed" in finished.stdout
    finished = zkdv("verify", run.folder, "--allow-edits")
    assert finished.returncode == 0, finished.stdout
    assert re.search(r"(?m)^edits +1 change", finished.stdout)
    assert re.search(
        r"^  optimizer w, changed before update 1: now 0\.0(, 0\.0){5} \(float32\), digest [0-9a-f]{64}$",
        finished.stdout,
        re.MULTILINE,
    )
    assert zkdv("verify", run.folder, "--allow-edits", "--require", "no-edits").returncode == 1


def test_one_changed_byte_is_refused_with_record_and_offset(zkdv, transcript):
    content = bytearray(transcript.records.read_bytes())
    position = len(content) // 2
    content[position] ^= 1
    transcript.records.write_bytes(content)
    finished = zkdv("verify", transcript.folder)
    assert finished.returncode == 1
    assert re.search(r"(?m)^  [a-z-]+  record \d+, byte \d+: \S", finished.stdout)


def test_many_violations_are_cut_in_text_and_listed_in_json(zkdv, transcript):
    content = transcript.records.read_bytes()
    transcript.records.write_bytes(content + b"\x00" + content[-300:] * 30)
    finished = zkdv("verify", transcript.folder)
    assert finished.returncode == 1


def test_json_report_says_the_same_to_programs(zkdv, transcript):
    finished = zkdv("verify", transcript.folder, "--json")
    report = json.loads(finished.stdout)
    assert (finished.returncode, report["exit_code"]) == (0, 0)
    (run,) = report["runs"]
    assert run["path"] == str(transcript.folder)
    assert run["verdict"] == "passed"
    assert run["head"] == transcript.head.hex()
    assert run["identity"] == {"key": transcript.public_key.hex(), "pinned": False}
    assert run["updates"] == 3
    assert run["violations"] == []
    assert run["environment"]["framework"] == {"jax": "0.10.2"}


def test_several_paths_give_the_gravest_code(zkdv, transcript, write, tmp_path):
    unfinished = write("open", closed=False)
    edited = write("edited", edited=True)
    missing = tmp_path / "missing"
    for paths, code in [
        ((transcript.folder, transcript.records), 0),
        ((transcript.folder, unfinished.folder), 3),
        ((unfinished.folder, missing, transcript.folder), 2),
        ((unfinished.folder, missing, edited.folder), 1),
    ]:
        finished = zkdv("verify", *paths)
        assert finished.returncode == code, finished.stdout
        verdicts = re.findall(r"(?m)^(?:PASSED|FAILED|INCOMPLETE)  (\S+):", finished.stdout)
        assert verdicts == [str(path) for path in paths if path != missing]
        assert ("missing" in finished.stderr) == (missing in paths)
    report = json.loads(zkdv("verify", *paths, "--json").stdout)
    assert report["exit_code"] == code
    assert [run["path"] for run in report["runs"]] == verdicts


def test_text_of_a_transcript_cannot_drive_the_terminal(zkdv, transcript):
    folder = transcript.folder.with_name("\x1b]0;owned\x07proof")
    transcript.folder.rename(folder)
    for command in ("verify", "inspect"):
        finished = zkdv(command, folder)
        assert finished.returncode == 0
        assert ESCAPE not in finished.stdout
        assert "\x07" not in finished.stdout
    missing = zkdv("verify", folder / "\x1b[2J")
    assert_one_line_error(missing)
    assert ESCAPE not in missing.stderr


def test_markup_in_names_is_printed_as_it_is(zkdv, write):
    run = write("markup", name="[bold]digits[/bold] :smile:")
    assert "[bold]digits[/bold] :smile:" in zkdv("verify", run.folder).stdout
    assert "[bold]digits[/bold] :smile:" in zkdv("inspect", run.folder).stdout


def test_inspect_shows_what_is_said_and_says_that_nothing_is_verified(zkdv, transcript):
    finished = zkdv("inspect", transcript.folder)
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert lines[0] == f"head     {transcript.head.hex()}"
    assert lines[1] == "records  10: 1 root, 1 environment, 1 schema, 1 program, 2 state, 3 update, 1 close"
    assert lines[2] == "updates  0 to 2"
    assert lines[3] == "closed   yes"
    assert "  run: digits" in lines
    assert "    commit: parameters" in lines
    assert lines[-1] == "Nothing here is verified: `zkdv verify` says what holds."


def test_inspect_json_holds_every_digest(zkdv, transcript):
    found = json.loads(zkdv("inspect", transcript.folder, "--json").stdout)
    assert found["verified"] is False
    assert found["head"] == transcript.head.hex()
    assert found["records"]["update"] == 3
    assert found["root"]["identity"] == transcript.public_key.hex()
    assert found["bytes"] == transcript.records.stat().st_size


def test_inspect_shows_one_update(zkdv, transcript):
    finished = zkdv("inspect", transcript.folder, "--update", 1)
    assert finished.returncode == 0
    assert re.match(r"update  record 6, byte \d+$", finished.stdout.splitlines()[0])
    assert "  update: 1" in finished.stdout.splitlines()
    record = json.loads(zkdv("inspect", transcript.folder, "--update", 1, "--json").stdout)
    assert (record["type"], record["seq"], record["body"]["update"]) == ("update", 6, 1)


def test_inspect_of_an_update_that_is_not_there_says_so(zkdv, transcript):
    finished = zkdv("inspect", transcript.folder, "--update", 3)
    assert_one_line_error(finished)
    assert "nothing is recorded of update 3" in finished.stderr


def test_inspect_lists_records_one_a_line(zkdv, transcript):
    lines = zkdv("inspect", transcript.folder, "--records").stdout.splitlines()
    assert len(lines) == 10
    assert re.fullmatch(rf"record 0  byte 0  \d+ bytes  {transcript.root.hex()}  root", lines[0])
    assert lines[6].endswith("  update 1")
    records = [
        json.loads(line) for line in zkdv("inspect", transcript.folder, "--records", "--json").stdout.splitlines()
    ]
    assert [record["seq"] for record in records] == list(range(10))
    assert records[-1]["digest"] == transcript.head.hex()
    assert sum(record["length"] for record in records) == transcript.records.stat().st_size


def test_inspect_shows_what_can_be_read_and_where_it_stopped(zkdv, transcript):
    content = transcript.records.read_bytes()
    transcript.records.write_bytes(content[:-10])
    finished = zkdv("inspect", transcript.folder, "--records")
    assert finished.returncode == 2
    assert len(finished.stdout.splitlines()) == 9
    assert re.fullmatch(r"error: [^\n]*byte \d+[^\n]*\n", finished.stderr)


@pytest.mark.parametrize(("content", "reason"), [(b"", "the file is empty"), (b"no records at all", "byte")])
def test_inspect_of_what_is_no_transcript_says_why(zkdv, tmp_path, content, reason):
    path = tmp_path / "file"
    path.write_bytes(content)
    finished = zkdv("inspect", path)
    assert_one_line_error(finished)
    assert finished.stderr.startswith(f"error: {path}: ")
    assert reason in finished.stderr


def test_new_key_is_created_once_and_shown(zkdv, home):
    created = zkdv("key", "new")
    assert created.returncode == 0, created.stderr
    path = home / "zkdv" / "identity.pem"
    assert path.stat().st_mode & 0o777 == 0o600
    (public_key,) = re.findall(r"(?m)^public key ([0-9a-f]{64})$", created.stdout)
    assert zkdv("key", "show").stdout == f"{public_key}\n"
    shown = json.loads(zkdv("key", "show", "--json").stdout)
    assert shown["public_key"] == public_key
    assert zkdv("key", "show", "--pem").stdout == shown["pem"]
    content = path.read_bytes()
    again = zkdv("key", "new")
    assert_one_line_error(again)
    assert "is not overwritten" in again.stderr
    assert path.read_bytes() == content
    assert b"PRIVATE" in content
    assert "PRIVATE" not in created.stdout + shown["pem"]


def test_public_key_that_show_prints_verifies_a_run(zkdv, transcript, tmp_path):
    (tmp_path / "shown.pem").write_text(zkdv("key", "show", transcript.folder.with_name("proof.pem"), "--pem").stdout)
    finished = zkdv("verify", transcript.folder, "--identity", tmp_path / "shown.pem")
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_showing_a_key_creates_none(zkdv, home):
    finished = zkdv("key", "show")
    assert_one_line_error(finished)
    assert "`zkdv key new` creates one" in finished.stderr
    assert not home.exists()


def test_new_key_at_a_path_is_used_through_the_environment_variable(zkdv, tmp_path):
    created = json.loads(zkdv("key", "new", tmp_path / "keys" / "signing.pem", "--json").stdout)
    shown = zkdv("key", "show", environment={"ZKDV_IDENTITY": created["path"]})
    assert shown.stdout == f"{created['public_key']}\n"


def test_unknown_signer_is_one_line(zkdv):
    finished = zkdv("key", "show", "nobody:has-this")
    assert_one_line_error(finished)
    assert "no plugin declares 'nobody' in zkdv_signers" in finished.stderr


def test_plugins_are_listed_with_what_they_declare(zkdv):
    pytest.importorskip("zkdv.jax", reason="the JAX frontend is the plugin that is listed")
    finished = zkdv("plugins")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert f"zkdv-jax {version('zkdv-jax')}  jax = zkdv._plugin_jax" in finished.stdout
    found = json.loads(zkdv("plugins", "--json").stdout)
    assert found["conflicts"] == []
    assert "zkdv-jax" in {plugin["distribution"] for plugin in found["plugins"]}


def test_debug_shows_a_traceback_and_nothing_else_does(zkdv, tmp_path):
    for arguments in (("verify", tmp_path / "none", "--debug"), ("--debug", "verify", tmp_path / "none")):
        finished = zkdv(*arguments)
        assert finished.returncode == 2
        assert "Traceback (most recent call last)" in finished.stderr
        assert finished.stderr.splitlines()[-1].startswith("error: ")
    assert_one_line_error(zkdv("verify", tmp_path / "none"))


def test_colours_and_progress_appear_on_a_terminal_and_can_be_turned_off(home, transcript):
    code, shown = run_on_terminal(home, "verify", transcript.folder)
    assert code == 0
    assert f"{ESCAPE}[1;32mPASSED" in shown
    code, shown = run_on_terminal(home, "verify", transcript.folder, NO_COLOR="1")
    assert code == 0
    assert "PASSED" in shown
    assert not re.search(rf"{ESCAPE}\[[0-9;]*3[0-9]", shown)


def test_reader_that_stops_reading_is_no_error(home, transcript):
    process = subprocess.Popen(
        [sys.executable, "-m", "zkdv", "inspect", str(transcript.folder), "--records"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables(home, PYTHONUNBUFFERED="1"),
    )
    process.stdout.close()
    errors = process.stderr.read()
    process.stderr.close()
    assert process.wait(60) == 141
    assert errors == b""


def test_output_in_a_narrow_encoding_does_not_fail(zkdv, write):
    run = write("narrow", name="zähl")
    finished = zkdv("inspect", run.folder, environment={"PYTHONIOENCODING": "ascii"})
    assert finished.returncode == 0
    assert "z?hl" in finished.stdout


def raising(error):
    def raise_error(*_, **__):
        raise error

    return raise_error


def test_interrupted_command_says_so_and_has_its_code(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("zkdv.cli._verify.verify_transcripts", raising(KeyboardInterrupt))
    assert main(["verify", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


def test_internal_error_is_one_line_and_no_verdict(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("zkdv.cli._verify.verify_transcripts", raising(RuntimeError("one\ntwo")))
    assert main(["verify", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        "error: internal error, please report it: RuntimeError: one two (--debug shows where)\n"
    )
    assert main(["verify", str(tmp_path), "--debug"]) == 2
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_command_runs_without_a_framework(home, transcript):
    code = (
        "import sys; from zkdv.cli import main; code = main(sys.argv[1:]); "
        "print(code, *sorted({'jax', 'flax', 'optax', 'torch'} & set(sys.modules)))"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, "verify", str(transcript.folder)],
        capture_output=True,
        text=True,
        check=False,
        env=variables(home),
    )
    assert finished.stdout.splitlines()[-1] == "0", finished.stderr


def test_guide_names_every_command_and_exit_code():
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "command-line.md").read_text()
    for code in ExitCode:
        assert re.search(rf"(?m)^\| {code.value} \|", guide), code
    for command in ("zkdv verify", "zkdv inspect", "zkdv key new", "zkdv key show", "zkdv plugins"):
        assert command in guide


@pytest.fixture
def model(write, tmp_path):
    """A run and a file of its parameters after the second update."""
    arrays = [np.full((2, 3), value, np.float32) for value in range(4)]
    roots = [_native.tree_root("parameters", [_native.leaf_digest(array)]) for array in arrays]
    save_file({"model/w": arrays[2]}, tmp_path / "model.safetensors")
    return write("matched", roots=roots).folder, tmp_path / "model.safetensors"


def test_match_says_which_update_a_file_is_from(zkdv, model):
    finished = zkdv("match", *model)
    assert (finished.returncode, finished.stderr) == (0, "")
    assert f"MATCHES  {model[1]} holds the parameters after update 1 (record " in finished.stdout
    assert "names: NAME of the run is model.NAME in the file" in finished.stdout
    printed = json.loads(zkdv("match", *model, "--json").stdout)
    assert (printed["verdict"], printed["matches"][0]["updates"], printed["run"]["verdict"]) == ("matches", 2, "passed")


def test_match_exits_with_1_where_nothing_matches_or_the_transcript_fails(zkdv, model, tmp_path):
    folder, file = model
    save_file({"w": np.full((2, 3), 9, np.float32)}, tmp_path / "other.safetensors")
    finished = zkdv("match", folder, tmp_path / "other.safetensors")
    assert finished.returncode == 1
    assert "holds the parameters of none of the 4 committed states" in finished.stdout
    assert json.loads(zkdv("match", folder, tmp_path / "other.safetensors", "--json").stdout)["exit_code"] == 1
    finished = zkdv("match", folder, file, "--identity", "ab" * 32)
    assert_one_line_error(finished, 1)
    assert "identity-mismatch" in finished.stderr


def test_match_takes_a_mapping_and_refuses_a_bad_one(model, tmp_path, capsys):
    folder, file = model
    save_file({"x": np.full((2, 3), 2, np.float32), "y": np.zeros(1)}, file)
    names = tmp_path / "names.json"
    names.write_text('{"x": "w", "y": null}')
    assert main(["match", str(folder), str(file), "--mapping", str(names)]) == 0
    for text in ("[]", '{"x": 1}', "{", '{"x": "w", "x": "w"}', '{"z": "w"}', '{"x": "v"}', "[" * 100_000):
        names.write_text(text)
        capsys.readouterr()
        assert main(["match", str(folder), str(file), "--mapping", str(names)]) == 2, text
        assert re.fullmatch(r"error: [^\n]+\n", capsys.readouterr().err)
    assert main(["match", str(folder), str(file), "--mapping", str(tmp_path / "none.json")]) == 2


def test_match_names_what_cannot_be_read(model, tmp_path, capsys):
    folder, file = model
    (tmp_path / "text").write_text("no tensors\x1b[31m")
    for arguments in (
        (folder, tmp_path / "text"),
        (folder, tmp_path / "none"),
        (tmp_path / "none", file),
        (folder,),
        (folder, file, "--reader", "none"),
    ):
        capsys.readouterr()
        assert main(["match", *map(str, arguments)]) == 2
        assert re.fullmatch(r"error: [^\n]+\n", capsys.readouterr().err)


def test_names_in_a_file_reach_the_terminal_without_control_characters(zkdv, model, tmp_path):
    folder, _ = model
    save_file({"w": np.full((2, 3), 2, np.float32), "x\x1b[31m\n": np.zeros(1)}, tmp_path / "odd.safetensors")
    finished = zkdv("match", folder, tmp_path / "odd.safetensors")
    assert finished.returncode == 1
    assert ESCAPE not in finished.stdout
    assert "not of the run: x\\x1b[31m\\n" in finished.stdout
