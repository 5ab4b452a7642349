"""Arguments of `HostControl`, what it shows, and how it finds its transport."""

import contextlib
import copy
import logging
import pickle
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from zkdv.control import HostControl, StoreTransport, _host_control
from zkdv.control._rank_names import rank_names
from zkdv.errors import ZKDVError
from zkdv.plugins import registry
from zkdv.transport import Membership

TOKEN = "a token that the tests know"  # noqa: S105


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 1}, "size is 1; a control needs at least 2 processes"),
        ({"size": 2.5}, "size is 2.5"),
        ({"size": True}, "size is True"),
        ({"rank": -1}, "rank is -1; it is an integer from 0 to 1"),
        ({"rank": 2}, "rank is 2; it is an integer from 0 to 1"),
        ({"rank": "0"}, "rank is '0'"),
        ({"timeout": 0}, "timeout is 0; it is a finite number of seconds above 0"),
        ({"timeout": -1.0}, "timeout is -1.0"),
        ({"timeout": float("nan")}, "timeout is nan"),
        ({"timeout": float("inf")}, "timeout is inf"),
        ({"rank": 1}, "rank 1 is a follower and needs the owner's address and token"),
        ({"rank": 1, "address": "127.0.0.1:7000"}, "rank 1 is a follower"),
        ({"rank": 1, "token": TOKEN}, "rank 1 is a follower"),
        ({"rank": 1, "token": TOKEN, "address": "127.0.0.1"}, "a follower needs the owner's address with its port"),
        ({"token": "too short"}, "the token is no text of at least 16 characters"),
        ({"token": b"sixteen bytes and more"}, "the token is no text"),
        ({"address": "0.0.0.0:7000"}, "every interface of this host; give the one that followers reach"),
        ({"address": "[::]"}, "every interface"),
        ({"address": "127.0.0.1:70000"}, "it is HOST, HOST:PORT"),
        ({"address": "127.0.0.1:"}, "it is HOST, HOST:PORT"),
        ({"address": "[::1"}, "it is HOST, HOST:PORT"),
        ({"address": ":7000"}, "it is HOST, HOST:PORT"),
    ],
)
def test_bad_argument_is_a_value_error_that_says_what_is_accepted(arguments, message):
    with pytest.raises(ValueError, match=message.replace("[", r"\[")) as refused:
        HostControl(**{"rank": 0, "size": 2, "transport": "tcp"} | arguments)
    assert "too short" not in str(refused.value).partition(";")[0].removeprefix("the token is")


def test_unknown_transport_and_backend_are_named():
    with pytest.raises(ZKDVError, match="no plugin declares 'pigeon' in zkdv_transports"):
        HostControl(0, 2, transport="pigeon")
    with pytest.raises(TypeError, match="it is a name, or a callable"):
        HostControl(0, 2, transport=3)
    with pytest.raises(ValueError, match="backend is 'mxnet'; it is one of: jax, torch"):
        HostControl.for_backend("mxnet")
    with pytest.raises(ValueError, match="only 'tcp' does"):
        HostControl.for_backend("jax", bind="10.0.0.5")


def test_attributes_are_those_given_and_the_token_is_not_shown(caplog):
    caplog.set_level(logging.DEBUG)
    with HostControl(0, 3, timeout=12, token=TOKEN) as control:
        assert (control.rank, control.size, control.timeout, control.limit) == (0, 3, 12.0, 65536)
        assert control.address.startswith("127.0.0.1:")  # Loopback, where nobody says otherwise.
        assert control.token == TOKEN
        assert repr(control) == f"HostControl(rank=0, size=3, address={control.address!r}, timeout=12)"
        assert TOKEN not in repr(Membership(0, 2, None, TOKEN, 1.0))
        for copying in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied"):
                copying(control)
    assert TOKEN not in caplog.text


def test_missing_ranks_are_named_up_to_ten():
    assert rank_names([3]) == "rank 3"
    assert rank_names({2, 1}) == "ranks 1, 2"
    assert rank_names(range(1, 13)) == "ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 2 more"


def test_tokens_are_made_anew():
    with HostControl(0, 2) as one, HostControl(0, 2) as other:
        assert one.token != other.token
        assert len(one.token) >= 40


def test_address_in_use_is_said():
    with HostControl(0, 2) as control, pytest.raises(ZKDVError, match=r"cannot listen on 127\.0\.0\.1, port \d+"):
        HostControl(0, 2, address=control.address)


