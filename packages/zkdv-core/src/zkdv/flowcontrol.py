"""Admission of updates, and the named threads on which their commitments and checks run."""

import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Literal, ParamSpec, TypeVar

from zkdv.errors import ZKDVError, ZKDVPoisonedError
from zkdv.overlap import Policy

__all__ = ["Annotation", "PipelineQueue", "Slot", "Stage"]

Annotation = Callable[[str], AbstractContextManager[object]]
"""Maps a phase's name to a context manager that marks it in a profile."""

Stage = Literal["start", "commit", "check", "snapshot", "evidence"]

# What is left undone when a run is abandoned.
_DROPPED: tuple[Stage, ...] = ("check", "snapshot")

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _no_annotation(_name: str) -> AbstractContextManager[object]:
    return contextlib.nullcontext()


def _nothing() -> None:
    """Do nothing, behind all that a stage holds."""


class Slot:
    """One admitted update, from its admission until everything that is owed for it is on record.

    Attributes:
        number: How many were admitted before it.
        policy: The update's overlap policy.
        drawn: Whether it is known if the update is sampled.
        sampled: Whether the update is sampled; meaningful once `drawn`.
        held: Whether a check has copies of all that it reads from production buffers.
        retired: Whether commitment and check are on record.
    """

    __slots__ = ("_changes", "drawn", "held", "number", "policy", "retired", "sampled")

    def __init__(self, policy: Policy, number: int, changes: "_Changes") -> None:
        self._changes = changes
        self.number = number
        self.policy = policy
        self.drawn = False
        self.sampled = False
        self.held = False
        self.retired = False

    def draw(self, *, sampled: bool) -> None:
        """Note that the update's record is written, and whether it is sampled."""
        with self._changes.lock:
            self.drawn = True
            self.sampled = sampled
            self._changes.condition.notify_all()

    def hold(self) -> None:
        """Note that the check no longer reads production buffers."""
        with self._changes.lock:
            self.held = True
            self._changes.condition.notify_all()

    def retire(self) -> None:
        """Note that nothing more is owed for the update. Retiring twice does no harm."""
        with self._changes.lock:
            self.retired = True
            self._changes.condition.notify_all()


