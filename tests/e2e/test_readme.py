"""The quick starts of the README run as they are printed."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WITH_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="Torch takes 6 GB; this environment leaves it out")


@pytest.mark.parametrize("part", ["quick-start", pytest.param("quick-start-torch", marks=WITH_TORCH)])
def test_the_quick_start_trains_and_verifies(part, tmp_path):
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    quick_start = text.split(f"[start:{part}]")[1].split(f"[end:{part}]")[0]
    blocks = re.findall(r"```(\w+)\n(.*?)```", quick_start, re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "sh"]
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "home" / ".config"),
        # Compiling takes a minute; a test of the frontend does it.
        "ZKDV_AOT": "off",
    }
    environment.pop("ZKDV_IDENTITY", None)
    for language, code in blocks:
        interpreter = {"python": [sys.executable, "-c"], "sh": ["bash", "-euc"]}[language]
        completed = subprocess.run(
            [*interpreter, code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
    assert (tmp_path / "proof" / "records.cborl").stat().st_size > 0
