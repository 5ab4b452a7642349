"""What `import zkdv` loads, and what it says about parts that are missing."""

import subprocess
import sys
from pathlib import Path

import pytest

import zkdv
from zkdv import _frontends

NOT_AT_IMPORT = (
    "flax",
    "jax",
    "jaxlib",
    "numpy",
    "optax",
    "platformdirs",
    "pluggy",
    "pydantic",
    "rich",
    "torch",
    "typer",
)


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )


def modules_after(code: str) -> set[str]:
    finished = run_python(f"{code}\nimport sys\nprint(*sorted(sys.modules))")
    assert finished.returncode == 0, finished.stderr
    return set(finished.stdout.split())


def test_importing_zkdv_loads_no_framework_and_no_library():
    loaded = modules_after("import zkdv")
    assert not loaded.intersection(NOT_AT_IMPORT)
    # What costs most in the standard library, and the extension module.
    assert not loaded.intersection({"importlib.metadata", "subprocess", "email", "asyncio", "zkdv._native"})


def test_public_names_are_there_without_further_imports():
    finished = run_python(
        "import zkdv; zkdv.ZKDVConfig(); zkdv.overlap.ALWAYS; zkdv.SamplingPolicy.DEBUGCheckEvery(2); zkdv.ZKDVError"
    )
    assert finished.returncode == 0, finished.stderr


def test_listing_plugins_loads_no_framework():
    loaded = modules_after("from zkdv.plugins import registry; registry()")
    assert not loaded.intersection({"flax", "jax", "jaxlib", "optax", "torch"})


def test_starting_the_command_line_loads_neither_numpy_nor_a_framework():
    # What verifies only must not wait for what audits, matching and proofs of membership need.
    loaded = modules_after("import zkdv.cli")
    assert "zkdv._native" in loaded
    assert not loaded.intersection({"flax", "jax", "jaxlib", "numpy", "optax", "safetensors", "torch"})


def test_every_public_name_exists():
    for name in zkdv.__all__:
        assert getattr(zkdv, name) is not None
    assert set(zkdv.__all__) <= set(dir(zkdv))


def test_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'zkdv' has no attribute 'verfy'"):
        _ = zkdv.verfy


IMPORT_FORMS = {
    "import": "import {name}",
    "from package": "from zkdv import {last}",
    "from module": "from {name} import ZKDV",
    "attribute": "import zkdv; zkdv.{last}.ZKDV",
    "importlib": "import importlib; importlib.import_module('{name}')",
}


@pytest.mark.parametrize("frontend", ["control", "jax", "torch"])
@pytest.mark.parametrize("form", IMPORT_FORMS.values(), ids=IMPORT_FORMS)
def test_missing_frontend_names_the_command_that_adds_it(form, frontend, tmp_path):
    code = form.format(name=f"zkdv.{frontend}", last=frontend)
    # The real package, in an interpreter that sees what zkdv-core installs alone: frontends may lie in the same folder.
    (tmp_path / "zkdv").mkdir()
    for part in Path(zkdv.__file__).parent.iterdir():
        if part.name not in {"control", "jax", "torch", "_plugin_control", "_plugin_jax", "_plugin_torch"}:
            (tmp_path / "zkdv" / part.name).symlink_to(part)
    finished = run_python(f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{code}", "-I", "-S")
    needed = "" if frontend == "control" else "./packages/zkdv-control "
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: zkdv.{frontend} is not installed; add it with `uv add zkdv-{frontend}`, or from a "
        f"checkout of ZKDV with `pip install {needed}./packages/zkdv-{frontend}`"
    )


@pytest.mark.parametrize("name", _frontends.PLANNED)
def test_planned_subpackage_is_said_not_to_be_there(name):
    finished = run_python(f"import {name}")
    assert finished.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: {name} is not part of this version of ZKDV; there is: zkdv.control, zkdv.jax, zkdv.torch"
    )


def test_misspelt_submodule_gets_the_ordinary_error():
    finished = run_python("import zkdv.jaxx")
    assert finished.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'zkdv.jaxx'"


def test_finder_is_installed_once_and_last():
    finished = run_python(
        "import sys, importlib, zkdv, zkdv._frontends\n"
        "importlib.reload(zkdv._frontends); importlib.reload(zkdv)\n"
        "print([finder.__name__ for finder in sys.meta_path if hasattr(finder, '__name__')])"
    )
    assert finished.stdout.count("MissingFrontendFinder") == 1, finished.stderr
    assert finished.stdout.rstrip().endswith("'MissingFrontendFinder']")


def test_unrelated_distribution_in_the_same_folder_is_refused_by_name(tmp_path):
    source = Path(zkdv.__file__).parent
    package = tmp_path / "zkdv"
    package.mkdir()
    for file in source.glob("*.py"):
        (package / file.name).write_text(file.read_text())
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import zkdv"
    assert run_python(code, "-I", "-S").returncode == 0
    (tmp_path / "zkdv_core-0.1.0.dist-info").mkdir()
    (tmp_path / "zkdv_jax-0.1.0.dist-info").mkdir()
    assert run_python(code, "-I", "-S").returncode == 0
    (tmp_path / "zkdv-0.0.0.dist-info").mkdir()
    finished = run_python(code, "-I", "-S")
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith(
        "ImportError: the unrelated distribution `zkdv` 0.0.0 is installed"
    )
    assert "uv pip uninstall zkdv" in finished.stderr