@pytest.mark.parametrize("address", ["[::1]", "::1", "[::1]:0", "localhost"])
def test_owner_listens_where_it_is_told(address):
    if address != "localhost":
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            pytest.skip(f"this host has no IPv6 loopback: {error}")
    with (
        HostControl(0, 2, address=address, token=TOKEN) as owner,
        HostControl(1, 2, address=owner.address, token=TOKEN) as follower,
        ThreadPoolExecutor(1) as pool,
    ):
        decided = pool.submit(owner.exchange, "round", 1)
        assert follower.exchange("round") == 1
        assert decided.result() == 1


def test_follower_may_come_before_the_owner():
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        with socket.socket() as reserved:  # Bound and not listening: who connects is refused.
            reserved.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{reserved.getsockname()[1]}"
            joining = pool.submit(HostControl, 1, 2, address=address, token=TOKEN, timeout=120)
        owner = stack.enter_context(HostControl(0, 2, address=address, token=TOKEN))
        follower = stack.enter_context(joining.result())
        decided = pool.submit(owner.exchange, "round", 1)
        assert follower.exchange("round") == 1
        assert decided.result() == 1


def test_keys_are_remembered_up_to_their_limit(monkeypatch):
    monkeypatch.setattr(_host_control, "REMEMBERED_KEYS", 3)
    store = {}
    with HostControl(0, 2, transport=Alone) as control:
        for number in range(4):
            control.exchange(f"key-{number}", store)
        control.exchange("key-0", store)
        with pytest.raises(ZKDVError, match="used the key 'key-3' before"):
            control.exchange("key-3", store)


class Alone:
    """A transport that has nobody to tell."""

    address = "nowhere"

    def __init__(self, membership):
        assert membership.rank == 0

    def send(self, key, decision, timeout):
        pass

    def close(self, reason):
        pass


def test_control_and_transport_listing_import_no_framework():
    listing = (
        "import sys; from zkdv.plugins import registry; import zkdv.control; "
        "print(*registry().names('zkdv_transports')); assert not {'jax', 'torch', 'redis'} & set(sys.modules)"
    )
    finished = subprocess.run([sys.executable, "-c", listing], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "tcp" in finished.stdout.split()
    assert registry().find("zkdv_transports", "tcp").distribution == "zkdv-control"


class Shared:
    """A store of one process; `broken` makes it fail as an engine does that is gone."""

    def __init__(self):
        self.values, self.broken = {}, False

    def connect(self):
        return self

    def set(self, key, value):
        self._fail()
        assert key not in self.values
        self.values[key] = value

    def get(self, key, timeout):
        assert timeout >= 0
        self._fail()
        return self.values.get(key)

    def delete(self, key):
        self._fail()
        self.values.pop(key, None)

    def close(self):
        pass

    def _fail(self):
        if self.broken:
            raise OSError("the engine is gone")


def store_control(store, rank, **options):
    def transport(membership):
        return StoreTransport(membership, store.connect, address="shared")

    address = None if rank == 0 else "shared"
    return HostControl(rank, 2, address=address, token=TOKEN, timeout=60, transport=transport, **options)


def test_store_keeps_nothing_of_a_round_and_shows_no_token():
    store = Shared()
    with store_control(store, 0) as owner, store_control(store, 1) as follower, ThreadPoolExecutor(1) as pool:
        for number in range(5):
            decided = pool.submit(owner.exchange, f"round-{number}", number)
            assert follower.exchange(f"round-{number}") == number
            assert decided.result() == number
        assert store.values == {}
    assert len(store.values) == 2  # One farewell for each rank.
    assert TOKEN.encode() not in b"".join([*(key.encode() for key in store.values), *store.values.values()])


@pytest.mark.parametrize("change", ["bit", "short"])
def test_value_in_the_store_that_no_rank_wrote_is_refused(change):
    store = Shared()
    with store_control(store, 0) as owner, store_control(store, 1) as follower, ThreadPoolExecutor(1) as pool:
        decided = pool.submit(owner.exchange, "round", 1)
        while not store.values:
            pass
        (key,) = store.values
        value = store.values[key]
        store.values[key] = value[:-1] + b"2" if change == "bit" else value[:7]
        with pytest.raises(
            ZKDVError, match=r"rank 1 of 2, round 'round': .*holds a value that no rank of this run wrote"
        ):
            follower.exchange("round")
        with pytest.raises(ZKDVError, match="rank 1 is gone"):
            decided.result()


def test_engine_that_is_gone_is_a_clear_error():
    store = Shared()
    with store_control(store, 0) as owner:
        store.broken = True
        with pytest.raises(ZKDVError, match=r"round 'round': cannot write to the store; .*OSError: the engine is gone"):
            owner.exchange("round", 1)
        with pytest.raises(ZKDVError, match=r"cannot connect to the store; .*OSError: no store there"):
            store_control(Broken(), 1)


class Broken(Shared):
    def connect(self):
        raise OSError("no store there")
