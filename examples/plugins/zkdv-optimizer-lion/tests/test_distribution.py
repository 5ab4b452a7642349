"""The plugin as a wheel, beside an environment that has everything but it: found by its entry point alone."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from zkdv import _native

PLUGIN = Path(__file__).parents[1]
REPOSITORY = PLUGIN.parents[2]

# Runs a module or a script with the site folders before the `--`, and no others.
STARTER = """
import runpy, site, sys
split = sys.argv.index("--")
for folder in sys.argv[1:split]:
    site.addsitedir(folder)
sys.argv = sys.argv[split + 1:]
if sys.argv[0] == "-m":
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""

# Prepares a model with Lion, from wherever Python finds it.
PREPARING = """
import sys, torch, zkdv.torch
from zkdv_optimizer_lion.lion import Lion
model = torch.nn.Linear(2, 1)
zkdv.torch.ZKDV(sys.argv[1]).prepare(model, Lion(model.parameters()))
print("prepared")
"""


def uv():
    found = shutil.which("uv") or shutil.which("uv", path=REPOSITORY / ".tools" / "bin")
    assert found is not None, "uv is not on PATH; scripts/test puts it there"
    return found


class Environment:
    """This environment without the plugin, and the folders that are added to it."""

    def __init__(self, folder):
        self.folder = folder
        self.site = folder / "site"
        self.site.mkdir()
        for entry in Path(sysconfig.get_path("purelib")).iterdir():
            if not entry.name.startswith(("zkdv_optimizer_lion", "_zkdv_optimizer_lion")):
                (self.site / entry.name).symlink_to(entry)
        _native.Identity.generate(str(folder / "identity.pem"))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("ZKDV_", "PYTHON"))}
        self.variables = kept | {"ZKDV_IDENTITY": str(folder / "identity.pem"), "NO_COLOR": "1"}

    def run(self, *command, added=()):
        """Run `-m module` or a script, with further site folders."""
        folders = [self.site, *added]
        started = [sys.executable, "-I", "-S", "-c", STARTER, *folders, "--", *command]
        return subprocess.run(
            list(map(str, started)), capture_output=True, text=True, check=False, env=self.variables, cwd=self.folder
        )


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the plugin's wheel installed into it, and nothing else."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    build = [uv(), "build", "--quiet", "--wheel", "--out-dir", str(wheels), str(PLUGIN)]
    subprocess.run(build, check=True, cwd=REPOSITORY)
    (wheel,) = wheels.glob("*.whl")
    install = [uv(), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(target)]
    subprocess.run([*install, str(wheel)], check=True, cwd=REPOSITORY)
    return target


def test_plugin_is_listed_where_its_wheel_is_installed_and_nowhere_else(environment, installed):
    without = environment.run("-m", "zkdv", "plugins")
    assert (without.returncode, without.stderr) == (0, "")
    assert "torch.optim.adamw.AdamW" in without.stdout
    assert "lion" not in without.stdout
    listed = environment.run("-m", "zkdv", "plugins", added=[installed])
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "zkdv-optimizer-lion 0.1.0  lion = zkdv_optimizer_lion" in listed.stdout
    assert "  zkdv_optimizers  zkdv_optimizer_lion.lion.Lion -> zkdv_optimizer_lion.lion:FUNCTIONAL" in listed.stdout


def test_optimizer_is_prepared_with_the_entry_point_and_refused_with_its_code_alone(environment, installed, tmp_path):
    (tmp_path / "preparing.py").write_text(PREPARING)
    code = tmp_path / "code"
    shutil.copytree(installed / "zkdv_optimizer_lion", code / "zkdv_optimizer_lion")
    refused = environment.run(tmp_path / "preparing.py", tmp_path / "refused", added=[code])
    assert refused.returncode == 1
    assert (
        "the step of zkdv_optimizer_lion.lion.Lion cannot be lowered: neither this run nor a plugin says how; call "
        "proof.register_functional_optimizer(Lion, functional) before prepare(), install a plugin that declares "
        "'zkdv_optimizer_lion.lion.Lion'"
    ) in refused.stderr
    prepared = environment.run(tmp_path / "preparing.py", tmp_path / "prepared", added=[installed])
    assert (prepared.returncode, prepared.stdout) == (0, "prepared\n"), prepared.stderr


@pytest.mark.slow
def test_example_trains_digits_in_both_frameworks_and_verifies_both_transcripts(environment, installed, tmp_path):
    trained = environment.run(PLUGIN / "examples" / "digits.py", tmp_path, added=[installed])
    assert trained.returncode == 0, trained.stderr
    lines = re.findall(r"^(\w+): test accuracy ([\d.]+)%, 225 updates, transcript (\w+)$", trained.stdout, re.MULTILINE)
    assert [(framework, verdict) for framework, _, verdict in lines] == [("torch", "passed"), ("jax", "passed")]
    assert all(float(accuracy) > 90 for _, accuracy, _ in lines)
    assert abs(float(lines[0][1]) - float(lines[1][1])) < 2
    verified = environment.run("-m", "zkdv", "verify", tmp_path / "torch", tmp_path / "jax")
    assert verified.returncode == 0, verified.stdout