class _Changes:
    """The lock over a queue and its slots, and who waits for a change of them.

    The lock is taken by itself and not through the condition, whose `__enter__` is Python code: an interrupt at its end
    would leave the lock taken for ever.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.condition = threading.Condition(self.lock)


class PipelineQueue:
    """Bounds how many generations of training buffers are live, and owns the stage threads.

    Every stage has one thread, named `zkdv.<stage>`, that runs its work in the order of submission. The first failure
    in a stage *poisons* the queue: waiting and later calls raise `ZKDVPoisonedError` from it.

    Args:
        capacity: The most updates that may be unresolved at once, at least 1.
        annotation: Marks phases in profiles; does nothing by default. Waiting shows as `zkdv.flow_control.wait`.
        max_lag: The most updates that may be admitted behind one whose check is still owed; None for no limit.
        on_failure: Called once, with the first failure of a stage.
    """

    def __init__(
        self,
        capacity: int,
        annotation: Annotation = _no_annotation,
        *,
        max_lag: int | None = None,
        on_failure: Callable[[BaseException], None] = lambda _failure: None,
    ) -> None:
        if capacity < 1:
            raise ValueError(f"capacity is {capacity}; it must be at least 1")
        self.capacity = capacity
        self.max_lag = max_lag
        self._on_failure = on_failure
        self._admitted = 0
        self._annotation = annotation
        self._changes = _Changes()
        self._active: list[Slot] = []
        self._executors: dict[Stage, ThreadPoolExecutor] = {}
        self._failure: BaseException | None = None
        self._closed = False
        self._cancelled = False

    @property
    def failure(self) -> BaseException | None:
        """The first failure of a stage, if there was one."""
        return self._failure

    def annotate(self, name: str) -> AbstractContextManager[object]:
        """Return a context manager that marks a phase called `name` in a profile."""
        return self._annotation(name)

    def acquire(self, policy: Policy) -> Slot:
        """Wait until an update under `policy` may run, and admit it.

        The strictest policy among the active updates and this one decides.

        Raises:
            ZKDVPoisonedError: A stage has failed.
            ZKDVError: The queue is closed.
        """
        with self._changes.lock:
            self._check_usable()
            if not self._admissible(policy):
                self._wait(lambda: self._stopped() or self._admissible(policy))
                self._check_usable()
            slot = Slot(policy, self._admitted, self._changes)
            self._admitted += 1
            self._active.append(slot)
        return slot

    def withdraw(self, number: int) -> None:
        """Retire every slot that was admitted after slot `number`; -1 for all of them."""
        with self._changes.lock:
            for slot in self._active:
                if slot.number > number:
                    slot.retire()

    def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Wait until `predicate` holds, which is looked at again whenever a slot changes and at `notify`.

        Raises:
            ZKDVPoisonedError: A stage has failed.
            ZKDVError: The queue is closed.
        """
        with self._changes.lock:
            if not predicate():
                self._wait(lambda: self._stopped() or predicate())
                self._check_usable()

    def notify(self) -> None:
        """Have everybody who waits look again."""
        with self._changes.lock:
            self._changes.condition.notify_all()

    def submit(
        self,
        stage: Stage,
        function: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run `function` on the thread of `stage`; a failure poisons the queue and is in the returned future."""
        with self._changes.lock:
            if self._closed:
                raise ZKDVError("the proof is closed; open a new one for further updates")
            if self._cancelled and stage in _DROPPED:
                dropped: Future[_Result] = Future()
                dropped.cancel()
                return dropped
            executor = self._executors.get(stage)
            if executor is None:
                executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"zkdv.{stage}")
                self._executors[stage] = executor
            return executor.submit(self._run, stage, functools.partial(function, *args, **kwargs))

    def check(self) -> None:
        """Raise what has failed in a stage, if anything has.

        Raises:
            ZKDVPoisonedError: From the first failure.
        """
        with self._changes.lock:
            self._raise_failure()

    def poison(self, failure: BaseException) -> None:
        """Make waiting and later calls raise from `failure`; the first failure is kept."""
        with self._changes.lock:
            first = self._failure is None
            if first:
                self._failure = failure
            self._changes.condition.notify_all()
        if first:
            self._on_failure(failure)

    def join(self) -> None:
        """Wait until nothing is owed for any admitted update.

        Raises:
            ZKDVPoisonedError: A stage has failed.
            ZKDVError: The queue was closed meanwhile, and what was owed is dropped.
        """
        with self._changes.lock:
            if not self._drained():
                self._wait(lambda: self._stopped() or self._drained())
            self._raise_failure()
            if not self._drained():
                self._check_usable()

    @property
    def cancelled(self) -> bool:
        """Whether long work should stop at its next step, because nobody waits for it any more."""
        return self._cancelled

    def close(self, *, cancel: bool = False) -> None:
        """End the stage threads, after the work that they hold; with `cancel`, checks end after the piece at hand."""
        with self._changes.lock:
            self._cancelled = self._cancelled or cancel
            committing = None if self._closed else self._executors.get("commit")
            for stage in _DROPPED if cancel else ():
                if stage in self._executors:
                    self._executors[stage].shutdown(wait=False, cancel_futures=True)
            self._changes.condition.notify_all()
        try:
            if committing is not None:
                # What was handed over is committed first: that work hands on evidence, which a closed queue refuses.
                # An interpreter that ends takes no work any more, and has let what there was come to an end.
                with contextlib.suppress(RuntimeError):
                    committing.submit(_nothing).result()
        finally:
            with self._changes.lock:
                self._closed = True
                executors = list(self._executors.values())
                self._changes.condition.notify_all()
            for executor in executors:
                executor.shutdown(wait=False)
        for executor in executors:
            executor.shutdown(wait=True)

    def _run(self, stage: Stage, work: Callable[[], _Result]) -> _Result:
        # Work behind a failure would only describe its consequences.
        if self._failure is not None:
            raise ZKDVPoisonedError(str(self._failure)) from self._failure
        try:
            with self.annotate(f"zkdv.{stage}"):
                return work()
        except BaseException as failure:
            self.poison(failure)
            raise

    def _wait(self, predicate: Callable[[], bool]) -> None:
        with self.annotate("zkdv.flow_control.wait"):
            self._changes.condition.wait_for(predicate)

    def _stopped(self) -> bool:
        return self._failure is not None or self._closed

    def _check_usable(self) -> None:
        self._raise_failure()
        if self._closed:
            raise ZKDVError("the proof is closed; open a new one for further updates")

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise ZKDVPoisonedError(str(self._failure)) from self._failure

    def _drained(self) -> bool:
        self._active = [slot for slot in self._active if not slot.retired]
        return not self._active

    def _admissible(self, policy: Policy) -> bool:
        if self._drained():
            return True
        if len(self._active) >= self.capacity:
            return False
        # A long check must not fall behind the update records that the protocol allows before its own.
        if self.max_lag is not None and self._admitted - self._active[0].number > self.max_lag:
            return False
        strictest = min(policy, *(slot.policy for slot in self._active))
        if strictest is Policy.NEVER:
            return False
        if strictest is Policy.UNCHECKED:
            return all(slot.drawn and not slot.sampled for slot in self._active)
        # The buffers of a sampled update are free once its check holds copies.
        return all(slot.drawn and (slot.held or not slot.sampled) for slot in self._active)
