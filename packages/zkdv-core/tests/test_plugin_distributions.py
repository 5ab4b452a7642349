"""Real plugin distributions, built and installed into a fresh environment: those that the guide shows, and bad ones."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from zkdv import _native

REPOSITORY = Path(__file__).parents[3]
GUIDE = REPOSITORY / "docs" / "guides" / "plugins.md"
PASSPHRASE = "a long passphrase"  # noqa: S105
BLOCK = re.compile(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)

# A run without updates, signed by the identity that the second argument names.
SIGNED_RUN = """
import sys, time
from zkdv import _native, environment, identity
from zkdv.config import ZKDVConfig
from zkdv.session import SCHEMES

configuration = ZKDVConfig().as_record(replay_snapshot_interval=12, max_in_flight=2, rolling_window=4, probe_ratio=0.01)
root = {"protocol": 1, "prover": "whitebox-jax", "run": "signed", "time": time.time_ns() // 10**6, "ranks": 1,
        "challenger": {"name": "transcript"}, "schemes": SCHEMES, "configuration": configuration}
transcript = _native.Transcript.create(sys.argv[1], root, identity.load(sys.argv[2]))
transcript.append("environment", environment.collect(framework={}, devices=[]))
counts = dict.fromkeys(["updates", "sampled", "passed", "failed", "edits"], 0)
transcript.append("close", counts | {"reason": "finished"})
"""

# Training, with the modules of the plugin that were imported in the end.
TRAINING = """
import sys
import jax, jax.numpy as jnp, optax, zkdv, zkdv.jax

config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy.DEBUGCheckEvery(2))
with zkdv.jax.ZKDV(sys.argv[1], config) as proof:
    proof.start(rolling_window=2)
    state = zkdv.jax.contrib.TrainState.create(
        proof=proof, apply_fn=lambda params, x: x @ params, params=jnp.ones(3), tx=optax.sgd(0.1)
    )

    @proof.jit
    def train_step(state, x):
        loss = lambda params: (state.apply_fn(params, x) ** 2).sum()
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    for step in range(4):
        state = train_step(state, jnp.full((2, 3), 0.1 * step))
print(*sorted(name for name in sys.modules if name.startswith("zkdv_lowering_profiled")))
"""


def uv():
    found = shutil.which("uv") or shutil.which("uv", path=REPOSITORY / ".tools" / "bin")
    assert found is not None, "uv is not on PATH; scripts/test puts it there"
    return found


def write_example(folder, name):
    """Write the distribution `name` that the guide shows."""
    files = {
        title: text for title, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) if title.startswith(f"{name}/")
    }
    assert f"{name}/pyproject.toml" in files
    for title, text in files.items():
        (folder / title).parent.mkdir(parents=True, exist_ok=True)
        (folder / title).write_text(text)
    return folder / name


def write_distribution(folder, name, module_source):
    """Write a distribution with the guide's project file under another name."""
    module = name.replace("-", "_")
    source = folder / name / "src" / module
    source.mkdir(parents=True)
    (source / "__init__.py").write_text(module_source)
    (folder / name / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["uv_build>=0.13,<0.14"]\nbuild-backend = "uv_build"\n'
        f'[project]\nname = "{name}"\nversion = "2.0"\nrequires-python = ">=3.11"\n'
        f'[project.entry-points.zkdv]\nmain = "{module}"\n'
    )
    return folder / name


class Environment:
    """A fresh virtual environment with zkdv-core from the checkout."""

    def __init__(self, folder, home):
        self.folder = folder
        self.variables = {
            name: value for name, value in os.environ.items() if not name.startswith(("ZKDV_", "VIRTUAL_ENV", "PYTHON"))
        }
        self.variables |= {"XDG_CONFIG_HOME": str(home)}
        self.uv("venv", "--quiet", "--python", sys.executable, str(folder))
        self.install("--editable", str(REPOSITORY / "packages" / "zkdv-core"))

    def uv(self, *arguments):
        finished = subprocess.run(
            [uv(), *arguments], capture_output=True, text=True, check=False, env=self.variables, cwd=REPOSITORY
        )
        assert finished.returncode == 0, finished.stderr

    def install(self, *what):
        self.uv("pip", "install", "--quiet", "--python", str(self.folder), *what)

    def zkdv(self, *arguments, stdin=""):
        return self.run("zkdv", *arguments, stdin=stdin)

    def run(self, program, *arguments, stdin="", **variables):
        return subprocess.run(
            [str(self.folder / "bin" / program), *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            env=self.variables | variables,
            timeout=240,
        )


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("environment") / "venv", tmp_path_factory.mktemp("home"))


@pytest.mark.slow
def test_distribution_of_the_guide_is_listed_and_signs_a_run(environment, tmp_path):
    environment.install(str(write_example(tmp_path, "zkdv-signer-encrypted")))
    listed = environment.zkdv("plugins")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "zkdv-signer-encrypted 1.0  encrypted = zkdv_signer_encrypted" in listed.stdout
    assert "  zkdv_signers  encrypted -> zkdv_signer_encrypted.signing:open_signer" in listed.stdout

    key = Ed25519PrivateKey.generate()
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(PASSPHRASE.encode()),
    )
    (tmp_path / "signing.pem").write_bytes(encrypted)
    shown = environment.zkdv("key", "show", f"encrypted:{tmp_path / 'signing.pem'}", stdin=f"{PASSPHRASE}\n")
    assert shown.stdout.strip() == key.public_key().public_bytes_raw().hex(), shown.stderr

    run = tmp_path / "run"
    reference = f"encrypted:{tmp_path / 'signing.pem'}"
    written = environment.run("python", "-c", SIGNED_RUN, run, reference, stdin=f"{PASSPHRASE}\n")
    assert written.returncode == 0, written.stderr
    verified = environment.zkdv("verify", run, "--identity", shown.stdout.strip())
    assert verified.returncode == 0, verified.stdout

    refused = environment.zkdv("key", "show", f"encrypted:{tmp_path / 'signing.pem'}", stdin="another\n")
    assert refused.returncode == 2
    assert "the signer 'encrypted' of zkdv-signer-encrypted does not give the key" in refused.stderr


