"""The transport that the guide shows: built, installed, found by its entry point, and held against the suite."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from zkdv.testing import TransportConformance

REPOSITORY = Path(__file__).parents[3]
GUIDE = REPOSITORY / "docs" / "guides" / "transports.md"
BLOCK = re.compile(r"^```\w+ title=\"([^\"]+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks():
    return dict(BLOCK.findall(GUIDE.read_text(encoding="utf-8")))


def uv():
    found = shutil.which("uv") or shutil.which("uv", path=REPOSITORY / ".tools" / "bin")
    assert found is not None, "uv is not on PATH; scripts/test puts it there"
    return found


def install(folder):
    """Build the guide's distribution, and install its wheel into a folder of its own."""
    for title, text in blocks().items():
        (folder / title).parent.mkdir(parents=True, exist_ok=True)
        (folder / title).write_text(text)
    distribution, installed = folder / "zkdv-transport-folder", folder / "installed"
    build = [uv(), "build", "--quiet", "--wheel", "--out-dir", folder / "wheels", distribution]
    subprocess.run(list(map(str, build)), check=True, cwd=REPOSITORY)
    (wheel,) = (folder / "wheels").glob("*.whl")
    command = [uv(), "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", installed, wheel]
    subprocess.run(list(map(str, command)), check=True, cwd=REPOSITORY)
    return installed


@pytest.mark.slow
class TestTransportOfTheGuide(TransportConformance):
    transport = "folder"
    size = 2

    @classmethod
    def setup_class(cls):
        cls.folder = Path(tempfile.mkdtemp())
        installed = install(cls.folder)
        (cls.folder / "shared").mkdir()
        cls.address = str(cls.folder / "shared")
        path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
        cls.environment = {"PYTHONPATH": path}

    @classmethod
    def teardown_class(cls):
        super().teardown_class()
        shutil.rmtree(cls.folder)


def test_transport_of_the_guide_has_about_forty_lines():
    source = blocks()["zkdv-transport-folder/src/zkdv_transport_folder/store.py"]
    compile(source, "store.py", "exec")
    code = [line for line in source.splitlines() if line.strip() and '"""' not in line]
    assert 30 <= len(code) <= 45
    assert blocks().keys() == {
        "test_folder.py",
        "zkdv-transport-folder/pyproject.toml",
        "zkdv-transport-folder/src/zkdv_transport_folder/__init__.py",
        "zkdv-transport-folder/src/zkdv_transport_folder/store.py",
    }
