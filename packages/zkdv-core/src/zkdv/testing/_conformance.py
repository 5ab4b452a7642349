"""What any control transport must do, as tests over real processes."""

import socket
from collections.abc import Mapping
from typing import Any, ClassVar

from zkdv.testing._ranks import Answer, Rank
from zkdv.transport import DECISION_BYTES, KEY_BYTES

MEBIBYTE = 1 << 20

SHORT_SECONDS = 5.0
"""Timeout of controls whose rounds are to time out: ranks that are there must answer within it."""


class TransportConformance:
    """Tests of a transport; subclass it as `Test...` in a test module, and pytest runs them.

    Attributes:
        transport: Name of the transport, or what is to be passed as `HostControl(transport=...)`.
        size: Processes of the run, at least 2.
        address: The owner's `address`; None: the transport chooses.
        prepare: Name of a function `(rank, size, rendezvous)`, `package.module:function`, that each process calls
            first: it brings them together as a framework does. `rendezvous` is `127.0.0.1:PORT` with a free port.
        environment: Variables added to those of this process; `PYTHONPATH` among them where `prepare` needs it.
        control: Name of the class under test.
        loses_processes: Whether the engine below ends the processes that have lost one of theirs.
    """

    transport: ClassVar[str]
    size: ClassVar[int] = 3
    address: ClassVar[str | None] = None
    prepare: ClassVar[str | None] = None
    environment: ClassVar[Mapping[str, str]] = {}
    control: ClassVar[str] = "zkdv.control:HostControl"
    loses_processes: ClassVar[bool] = False

    _shared: ClassVar["_Run | None"] = None

    @classmethod
    def teardown_class(cls) -> None:
        """End the processes that the tests share."""
        if cls._shared is not None:
            cls._shared.discard()
            cls._shared = None

    def setup_method(self) -> None:
        """Forget which processes the last test started."""
        self._own: list[_Run] = []

    def teardown_method(self) -> None:
        """End the processes that this test did not share."""
        for run in self._own:
            run.discard()

    def test_rounds_arrive_in_any_order_on_several_threads(self) -> None:
        """Every rank takes part in twelve rounds at a time, in an order of its own."""
        run = self.opened()
        values: list[object] = [None, True, -1, 0.1, 1e308, "ü\u2028\U0001f600\x00", [], {"a": [1, {"b": None}]}, 2**80]
        rounds = {f"round/{number} ü": values[number % len(values)] for number in range(12)}
        orders = [list(rounds), list(reversed(rounds)), sorted(rounds, key=lambda key: key[::-1])]
        asked = [
            [(key, rank.ask("exchange", key=key, value=rounds[key])) for key in orders[at % len(orders)]]
            for at, rank in enumerate(run.ranks)
        ]
        for answers in asked:
            for key, answer in answers:
                _expect(answer.result() == rounds[key], f"{key} brought {answer.result()!r}")

    def test_value_is_the_owners_whatever_followers_give(self) -> None:
        """A tuple comes back as the list that JSON makes of it, on every rank."""
        run = self.opened()
        answers = [rank.ask("exchange", key="seed", value=[at, "own"]) for at, rank in enumerate(run.ranks)]
        _expect([answer.result() for answer in answers] == [[0, "own"]] * self.size, "not the owner's value everywhere")

    def test_round_that_waits_holds_up_no_other(self) -> None:
        """Eight rounds wait on every follower while others come and go."""
        run = self.opened()
        waiting = [rank.ask("exchange", key=f"admission-{n}") for n in range(8) for rank in run.followers]
        for number in range(3):
            run.exchange(f"check-{number}", number)
        _expect(not any(answer.answered for answer in waiting), "a round was answered before the owner decided")
        for number in range(8):
            run.owner.ask("exchange", key=f"admission-{number}", value=number).result()
        for at, answer in enumerate(waiting):
            _expect(answer.result() == at // len(run.followers), "a round brought another's value")

    def test_late_follower_gets_its_decision(self) -> None:
        """The owner has begun when followers come: those that join late, and those that ask late."""
        run = self.run()
        if self.prepare is None:
            run.open_owner()
            early = run.owner.ask("exchange", key="early", value=1)
            run.owner.ask("threads").result()
            _expect(not early.answered, "the owner went on without followers")
            run.open_followers()
            _expect([rank.ask("exchange", key="early").result() for rank in run.followers] == [1] * (self.size - 1), "")
            early.result()
        else:
            run.open_owner()
            run.open_followers()
        late = run.owner.ask("exchange", key="late", value=2)
        answers = [rank.ask("exchange", key="late") for rank in run.followers[1:]]
        run.followers[0].ask("threads").result()
        _expect(not late.answered, "the owner went on without a follower")
        answers.append(run.followers[0].ask("exchange", key="late"))
        _expect([answer.result() for answer in [late, *answers]] == [2] * self.size, "a decision got lost")

    def test_duplicate_key_is_refused_on_both_sides(self) -> None:
        """The round does not begin, and the control goes on."""
        run = self.opened()
        run.exchange("once", 1)
        for rank in run.ranks:
            error = rank.ask("exchange", key="once", value=2).error()
            _expect_error(error, "RuntimeError", "'once'")
        run.exchange("another", 3)

    def test_what_does_not_fit_is_refused_and_what_just_fits_arrives(self) -> None:
        """Keys, values, NaN, infinities and what JSON does not know; the control goes on."""
        run = self.opened()
        for rank in run.ranks:
            for key in ("k" * (KEY_BYTES + 1), "ü" * (KEY_BYTES // 2 + 1), ""):
                _expect_error(rank.ask("exchange", key=key, value=1).error(), "ValueError", "key")
        _expect_error(
            run.owner.ask("exchange", key="large", value="x" * (DECISION_BYTES - 1)).error(), "ValueError", ""
        )
        for kind in ("nan", "infinity", "object", "bytes"):
            error = run.owner.ask("exchange_unspeakable", key=kind, value=kind).error()
            _expect_error(error, "ValueError", repr(kind))
        # Refused keys were not used.
        run.exchange("nan", 0)
        run.exchange("k" * KEY_BYTES, "x" * (DECISION_BYTES - 2))

    def test_round_without_followers_times_out_on_the_owner(self) -> None:
        """The owner says which ranks are missing; those hear that it gave up."""
        run = self.opened(timeout=SHORT_SECONDS)
        present, missing = run.followers[1:], run.followers[0]
        answers = [rank.ask("exchange", key="decided") for rank in present]
        error = run.owner.ask("exchange", key="decided", value=1).error()
        _expect_error(error, "TimeoutError", "'decided'", "rank 1")
        _expect(
            f"rank {self.size - 1}" not in error.message or self.size == 2, "a rank that answered counts as missing"
        )
        for answer in answers:
            _expect(answer.result() == 1, "a decision got lost")
        _expect_error(missing.ask("exchange", key="decided").error(), "RuntimeError", "rank 0", "'decided'")
        _expect_error(run.owner.ask("exchange", key="next", value=1).error(), "RuntimeError", "closed")

    def test_round_without_the_owner_times_out_on_followers(self) -> None:
        """The follower says that the owner is missing, and the owner hears that it gave up."""
        run = self.opened(timeout=SHORT_SECONDS)
        follower = run.followers[0]
        _expect_error(follower.ask("exchange", key="undecided").error(), "TimeoutError", "'undecided'", "rank 0")
        _expect_error(follower.ask("exchange", key="next").error(), "RuntimeError", "closed")
        for rank in run.followers[1:]:
            rank.ask("exchange", key="undecided")
        _expect_error(run.owner.ask("exchange", key="undecided", value=1).error(), "RuntimeError", "rank 1")

    def test_owner_that_closes_ends_the_rounds_of_followers(self) -> None:
        """Those that wait and those that come; here and there."""
        run = self.opened()
        waiting = [rank.ask("exchange", key="waiting") for rank in run.followers]
        run.exchange("before", 0)
        run.owner.ask("close").result()
        for answer in waiting:
            _expect_error(answer.error(), "RuntimeError", "rank 0", "'waiting'")
        for rank in run.ranks:
            _expect_error(rank.ask("exchange", key="after", value=1).error(), "RuntimeError", "closed")
            rank.ask("close").result()

    def test_follower_that_closes_ends_the_rounds_of_the_owner(self) -> None:
        """The owner's rounds that wait for it, and its own."""
        run = self.opened()
        run.exchange("before", 0)
        waiting = run.owner.ask("exchange", key="waiting", value=1)
        own = run.followers[0].ask("exchange", key="own")
        run.followers[0].ask("threads").result()
        run.followers[0].ask("close").result()
        _expect_error(waiting.error(), "RuntimeError", "rank 1", "'waiting'")
        _expect_error(own.error(), "RuntimeError", "'own'")

    def test_close_ends_the_rounds_of_its_own_process(self) -> None:
        """A thread that waits in the owner does not wait any longer."""
        run = self.opened()
        waiting = run.owner.ask("exchange", key="waiting", value=1)
        run.owner.ask("threads").result()
        run.owner.ask("close").result()
        _expect_error(waiting.error(), "RuntimeError", "'waiting'")

    def test_killed_follower_is_named_on_the_owner(self) -> None:
        """At once, or when the time is over; and the owner ends."""
        run = self.opened(timeout=SHORT_SECONDS, fresh=True)
        run.exchange("before", 0)
        run.followers[0].kill()
        for rank in run.followers[1:]:
            rank.ask("exchange", key="after")
        error = run.owner.ask("exchange", key="after", value=1).error()
        if not (self.loses_processes and error.kind == "ended"):
            _expect(error.kind in ("RuntimeError", "TimeoutError"), str(error))
            _expect_error(error, error.kind, "rank 1", "'after'")

    def test_killed_owner_is_named_on_followers(self) -> None:
        """At once, or when the time is over."""
        run = self.opened(timeout=SHORT_SECONDS, fresh=True)
        run.exchange("before", 0)
        waiting = [rank.ask("exchange", key="waiting") for rank in run.followers]
        run.owner.kill()
        for answer in waiting:
            error = answer.error()
            if not (self.loses_processes and error.kind == "ended"):
                _expect(error.kind in ("RuntimeError", "TimeoutError"), str(error))
                _expect_error(error, error.kind, "'waiting'")

    def test_processes_end_while_rounds_wait_and_controls_are_open(self) -> None:
        """Nothing hangs at an interpreter's end, also where nobody calls close; the token is nowhere to be read."""
        run = self.opened(fresh=True)
        run.exchange("before", 0)
        waiting = [rank.ask("exchange", key=f"waiting on {at}", value=1) for at, rank in enumerate(run.ranks)]
        for rank in run.ranks:
            rank.ask("threads").result()
        for rank in reversed(run.ranks):
            rank.ask("exit")
        for rank in run.ranks:
            status = rank.wait()
            _expect(status == 0 or self.loses_processes, f"exit status {status}: {rank.said()}")
            _expect(run.token not in rank.said(), "the token is in the output of a process")
        for answer in waiting:
            _expect(run.token not in answer.error().message, "the token is in an error")

    def test_many_rounds_take_no_more_memory_than_a_few(self) -> None:
        """300 decisions of 60 KiB would be 18 MiB, were they kept."""
        run = self.opened()
        before = run.exchange_many("few", rounds=50)
        after = run.exchange_many("many", rounds=300)
        grown = [(late - early) / MEBIBYTE for early, late in zip(before, after, strict=True)]
        _expect(max(grown) < 9, f"the ranks grew by {grown} MiB")

    def run(self, *, fresh: bool = False) -> "_Run":
        """Processes without a control: those that the tests of the class share, or fresh ones."""
        if fresh:
            started = self._start()
            self._own.append(started)
            return started
        cls = type(self)
        if cls._shared is None:
            cls._shared = self._start()
        return cls._shared

    def opened(self, *, timeout: float = 120.0, fresh: bool = False) -> "_Run":
        """Processes with a control on each rank."""
        run = self.run(fresh=fresh)
        run.open_owner(timeout=timeout)
        run.open_followers(timeout=timeout)
        return run

    def _start(self) -> "_Run":
        run = _Run(self)
        if self.prepare is not None:
            rendezvous = f"127.0.0.1:{_free_port()}"
            arguments = {"target": self.prepare, "size": self.size, "rendezvous": rendezvous}
            for answer in [rank.ask("prepare", rank=at, **arguments) for at, rank in enumerate(run.ranks)]:
                answer.result()
        return run


class _Run:
    """The processes of a run, with the control that is open in them now."""

    def __init__(self, suite: TransportConformance) -> None:
        self._suite = suite
        self.ranks = [Rank(suite.environment) for _ in range(suite.size)]
        self.owner, self.followers = self.ranks[0], self.ranks[1:]
        self.address = self.token = ""

    def open_owner(self, timeout: float = 120.0) -> None:
        opened = self._ask_open(0, timeout, address=self._suite.address, token=None).result()
        self.address, self.token = opened["address"], opened["token"]
        _expect(self.token not in opened["shown"], "the token is in the control's repr")

    def open_followers(self, timeout: float = 120.0) -> None:
        asked = [self._ask_open(at, timeout, self.address, self.token) for at in range(1, self._suite.size)]
        for answer in asked:
            _expect(answer.result()["address"] == self.address, "a follower has another address")

    def exchange(self, key: str, value: object) -> None:
        """One round on every rank, with what the owner decides as the result of each."""
        answers = [rank.ask("exchange", key=key, value=value) for rank in self.ranks]
        results = [answer.result() for answer in answers]
        _expect(results == [value] * len(results), f"{key!r} brought {results!r}")

    def exchange_many(self, prefix: str, rounds: int) -> list[int]:
        asked = [rank.ask("exchange_many", prefix=prefix, rounds=rounds, characters=60 * 1024) for rank in self.ranks]
        return [answer.result() for answer in asked]

    def discard(self) -> None:
        for rank in self.ranks:
            rank.discard()

    def _ask_open(self, rank: int, timeout: float, address: str | None, token: str | None) -> Answer:
        options: dict[str, Any] = {"address": address, "token": token, "timeout": timeout}
        suite = self._suite
        arguments = {"factory": suite.control, "size": suite.size, "transport": suite.transport, **options}
        return self.ranks[rank].ask("open", rank=rank, **arguments)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def _expect(holds: bool, message: str) -> None:  # noqa: FBT001 (as `assert`, which optimised Python leaves out)
    if not holds:
        raise AssertionError(message)


def _expect_error(error: Any, kind: str, *parts: str) -> None:
    _expect(error.kind == kind, f"expected {kind}, got {error}")
    for part in parts:
        _expect(part in error.message, f"{part} is not in {error.message!r}")