@pytest.mark.slow
def test_lowering_of_the_guide_computes_the_commitments_of_a_run(environment, tmp_path):
    lowering = write_example(tmp_path, "zkdv-lowering-profiled")
    control, jax = (str(REPOSITORY / "packages" / name) for name in ("zkdv-control", "zkdv-jax"))
    environment.install("--editable", control, "--editable", jax, str(lowering))
    listed = environment.zkdv("plugins")
    assert "  zkdv_lowerings  jax/commit/profiled -> zkdv_lowering_profiled.commitments:commit" in listed.stdout
    trained = environment.run("python", "-c", TRAINING, tmp_path / "run", ZKDV_LOWERING="profiled")
    assert trained.stdout.split() == ["zkdv_lowering_profiled", "zkdv_lowering_profiled.commitments"], trained.stderr
    verified = environment.zkdv("verify", tmp_path / "run", "--json")
    (run,) = json.loads(verified.stdout)["runs"]
    assert (run["verdict"], run["updates"], run["checks_passed"]) == ("passed", 4, 2)


@pytest.mark.slow
def test_reader_of_the_guide_tells_which_update_a_folder_of_arrays_is_from(environment, tmp_path, write):
    environment.install(str(write_example(tmp_path, "zkdv-reader-raw")))
    states = [np.full((4, 3), update, "<f4") for update in range(3)]
    roots = [_native.tree_root("parameters", [_native.leaf_digest(state)]) for state in states]
    leaf = {"name": "dense.kernel", "dtype": "float32", "shape": [4, 3]}
    run = write("run", updates=2, leaves=[leaf], roots=roots).folder
    arrays = tmp_path / "arrays"
    arrays.mkdir()
    for updates, state in enumerate(states):
        state.tofile(arrays / "dense.kernel-4x3.f32")
        matched = environment.zkdv("match", run, arrays, "--reader", "raw", "--json")
        assert matched.returncode == 0, matched.stderr
        assert [found["updates"] for found in json.loads(matched.stdout)["matches"]] == [updates]
    (states[2] + 1).tofile(arrays / "dense.kernel-4x3.f32")
    assert environment.zkdv("match", run, arrays, "--reader", "raw").returncode == 1


@pytest.mark.slow
def test_conflicting_and_broken_distributions_are_reported_and_verify_goes_on(environment, tmp_path, transcript):
    environment.install(str(write_example(tmp_path, "zkdv-signer-encrypted")))
    conflicting = (
        "from zkdv.hooks import hookimpl\n\n\n@hookimpl\ndef zkdv_signers():\n"
        '    return {"encrypted": "acme_signers:nothing"}\n'
    )
    bad = [
        write_distribution(tmp_path, "acme-signers", conflicting),
        write_distribution(tmp_path, "broken-plugin", "import a_module_that_is_not_there\n"),
    ]
    environment.install(*map(str, bad))
    try:
        listed = environment.zkdv("plugins", "--json")
        assert listed.returncode == 1
        found = json.loads(listed.stdout)
        (conflict,) = found["conflicts"]
        assert conflict == (
            "acme-signers (plugin 'main') and zkdv-signer-encrypted (plugin 'encrypted') both declare 'encrypted' in "
            "zkdv_signers; uninstall one of them"
        )
        errors = {plugin["distribution"]: plugin["error"] for plugin in found["plugins"]}
        assert {distribution: error for distribution, error in errors.items() if error is not None} == {
            "broken-plugin": "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"
        }
        assert {"acme-signers", "zkdv-signer-encrypted"} <= set(errors)
        used = environment.zkdv("key", "show", "encrypted:key.pem")
        assert (used.returncode, used.stdout) == (2, "")
        assert used.stderr == f"error: {conflict}\n"
        verified = environment.zkdv("verify", str(transcript.folder))
        assert verified.returncode == 0, verified.stderr
    finally:
        environment.uv(
            "pip", "uninstall", "--quiet", "--python", str(environment.folder), "acme-signers", "broken-plugin"
        )


def test_every_example_of_the_guide_is_a_whole_distribution_or_a_module():
    blocks = dict(BLOCK.findall(GUIDE.read_text(encoding="utf-8")))
    assert {title.partition("/")[0] for title in blocks if title.endswith("pyproject.toml")} == {
        "zkdv-lowering-profiled",
        "zkdv-optimizer-lion",
        "zkdv-reader-raw",
        "zkdv-signer-encrypted",
    }
    for title, text in blocks.items():
        if title.endswith(".py"):
            compile(text, title, "exec")
        else:
            tomllib.loads(text)


def test_plugin_of_the_guide_that_is_a_folder_of_examples_is_shown_as_it_is():
    shown = {title: text for title, text in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) if "lion/" in title}
    assert len(shown) == 3
    for title, text in shown.items():
        assert (REPOSITORY / "examples" / "plugins" / title).read_text(encoding="utf-8") == text
