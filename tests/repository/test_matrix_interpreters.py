"""Which interpreters the matrix of scripts/test --all uses, and what it says about missing ones."""

import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def list_interpreters(path: Path, home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", REPOSITORY / "scripts" / "test-matrix", "--list"],
        env={"PATH": f"{path}:/usr/bin:/bin", "HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def only_311(tmp_path: Path) -> Path:
    """A folder of interpreters in which 3.11 works, 3.12 is broken, and 3.13 is another version in disguise."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in {
        "python3.11": 'case "$2" in *version_info*) echo 3.11 ;; *) echo /opt/python3.11 ;; esac',
        "python3.12": "exit 127",
        "python3.13": "echo 3.10",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


def test_missing_interpreters_are_named_and_skipped(only_311, tmp_path):
    listed = list_interpreters(only_311, tmp_path)
    assert listed.returncode == 0
    assert listed.stdout.splitlines() == [
        "Python 3.11: /opt/python3.11",
        "SKIPPED: no interpreter for Python 3.12 3.13 on PATH, under PYENV_ROOT or under ~/.pyenv",
    ]


def test_missing_interpreters_fail_in_continuous_integration(only_311, tmp_path):
    listed = list_interpreters(only_311, tmp_path, CI="true")
    assert listed.returncode == 1
    assert "no interpreter for Python 3.12 3.13" in listed.stderr


@pytest.mark.parametrize("variable", ["PYENV_ROOT", None])
def test_interpreters_of_pyenv_are_found(only_311, tmp_path, variable):
    root = tmp_path / ("elsewhere" if variable else ".pyenv")
    for version in ("3.12", "3.13"):
        folder = root / "versions" / f"{version}.1" / "bin"
        folder.mkdir(parents=True)
        (folder / f"python{version}").write_text(
            f'#!/bin/sh\ncase "$2" in *version_info*) echo {version} ;; *) echo "$0" ;; esac\n'
        )
        (folder / f"python{version}").chmod(0o755)
    listed = list_interpreters(only_311, tmp_path, CI="true", **({variable: str(root)} if variable else {}))
    assert listed.returncode == 0, listed.stderr
    assert listed.stdout.splitlines()[1:] == [
        f"Python {version}: {root}/versions/{version}.1/bin/python{version}" for version in ("3.12", "3.13")
    ]
