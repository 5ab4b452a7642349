"""What a bound optimizer shows of a live one, what it refuses, and which functional form a class has."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from optimizer_runs import gradients, optimizer_of, parameters
from torch.optim.lr_scheduler import OneCycleLR, StepLR

import zkdv.torch.optimizers._lookup
from zkdv import _plugin_torch
from zkdv.errors import ZKDVError
from zkdv.plugins import PluginError, Registry, registry
from zkdv.torch.optimizers import FunctionalOptimizer, UnsupportedOptimizerError, bind
from zkdv.torch.optimizers._lookup import find_functional

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "torch-optimizers.md"
STANDARD = {
    *("Adadelta", "Adafactor", "Adagrad", "Adam", "Adamax", "AdamW", "ASGD"),
    *("Muon", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD"),
}


class Descent(torch.optim.Optimizer):
    """Plain gradient descent with a counter."""

    def __init__(self, params, lr=0.1, scale=1.0):
        super().__init__(params, {"lr": lr, "scale": scale})

    @torch.no_grad()
    def step(self, closure=None):  # noqa: ARG002
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is not None:
                    state = self.state[param]
                    state["count"] = state.get("count", torch.zeros(())) + 1
                    param.sub_(param.grad * (group["lr"] * group["scale"]))


def descent_state(group, param):
    return {"count": torch.zeros(())}


def descent_step(group, params, grads, states):
    moved = [param - grad * (group["lr"] * group["scale"]) for param, grad in zip(params, grads, strict=True)]
    return moved, [{"count": state["count"] + 1} for state in states]


DESCENT = FunctionalOptimizer(initial_state=descent_state, step=descent_step)


def step(optimizer, number=0, skip=()):
    """One eager step with made-up gradients, none for the parameters at the positions `skip`."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    grads = [None if at in skip else grad for at, grad in enumerate(gradients(params, number))]
    for param, grad in zip(params, grads, strict=True):
        param.grad = grad
    optimizer.step()
    return grads


def test_every_standard_optimizer_is_declared_by_the_name_of_its_class():
    declared = {name for name in _plugin_torch.zkdv_optimizers() if name.startswith("torch.optim.")}
    classes = {getattr(torch.optim, name) for name in STANDARD}
    assert declared == {f"{each.__module__}.{each.__qualname__}" for each in classes}
    assert declared <= set(registry().names("zkdv_optimizers"))


def test_guide_names_every_standard_optimizer_and_its_inputs():
    rows = re.findall(r"^\| `(\w+)` \| (.*) \|$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(STANDARD)
    for name, listed in rows:
        functional = find_functional(getattr(torch.optim, name), {})
        said = listed.replace("first of `betas`", "`betas.0`").replace("`betas`,", "`betas.0`, `betas.1`,")
        assert sorted(re.findall(r"`([^`]+)`", said)) == sorted({*functional.inputs, *functional.switches})


def test_listing_what_the_frontend_declares_imports_no_framework():
    listing = "import sys, zkdv._plugin_torch as p; p.zkdv_optimizers(); print('torch' in sys.modules)"
    listed = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=True)
    assert listed.stdout == "False\n"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (torch.optim.LBFGS, "torch.optim.lbfgs.LBFGS cannot be lowered: it calls the loss again"),
        (torch.optim.SparseAdam, "torch.optim.sparse_adam.SparseAdam cannot be lowered: its gradients are sparse"),
        (Descent, "Descent cannot be lowered: neither this run nor a plugin says how"),
        (type("MyAdamW", (torch.optim.AdamW,), {}), "MyAdamW cannot be lowered: it is a subclass of torch.optim.adamw"),
    ],
)
def test_other_classes_are_refused_with_what_to_do(make, reason):
    with pytest.raises(UnsupportedOptimizerError) as refused:
        bind(make(parameters()))
    message = str(refused.value)
    assert reason in message
    assert f"call proof.register_functional_optimizer({make.__name__}, functional) before prepare()" in message
    assert "install a plugin that declares" in message


