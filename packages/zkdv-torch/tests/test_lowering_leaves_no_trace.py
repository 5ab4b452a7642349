"""What the attested function does on stand-ins, eager training does not notice; where it would, the user is told."""

import collections
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_runs import (
    CLASSES,
    WIDTH,
    Recurrent,
    assert_all_exact,
    attest_and_compare,
    batches,
    check_every,
    classify,
    make_model,
    records,
    run,
)

import zkdv.torch
from zkdv.errors import ZKDVError
from zkdv.torch._left_alone import left_alone


class Keeping(nn.Module):
    """Keeps what it computes once, in every place that a module has for it, and counts its calls."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(WIDTH, CLASSES)
        self.scale, self.last, self.calls = None, None, 0
        self.by_name, self.outputs, self.seen = {"inner": [{}]}, collections.deque(maxlen=2), set()

    def forward(self, inputs):
        self.calls += 1
        if self.scale is None:
            self.scale = torch.full((CLASSES,), 2.0)
        offsets = self.by_name["inner"][0]
        if "offset" not in offsets:
            offsets["offset"] = torch.full((CLASSES,), 0.5)
        self.last = self.layer(inputs) * self.scale + offsets["offset"]
        self.outputs.append(self.last)
        self.seen.add(len(inputs))
        return self.last


def test_what_a_module_keeps_at_its_first_forward_pass_is_not_a_stand_in(tmp_path):
    model = attest_and_compare(tmp_path / "proof", model=Keeping, data=batches(3))
    # Once for each update, not for the lowering.
    assert model.calls == 3
    for kept in (model.scale, model.last, model.by_name["inner"][0]["offset"], *model.outputs):
        assert type(kept) is torch.Tensor
    assert model.seen == {8}


def test_modules_get_back_attributes_and_contents_and_nothing_else_is_touched():
    model = Keeping()
    untouched, parameters = model.by_name, list(model.parameters())
    with left_alone([model]):
        model(torch.ones(2, WIDTH))
        model.extra = 1
        model.register_buffer("late", torch.ones(1))
        del model.layer
        model.eval()
    assert (model.scale, model.last, model.calls, model.training) == (None, None, 0, True)
    assert model.by_name is untouched == {"inner": [{}]}
    assert (list(model.outputs), model.seen) == ([], set())
    assert not hasattr(model, "extra")
    assert list(model.buffers()) == []
    assert all(one is two for one, two in zip(model.parameters(), parameters, strict=True))


@functools.cache
def offset(count):
    return torch.full((count,), 0.5)


def offset_logits(proof, model, optimizer, batch):
    logits = proof.forward(model, batch[0]) + offset(CLASSES)
    proof.backward(functional.cross_entropy(logits, batch[1]))
    optimizer.step()
    optimizer.zero_grad()


def directly(proof, model, optimizer, batch):
    functional.cross_entropy(proof.forward(model, batch[0]) + offset(CLASSES), batch[1]).backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize(
    ("loop", "what"), [(offset_logits, "the loss"), (directly, r"the gradient of 0\.weight")], ids=["proof", "loss"]
)
def test_a_stand_in_that_was_kept_elsewhere_is_refused_before_it_spoils_training(tmp_path, loop, what):
    offset.cache_clear()
    model = make_model()
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model, optimizer = proof.prepare(model, torch.optim.AdamW(model.parameters()))
        before = [parameter.detach().clone() for parameter in model.parameters()]

        @proof.attest
        def attested(model, optimizer, batch):
            offset_logits(proof, model, optimizer, batch)

        with (
            pytest.raises(ZKDVError, match=f"{what} was computed from a tensor that holds nothing.*first transaction"),
            proof.transaction(batch=next(batches(1))),
        ):
            loop(proof, model, optimizer, next(batches(1)))
        assert all(torch.equal(one, two) for one, two in zip(model.parameters(), before, strict=True))
        optimizer.zero_grad()
        # What the message says helps: made before, it is a constant of the program.
        offset.cache_clear()
        offset(CLASSES)
    run(tmp_path / "other", check_every(1), data=batches(3), update=offset_logits)
    assert_all_exact(tmp_path / "other", 3)


def normalised():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(WIDTH, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))


def test_a_program_is_lowered_in_the_mode_that_the_update_began_in(tmp_path):
    """Gradients of zeros make another program, which is known at the end of the block alone."""

    def update(proof, model, optimizer, batch):
        proof.backward(functional.cross_entropy(proof.forward(model, batch[0]), batch[1]))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)

    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model = normalised()
        model, optimizer = proof.prepare(model, torch.optim.AdamW(model.parameters()))

        @proof.attest
        def attested(model, optimizer, batch):
            update(proof, model, optimizer, batch)

        for batch in batches(3):
            model.train()
            model[3].weight.requires_grad_(True)
            with proof.transaction(batch=batch):
                update(proof, model, optimizer, batch)
                model.eval()
                model[3].weight.requires_grad_(False)
            assert not model.training
            assert not model[3].weight.requires_grad
    assert_all_exact(tmp_path / "proof", 3)
    assert len(records(tmp_path / "proof", "program")) == 2


def test_a_function_that_sets_the_mode_itself_leaves_the_modules_mode_alone(tmp_path):
    def update(proof, model, optimizer, batch):
        model.train()
        classify(proof, model, optimizer, batch)
        model.eval()

    attest_and_compare(tmp_path / "proof", model=normalised, update=update, data=batches(3))


def test_casts_of_weights_that_outlive_an_update_are_refused(tmp_path):
    """Torch keeps them until autocast ends: the next update would be made with weights of this one."""
    with (
        torch.autocast("cpu", dtype=torch.bfloat16),
        pytest.raises(ZKDVError, match=r'autocast\("cpu"\) is on where the transaction opens.*cache_enabled=False'),
    ):
        run(tmp_path / "refused", check_every(1), data=batches(2))
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        attest_and_compare(tmp_path / "proof", data=batches(3))


def test_another_default_device_is_none_of_the_proofs_business(tmp_path):
    def optimizer(model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)

    model, data = make_model(), list(batches(3))
    with torch.device("meta"):
        attest_and_compare(tmp_path / "proof", model=lambda: model, optimizer=optimizer, data=data)


def test_lstm_cells_of_which_backward_needs_what_forward_kept(tmp_path):
    attest_and_compare(tmp_path / "proof", model=Recurrent, data=batches(3))


def test_a_batch_may_be_a_mapping_that_is_made_of_more_than_its_items(tmp_path):
    def update(proof, model, optimizer, batch):
        assert batch["absent"] == []
        classify(proof, model, optimizer, (batch["inputs"], batch["targets"]))

    data = [collections.defaultdict(list, inputs=inputs, targets=targets) for inputs, targets in batches(3)]
    attest_and_compare(tmp_path / "proof", update=update, data=data)


class WithCompiledPart(nn.Module):
    def __init__(self):
        super().__init__()
        model = make_model()
        self.first, self.rest = torch.compile(model[0], backend="aot_eager"), model[1:]

    def forward(self, inputs):
        return self.rest(self.first(inputs))


def in_place():
    model = make_model()
    model.compile(backend="aot_eager")
    return model


class CallingCompiled(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = make_model()

    def forward(self, inputs):
        return doubled(self.inner(inputs))


@torch.compile(backend="aot_eager")
def doubled(logits):
    return logits * 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("model", [WithCompiledPart, in_place, CallingCompiled], ids=["inside", "in place", "function"])
def test_what_is_compiled_inside_of_a_model_is_lowered_as_it_was_written(tmp_path, model):
    run(tmp_path / "proof", check_every(1), model=model(), data=batches(3))
    assert_all_exact(tmp_path / "proof", 3)
