"""Functional forms of the standard optimizers against the optimizers themselves, over twenty steps each."""

import io
import itertools

import optimizer_runs
import pytest
import torch
from optimizer_runs import Differences, bits, compare, export, gradients, optimizer_of, parameters
from torch.optim import (
    ASGD,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    RAdam,
    RMSprop,
    Rprop,
)
from torch.optim.lr_scheduler import CyclicLR, LambdaLR, OneCycleLR, StepLR

from zkdv.torch.optimizers import bind

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")

CLASSES = (Adadelta, Adafactor, Adagrad, Adam, Adamax, AdamW, ASGD, Muon, NAdam, RAdam, RMSprop, Rprop, SGD)
MATRICES = ((4, 3), (3, 5))


def step_down(optimizer):
    return StepLR(optimizer, 3, gamma=0.5)


def warm_up(optimizer):
    return LambdaLR(optimizer, lambda step: step / 5)


def cycle(optimizer):
    return CyclicLR(optimizer, 1e-3, 1e-2, step_size_up=3, cycle_momentum=True)


def one_cycle(optimizer):
    return OneCycleLR(optimizer, 1e-2, total_steps=30)


def tensor_rate(value=1e-2):
    return {"lr": torch.tensor(value)}


# Name, class, options, scheduler. Every class as it comes with a scheduler, and each of its options once.
CASES = [
    ("adadelta", Adadelta, {"lr": 0.5, "weight_decay": 0.01}, step_down),
    ("adadelta-foreach-maximize", Adadelta, {"foreach": True, "maximize": True}, warm_up),
    ("adafactor", Adafactor, {"lr": 0.3}, step_down),
    ("adafactor-decay-maximize", Adafactor, {"weight_decay": 0.1, "maximize": True, "eps": (1e-6, 1e-2)}, warm_up),
    ("adafactor-foreach", Adafactor, {"lr": 0.3, "foreach": True, "weight_decay": 0.1}, step_down),
    ("adafactor-tensor-lr", Adafactor, {**tensor_rate(0.4), "weight_decay": 0.1}, step_down),
    ("adagrad", Adagrad, {"lr_decay": 0.1, "weight_decay": 0.01, "initial_accumulator_value": 0.5}, step_down),
    ("adagrad-fused", Adagrad, {"fused": True, "lr_decay": 0.1}, step_down),
    ("adam", Adam, {"lr": 1e-2, "weight_decay": 0.01}, step_down),
    ("adam-amsgrad-maximize", Adam, {"amsgrad": True, "maximize": True}, warm_up),
    ("adam-cycle", Adam, {"weight_decay": 0.01}, cycle),
    ("adam-one-cycle-foreach", Adam, {"foreach": True}, one_cycle),
    ("adam-tensor-lr-and-betas", Adam, {**tensor_rate(), "betas": (torch.tensor(0.9), torch.tensor(0.99))}, None),
    ("adamax", Adamax, {"weight_decay": 0.01}, one_cycle),
    ("adamax-foreach-maximize", Adamax, {"foreach": True, "maximize": True}, step_down),
    ("adamw", AdamW, {}, one_cycle),
    ("adamw-foreach-amsgrad", AdamW, {"foreach": True, "amsgrad": True, "maximize": True}, step_down),
    ("adamw-fused", AdamW, {"fused": True, "amsgrad": True}, step_down),
    ("adamw-fused-tensor-lr", AdamW, {"fused": True, **tensor_rate()}, step_down),
    ("adamw-tensor-lr", AdamW, tensor_rate(), step_down),
    ("asgd", ASGD, {"t0": 4.0, "weight_decay": 0.01}, step_down),
    ("asgd-foreach-maximize", ASGD, {"t0": 4.0, "foreach": True, "maximize": True, "weight_decay": 0.01}, step_down),
    ("asgd-tensor-lr", ASGD, tensor_rate(), step_down),
    ("muon", Muon, {"lr": 1e-2}, cycle),
    ("muon-plain", Muon, {**tensor_rate(), "nesterov": False, "adjust_lr_fn": "match_rms_adamw"}, step_down),
    ("nadam", NAdam, {"weight_decay": 0.01, "decoupled_weight_decay": True}, cycle),
    ("nadam-foreach-maximize", NAdam, {"weight_decay": 0.01, "foreach": True, "maximize": True}, step_down),
    ("radam", RAdam, {"weight_decay": 0.01, "decoupled_weight_decay": True}, cycle),
    ("radam-foreach", RAdam, {"weight_decay": 0.01, "foreach": True, "maximize": True}, step_down),
    ("radam-short-average", RAdam, {"betas": (0.9, 0.6), "weight_decay": 0.01}, step_down),
    ("radam-tensor-lr", RAdam, tensor_rate(), step_down),
    ("rmsprop", RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.01}, cycle),
    ("rmsprop-foreach-maximize", RMSprop, {"foreach": True, "maximize": True}, step_down),
    ("rprop", Rprop, {}, warm_up),
    ("rprop-foreach-maximize", Rprop, {"foreach": True, "maximize": True}, step_down),
    ("sgd", SGD, {"weight_decay": 0.01}, warm_up),
    ("sgd-momentum", SGD, {"momentum": 0.9, "weight_decay": 0.01}, cycle),
    ("sgd-nesterov-maximize", SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}, one_cycle),
    ("sgd-dampening", SGD, {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.01}, cycle),
    ("sgd-foreach-dampening", SGD, {"momentum": 0.9, "dampening": 0.5, "foreach": True}, step_down),
    ("sgd-foreach-nesterov", SGD, {"momentum": 0.9, "nesterov": True, "foreach": True}, step_down),
    ("sgd-fused-nesterov", SGD, {"momentum": 0.9, "nesterov": True, "fused": True}, step_down),
    ("sgd-fused-dampening", SGD, {"momentum": 0.9, "dampening": 0.5, "fused": True}, step_down),
    ("sgd-tensor-lr", SGD, {**tensor_rate(), "momentum": 0.9}, step_down),
]