def test_registered_form_is_for_exactly_its_class_and_goes_before_a_declared_one():
    optimizer = Descent(parameters())
    bound = bind(optimizer, {Descent: DESCENT})
    before = [param.detach().clone() for param in bound.parameters]
    state, inputs = bound.state(), bound.inputs()
    moved, stepped = bound.step(before, step(optimizer), state, inputs)
    assert all(torch.equal(param, new) for param, new in zip(bound.parameters, moved, strict=True))
    assert [leaf.item() for leaf in stepped.values()] == [1.0, 1.0, 1.0]

    class Steeper(Descent):
        pass

    with pytest.raises(UnsupportedOptimizerError, match="Steeper cannot be lowered"):
        bind(Steeper(parameters()), {Descent: DESCENT})
    own = FunctionalOptimizer(initial_state=descent_state, step=descent_step)
    bound = bind(torch.optim.SGD(parameters(), lr=0.1), {torch.optim.SGD: own})
    assert list(bound.state()) == [f"state.{at}.count" for at in range(3)]


def test_plugin_that_declares_something_else_is_named(tmp_path, monkeypatch):
    info = tmp_path / "acme_descent-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-descent\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[zkdv]\nacme = acme_descent\n")
    (tmp_path / "acme_descent.py").write_text(
        "from zkdv.hooks import hookimpl\n@hookimpl\ndef zkdv_optimizers():\n"
        f"    return {{'{Descent.__module__}.Descent': 'math:pi'}}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    found = Registry.load()
    monkeypatch.setattr(zkdv.torch.optimizers._lookup, "registry", lambda: found)
    with pytest.raises(PluginError, match=r"^acme-descent declares '.*Descent' .* as math:pi, which is of type float"):
        bind(Descent(parameters()))


def test_binding_and_reading_leave_the_optimizer_as_it_is():
    optimizer = optimizer_of(torch.optim.AdamW, parameters(), {"amsgrad": True})
    before = str(optimizer.state_dict())
    bound = bind(optimizer)
    bound.state(), bound.inputs(), bound.check()
    assert str(optimizer.state_dict()) == before
    assert not optimizer.state


def test_the_initial_state_of_a_frozen_parameter_is_made_again_only_where_something_changed():
    made = []

    def initial_state(group, param):
        made.append(group["lr"])
        return {"start": param * group["lr"]}

    rate = torch.tensor(0.5)
    optimizer = Descent([torch.nn.Parameter(torch.ones(3), requires_grad=False)], lr=rate)
    bound = bind(
        optimizer, {Descent: FunctionalOptimizer(initial_state=initial_state, step=lambda *given: given[1::2])}
    )

    def start():
        return bound.state()["state.0.start"].tolist()

    assert [start(), start(), len(made)] == [[0.5] * 3, [0.5] * 3, 1]
    rate.fill_(0.25)
    assert [start(), start(), len(made)] == [[0.25] * 3, [0.25] * 3, 2]
    optimizer.param_groups[0]["lr"] = torch.tensor(2.0)
    assert [start(), start(), len(made)] == [[2.0] * 3, [2.0] * 3, 3]
    bound.parameters[0].mul_(3)
    assert [start(), start(), len(made)] == [[6.0] * 3, [6.0] * 3, 4]


def test_inputs_are_copies_of_what_schedulers_change_by_group_and_entry():
    optimizer = optimizer_of(torch.optim.AdamW, parameters(), {"lr": 0.5}, {"lr": 0.25, "weight_decay": 0.0})
    bound = bind(optimizer)
    inputs = bound.inputs()
    assert {name: value.item() for name, value in inputs.items()} == {
        "param_groups.0.lr": 0.5,
        "param_groups.0.betas.0": 0.9,
        "param_groups.0.betas.1": 0.999,
        "param_groups.0.weight_decay": 0.01,
        "param_groups.1.lr": 0.25,
        "param_groups.1.betas.0": 0.9,
        "param_groups.1.betas.1": 0.999,
    }
    assert {(value.dtype, value.shape) for value in inputs.values()} == {(torch.float64, torch.Size([]))}
    scheduler = StepLR(optimizer, 1, gamma=0.5)
    step(optimizer)
    scheduler.step()
    assert (bound.inputs()["param_groups.0.lr"].item(), inputs["param_groups.0.lr"].item()) == (0.25, 0.5)

    rate = torch.tensor([0.5])
    bound = bind(torch.optim.AdamW(parameters(), lr=rate))
    given = bound.inputs()["param_groups.0.lr"]
    rate.fill_(0.125)
    assert (given.dtype, given.shape, given.item()) == (torch.float32, torch.Size([1]), 0.5)


def set_entry(name, value):
    return lambda optimizer: optimizer.param_groups[0].update({name: value})


def add_group(optimizer):
    optimizer.add_param_group({"params": parameters(((2,),))})


@pytest.mark.parametrize(
    ("options", "change", "complaint"),
    [
        (
            {},
            set_entry("eps", 1e-3),
            r"AdamW: eps of param_groups\[0\] changed from 1e-08 to 0.001; .* a constant: set",
        ),
        ({"weight_decay": 0}, set_entry("weight_decay", 0.1), r"weight_decay .* changed from 0 to 0.1; .* a constant"),
        ({}, set_entry("weight_decay", 0.0), r"weight_decay .* changed from 0.01 to 0.0; .* an input of another kind"),
        ({}, set_entry("lr", torch.tensor(0.1)), r"lr .* changed from 0.001 to tensor\(0.1.*\); .* of another kind"),
        (
            {"fused": True},
            set_entry("betas", (0.8, 0.999)),
            r"betas .* changed from .* a constant of a fused optimizer",
        ),
        ({}, add_group, "parameters of torch.optim.adamw.AdamW are not those that were prepared; add groups"),
    ],
)
def test_changes_that_the_sealed_program_does_not_follow_are_refused(options, change, complaint):
    optimizer = torch.optim.AdamW(parameters(), **options)
    bound = bind(optimizer)
    bound.check()
    change(optimizer)
    with pytest.raises(ZKDVError, match=complaint):
        bound.check()


def test_state_dict_that_went_through_a_file_is_the_same_optimizer():
    optimizer = torch.optim.Adafactor(parameters(), weight_decay=0)
    bound = bind(optimizer)
    step(optimizer)
    before = bound.state()
    saved = optimizer.state_dict()
    saved["param_groups"] = json.loads(json.dumps(saved["param_groups"]))  # Tuples become lists.
    saved["param_groups"][0]["weight_decay"] = 0.0
    optimizer.load_state_dict(saved)
    bound.check()
    after = bound.state()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    optimizer.param_groups[0]["eps"] = [None, 1e-4]
    with pytest.raises(ZKDVError, match=r"eps of param_groups\[0\] changed from \(None, 0.001\) to \[None, 0.0001\]"):
        bound.check()
    optimizer.param_groups[0] |= {"eps": [None, 1e-3], "maximize": 0}
    with pytest.raises(ZKDVError, match=r"maximize .* changed from False to 0;"):
        bound.check()


def test_momentum_that_a_scheduler_switches_on_is_refused_until_bound_again():
    optimizer = torch.optim.SGD(parameters(), lr=0.1)
    bound = bind(optimizer)
    OneCycleLR(optimizer, 0.1, total_steps=10)
    with pytest.raises(ZKDVError, match=r"momentum of param_groups\[0\] changed from 0 to 0.95"):
        bound.check()
    bind(optimizer).check()


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda params: torch.optim.Adam(params, differentiable=True), r"param_groups\[0\] has differentiable=True"),
        (lambda params: torch.optim.SGD(params, weight_decay=torch.tensor(0.1)), "has a tensor as weight_decay; give"),
        (lambda params: Descent(params, lr=None), "has lr=None, which cannot be an input of the program"),
        (lambda params: Descent(params, scale=torch.ones(())), "has a tensor as scale; give a float"),
    ],
)
def test_entries_that_cannot_be_lowered_are_refused(make, complaint):
    with pytest.raises(UnsupportedOptimizerError, match=complaint):
        bind(make(parameters()), {Descent: DESCENT})


