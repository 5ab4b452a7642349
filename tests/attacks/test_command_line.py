"""`zkdv verify` on attacked folders: exit codes, and what it prints."""

import json
import os
import subprocess
import sys

import pytest
from attacks import ATTACKS
from forge import public
from victims import Attacked

# One cheat for each way in which a verdict can come about.
CODES = ("signature-invalid", "check-missing", "state-discontinuous", "program-digest", "edit-not-allowed")


def zkdv(*arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ZKDV_")}
    command = [sys.executable, "-m", "zkdv", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment | {"COLUMNS": "200"})


@pytest.mark.parametrize("code", CODES)
def test_an_attacked_folder_fails_with_its_code(cpu_runs, folder, code):
    attack = next(attack for attack in ATTACKS if attack.code == code)
    attacked = next(iter(attack(cpu_runs)))
    attacked.write(folder)
    done = zkdv("verify", folder, "--identity", public(attacked.run.identity).hex())
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith("FAILED")
    assert f"  {code}  " in done.stdout
    done = zkdv("verify", folder, "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["exit_code"] == 1
    [run] = report["runs"]
    assert run["verdict"] == "failed"
    assert {violation["code"] for violation in run["violations"]} == {code}


def test_an_open_or_torn_transcript_is_incomplete(cpu_runs, folder):
    run = cpu_runs["checked"]
    for data in (b"".join(run.raw[:-1]), run.data[:-1], b"".join(run.raw[:8]) + run.raw[8][:30]):
        Attacked(run, data).verify(folder)
        done = zkdv("verify", folder)
        assert done.returncode == 3, done.stdout
        assert done.stdout.startswith("INCOMPLETE")
        assert json.loads(zkdv("verify", folder, "--json").stdout)["runs"][0]["verdict"] == "incomplete"
        done = zkdv("verify", folder, "--require", "closed")
        assert done.returncode == 1
        assert "requirement-unmet" in done.stdout


def test_a_folder_without_a_transcript_is_no_verdict(cpu_runs, folder):
    run = cpu_runs["checked"]
    attacked = Attacked(run, run.data)
    attacked.write(folder)
    records = folder / "records.cborl"
    elsewhere = records.rename(folder / "elsewhere.cborl")
    assert_unusable(folder, "holds no transcript")
    records.symlink_to(elsewhere)
    assert_unusable(folder, "link")
    records.unlink()
    records.mkdir()
    assert_unusable(folder, "not a regular file")
    records.rmdir()
    os.mkfifo(records)
    assert_unusable(folder, "not a regular file")


def assert_unusable(folder, why):
    done = zkdv("verify", folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert why in done.stderr


def test_a_run_as_it_was_trained_passes(cpu_runs):
    run = cpu_runs["checked"]
    done = zkdv("verify", run.folder, "--identity", public(run.identity).hex(), "--head", run.head.hex())
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("PASSED")
