"""Arguments keep one position, however they are given."""

import functools

import pytest

from zkdv.signature import FunctionSignature


def step(state, images, labels=None, *, scale=1.0):
    return state, images, labels, scale


def test_positional_and_named_arguments_bind_alike():
    signature = FunctionSignature(step)
    assert signature.names == ("state", "images", "labels", "scale")
    assert signature.bind((1, 2), {}) == (1, 2, None, 1.0)
    assert signature.bind((1,), {"scale": 3, "images": 2}) == (1, 2, None, 3)
    assert signature.call(step, signature.bind((1, 2, 3), {"scale": 4})) == (1, 2, 3, 4)


def test_methods_and_partials_bind_what_is_left():
    class Trainer:
        def step(self, state, images):
            return state, images

    assert FunctionSignature(Trainer().step).names == ("state", "images")
    assert FunctionSignature(functools.partial(step, 1)).bind((2,), {}) == (2, None, 1.0)


@pytest.mark.parametrize("function", [lambda *arrays: arrays, lambda **arrays: arrays])
def test_variadic_functions_are_refused(function):
    with pytest.raises(TypeError, match="named one by one"):
        FunctionSignature(function)


def test_missing_and_unknown_arguments_are_refused():
    signature = FunctionSignature(step)
    with pytest.raises(TypeError, match="images"):
        signature.bind((1,), {})
    with pytest.raises(TypeError, match="imgaes"):
        signature.bind((1, 2), {"imgaes": 3})


def test_options_name_arguments_by_number_or_name():
    signature = FunctionSignature(step)
    assert signature.positions((0, -1), "labels", "donate") == (0, 2, 3)
    assert signature.positions(None, None, "donate") == ()
    with pytest.raises(ValueError, match="argument 4, and step has 4"):
        signature.positions(4, None, "donate_argnums")
    with pytest.raises(ValueError, match="no argument 'label'"):
        signature.positions(None, ["label"], "donate_argnames")