def test_adafactor_in_lists_of_several_dtypes_needs_an_epsilon():
    params = [*parameters(((2, 3),)), *parameters(((2,),), torch.bfloat16)]
    bound = bind(torch.optim.Adafactor(params, foreach=True))
    arguments = ([param.detach() for param in params], gradients(params, 0), bound.state(), bound.inputs())
    with pytest.raises(UnsupportedOptimizerError, match=r"takes its first epsilon .* give eps=\(number, number\)"):
        bound.step(*arguments)
    bind(torch.optim.Adafactor(params, foreach=True, eps=(1e-6, 1e-3))).step(*arguments)


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {"momentum": 0.9, "dampening": 0.5}])
def test_parameters_take_their_first_step_when_they_first_have_a_gradient(options):
    optimizer = torch.optim.SGD(parameters(), lr=0.1, **options)
    bound = bind(optimizer)
    values = ([param.detach().clone() for param in bound.parameters], bound.state())
    for number, skip in enumerate([(1, 2), (2,), (0,), ()]):
        grads = step(optimizer, number, skip)
        passed = {name: leaf for name, leaf in values[1].items() if int(name.split(".")[1]) in skip}
        values = bound.step(values[0], grads, values[1], bound.inputs())
        assert all(values[1][name] is leaf for name, leaf in passed.items())
        state = bound.state()
        assert list(state) == list(values[1])
        assert all(torch.equal(values[1][name], leaf) for name, leaf in state.items())
        assert all(torch.equal(param, new) for param, new in zip(bound.parameters, values[0], strict=True))
        if "dampening" in options:
            started = [state[f"state.{at}.started"].item() for at in range(3)]
            assert started == [[True, False, False], [True, True, False], [True] * 3, [True] * 3][number]


