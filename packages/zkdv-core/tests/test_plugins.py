"""The registry over distributions that are really on disk, each with metadata and a module."""

import sys
import textwrap
from importlib.metadata import distributions

import pytest

from zkdv.errors import ZKDVError
from zkdv.hooks import HOOKS
from zkdv.plugins import PluginError, Registry

SIGNERS = """
    from zkdv.hooks import hookimpl

    @hookimpl
    def zkdv_signers():
        return {declared}
"""


class Site:
    """A folder of installed distributions, on `sys.path`."""

    def __init__(self, path):
        self.path = path

    def add(self, distribution, module, source, *, version="1.0", entry_point="main", target=None):
        stem = distribution.replace("-", "_")
        info = self.path / f"{stem}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[zkdv]\n{entry_point} = {target or module}\n")
        (self.path / f"{module}.py").write_text(textwrap.dedent(source))

    def registry(self):
        points = [
            point
            for distribution in distributions(path=[str(self.path)])
            for point in distribution.entry_points
            if point.group == "zkdv"
        ]
        return Registry.load(points)


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_object_behind_a_name_is_imported_on_use_and_not_before(site):
    site.add("acme-vault", "acme_vault", SIGNERS.format(declared="{'vault': 'acme_signing:open_signer'}"))
    (site.path / "acme_signing.py").write_text("def open_signer(argument): return argument\n")
    registry = site.registry()
    (plugin,) = registry.plugins
    assert (plugin.distribution, plugin.version, plugin.entry_point, plugin.module, plugin.error) == (
        "acme-vault",
        "1.0",
        "main",
        "acme_vault",
        None,
    )
    assert registry.names("zkdv_signers") == ("vault",)
    assert "acme_signing" not in sys.modules
    assert registry.resolve("zkdv_signers", "vault")("key") == "key"


def test_order_follows_distribution_names_and_not_the_search_path(site):
    for distribution in ("zeta", "alpha", "mid"):
        site.add(distribution, f"plugin_{distribution}", SIGNERS.format(declared=f"{{'{distribution}': 'm:o'}}"))
    points = [point for found in distributions(path=[str(site.path)]) for point in found.entry_points]
    registries = [Registry.load(points), Registry.load(reversed(points))]
    assert registries[0] == registries[1]
    assert [plugin.distribution for plugin in registries[0].plugins] == ["alpha", "mid", "zeta"]


def test_two_distributions_with_one_name_are_an_error_that_names_both(site):
    for distribution in ("acme-vault", "other-vault"):
        site.add(
            distribution, distribution.replace("-", "_"), SIGNERS.format(declared="{'vault': 'm:o', 'own': 'm:o'}")
        )
    site.add("third", "third", SIGNERS.format(declared="{'fine': 'os.path:join'}"))
    registry = site.registry()
    assert len(registry.conflicts) == 2
    message = (
        "acme-vault (plugin 'main') and other-vault (plugin 'main') both declare 'vault' in zkdv_signers; "
        "uninstall one of them"
    )
    assert message in registry.conflicts
    with pytest.raises(PluginError) as caught:
        registry.resolve("zkdv_signers", "vault")
    assert str(caught.value) == message
    # What is not in conflict stays usable.
    assert registry.resolve("zkdv_signers", "fine") is __import__("os").path.join


def test_one_name_in_two_hooks_is_no_conflict(site):
    source = """
        from zkdv.hooks import hookimpl

        @hookimpl
        def zkdv_signers():
            return {"one": "m:o"}

        @hookimpl
        def zkdv_lowerings():
            return {"one": "m:o"}
    """
    site.add("acme", "acme", source)
    registry = site.registry()
    assert registry.conflicts == ()
    assert [(declared.hook, declared.name) for declared in registry.plugins[0].declarations] == [
        ("zkdv_lowerings", "one"),
        ("zkdv_signers", "one"),
    ]


BROKEN = {
    "fails to import": ("import a_module_that_is_not_there", "No module named 'a_module_that_is_not_there'"),
    "exits at import": ("raise SystemExit('leaving')", "SystemExit: leaving"),
    "several lines": ("raise ValueError('one\\n  two')", "ValueError: one two"),
    "syntax error": ("def broken(:", "SyntaxError"),
    "misspelt hook": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_singers(): return {}",
        "unknown hook 'zkdv_singers'",
    ),
    "unmarked hook": (
        "def zkdv_signers(): return {}",
        "zkdv_signers is not marked as a hook; put @zkdv.hooks.hookimpl",
    ),
    "wrong arguments": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_signers(session): return {}",
        "PluginValidationError",
    ),
    "hook fails": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_signers(): return 1 / 0",
        "ZeroDivisionError",
    ),
    "answers with a list": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_signers(): return ['vault']",
        "zkdv_signers returned ['vault'] (list); it returns a dict of names",
    ),
    "answers with an object": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_signers(): return {'vault': print}",
        "that is the name of an object, 'package.module:object'",
    ),
    "object name without colon": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_signers(): return {'vault': 'acme.signer'}",
        "that is the name of an object, 'package.module:object'",
    ),
    "empty name": (
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_signers(): return {'': 'acme:signer'}",
        "a name is printable text",
    ),
}


@pytest.mark.parametrize(("source", "message"), BROKEN.values(), ids=BROKEN)
def test_broken_plugin_is_kept_with_its_error_and_harms_no_other(site, source, message):
    site.add("broken-one", "broken_one", source)
    site.add("whole-one", "whole_one", SIGNERS.format(declared="{'vault': 'os.path:join'}"))
    broken, whole = site.registry().plugins
    assert message in broken.error
    assert "\n" not in broken.error
    assert broken.declarations == ()
    assert whole.error is None
    assert site.registry().resolve("zkdv_signers", "vault") is not None
    with pytest.raises(PluginError, match=r"no plugin declares 'other'.*\(declared: vault\).*'main' of broken-one"):
        site.registry().resolve("zkdv_signers", "other")


def test_entry_point_whose_module_is_missing_is_reported(site):
    site.add("acme", "acme", "", target="not_there")
    (plugin,) = site.registry().plugins
    assert plugin.error == "ModuleNotFoundError: No module named 'not_there'"


@pytest.mark.parametrize("target", ["not_there:open_signer", "acme:not_there"])
def test_object_that_cannot_be_loaded_names_its_distribution(site, target):
    site.add("acme-vault", "acme", SIGNERS.format(declared=f"{{'vault': '{target}'}}"))
    with pytest.raises(
        PluginError, match=r"acme-vault declares 'vault' in zkdv_signers as .* cannot be loaded: .*not_there"
    ):
        site.registry().resolve("zkdv_signers", "vault")


def test_name_that_nobody_declares_lists_what_there_is(site):
    site.add("acme-vault", "acme", SIGNERS.format(declared="{'vault': 'm:o', 'agent': 'm:o'}"))
    with pytest.raises(PluginError, match=r"no plugin declares 'valt' in zkdv_signers \(declared: agent, vault\)"):
        site.registry().find("zkdv_signers", "valt")
    with pytest.raises(PluginError, match=r"declared: none"):
        site.registry().find("zkdv_lowerings", "valt")


def test_unknown_hook_is_a_mistake_of_the_caller(site):
    with pytest.raises(ValueError, match="'zkdv_nothing' is no hook of zkdv; there are: zkdv_challengers"):
        site.registry().names("zkdv_nothing")


def test_plugin_errors_are_zkdv_errors():
    assert issubclass(PluginError, ZKDVError)


def test_every_specified_hook_is_listed():
    from zkdv import hooks

    assert set(HOOKS) == {name for name in vars(hooks) if name.startswith("zkdv_")}
