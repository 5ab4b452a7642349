"""The examples and the demonstration run as printed, and their transcripts verify."""

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path):
    return os.environ | {"ZKDV_IDENTITY": str(tmp_path / "identity.pem"), "NO_COLOR": "1"}


@pytest.fixture(autouse=True)
def identity(tmp_path):
    from zkdv import _native

    _native.Identity.generate(str(tmp_path / "identity.pem"))


def run(command, folder, environment):
    return subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def verify(folder, environment):
    return run([sys.executable, "-m", "zkdv", "verify", "proof"], folder, environment)


@pytest.mark.parametrize("example", ["train_state", "basic_training", "nnx_training", "equinox_training"])
def test_an_example_leaves_a_transcript_that_passes(tmp_path, environment, example):
    done = run([sys.executable, ROOT / f"examples/jax/{example}.py"], tmp_path, environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "passed"
    assert float(re.search(r"accuracy ([\d.]+)%", done.stdout)[1]) > 95
    assert verify(tmp_path, environment).returncode == 0


@pytest.mark.slow
def test_the_guide_to_several_processes_runs_as_printed(tmp_path, environment):
    guide = (ROOT / "docs/guides/several-processes.md").read_text(encoding="utf-8")
    [commands] = re.findall(r'```sh title="Two processes on one machine"\n(.*?)```', guide, re.DOTALL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    done = run(["sh", "-ec", commands], tmp_path, environment | {"PATH": path, "COORDINATOR": coordinator})
    assert done.returncode == 0, done.stdout + done.stderr
    accuracies = re.findall(r"rank \d: loss [\d.]+, test accuracy ([\d.]+)%", done.stdout)
    assert len(accuracies) == 2
    assert accuracies[0] == accuracies[1]
    assert float(accuracies[0]) > 95
    assert "PASSED" in done.stdout
    assert "updates     225 on 2 processes" in done.stdout


WITH_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="Torch takes 6 GB; this environment leaves it out")


@WITH_TORCH
def test_the_torch_example_leaves_a_transcript_that_passes(tmp_path, environment):
    # Compiling takes a minute; a test of the frontend does it.
    command = [sys.executable, ROOT / "examples/torch/basic_training.py"]
    done = run(command, tmp_path, environment | {"ZKDV_AOT": "off"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "passed"
    assert float(re.search(r"accuracy ([\d.]+)%", done.stdout)[1]) > 95
    assert verify(tmp_path, environment).returncode == 0


@pytest.mark.parametrize(
    ("framework", "variables"),
    [
        ("jax", {"ZKDV_LOWERING": "cpu"}),
        pytest.param("jax", {"ZKDV_LOWERING": "portable"}, marks=pytest.mark.slow),
        pytest.param("torch", {"ZKDV_AOT": "off"}, marks=[pytest.mark.slow, WITH_TORCH]),
    ],
)
def test_the_demonstration_trains_verifies_and_sees_a_changed_copy_refused(tmp_path, environment, framework, variables):
    command = [sys.executable, ROOT / "examples" / framework / "demo.py", "--keep", tmp_path / "proof"]
    done = run(command, tmp_path, environment | variables)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) > 95
    assert "PASSED" in done.stdout
    assert "FAILED" in done.stdout
    assert "signature-invalid" in done.stdout.split("FAILED")[1]
