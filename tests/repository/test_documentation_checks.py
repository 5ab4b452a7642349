"""The checks that scripts/build-docs makes of the built site find what they are there for."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A minimal documentation tree, as it is after a build."""
    files = {
        "zensical.toml": '[project]\nnav = [{ "Home" = "index.md" }, { "Part" = [{ "API" = "api.md" }] }]\n',
        "docs/index.md": "# Home\n",
        "docs/api.md": "# API\n\n::: package\n\n::: package.module\n",
        ".docs/src/package/__init__.py": "",
        ".docs/src/package/module.py": "",
        ".docs/src/package/_private.py": "",
        ".docs/src/_plugin/__init__.py": "",
        "site/index.html": '<a href="api/#anchor">API</a> <a href="https://example.org/x">out</a>'
        '<a href="reference/rust/crate/index.html">Rust</a>',
        "site/api/index.html": '<a href="../">Home</a>',
        "site/reference/rust/crate/index.html": '<a href="only-rustdoc-knows.html">not ours</a>',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def check(tree: Path) -> tuple[int, str]:
    completed = subprocess.run(
        [sys.executable, REPOSITORY / "scripts" / "check_documentation.py"],
        cwd=tree,
        capture_output=True,
        text=True,
        check=False,
    )
    return completed.returncode, completed.stderr


def test_a_sound_site_passes(site):
    assert check(site) == (0, "")


def test_a_link_to_a_missing_file_is_reported_with_its_page(site):
    shutil.rmtree(site / "site/reference/rust/crate")
    status, message = check(site)
    assert status == 1
    assert message == "error: site/index.html links to reference/rust/crate/index.html, which the site does not hold\n"


def test_a_public_module_outside_the_reference_is_reported(site):
    (site / ".docs/src/package/forgotten.py").write_text("")
    status, message = check(site)
    assert status == 1
    assert "module package.forgotten is public and in no page" in message


def test_a_page_outside_the_navigation_is_reported(site):
    (site / "docs/orphan.md").write_text("# Orphan\n")
    status, message = check(site)
    assert status == 1
    assert "docs/orphan.md is not in the navigation" in message
