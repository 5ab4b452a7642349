"""The quick start of the README runs as it is printed."""

import os
import re
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_the_quick_start_trains_and_verifies(tmp_path):
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    quick_start = text.split("[start:quick-start]")[1].split("[end:quick-start]")[0]
    blocks = re.findall(r"```(\w+)\n(.*?)```", quick_start, re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "sh"]
    environment = {
        **os.environ,
        "HOME": str(tmp_path / "home"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_CONFIG_HOME": str(tmp_path / "home" / ".config"),
    }
    environment.pop("ZKDV_IDENTITY", None)
    for language, code in blocks:
        interpreter = {"python": [sys.executable, "-c"], "sh": ["bash", "-euc"]}[language]
        completed = subprocess.run(
            [*interpreter, code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr
    assert (tmp_path / "proof" / "records.cborl").stat().st_size > 0
