"""The README's way to install from a checkout works with pip alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)  # Compiles the extension module in the release profile.
def test_pip_installs_the_packages_from_a_checkout(tmp_path):
    commands = re.findall(
        r"^pip (install \./.*?) +# for JAX$", (REPOSITORY / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert len(commands) == 1
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "environment"], check=True)
    binaries = tmp_path / "environment" / "bin"
    subprocess.run([binaries / "python", "-m", "pip", *commands[0].split()], cwd=REPOSITORY, check=True)
    # Away from the checkout, so that nothing is imported from its sources.
    plugins = subprocess.run(
        [binaries / "zkdv", "plugins"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "zkdv-jax" in plugins.stdout
    subprocess.run([binaries / "python", "-c", "import zkdv.jax; zkdv.jax.ZKDV"], cwd=tmp_path, check=True)
