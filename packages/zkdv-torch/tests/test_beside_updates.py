"""What happens beside the updates: the transcript says so."""

import copy
import warnings

import pytest
import torch
import torch_runs
from torch import nn
from torch.nn import functional
from torch_runs import (
    CLASSES,
    FIRST,
    WIDTH,
    Plain,
    batches,
    check_every,
    classify,
    make_model,
    make_optimizer,
    prepared,
    records,
    run,
    train,
    verified,
)

import zkdv.torch
from zkdv.errors import ZKDVError, ZKDVPoisonedError, ZKDVWarning


def interrupted(proof, model, optimizer, batch):
    functional.cross_entropy(proof.forward(model, batch[0]), batch[1]).backward()
    raise KeyError("a bug")


def interrupted_late(proof, model, optimizer, batch):
    classify(proof, model, optimizer, batch)
    raise KeyError("a bug")


def edits(folder):
    schema = records(folder, "schema")[0]["body"]
    return [
        (record["body"]["update"], schema[edit["tree"]][edit["leaf"]]["name"])
        for record in records(folder, "update")
        for edit in record["body"].get("edits", ())
    ]


def assert_edited(folder, expected, updates):
    assert edits(folder) == expected
    assert [check["body"]["exact"] for check in records(folder, "check")] == [True] * updates
    assert verified(folder).verdict == "failed"
    assert verified(folder, allow_edits=True).verdict == "passed"


@pytest.mark.parametrize(
    "edit",
    [
        lambda model: model[0].bias.mul_(2),
        lambda model: model[0].bias.detach().fill_(1),
        lambda model: model.load_state_dict({"0.bias": torch.ones(16)}, strict=False),
    ],
    ids=["in-place", "detached", "load_state_dict"],
)
def test_edits_of_parameters_between_updates_are_recorded(tmp_path, edit):
    def between(index, model, optimizer):
        if index == 3:
            with torch.no_grad():
                edit(model)

    with pytest.warns(ZKDVWarning, match=r"0\.bias changed between updates 2 and 3"):
        run(tmp_path / "proof", check_every(1), data=batches(6), between=between)
    assert_edited(tmp_path / "proof", [(3, "0.bias")], 6)


def test_a_replaced_buffer_is_an_edit_and_a_replaced_parameter_is_refused(tmp_path):
    def model():
        made = make_model()
        made.register_buffer("scale", torch.ones(2))
        return made

    def between(index, model, optimizer):
        if index == 2:
            model.scale = torch.full((2,), 2.0)
        if index == 3:
            model[0].bias = nn.Parameter(torch.ones(16))

    refused = pytest.raises(ZKDVError, match=r"parameter 1 of AdamW, of shape \[16\], belongs to no prepared module")
    with pytest.warns(ZKDVWarning, match="scale changed between updates 1 and 2"), refused:
        run(tmp_path / "proof", check_every(1), model=model(), data=batches(6), between=between)
    assert edits(tmp_path / "proof") == [(2, "scale")]


def test_statistics_that_a_forward_pass_between_updates_wrote_are_edits(tmp_path):
    inputs = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(1))

    def between(index, model, optimizer):
        if index == 3:
            model(inputs)

    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Linear(16, CLASSES))
    with pytest.warns(ZKDVWarning, match=r"1\.running_mean, 1\.running_var, 1\.num_batches_tracked changed"):
        run(tmp_path / "proof", check_every(1), model=model, data=batches(6), between=between)
    names = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert_edited(tmp_path / "proof", [(3, name) for name in names], 6)


def test_loading_the_same_values_is_no_edit(tmp_path):
    def between(index, model, optimizer):
        if index in {2, 4}:
            model.load_state_dict(copy.deepcopy(model.state_dict()))
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

    run(tmp_path / "proof", check_every(1), data=batches(6), between=between)
    assert edits(tmp_path / "proof") == []
    assert verified(tmp_path / "proof").verdict == "passed"


