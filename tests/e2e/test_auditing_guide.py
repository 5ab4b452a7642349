"""The guide to audits: what it shows runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "auditing.md"


def snippet(title):
    found = re.search(rf'```\w+ title="{title}"\n(.*?)```', GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.mark.slow
def test_the_guide_runs_as_printed(tmp_path, monkeypatch):
    monkeypatch.setenv("ZKDV_IDENTITY", str(tmp_path / "identity.pem"))

    def python(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    python("-m", "zkdv", "key", "new", "identity.pem")
    script = tmp_path / "train.py"
    script.write_text(snippet("train.py"))
    python("train.py")
    # Nothing of the training code is there when the run is audited.
    script.unlink()
    printed = ""
    for command in snippet("commands").splitlines():
        program, *arguments = command.split()
        assert program == "zkdv"
        printed = python("-m", "zkdv", *arguments)
        assert printed.startswith("IDENTICAL"), printed
    assert "Every update of the run was executed: nothing was left out." in printed
    # Four of five segments, as the guide says of the default.
    text = " ".join(python("-m", "zkdv", "audit", "proof").split())
    sentence = re.search(r'"(If 1 of the 40 updates were wrong[^"]*)"', GUIDE.read_text(encoding="utf-8"))[1]
    assert sentence in text
    assert python("-c", snippet("from Python")).startswith("16 updates of 40")
    for batch in (tmp_path / "proof" / "batches").iterdir():
        batch.unlink()
    python("-c", snippet("a data set"))
