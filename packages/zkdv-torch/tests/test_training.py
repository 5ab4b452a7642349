"""Training under a proof: the same numbers as plain Torch, and a transcript that holds what happened."""

from importlib.metadata import version

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch_runs import (
    CLASSES,
    WIDTH,
    assert_all_exact,
    attest_and_compare,
    batches,
    bits,
    check_every,
    make_model,
    make_optimizer,
    records,
    run,
    verified,
)

import zkdv
from zkdv import _native
from zkdv.errors import ZKDVWarning


def test_training_under_a_proof_equals_plain_training_bit_for_bit(tmp_path):
    attest_and_compare(tmp_path / "proof", data=batches(20))


@pytest.mark.parametrize("interval", [1, 4, 100])
@pytest.mark.parametrize("commit", ["parameters", "every"])
def test_every_checked_update_replays_exactly(tmp_path, interval, commit):
    run(tmp_path / "proof", check_every(1, commit=commit), data=batches(9), replay_snapshot_interval=interval)
    assert_all_exact(tmp_path / "proof", 9)
    checks = records(tmp_path / "proof", "check")
    assert all(check["body"]["snapshot"] == check["body"]["update"] // interval * interval for check in checks)


@pytest.mark.parametrize("policy", list(zkdv.overlap.Policy))
def test_every_overlap_policy_gives_the_same_transcript_of_the_same_training(tmp_path, policy):
    model, optimizer = make_model(), None
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(2)) as proof:
        proof.start(rolling_window=4)
        model, optimizer = proof.prepare(model, make_optimizer(model))

        @proof.attest
        def attested(model, optimizer, batch):
            inputs, targets = batch
            proof.backward(torch.nn.functional.cross_entropy(proof.forward(model, inputs), targets))
            optimizer.step()
            optimizer.zero_grad()

        for batch in batches(10):
            with proof.transaction(batch=batch, overlap=policy):
                attested(model, optimizer, batch)
    assert [check["body"]["exact"] for check in records(tmp_path / "proof", "check")] == [True] * 5
    assert [record["body"]["overlap"] for record in records(tmp_path / "proof", "update")] == [int(policy)] * 10
    assert verified(tmp_path / "proof").verdict == "passed"