def test_leaves_that_do_not_change_keep_their_memory_and_follow_the_rate_that_they_start_from():
    optimizer = torch.optim.Rprop(parameters(), lr=0.1)
    bound = bind(optimizer)
    first, second = bound.state(), bound.state()
    assert [leaf.data_ptr() for leaf in first.values()] == [leaf.data_ptr() for leaf in second.values()]
    optimizer.param_groups[0]["lr"] = 0.5
    changed = {name for name, leaf in bound.state().items() if leaf.data_ptr() != second[name].data_ptr()}
    assert {name for name in second if name.endswith("step_size")} <= changed
    assert bound.state()["state.1.step_size"].tolist() == [0.5] * 5


def test_step_leaves_its_arguments_as_they_are():
    bound = bind(torch.optim.AdamW(parameters(), amsgrad=True, maximize=True))
    arguments = (list(bound.parameters), gradients(bound.parameters, 0), bound.state(), bound.inputs())
    flat = [*arguments[0], *arguments[1], *arguments[2].values(), *arguments[3].values()]
    before = [(tensor.detach().clone(), tensor._version) for tensor in flat]
    params, _ = bound.step(*arguments)
    assert all(
        torch.equal(tensor, kept) and tensor._version == version
        for tensor, (kept, version) in zip(flat, before, strict=True)
    )
    assert not any(param.requires_grad for param in params)


def test_sparse_gradients_are_refused():
    params = parameters(((4, 3),))
    bound = bind(torch.optim.SGD(params, lr=0.1))
    grads = [torch.ones(4, 3).to_sparse()]
    with pytest.raises(
        UnsupportedOptimizerError, match=r"gradient of parameter 0 of .*SGD is sparse; construct the emb"
    ):
        bound.step([params[0].detach()], grads, bound.state(), bound.inputs())


def drops_a_parameter(group, params, grads, states):
    return params[1:], states[1:]


def changes_a_dtype(group, params, grads, states):
    return [param.double() for param in params], states


def forgets_state(group, params, grads, states):
    return params, [{} for _ in states]


@pytest.mark.parametrize("broken", [drops_a_parameter, changes_a_dtype, forgets_state])
def test_functional_form_that_breaks_its_contract_is_refused(broken):
    bound = bind(Descent(parameters()), {Descent: FunctionalOptimizer(initial_state=descent_state, step=broken)})
    params = [param.detach() for param in bound.parameters]
    with pytest.raises(UnsupportedOptimizerError, match="returned other parameters or states than it was given"):
        bound.step(params, gradients(params, 0), bound.state(), bound.inputs())


def test_state_that_is_no_tensor_or_has_other_leaves_than_before_is_refused():
    optimizer = Descent(parameters())
    bound = bind(optimizer, {Descent: DESCENT})
    bound.state()
    optimizer.state[bound.parameters[0]] = {"count": 1}
    with pytest.raises(ZKDVError, match="Descent holds 'count' of parameter 0 as int; only tensors"):
        bound.state()
    optimizer.state[bound.parameters[0]] = {"count": torch.ones(()), "sum": torch.ones(())}
    with pytest.raises(ZKDVError, match=r"other leaves than when the run started: state.0.sum; load state_dicts"):
        bound.state()
