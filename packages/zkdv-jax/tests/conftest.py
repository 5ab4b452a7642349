"""Fixtures of the JAX frontend's tests."""

import pytest

from zkdv import _native


@pytest.fixture(autouse=True)
def identity(tmp_path, monkeypatch):
    """Give every test an identity key of its own."""
    path = tmp_path / "identity.pem"
    _native.Identity.generate(str(path))
    monkeypatch.setenv("ZKDV_IDENTITY", str(path))


@pytest.fixture(scope="module")
def owner_identity(tmp_path_factory):
    """Give processes that outlive a test an identity key."""
    path = tmp_path_factory.mktemp("identity") / "identity.pem"
    _native.Identity.generate(str(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZKDV_IDENTITY", str(path))
        yield
