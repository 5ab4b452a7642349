"""The plugin as a wheel, beside an environment that has everything but it: found by its entry point alone."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

PLUGIN = Path(__file__).parents[1]
REPOSITORY = PLUGIN.parents[2]

# Runs a statement or a module with the site folders given, and no others.
STARTER = """
import runpy, site, sys
for folder in sys.argv[1].split(":"):
    site.addsitedir(folder)
del sys.argv[1]
if sys.argv[1] == "-c":
    exec(sys.argv[2])
else:
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
OPENING = """
from zkdv.control import HostControl
HostControl(0, 2, transport="redis", address="unix:///nowhere/socket")
"""


def uv():
    found = shutil.which("uv") or shutil.which("uv", path=REPOSITORY / ".tools" / "bin")
    assert found is not None, "uv is not on PATH; scripts/test puts it there"
    return found


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """This environment without the plugin."""
    site = tmp_path_factory.mktemp("site")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("zkdv_transport_redis", "_zkdv_transport_redis")):
            (site / entry.name).symlink_to(entry)
    return site


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


def run(*arguments, sites):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ZKDV_", "PYTHON"))}
    started = [sys.executable, "-I", "-S", "-c", STARTER, ":".join(map(str, sites)), *arguments]
    return subprocess.run(started, capture_output=True, text=True, check=False, env=kept | {"NO_COLOR": "1"})


def test_plugin_is_listed_where_its_wheel_is_installed_and_nowhere_else(environment, installed):
    without = run("zkdv", "plugins", sites=[environment])
    assert (without.returncode, without.stderr) == (0, "")
    assert "zkdv_transports  tcp -> zkdv.control.tcp:TCP" in without.stdout
    assert "redis" not in without.stdout
    listed = run("zkdv", "plugins", sites=[environment, installed])
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "zkdv-transport-redis 0.1.0  redis = zkdv_transport_redis" in listed.stdout
    assert "  zkdv_transports  redis -> zkdv_transport_redis.store:open_transport" in listed.stdout


def test_transport_is_found_by_its_entry_point(environment, installed):
    refused = run("-c", OPENING, sites=[environment])
    assert "no plugin declares 'redis' in zkdv_transports" in refused.stderr
    found = run("-c", OPENING, sites=[environment, installed])
    assert "cannot connect to the store" in found.stderr
