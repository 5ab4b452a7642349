"""Frontends and a core that do not fit are told apart before anything fails oddly."""

from importlib import metadata

import pytest

from zkdv.compatibility import require_core


def installed(monkeypatch, *, core, requires):
    versions = {"zkdv-core": core, "zkdv-other": "7.0"}
    monkeypatch.setattr(metadata, "version", versions.__getitem__)
    monkeypatch.setattr(metadata, "requires", lambda _: requires)


@pytest.mark.parametrize("core", ["0.1", "0.1.0", "0.1.9", "0.1.10.dev1", "0.1.5+local"])
@pytest.mark.parametrize("requirement", ["zkdv-core>=0.1,<0.2", "zkdv-core<0.2,>=0.1.0", "zkdv-core <0.2, >=0.1"])
def test_core_in_the_range_is_accepted(monkeypatch, core, requirement):
    installed(monkeypatch, core=core, requires=["numpy>=99", requirement, "zkdv-core-extras>=5"])
    require_core("zkdv-other")


@pytest.mark.parametrize("core", ["0.0.9", "0.2", "0.2.0", "0.10", "1.0.dev3", "1"])
def test_core_outside_the_range_is_refused_with_both_versions(monkeypatch, core):
    installed(monkeypatch, core=core, requires=["zkdv-core<0.2,>=0.1"])
    with pytest.raises(ImportError) as caught:
        require_core("zkdv-other")
    assert str(caught.value) == (
        f"zkdv-other 7.0 works with zkdv-core <0.2,>=0.1, and {core} is installed; install versions that fit: "
        "`uv add zkdv-other 'zkdv-core<0.2,>=0.1'`"
    )


def test_frontend_of_this_workspace_fits():
    pytest.importorskip("zkdv.jax", reason="the JAX frontend is the one that is looked at")
    assert any(requirement.startswith("zkdv-core") for requirement in metadata.requires("zkdv-jax"))
    require_core("zkdv-jax")
