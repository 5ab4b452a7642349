"""Runs `several_devices.py` in processes that have 4 and 8 virtual devices."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@pytest.mark.parametrize("devices", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_training_on_virtual_devices(devices):
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(TESTS / "several_devices.py"), "-q", "-n", "0", "-p", "no:cacheprovider"],
        env=os.environ | {"XLA_FLAGS": flags.strip(), "JAX_PLATFORMS": "cpu"},
        cwd=TESTS.parents[2],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    [summary] = re.findall(r"^(.*) in [0-9.]+s", run.stdout, re.MULTILINE)
    assert re.fullmatch(r"\d+ passed(, \d+ warnings?)?", summary), summary
