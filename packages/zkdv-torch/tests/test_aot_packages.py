"""AOT Inductor packages beside exported programs: sealed, found again, measured, left out."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from torch_runs import batches, bits, check_every, records, run, verified

from zkdv.errors import ZKDVError, ZKDVWarning
from zkdv.torch import _aot, _pipeline


@pytest.fixture
def wanted(monkeypatch, tmp_path):
    monkeypatch.setenv("ZKDV_AOT", "on")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def packages(folder):
    return [record["body"] for record in records(folder, "program") if record["body"]["role"] == "aoti"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_package_is_sealed_measured_and_found_again(wanted, tmp_path, monkeypatch):
    run(tmp_path / "first", check_every(2), data=batches(4))
    [package] = packages(tmp_path / "first")
    blob = (tmp_path / "first" / "programs" / f"{package['digest'].hex()}.pt2").read_bytes()
    assert blake3(blob).digest() == package["digest"]
    assert verified(tmp_path / "first").verdict == "passed"
    stated = float(re.search(r"at most ([\d.e+-]+) apart", package["convention"])[1])
    assert stated < 1e-2

    # The same run again compiles nothing: a compiler would fail here, and warn.
    with monkeypatch.context() as without:
        without.setattr(sys, "executable", "/bin/false")
        run(tmp_path / "second", check_every(2), data=batches(4))
    assert packages(tmp_path / "second") == [package]

    # In a fresh process the package gives the transition of the exported program, as near as was measured.
    [exported] = [
        record["body"] for record in records(tmp_path / "first", "program") if record["body"]["role"] == "replay"
    ]
    schema = records(tmp_path / "first", "schema")[0]["body"]
    torch.manual_seed(1)
    leaves = [torch.rand(leaf["shape"]) for leaf in (*schema["parameters"], *schema["optimizer"])]
    inputs = [*leaves, *next(batches(1)), torch.tensor([1e-2, 0.9, 0.999, 1e-2], dtype=torch.float64)]
    torch.save(inputs, tmp_path / "inputs.pt")
    results = []
    for script, body in (("replay_elsewhere.py", exported), ("replay_package.py", package)):
        program = tmp_path / "first" / "programs" / f"{body['digest'].hex()}.pt2"
        results.append(tmp_path / f"{script}.pt")
        command = [sys.executable, Path(__file__).parent / script, program, tmp_path / "inputs.pt", results[-1]]
        subprocess.run([str(word) for word in command], check=True)
    ours, theirs = (torch.load(path, weights_only=True) for path in results)
    assert _aot.largest_distance(ours, theirs) < 1e-2
    assert any(bits(one) != bits(leaf) for one, leaf in zip(theirs, leaves, strict=True))


@pytest.mark.usefixtures("wanted")
@pytest.mark.parametrize(
    ("variable", "value", "compiler"), [("CXX", "no-such-compiler", "no-such-compiler"), ("PATH", "", r"g\+\+")]
)
def test_a_missing_compiler_is_said_before_the_first_update_and_can_be_done_without(
    tmp_path, monkeypatch, variable, value, compiler
):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(
        ZKDVError, match=rf"no C\+\+ compiler \({compiler}\).*apt install g\+\+.*aot=False.*ZKDV_AOT=off"
    ):
        run(tmp_path / "proof", check_every(2), data=batches(1))
    assert records(tmp_path / "proof", "update") == []
    run(tmp_path / "other", check_every(2), data=batches(1), aot=False)
    monkeypatch.setenv("ZKDV_AOT", "off")
    run(tmp_path / "third", check_every(2), data=batches(1))
    for folder in ("other", "third"):
        assert packages(tmp_path / folder) == []
        assert verified(tmp_path / folder).verdict == "passed"


def test_what_can_not_be_compiled_is_warned_about_and_the_run_is_whole(wanted, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.warns(ZKDVWarning, match="AOT Inductor can't compile the update"):
        run(tmp_path / "proof", check_every(2), data=batches(2))
    assert packages(tmp_path / "proof") == []
    assert verified(tmp_path / "proof").verdict == "passed"


@pytest.mark.parametrize("loads", [False, True], ids=["load", "execute"])
def test_a_package_that_can_not_be_executed_is_warned_about_and_the_run_is_whole(wanted, tmp_path, monkeypatch, loads):
    def fail(*_):
        raise RuntimeError("an operator got None\nframe #0: somewhere")

    monkeypatch.setattr(_pipeline, "compile_package", lambda *_: b"a package")
    monkeypatch.setattr(_pipeline, "load_package", (lambda _: fail) if loads else fail)
    with pytest.warns(ZKDVWarning, match="can't be executed, and is left out: an operator got None; the portable"):
        run(tmp_path / "proof", check_every(2), data=batches(2))
    assert packages(tmp_path / "proof") == []
    assert verified(tmp_path / "proof").verdict == "passed"


def test_a_cancelled_compilation_ends_at_once(wanted, tmp_path):
    started = time.monotonic()
    assert _aot.compile_package(b"no program", lambda: True) is None
    assert time.monotonic() - started < 60


def test_a_cache_entry_with_other_bytes_is_not_used(wanted, tmp_path):
    _aot._remember(b"program", b"package")
    assert _aot._find(b"program") == b"package"
    [entry] = (tmp_path / "cache" / "zkdv" / "aot").iterdir()
    entry.write_bytes(b"other")
    assert _aot._find(b"program") is None
    assert _aot._find(b"another program") is None


def test_the_switch_is_on_or_off(monkeypatch):
    monkeypatch.setenv("ZKDV_AOT", "maybe")
    with pytest.raises(ValueError, match="ZKDV_AOT is 'maybe'"):
        _aot.is_wanted(None)
    assert _aot.is_wanted(False) is False
