"""The final state of a run is what its last update left: anything else is refused when the proof is closed."""

import copy
import logging
import threading

import pytest
import torch
from torch import nn
from torch_runs import CLASSES, WIDTH, batches, check_every, classify, make_optimizer, records, verified

import zkdv.torch
from zkdv.errors import ZKDVError, ZKDVWarning
from zkdv.torch import _pipeline

WAIT_SECONDS = 300


def make_normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def trained(folder, updates=3, **options):
    """Return a proof of a run that is not closed, its model and its optimizer."""
    proof = zkdv.torch.ZKDV(folder, check_every(1), **options)
    proof.start(rolling_window=4)
    model = make_normalised()
    model, optimizer = proof.prepare(model, make_optimizer(model))

    @proof.attest
    def attested(model, optimizer, batch):
        classify(proof, model, optimizer, batch)

    for batch in batches(updates):
        with proof.transaction(batch=batch):
            classify(proof, model, optimizer, batch)
    return proof, model, optimizer


def load_other_momenta(model, optimizer):
    other = copy.deepcopy(optimizer.state_dict())
    other["state"][0]["exp_avg"] += 1
    optimizer.load_state_dict(other)


def load_other_parameters(model, optimizer):
    model.load_state_dict({"0.bias": torch.ones(8)}, strict=False)


def assign_other_parameters(model, optimizer):
    model.load_state_dict(copy.deepcopy(model.state_dict()) | {"0.bias": torch.ones(8)}, assign=True)


def write_in_place(model, optimizer):
    with torch.no_grad():
        model[0].bias.fill_(0)


def write_uncounted(model, optimizer):
    model[0].bias.data.fill_(0)


def write_by_numpy(model, optimizer):
    model[0].bias.detach().numpy().fill(0)


def replace_a_buffer(model, optimizer):
    model[1].running_mean = torch.ones(8)


def run_forward(model, optimizer):
    model(torch.ones(4, WIDTH))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (load_other_parameters, r"0\.bias changed"),
        (assign_other_parameters, r"0\.bias changed"),
        (write_in_place, r"0\.bias changed"),
        (write_uncounted, r"0\.bias changed"),
        (write_by_numpy, r"0\.bias changed"),
        (replace_a_buffer, r"1\.running_mean changed"),
        (run_forward, r"1\.running_mean, 1\.running_var, 1\.num_batches_tracked changed"),
        (load_other_momenta, r"state\.0\.exp_avg changed"),
    ],
)
def test_what_is_changed_after_the_last_update_is_not_the_final_state(tmp_path, change, name):
    proof, model, optimizer = trained(tmp_path / "proof")
    change(model, optimizer)
    with pytest.raises(ZKDVError, match=rf"final state can't be committed.*: {name} after it; close the proof before"):
        proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("incomplete", 3)
    assert not report.violations


@pytest.mark.parametrize("interval", [1, 2], ids=["committed", "uncommitted"])
def test_other_momenta_are_noticed_whether_or_not_they_were_committed(tmp_path, interval):
    proof, model, optimizer = trained(tmp_path / "proof", replay_snapshot_interval=interval)
    load_other_momenta(model, optimizer)
    with pytest.raises(ZKDVError, match=r"final state can't be committed.*state\.0\.exp_avg changed"):
        proof.close()


@pytest.mark.filterwarnings("ignore:AdamW.step")
def test_a_step_after_the_last_update_is_noticed(tmp_path):
    proof, model, optimizer = trained(tmp_path / "proof")
    model(torch.ones(4, WIDTH)).sum().backward()
    with pytest.warns(ZKDVWarning, match=r"step\(\) was called outside of a transaction"):
        optimizer.step()
    with pytest.raises(ZKDVError, match=r"0\.weight, 0\.bias, 1\.weight, 1\.bias, 3\.weight and \d+ more changed"):
        proof.close()


def test_another_form_of_the_state_is_refused_by_name(tmp_path):
    proof, model, _ = trained(tmp_path / "proof")
    model.half()
    with pytest.raises(ZKDVError, match=r"parameters leaf 0\.weight was float32\[8, 5\] and is now float16\[8, 5\]"):
        proof.close()


@pytest.mark.parametrize("interval", [1, 2], ids=["committed", "uncommitted"])
def test_equal_values_loaded_after_the_last_update_change_nothing(tmp_path, interval):
    proof, model, optimizer = trained(tmp_path / "proof", replay_snapshot_interval=interval)
    model.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    proof.close()
    assert verified(tmp_path / "proof").verdict == "passed"
    *_, second, third = [record["body"] for record in records(tmp_path / "proof", "update")]
    [*_, final] = [record["body"] for record in records(tmp_path / "proof", "state")]
    assert final["reason"] == "close"
    assert final["roots"]["parameters"] == third["after"]["parameters"] != second["after"]["parameters"]


@pytest.mark.parametrize("interval", [1, 2], ids=["committed", "uncommitted"])
def test_optimizer_state_that_was_written_in_place_counts_as_equal_only_where_it_was_committed(tmp_path, interval):
    proof, model, optimizer = trained(tmp_path / "proof", replay_snapshot_interval=interval)
    momentum = optimizer.state[model[0].weight]["exp_avg"]
    momentum.copy_(momentum.clone())
    if interval == 1:
        proof.close()
        assert verified(tmp_path / "proof").verdict == "passed"
    else:
        with pytest.raises(ZKDVError, match="final state can't be committed"):
            proof.close()


class Releasing(logging.Handler):
    """Sets an event at every message."""

    def __init__(self, event):
        super().__init__()
        self.event = event

    def emit(self, record):
        assert record.levelno == logging.WARNING, "seen without a configuration of logging"
        self.event.set()


@pytest.mark.parametrize("late", [True, False], ids=["compiling", "compiled"])
def test_closing_says_that_it_waits_for_the_compiler_where_it_does(tmp_path, monkeypatch, caplog, late):
    monkeypatch.setenv("ZKDV_AOT", "on")
    entered, release = threading.Event(), threading.Event()

    def compile_nothing(blob, cancelled):
        entered.set()
        assert release.wait(WAIT_SECONDS)

    monkeypatch.setattr(_pipeline, "compile_package", compile_nothing)
    proof, *_ = trained(tmp_path / "proof", updates=1)
    assert entered.wait(WAIT_SECONDS)
    if late:
        # What is said comes before the wait, so that it lets the compiler end.
        monkeypatch.setattr(_pipeline.LOG, "handlers", [Releasing(release)])
    else:
        release.set()
        [(_, compiled)] = proof.torch_pipeline._packages
        compiled.result(WAIT_SECONDS)
    proof.close()
    said = [record.getMessage() for record in caplog.records if record.name == "zkdv.torch"]
    assert [str(tmp_path / "proof") in message and "ZKDV_AOT=off" in message for message in said] == [True] * late
    assert verified(tmp_path / "proof").verdict == "passed"
