"""Every standard optimizer in a run: training is what it is without a proof, and every update is replayed exactly."""

import pytest
import torch
from torch_runs import assert_all_exact, attest_and_compare, batches, check_every, classify, make_model

import zkdv.torch
from zkdv.torch.optimizers import FunctionalOptimizer, UnsupportedOptimizerError

RUNS = [
    ("Adadelta", {"weight_decay": 0.01}),
    ("Adafactor", {"lr": 0.1}),
    ("Adagrad", {"lr_decay": 0.1, "fused": True}),
    ("Adam", {"amsgrad": True, "foreach": True}),
    ("Adam", {"fused": True}),
    ("Adamax", {"maximize": True}),
    ("AdamW", {"lr": torch.tensor(1e-2)}),
    ("ASGD", {"t0": 2.0}),
    ("Muon", {"lr": 1e-2}),
    ("NAdam", {"weight_decay": 0.01, "decoupled_weight_decay": True}),
    ("RAdam", {"weight_decay": 0.01}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Rprop", {}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
]
FAST = {"Adafactor", "Muon", "RAdam"}


def model_of_matrices():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(5, 16, bias=False), torch.nn.ReLU(), torch.nn.Linear(16, 3, bias=False))


def schedule(update, model, optimizer):
    """What schedulers do between updates: another rate, and another momentum."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].mul_(0.9)
        else:
            group["lr"] = group["lr"] * 0.9
        if "betas" in group and not group.get("fused"):
            group["betas"] = (0.8 + 0.01 * update, *group["betas"][1:])
        if group.get("momentum"):
            group["momentum"] = 0.8 + 0.01 * update


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(name, options, id=f"{name}-{number}", marks=() if name in FAST else pytest.mark.slow)
        for number, (name, options) in enumerate(RUNS)
    ],
)
def test_training_equals_plain_training_and_every_update_replays_exactly(tmp_path, name, options):
    def make_optimizer(model):
        rate = options.get("lr")
        own = {"lr": rate.clone()} if isinstance(rate, torch.Tensor) else {}
        first, *others = model.parameters()
        return getattr(torch.optim, name)([{"params": [first]}, {"params": others}], **options | own)

    attest_and_compare(
        tmp_path / "proof",
        model=model_of_matrices if name == "Muon" else make_model,
        optimizer=make_optimizer,
        between=schedule,
    )


class Descent(torch.optim.Optimizer):
    """Gradient descent without state, which no plugin knows."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    param.sub_(param.grad * group["lr"])


def no_state(group, param):
    return {}


def train(folder, registered=None):
    model = make_model()
    with zkdv.torch.ZKDV(folder, check_every(1)) as proof:
        proof.start(rolling_window=4)
        if registered is not None:
            proof.register_functional_optimizer(Descent, registered)
        model, optimizer = proof.prepare(model, Descent(model.parameters(), lr=0.1))

        @proof.attest
        def attested(model, optimizer, batch):
            classify(proof, model, optimizer, batch)

        for batch in batches(3):
            with proof.transaction(batch=batch):
                classify(proof, model, optimizer, batch)


def test_optimizer_of_ones_own_trains_where_it_was_registered_and_is_refused_elsewhere(tmp_path):
    def step(group, params, grads, states):
        return [param - grad * group["lr"] for param, grad in zip(params, grads, strict=True)], states

    own = FunctionalOptimizer(initial_state=no_state, step=step)
    train(tmp_path / "registered", own)
    assert_all_exact(tmp_path / "registered", 3)
    with pytest.raises(UnsupportedOptimizerError, match=r"Descent cannot be lowered: neither this run nor a plugin"):
        train(tmp_path / "refused")


def test_registered_form_that_is_another_step_than_the_class_makes_is_found_by_the_first_check(tmp_path):
    def step(group, params, grads, states):
        return [param - grad * group["lr"] * 1.01 for param, grad in zip(params, grads, strict=True)], states

    other = FunctionalOptimizer(initial_state=no_state, step=step)
    with pytest.raises(zkdv.ZKDVError, match="check"):
        train(tmp_path / "other", other)
    [run] = zkdv.verify(tmp_path / "other").runs
    assert run.checks_failed >= 1
    assert run.verdict == "failed"