def case_optimizer(optimizer_class, options, dtype=torch.float32):
    # Tensors are in the options once for all cases: schedulers write into them.
    options = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    shapes = MATRICES if optimizer_class is Muon else optimizer_runs.SHAPES
    second_group = {} if isinstance(options.get("lr"), torch.Tensor) else {"lr": 3e-3}
    if options.get("weight_decay"):
        second_group["weight_decay"] = 0.0
    return optimizer_of(optimizer_class, parameters(shapes, dtype), options, second_group)


@pytest.mark.parametrize(
    ("optimizer_class", "options", "schedule"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_steps_are_those_of_the_eager_optimizer_bit_for_bit(optimizer_class, options, schedule):
    assert compare(case_optimizer(optimizer_class, options), schedule=schedule) == Differences()


def options_of(optimizer_class, implementation):
    """All combinations of the options that change the computation."""
    values = {
        "weight_decay": (0.0, 0.01),
        "decoupled_weight_decay": (False, True),
        "maximize": (False, True),
        "amsgrad": (False, True),
        "centered": (False, True),
        "momentum": (0.0, 0.9),
        "dampening": (0.0, 0.3),
        "nesterov": (False, True),
    }
    defaults = optimizer_class(parameters(MATRICES)).defaults
    # AdamW fixes what Adam leaves open.
    names = [
        name for name in values if name in defaults and (optimizer_class, name) != (AdamW, "decoupled_weight_decay")
    ]
    for chosen in itertools.product(*(values[name] for name in names)):
        options = dict(zip(names, chosen, strict=True)) | ({} if implementation == "loop" else {implementation: True})
        if optimizer_class is SGD and options["nesterov"] and (not options["momentum"] or options["dampening"]):
            continue
        yield options
        yield options | tensor_rate()


def takes(optimizer_class, options):
    """Whether the eager optimizer itself takes these options."""
    try:
        optimizer = case_optimizer(optimizer_class, options)
        for param in optimizer.param_groups[0]["params"]:
            param.grad = torch.ones_like(param)
        optimizer.step()
    except (RuntimeError, ValueError) as error:
        assert "lr as a Tensor is not supported" in str(error)  # noqa: PT017
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["loop", "foreach", "fused"])
@pytest.mark.parametrize("optimizer_class", CLASSES)
def test_every_combination_of_options_steps_bit_for_bit(optimizer_class, implementation):
    defaults = optimizer_class(parameters(MATRICES)).defaults
    if implementation != "loop" and implementation not in defaults:
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{implementation}'"):
            optimizer_class(parameters(MATRICES), **{implementation: True})
        return
    compared = 0
    for options in options_of(optimizer_class, implementation):
        if takes(optimizer_class, options):
            found = compare(case_optimizer(optimizer_class, options), schedule=step_down, steps=8)
            assert found == Differences(), options
            compared += 1
    assert compared >= 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("optimizer_class", CLASSES)
def test_other_dtypes_step_bit_for_bit(optimizer_class, dtype):
    assert compare(case_optimizer(optimizer_class, {}, dtype), schedule=step_down) == Differences()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer_class", [each for each in CLASSES if each not in (Adafactor, Muon)])
def test_complex_parameters_step_bit_for_bit(optimizer_class):
    assert compare(case_optimizer(optimizer_class, {}, torch.complex64), schedule=step_down) == Differences()


def test_first_momentum_buffer_of_a_complex_parameter_differs_in_the_sign_of_zeros_alone():
    optimizer = case_optimizer(SGD, {"momentum": 0.9}, torch.complex64)
    bound = bind(optimizer)
    state, grads = bound.state(), gradients(bound.parameters, 0)
    _, stepped = bound.step([param.detach() for param in bound.parameters], grads, state, bound.inputs())
    for param, grad in zip(bound.parameters, grads, strict=True):
        param.grad = grad
    optimizer.step()
    assert all(torch.equal(stepped[name], leaf) for name, leaf in bound.state().items())


@pytest.mark.parametrize("optimizer_class", [each for each in CLASSES if each not in (Adafactor, Muon)])
def test_parameters_without_elements_step_bit_for_bit(optimizer_class):
    optimizer = optimizer_class(parameters(((0, 3), (3, 0), (0,), (2,))))
    assert compare(optimizer, steps=3) == Differences()


@pytest.mark.parametrize("optimizer_class", CLASSES)
def test_gradients_that_are_not_finite_step_like_the_eager_optimizer(optimizer_class):
    optimizer = case_optimizer(optimizer_class, {})
    bound = bind(optimizer)
    values = ([param.detach().clone() for param in bound.parameters], bound.state())
    for step, bad in enumerate((1.0, float("inf"), float("nan"), 1.0)):
        grads = gradients(bound.parameters, step)
        for grad in grads:
            grad.view(-1)[0] *= bad
        values = bound.step(values[0], grads, values[1], bound.inputs())
        for param, grad in zip(bound.parameters, grads, strict=True):
            param.grad = grad.clone()
        optimizer.step()
        expected = [*bound.parameters, *bound.state().values()]
        for value, other in zip([*values[0], *values[1].values()], expected, strict=True):
            assert torch.equal(torch.nan_to_num(value, nan=7.0), torch.nan_to_num(other, nan=7.0))


@pytest.mark.parametrize("optimizer_class", CLASSES)
def test_state_before_the_first_step_has_the_leaves_that_the_eager_optimizer_makes(optimizer_class):
    optimizer = case_optimizer(optimizer_class, {})
    bound = bind(optimizer)
    before = {name: (leaf.shape, leaf.dtype, leaf.stride()) for name, leaf in bound.state().items()}
    for param in bound.parameters:
        param.grad = torch.ones_like(param)
    optimizer.step()
    made = {
        f"state.{position}.{name}": (value.shape, value.dtype, value.stride())
        for position, state in optimizer.state_dict()["state"].items()
        for name, value in sorted(state.items())
        if value is not None
    }
    assert before == made
    assert list(bound.state()) == list(before)


@pytest.mark.parametrize(
    "optimizer_class",
    [
        pytest.param(each, marks=() if each in (Adafactor, RAdam, SGD) else pytest.mark.slow, id=each.__name__)
        for each in CLASSES
    ],
)
def test_exported_step_computes_the_same_after_it_was_saved_and_loaded(optimizer_class):
    bound = bind(case_optimizer(optimizer_class, {}))
    params = [param.detach() for param in bound.parameters]
    arguments = (params, gradients(params, 0), bound.state(), bound.inputs())
    file = io.BytesIO()
    torch.export.save(export(bound, *arguments), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    expected_params, expected_state = bound.step(*arguments)
    found_params, found_state = loaded(*arguments)
    for found, expected in zip(
        [*found_params, *found_state.values()], [*expected_params, *expected_state.values()], strict=True
    ):
        assert torch.equal(bits(found), bits(expected))


@pytest.mark.parametrize("entry", ["lr", "betas.0", "weight_decay"])
def test_another_value_of_an_input_is_another_step_called_and_exported(entry):
    def nudge(inputs):
        inputs[f"param_groups.0.{entry}"] *= 1.001

    found = compare(case_optimizer(Adam, {"weight_decay": 0.1}), change=nudge, steps=2)
    assert found.called.keys() == found.exported.keys() == {0, 1}
    assert {name for names in found.called.values() for name in names} <= {
        "params.0",
        "state.0.exp_avg",
        "state.0.exp_avg_sq",
    }


def test_another_parameter_is_another_step():
    optimizer = case_optimizer(AdamW, {})
    with torch.no_grad():
        before = optimizer.param_groups[0]["params"][0]
        bound_elsewhere = case_optimizer(AdamW, {})
        before.view(-1)[0] = torch.nextafter(before.view(-1)[0], torch.tensor(9.0))
    first, second = bind(optimizer), bind(bound_elsewhere)
    grads = gradients(first.parameters, 0)
    stepped = [
        bound.step([param.detach() for param in bound.parameters], grads, bound.state(), bound.inputs())
        for bound in (first, second)
    ]
    assert optimizer_runs.differing(*stepped[0], *stepped[1]) == ["params.0"]
