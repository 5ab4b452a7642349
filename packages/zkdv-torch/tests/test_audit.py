"""Audits of Torch runs, made by `zkdv audit` and `zkdv.audit` from the run's folder alone."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch_runs import Recurrent, batches, check_every, run

import zkdv
import zkdv.torch
from zkdv import _native
from zkdv.errors import ZKDVError
from zkdv.torch import _program_export
from zkdv.torch._graph_text import read_graph

KEPT = zkdv.EvidencePolicy(checkpoint_interval=4, batches=True, components=True)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A run of ten updates in three segments, made by code that no process after it has."""
    folder = tmp_path_factory.mktemp("honest")
    identity = folder / "identity.pem"
    _native.Identity.generate(str(identity))
    before = os.environ.get("ZKDV_IDENTITY")
    os.environ["ZKDV_IDENTITY"] = str(identity)
    try:
        run(folder / "proof", check_every(5, evidence=KEPT), aot=False, replay_snapshot_interval=4)
    finally:
        os.environ.pop("ZKDV_IDENTITY")
        if before is not None:
            os.environ["ZKDV_IDENTITY"] = before
    return folder / "proof"


def test_a_third_process_audits_a_run_from_the_folder_alone(honest, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "zkdv", "audit", str(honest), "--all", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["outcome"]) == (0, "identical"), report
    assert [segment["executed"] for segment in report["segments"]] == [4, 4, 2]
    assert report["platform_differences"] == []


@pytest.mark.slow
def test_the_serialized_program_is_never_read(honest, tmp_path):
    """Torch unpickles parts of it: what it says does not matter."""
    folder = shutil.copytree(honest, tmp_path / "proof")
    (blob,) = (folder / "programs").glob("*.pt2")
    blob.write_bytes(np.random.default_rng(0).bytes(blob.stat().st_size))
    report = zkdv.audit(folder, updates=[1])
    assert report.outcome == "identical"
    assert any(note.startswith("program-digest: ") for note in report.notes)


def sealed_texts(folder):
    return [path.read_text() for path in sorted((folder / "programs").glob("*.txt"))]


def assert_texts_compute_what_programs_do(folder, monkeypatch, **options):
    """Train, and execute each sealed program from its text and from its serialized form: the same bits."""
    held = []
    honest_seal = _program_export.seal

    def seal(graph, arguments, convention):
        held.append((honest_seal(graph, arguments, convention), [leaf.clone() for leaf in arguments]))
        return held[-1][0]

    monkeypatch.setattr("zkdv.torch._run.seal", seal)
    run(folder, check_every(100), data=batches(2), aot=False, **options)
    assert held
    for sealed, arguments in held:
        graph = read_graph(sealed.text.decode())
        assert len(graph.inputs) == len(arguments)
        for mine, theirs in zip(graph.run(*arguments), sealed.run(*arguments), strict=True):
            assert mine.numpy().tobytes() == theirs.numpy().tobytes()


@pytest.mark.parametrize(
    "make",
    [
        *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop"),
        "SGD",
    ],
)
def test_the_text_of_every_optimizer_computes_the_bits_of_its_program(tmp_path, monkeypatch, make):
    options = {"momentum": 0.9} if make == "SGD" else {}
    assert_texts_compute_what_programs_do(
        tmp_path / "proof",
        monkeypatch,
        optimizer=lambda model: getattr(torch.optim, make)(model.parameters(), lr=1e-2, **options),
    )


def test_the_text_of_cells_of_which_backward_needs_what_forward_kept_computes_the_bits_of_its_program(
    tmp_path, monkeypatch
):
    assert_texts_compute_what_programs_do(tmp_path / "proof", monkeypatch, model=Recurrent())


@pytest.mark.slow
def test_constants_of_a_program_stand_in_its_text(tmp_path):
    def scaled(proof, model, optimizer, batch):
        inputs, targets = batch
        weights = torch.tensor([0.5, 1.0, 2.0])
        loss = torch.nn.functional.cross_entropy(proof.forward(model, inputs), targets, weight=weights)
        proof.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    run(tmp_path / "proof", check_every(1, evidence=KEPT), update=scaled, data=batches(3), aot=False)
    assert any(line.startswith("constant ") for line in sealed_texts(tmp_path / "proof")[0].splitlines())
    assert zkdv.audit(tmp_path / "proof").outcome == "identical"


def edit_moment(index, model, optimizer):
    """One element of one moment, through NumPy: a write that Torch does not see."""
    if index == 6:
        optimizer.state[model[2].weight]["exp_avg"].numpy()[1, 3] += 1.0


@pytest.mark.slow
@pytest.mark.parametrize("commit", ["parameters", "every"])
def test_one_element_of_one_moment_changed_through_a_numpy_view_differs_and_is_named(tmp_path, commit):
    run(
        tmp_path / "proof",
        check_every(100, evidence=KEPT, commit=commit),
        between=edit_moment,
        aot=False,
        replay_snapshot_interval=4,
    )
    assert zkdv.verify(tmp_path / "proof").passed
    report = zkdv.audit(tmp_path / "proof", segments="all")
    assert [segment.outcome for segment in report.segments] == ["identical", "differs", "identical"]
    difference = report.segments[1].difference
    assert (report.exit_code, difference.update) == (1, 6)
    leaves = ["parameters/2.weight"] + (["optimizer/state.2.exp_avg"] if commit == "every" else [])
    assert list(difference.leaves) == leaves


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('x = os.system ["true"] {}', "calls os.system, which is no operator of ATen"),
        ('x = aten.from_file.default ["/etc/passwd"] {}', "calls aten.from_file.default"),
        ('x = torch.load ["program"] {}', "calls torch.load"),
        ('x = operator.methodcaller ["a"] {}', "calls operator.methodcaller"),
        ("x = aten.__class__.default [] {}", "calls aten.__class__.default"),
        ("import os", "a line that means nothing"),
        ("x = aten.add.Tensor [{] {}", "can't be read"),
        ('constant c {"dtype": "float32", "shape": [1000000000000], "device": "cpu", "data": ""}', "can't be read"),
    ],
)
def test_a_text_that_asks_for_more_than_a_program_needs_is_refused(line, message):
    with pytest.raises(ZKDVError, match=message):
        read_graph(f"zkdv-graph 1\n{line}\nreturn []\n")
