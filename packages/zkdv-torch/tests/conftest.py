"""Fixtures of the Torch frontend's tests."""

import logging
from importlib.util import find_spec

import pytest

from zkdv import _native

# Torch takes 6 GB; an environment without it runs the other tests. `scripts/test` installs everything.
collect_ignore_glob = [] if find_spec("torch") else ["*.py"]

# Torch traces its own compiler into the log, which pytest would keep at many times the cost of a test.
logging.getLogger("torch.__trace").propagate = False


@pytest.fixture(autouse=True)
def identity(tmp_path, monkeypatch):
    """Give every test an identity key of its own."""
    path = tmp_path / "identity.pem"
    _native.Identity.generate(str(path))
    monkeypatch.setenv("ZKDV_IDENTITY", str(path))


@pytest.fixture(autouse=True)
def no_packages(monkeypatch):
    """Compile nothing, which takes a minute, but where a test asks for it."""
    monkeypatch.setenv("ZKDV_AOT", "off")