def test_a_step_outside_of_a_transaction_is_warned_about_and_recorded(tmp_path):
    def between(index, model, optimizer):
        if index == 2:
            classify(Plain, model, optimizer, FIRST)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(tmp_path / "proof", check_every(1), data=batches(4), between=between)
    assert "AdamW.step() was called outside of a transaction" in str(caught[0].message)
    assert caught[0].filename == torch_runs.__file__, "the warning quotes the script, not Torch"
    found = edits(tmp_path / "proof")
    assert {index for index, _ in found} == {2}
    assert {name for _, name in found} >= {"0.weight", "state.0.exp_avg", "state.0.step"}
    assert_edited(tmp_path / "proof", found, 4)


@pytest.mark.parametrize("when", ["first", "later"])
def test_an_exception_inside_of_a_transaction_leaves_no_update(tmp_path, when):
    model = make_model()
    data = list(batches(4))
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model, optimizer = prepared(proof, model=model)
        train(proof, model, optimizer, data[:2] if when == "later" else [])
        with pytest.raises(KeyError, match="a bug"):
            train(proof, model, optimizer, data[2:], interrupted)
        optimizer.zero_grad()
        train(proof, model, optimizer, data[2:])
    # Nothing of the state had changed, so there is no trace of it.
    assert edits(tmp_path / "proof") == []
    assert verified(tmp_path / "proof").verdict == "passed"
    assert verified(tmp_path / "proof").updates == (4 if when == "later" else 2)
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))


def test_what_an_exception_after_the_step_left_behind_is_an_edit_of_the_next_update(tmp_path):
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model, optimizer = prepared(proof)
        train(proof, model, optimizer, batches(2))
        with pytest.raises(KeyError, match="a bug"):
            train(proof, model, optimizer, [FIRST], interrupted_late)
        with pytest.warns(ZKDVWarning, match="changed between updates 1 and 2"):
            train(proof, model, optimizer, batches(2))
    found = edits(tmp_path / "proof")
    assert {index for index, _ in found} == {2}
    assert "0.weight" in {name for _, name in found}
    assert_edited(tmp_path / "proof", found, 4)


@pytest.mark.parametrize(
    "write",
    [
        lambda model: model[0].bias.data.fill_(0.5),
        lambda model: model[0].bias.detach().numpy().fill(0.5),
    ],
    ids=["data", "numpy"],
)
# Among them intervals at which the written state is copied into a snapshot.
@pytest.mark.parametrize("interval", [1, 3, 12])
def test_writes_that_dodge_the_counters_surface_as_a_replay_difference(tmp_path, write, interval):
    def between(index, model, optimizer):
        if index == 3:
            write(model)

    with pytest.raises(
        ZKDVPoisonedError, match=r"does not replay to what was committed: .*; look for what is not reproducible in it;"
    ):
        run(tmp_path / "proof", check_every(1), data=batches(6), between=between, replay_snapshot_interval=interval)
    report = verified(tmp_path / "proof")
    assert report.verdict == "failed"
    failed = [check["body"] for check in records(tmp_path / "proof", "check") if check["body"]["verdict"] == "failed"]
    # Of the update before nothing is read any more: its transaction is over.
    assert [check["update"] for check in failed] == [3]


def test_an_update_that_is_not_the_attested_one_is_found(tmp_path):
    def other(proof, model, optimizer, batch):
        classify(proof, model, optimizer, (batch[0] + 1, batch[1]))

    proof = zkdv.torch.ZKDV(tmp_path / "proof", check_every(1))
    proof.start(rolling_window=4)
    model, optimizer = prepared(proof)
    with pytest.raises(ZKDVPoisonedError, match="does not replay"):
        train(proof, model, optimizer, batches(9), other)
    with pytest.raises(ZKDVPoisonedError, match="does not replay"):
        proof.close()
    assert verified(tmp_path / "proof").verdict == "failed"


def test_copies_of_prepared_objects_live_on_their_own(tmp_path):
    copies = []

    def between(index, model, optimizer):
        if index == 2:
            twin = copy.deepcopy(model)
            copies.append((twin, copy.deepcopy(optimizer), make_optimizer(twin)))
        if index > 2:
            # Training goes on beside the proof; neither knows of the other.
            twin, _, own = copies[0]
            classify(Plain, twin, own, FIRST)

    run(tmp_path / "proof", check_every(1), data=batches(5), between=between)
    assert verified(tmp_path / "proof").verdict == "passed"
    assert edits(tmp_path / "proof") == []
    copies[0][1].step()
