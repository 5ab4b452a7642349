"""The transport `jax-kv` over real processes, and the controls that their engine's processes get."""

import os
from pathlib import Path
from types import MappingProxyType

import pytest

import zkdv.jax  # noqa: F401
from zkdv.control import HostControl
from zkdv.testing import TransportConformance

CONTROL = "zkdv.control:HostControl"
TESTS = str(Path(__file__).parent)


class Together(TransportConformance):
    transport = "jax-kv"
    size = 2
    prepare = "coordinated:prepare"
    environment = MappingProxyType({"PYTHONPATH": os.pathsep.join(filter(None, [TESTS, os.environ.get("PYTHONPATH")]))})
    loses_processes = True  # JAX itself ends a process whose coordinator is gone.


@pytest.mark.slow
class TestTransport(Together):
    """Every test of the suite, in processes that jax has brought together."""


class TestForBackend:
    """What `HostControl.for_backend` makes of them."""

    @classmethod
    def setup_class(cls):
        cls.suite = Together()
        cls.suite.setup_method()
        cls.processes = cls.suite.run()

    @classmethod
    def teardown_class(cls):
        cls.suite.teardown_class()

    def open(self, **options):
        asked = [
            rank.ask("open_for_backend", factory=CONTROL, backend="jax", **options) for rank in self.processes.ranks
        ]
        return [answer.result() for answer in asked]

    @pytest.mark.parametrize("transport", ["auto", "jax-kv", "tcp"])
    def test_ranks_find_each_other_by_any_transport(self, transport):
        owner, follower = self.open(transport=transport)
        assert (owner["rank"], follower["rank"]) == (0, 1)
        assert owner | {"rank": 1} == follower
        assert (owner["size"], owner["timeout"], owner["limit"]) == (2, 600.0, 65536)
        assert owner["address"].startswith("127.0.0.1:" if transport == "tcp" else "jax-kv")
        self.processes.exchange(f"first by {transport}", {"seed": 1})
        self.processes.exchange(f"second by {transport}", "x" * 60_000)

    def test_owner_listens_where_it_is_told(self):
        owner, _ = self.open(transport="tcp", bind="127.0.0.1")
        assert owner["address"].startswith("127.0.0.1:")
        self.processes.exchange("bound", 1)

    def test_failed_bootstrap_is_said_on_every_rank_and_the_next_one_works(self):
        asked = [
            rank.ask("open_for_backend", factory=CONTROL, backend="jax", transport=transport)
            for rank, transport in zip(self.processes.ranks, ["tcp", "pigeon"], strict=True)
        ]
        errors = [answer.error() for answer in asked]
        assert [error.kind for error in errors] == ["RuntimeError"] * 2
        assert "rank 1 could not join the control: PluginError: no plugin declares 'pigeon'" in errors[0].message
        self.open()
        self.processes.exchange("after", 1)

    def test_constructor_takes_the_engine_that_is_there(self):
        opened = self.processes.owner.ask("open", factory=CONTROL, rank=0, size=2).result()
        assert opened["address"] == "jax-kv"
        arguments = {"address": opened["address"], "token": opened["token"]}
        self.processes.followers[0].ask("open", factory=CONTROL, rank=1, size=2, **arguments).result()
        self.processes.exchange("by the constructor", None)


def test_one_process_has_no_control():
    assert HostControl.for_backend("jax") is None
    with pytest.raises(RuntimeError, match=r"call jax.distributed.initialize"):
        HostControl(0, 2, transport="jax-kv")
