"""The runs that are attacked, trained once for each form of commitments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trained

FORMS = ("cpu", "portable", "torch")


@pytest.fixture(scope="session")
def cpu_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu")
    trained.train_all(folder)
    return trained.load_all(folder)


@pytest.fixture(scope="session")
def portable_runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("portable")
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, trained.__file__, str(folder)],
        env=os.environ | {"ZKDV_LOWERING": "portable", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return trained.load_all(folder)


@pytest.fixture(scope="session")
def torch_runs(tmp_path_factory):
    pytest.importorskip("torch", reason="Torch takes 6 GB; this environment leaves it out")
    from trained_torch import train

    folder = tmp_path_factory.mktemp("torch")
    with pytest.MonkeyPatch.context() as patch:
        # Compiling takes a minute, and there are four runs.
        patch.setenv("ZKDV_AOT", "off")
        trained.train_all(folder, train)
    runs = TorchRuns(trained.load_all(folder))
    # What JAX calls attest programs, Torch has none of.
    del runs["attested"]
    return runs


class TorchRuns(dict):
    def __missing__(self, name):
        pytest.skip(f"Torch has no run {name!r}: programs that give two drawn elements are declared in JAX alone")


@pytest.fixture(params=[FORMS[0], *(pytest.param(form, marks=pytest.mark.slow) for form in FORMS[1:])])
def runs(request):
    """All runs of one form of commitments."""
    return request.getfixturevalue(f"{request.param}_runs")


@pytest.fixture
def folder(tmp_path) -> Path:
    return tmp_path / "attacked"
