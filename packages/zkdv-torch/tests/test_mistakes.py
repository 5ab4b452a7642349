"""Mistakes that training scripts make: what is said about them, and where."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_runs import (
    FIRST,
    WIDTH,
    batches,
    check_every,
    classify,
    make_model,
    prepared,
    records,
    run,
    train,
    verified,
)

import zkdv
import zkdv.torch
from zkdv.errors import ZKDVError, ZKDVWarning


@pytest.fixture
def proof(tmp_path):
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        yield proof


def nothing(model, optimizer, batch):
    """Stands for an attested function where it is not called."""


def twice(proof, model, optimizer, batch):
    classify(proof, model, optimizer, batch)
    optimizer.step()


# What can't be lowered.


def open_one(proof, update, model=None):
    prepared(proof, update, model)
    with pytest.raises(ZKDVError) as caught, proof.transaction(batch=FIRST):
        pass
    return str(caught.value)


@pytest.mark.parametrize(
    ("noisy", "operator"),
    [
        (lambda logits: functional.dropout(logits, 0.5), "aten."),
        (lambda logits: logits + torch.randn(3), "aten.randn"),
        (lambda logits: logits + torch.rand_like(logits), "aten.rand_like"),
        (lambda logits: logits * torch.bernoulli(torch.full_like(logits, 0.5)), "aten.bernoulli"),
        (lambda logits: torch.utils.checkpoint.checkpoint(functional.dropout, logits, use_reentrant=False), "aten."),
    ],
    ids=["dropout", "randn", "rand_like", "bernoulli", "checkpoint"],
)
def test_implicit_randomness_is_refused_by_the_name_of_the_operator(proof, noisy, operator):
    def update(proof, model, optimizer, batch):
        proof.backward(functional.cross_entropy(noisy(proof.forward(model, batch[0])), batch[1]))
        optimizer.step()

    said = open_one(proof, update)
    assert operator in said
    assert "random" in said
    assert "batch" in said


@pytest.mark.parametrize(
    ("draw", "name"),
    [(random.random, "Python's random module"), (np.random.random, "numpy.random")],
)
def test_numbers_that_python_or_numpy_draw_while_lowering_are_refused(proof, draw, name):
    def update(proof, model, optimizer, batch):
        proof.backward(functional.cross_entropy(proof.forward(model, batch[0]) * draw(), batch[1]))
        optimizer.step()

    states = random.getstate(), np.random.get_state()[2]  # noqa: NPY002
    said = open_one(proof, update)
    assert name in said
    assert states == (random.getstate(), np.random.get_state()[2])  # noqa: NPY002


def test_branches_on_values_are_refused_with_their_line(proof):
    def update(proof, model, optimizer, batch):
        loss = functional.cross_entropy(proof.forward(model, batch[0]), batch[1])
        if loss > 1:  # THE LINE
            loss = loss * 2
        proof.backward(loss)
        optimizer.step()

    said = open_one(proof, update)
    assert "if loss > 1:  # THE LINE" in said
    assert f"{__file__}:" in said
    assert "torch.where" in said


def test_a_captured_module_that_was_not_prepared_is_named(proof):
    teacher = nn.ModuleDict({"inner": make_model()})

    def update(proof, model, optimizer, batch):
        aim = teacher["inner"](batch[0])
        proof.backward(functional.mse_loss(proof.forward(model, batch[0]), aim))
        optimizer.step()

    assert "Linear" in open_one(proof, update)


def test_a_captured_module_is_called_what_the_function_calls_it(proof):
    proof.prepare(make_model(), None)
    teacher = nn.ModuleDict({"inner": make_model()})

    @proof.attest
    def attested(model, batch):
        proof.backward(functional.mse_loss(proof.forward(model, batch[0]), teacher["inner"](batch[0])))

    with (
        pytest.raises(ZKDVError, match=r"teacher\.inner\.0 \(Linear\), which holds weight, bias and was not prepared"),
        proof.transaction(batch=FIRST),
    ):
        pass


def test_a_captured_parameter_is_refused_and_stateless_values_are_not(proof):
    scale = torch.tensor([1.0, 2.0, 3.0])
    activation = nn.ReLU()

    def update(proof, model, optimizer, batch):
        proof.backward(functional.cross_entropy(activation(proof.forward(model, batch[0])) * scale, batch[1]))
        optimizer.step()
        optimizer.zero_grad()

    model, optimizer = prepared(proof, update)
    train(proof, model, optimizer, batches(3), update)
    proof.join()
    assert [check["body"]["exact"] for check in records(proof.path, "check")] == [True] * 3


def test_a_captured_parameter_of_no_prepared_module_is_refused(proof):
    stray = nn.Parameter(torch.ones(3))

    def update(proof, model, optimizer, batch):
        proof.backward(functional.cross_entropy(proof.forward(model, batch[0]) * stray, batch[1]))
        optimizer.step()

    assert "wants a gradient and belongs to no prepared module" in open_one(proof, update)


def test_an_optimizer_of_parameters_outside_of_prepared_modules_is_refused(proof):
    model = make_model()
    optimizer = torch.optim.AdamW([*model.parameters(), nn.Parameter(torch.ones(3))])
    model, optimizer = proof.prepare(model, optimizer)
    proof.attest(nothing)
    with (
        pytest.raises(ZKDVError, match=r"parameter 4 of AdamW, of shape \[3\], belongs to no prepared module"),
        proof.transaction(batch=FIRST),
    ):
        pass


def test_an_error_of_the_users_own_code_is_given_with_its_line(proof):
    def update(proof, model, optimizer, batch):
        proof.forward(model, batch[0].reshape(3, 999))

    said = open_one(proof, update)
    assert "proof.forward(model, batch[0].reshape(3, 999))" in said
    assert "shape" in said


def test_a_missing_name_in_the_batch_is_said_to_be_a_key_error(proof):
    def update(proof, model, optimizer, batch):
        proof.forward(model, batch["inputs"])

    prepared(proof, update)
    with (
        pytest.raises(ZKDVError, match=r"can't be lowered at .*test_mistakes\.py:\d+ .*: KeyError: 'inputs'"),
        proof.transaction(batch={"images": FIRST[0]}),
    ):
        pass


def test_two_steps_in_the_attested_function_are_refused(proof):
    assert "calls step() of AdamW 2 times" in open_one(proof, twice)


def test_state_that_can_not_be_committed_is_refused_by_name(tmp_path):
    class Odd(nn.Module):
        def __init__(self, tensor):
            super().__init__()
            self.inner = make_model()
            self.register_buffer("odd", tensor)

    with torch.inference_mode():
        inference = torch.ones(2)
    cases = {
        "sparse_coo": torch.eye(3).to_sparse(),
        "inference_mode": inference,
        "meta device": torch.empty(2, device="meta"),
        "a transcript cannot hold": torch.ones(2, dtype=torch.float8_e5m2).view(torch.bits8),
    }
    for number, (said, tensor) in enumerate(cases.items()):
        with zkdv.torch.ZKDV(tmp_path / str(number), check_every(1)) as proof:
            proof.start(rolling_window=4)
            prepared(proof, model=Odd(tensor))
            with pytest.raises(ZKDVError, match=f"odd (is|has).*{said}"), proof.transaction(batch=FIRST):
                pass


def test_different_tensors_over_the_same_memory_are_refused(proof):
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH))
    model[1].weight = nn.Parameter(model[0].weight.detach())
    prepared(proof, model=model)
    with (
        pytest.raises(ZKDVError, match=r"0\.weight and 1\.weight are different tensors over the same memory"),
        proof.transaction(batch=FIRST),
    ):
        pass


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"inputs": {1, 2}}, "batch.inputs is a set"),
        ({3: torch.ones(2)}, "batch is a mapping with keys that are no text"),
        ((torch.ones(8, 5), np.array(["a"])), r"batch\.1 has dtype <U1"),
        ((torch.ones(8, 5), np.arange(3, dtype=">i4")), r"batch\.1 has dtype >i4"),
        ((torch.ones(8, 5), torch.eye(2).to_sparse()), r"batch\.1 is stored as torch\.sparse_coo"),
    ],
)
def test_batches_that_can_not_be_committed_are_refused_by_name(proof, batch, said):
    prepared(proof)
    with pytest.raises(ZKDVError, match=said), proof.transaction(batch=batch):
        pass


# What is out of order.


def test_what_is_missing_is_said_at_the_first_transaction(tmp_path):
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        model = make_model()
        with pytest.raises(ZKDVError, match="no attested function"), proof.transaction(batch=FIRST):
            pass
        proof.attest(nothing)
        with pytest.raises(ZKDVError, match="nothing was prepared"), proof.transaction(batch=FIRST):
            pass
        proof.prepare(model)
        with pytest.raises(ZKDVError, match="was not started"), proof.transaction(batch=FIRST):
            pass
        proof.start(rolling_window=4)
        with (
            pytest.raises(ZKDVError, match=r"takes 3 arguments; .* \(Sequential; schedulers"),
            proof.transaction(batch=FIRST),
        ):
            pass
        with pytest.raises(ZKDVError, match="attested function already"):
            proof.attest(classify)
        with pytest.raises(ValueError, match="7 is not a valid"):
            proof.transaction(batch=FIRST, overlap=7)


def test_a_window_wider_than_a_row_is_refused(tmp_path):
    with zkdv.torch.ZKDV(tmp_path / "proof") as proof:
        proof.start()
        prepared(proof)
        with pytest.raises(ValueError, match="rolling_window is 32 and a row of the batch has 7 words"):
            proof.transaction(batch=FIRST).__enter__()


def test_late_preparation_is_refused(proof):
    model, optimizer = prepared(proof)
    train(proof, model, optimizer, batches(1))
    with pytest.raises(ZKDVError, match="updates already"):
        proof.prepare(make_model())
    # What was refused is no part of the run.
    train(proof, model, optimizer, batches(1))
    proof.close()
    assert verified(proof.path).verdict == "passed"


def test_two_transactions_at_once_are_refused_and_the_first_goes_on(proof):
    model, optimizer = prepared(proof)
    caught = []

    def elsewhere():
        try:
            with proof.transaction(batch=FIRST):
                pass
        except ZKDVError as error:
            caught.append(str(error))

    with proof.transaction(batch=FIRST):
        with pytest.raises(ZKDVError, match="another transaction"), proof.transaction(batch=FIRST):
            pass
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        for call in (proof.join, proof.close):
            with pytest.raises(ZKDVError, match="inside of a transaction"):
                call()
        classify(proof, model, optimizer, FIRST)
    assert "another transaction" in caught[0]
    proof.join()
    assert [check["body"]["exact"] for check in records(proof.path, "check")] == [True]


def test_a_transaction_is_opened_once(proof):
    model, optimizer = prepared(proof)
    transaction = proof.transaction(batch=FIRST)
    with transaction:
        classify(proof, model, optimizer, FIRST)
    with pytest.raises(ZKDVError, match="opened once"), transaction:
        pass


def test_two_steps_in_one_transaction_are_refused(proof):
    model, optimizer = prepared(proof)
    with pytest.raises(ZKDVError, match="two steps in one transaction"):
        train(proof, model, optimizer, [FIRST], twice)


def test_gradients_from_before_the_transaction_are_refused(proof):
    model, optimizer = prepared(proof)
    functional.cross_entropy(model(FIRST[0]), FIRST[1]).backward()
    with (
        pytest.raises(ZKDVError, match=r"0\.weight has a gradient from before this transaction"),
        proof.transaction(batch=FIRST),
    ):
        classify(proof, model, optimizer, FIRST)
    optimizer.zero_grad()
    train(proof, model, optimizer, batches(2))
    proof.join()
    assert [check["body"]["exact"] for check in records(proof.path, "check")] == [True] * 2


def test_a_smaller_last_batch_is_refused_and_training_goes_on(proof):
    model, optimizer = prepared(proof)
    train(proof, model, optimizer, batches(2))
    inputs, targets = FIRST
    with (
        pytest.raises(
            ZKDVError, match=r"batch\.0 was float32\[8, 5\] at the first update and is now float32\[3, 5\].*drop"
        ),
        proof.transaction(batch=(inputs[:3], targets[:3])),
    ):
        pass
    train(proof, model, optimizer, batches(2))
    proof.join()
    assert [check["body"]["exact"] for check in records(proof.path, "check")] == [True] * 4


def test_a_changed_shape_of_a_parameter_is_refused_by_name(tmp_path):
    def between(index, model, optimizer):
        if index == 1:
            model[0].bias.data = torch.zeros(17)

    with pytest.raises(ZKDVError, match=r"parameters leaf 0\.bias was float32\[16\] and is now float32\[17\]"):
        run(tmp_path / "proof", check_every(1), between=between)


def test_integers_in_the_batch_that_change_are_warned_about(proof):
    def update(proof, model, optimizer, batch):
        classify(proof, model, optimizer, batch[:2])

    model, optimizer = prepared(proof, update)
    data = [(*batch, number) for number, batch in enumerate(batches(8))]
    with pytest.warns(ZKDVWarning, match="8 programs were sealed"):
        train(proof, model, optimizer, data, update)