def test_the_transcript_commits_to_the_final_state_and_every_batch(tmp_path):
    model, optimizer = run(tmp_path / "proof", check_every(5))
    schema = records(tmp_path / "proof", "schema")[0]["body"]
    state = model.state_dict()
    assert [leaf["name"] for leaf in schema["parameters"]] == list(state)
    final = records(tmp_path / "proof", "state")[-1]["body"]
    assert final["reason"] == "close"
    digests = [blake3(bits(tensor)).digest() for tensor in state.values()]
    assert final["roots"]["parameters"] == _native.tree_root("parameters", digests)
    held = optimizer.state_dict()["state"]
    digests = [
        blake3(bits(held[int(position)][key])).digest()
        for _, position, key in (leaf["name"].split(".") for leaf in schema["optimizer"])
    ]
    assert final["roots"]["optimizer"] == _native.tree_root("optimizer", digests)

    base = _native.rolling_base(records(tmp_path / "proof")[0]["digest"])
    group = optimizer.param_groups[0]
    numbers = np.array([group["lr"], *group["betas"], group["weight_decay"]], np.float64).view(np.uint32)
    width = schema["batch"]["width"]
    extra = np.zeros((-(-numbers.size // width), width), np.uint32)
    extra.reshape(-1)[: numbers.size] = numbers
    for update, (inputs, targets) in zip(records(tmp_path / "proof", "update"), batches(10), strict=True):
        rows = [inputs.numpy().view(np.uint32), targets.numpy().view(np.uint32).reshape(len(targets), 2)]
        words = np.concatenate([np.concatenate(rows, axis=1), extra])
        assert update["body"]["batch"] == _native.batch_commit(np.ascontiguousarray(words), 4, base).digest


def test_an_unchecked_update_costs_one_small_record(tmp_path):
    with pytest.warns(ZKDVWarning, match="no update of this run will be checked"):
        policy = zkdv.SamplingPolicy(update_check_probability=0.0)
    run(tmp_path / "proof", zkdv.ZKDVConfig(sampling_policy=policy), data=batches(30))
    updates = records(tmp_path / "proof", "update")
    assert len(records(tmp_path / "proof")) == 30 + len(
        ["root", "environment", "schema", "program", "state", "state", "close"]
    )
    assert all(update["length"] <= (480 if "next-key" in update["body"] else 420) for update in updates)


def test_the_root_names_the_prover_and_the_environment_the_versions(tmp_path):
    run(tmp_path / "proof", check_every(5), data=batches(1))
    root, environment = records(tmp_path / "proof")[:2]
    assert root["body"]["prover"] == "whitebox-torch"
    assert environment["body"]["framework"]["torch"] == version("torch")


def test_a_run_without_updates_is_closed(tmp_path):
    run(tmp_path / "proof", check_every(5), data=[])
    assert verified(tmp_path / "proof").updates == 0


def test_one_value_is_returned_by_itself_and_others_are_left_alone(tmp_path):
    model = make_model()
    loader, number = [1, 2], 3
    with zkdv.torch.ZKDV(tmp_path / "proof") as proof:
        proof.start(rolling_window=4)
        assert proof.prepare(model) is model
        assert proof.prepare(loader, number) == (loader, number)
        assert proof.prepare(model, loader)[0] is model


def test_a_batch_is_any_tree_and_is_copied_at_the_start(tmp_path):
    def update(proof, model, optimizer, batch):
        logits = proof.forward(model, batch["inputs"].float())
        proof.backward(torch.nn.functional.cross_entropy(logits, batch["rest"][0]) * batch["rest"][1])
        optimizer.step()
        optimizer.zero_grad()

    def data():
        # One buffer for all batches, as a loader has it.
        buffer = torch.empty(8, WIDTH, dtype=torch.bfloat16)
        for number, (inputs, targets) in enumerate(batches(6)):
            buffer.copy_(inputs)
            yield {"inputs": buffer, "rest": [targets.int() % CLASSES, 1.0 + number], "kind": "images"}

    run(
        tmp_path / "proof",
        check_every(1),
        data=({**batch, "rest": [batch["rest"][0].long(), batch["rest"][1]]} for batch in data()),
        update=update,
    )
    assert_all_exact(tmp_path / "proof", 6)
    layout = records(tmp_path / "proof", "schema")[0]["body"]["batch"]
    assert [(leaf["name"], leaf["dtype"]) for leaf in layout["leaves"]] == [
        ("batch.inputs", "bfloat16"),
        ("batch.rest.0", "int64"),
        ("batch.rest.1", "float64"),
        ("hyperparameters", "float64"),
    ]


def test_a_run_whose_loss_becomes_nan_goes_on_is_warned_about_and_verifies(tmp_path):
    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=1e38, momentum=0.9)

    with pytest.warns(ZKDVWarning, match="holds NaN since update"):
        run(tmp_path / "proof", check_every(1), optimizer=optimizer, data=batches(8))
    assert_all_exact(tmp_path / "proof", 8)


def test_an_interrupt_in_a_transaction_leaves_the_transcript_open_and_whole(tmp_path):
    def data():
        yield from batches(3)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "proof", check_every(1), data=data())
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("incomplete", 3)


def test_the_state_may_be_written_to_as_soon_as_the_transaction_is_over(tmp_path):
    """Nothing reads the training's tensors any more then: what is committed is what the update left."""

    def between(index, model, optimizer):
        with torch.no_grad():
            for parameter in model.parameters():
                # The same values come back, so that there is nothing to record.
                kept = parameter.clone()
                parameter.fill_(float("nan"))
                parameter.copy_(kept)

    run(tmp_path / "proof", check_every(3), data=batches(9), between=between)
    assert verified(tmp_path / "proof").verdict == "passed"
    assert [check["body"]["exact"] for check in records(tmp_path / "proof", "check")] == [True] * 3
