"""Failures of the native part, as users see them."""

import traceback

import pytest

import zkdv
from zkdv import _native, identity
from zkdv._native_errors import native_errors


def printed(error):
    return "".join(traceback.format_exception(error))


def test_a_traceback_says_it_once(tmp_path):
    with pytest.raises(zkdv.ZKDVError) as raised:
        identity.load(tmp_path / "none.pem")
    assert printed(raised.value).count("there is no identity key") == 1
    assert "NativeError: " not in printed(raised.value)


def test_what_made_the_native_part_fail_stays_the_cause():
    def fail():
        raise _native.NativeError("the signer failed") from OSError("the token was pulled out")

    with pytest.raises(zkdv.ZKDVError, match="the signer failed; look at it") as raised, native_errors("; look at it"):
        fail()
    assert isinstance(raised.value.__cause__, OSError)
    assert "NativeError: the signer failed" not in printed(raised.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("mine"), zkdv.ZKDVError("mine")])
def test_other_exceptions_are_left_alone(error):
    with pytest.raises(BaseException) as raised, native_errors():  # noqa: PT011 (whichever it is)
        raise error
    assert raised.value is error or raised.type is error
