"""The stub of the native module says what the module holds."""

import subprocess
import sys

import pytest

from zkdv import _native

# Names of types that only annotations use, and the list that the module makes by itself.
EXCEPTIONS = r"zkdv\._native\.((ReadRecord|RecordType|TreeKind)(\..*)?|__all__)"


def test_the_stub_and_the_module_have_the_same_names_and_signatures(tmp_path):
    pytest.importorskip("mypy", reason="stubtest comes with mypy")
    allowed = tmp_path / "allowed"
    allowed.write_text(f"{EXCEPTIONS}\n")
    command = [sys.executable, "-m", "mypy.stubtest", "zkdv._native", "--allowlist", str(allowed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_of_types_can_be_imported_at_run_time():
    assert (_native.ReadRecord, _native.RecordType, _native.TreeKind) == (dict, str, str)
