"""The life of a run: opening its transcript, taking updates, and closing it."""

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NoReturn, Protocol, Self

from zkdv import _native
from zkdv._arguments import checked_integer, checked_ratio
from zkdv.config import ZKDVConfig
from zkdv.errors import CodePlace, ZKDVError, ZKDVPoisonedError, ZKDVVerificationError, calling_place, warn
from zkdv.evidence import RunEvidence
from zkdv.flowcontrol import Annotation, PipelineQueue
from zkdv.pipeline import Pipeline
from zkdv.session import OwnerSession, failure_in_one_line
from zkdv.transport import Control

__all__ = ["Backend", "Driver"]

MAX_IN_FLIGHT_LIMIT = 1_024
REPLAY_SNAPSHOT_INTERVAL_LIMIT = 65_536
ROLLING_WINDOW_LIMIT_WORDS = 2**32 - 1

State = Literal["new", "running", "closed"]


class Backend(Protocol):
    """What a driver asks of a frontend."""

    @property
    def prover(self) -> str:
        """Name of the prover in the root record, `whitebox-jax` or `whitebox-torch`."""

    @property
    def framework(self) -> Mapping[str, str]:
        """Versions of the distributions that numbers depend on."""

    @property
    def devices(self) -> Sequence[str]:
        """Kind of each device of the run."""

    @property
    def flags(self) -> Sequence[str]:
        """Environment variables that change the framework's results."""

    def pipeline(self, driver: "Driver", queue: PipelineQueue) -> Pipeline:
        """Return the pipeline for a run that is starting."""


class Driver:
    """One run and its transcript.

    Args:
        path: The proof folder; made where it does not exist. A folder that holds a transcript is refused.
        config: The configuration; the defaults of `ZKDVConfig` where None.
        backend: The frontend.
        annotation: Marks phases in profiles; does nothing by default.
        max_in_flight: Ceiling of unresolved updates, 1 to 1024.
        replay_snapshot_interval: A check replays at most this many updates, 1 to 65536.
        open_control: Called by `start()`, on every rank of a run over several processes: gives what carries decisions
            between them, or None where there is one process, which is the default.

    Raises:
        TypeError: An argument of another type.
        ValueError: An argument out of range.
    """

    def __init__(
        self,
        path: Path | str,
        config: ZKDVConfig | None = None,
        *,
        backend: Backend,
        annotation: Annotation | None = None,
        max_in_flight: int = 2,
        replay_snapshot_interval: int = 12,
        open_control: Callable[[], Control | None] = lambda: None,
    ) -> None:
        if config is not None and not isinstance(config, ZKDVConfig):
            raise TypeError(f"config is {config!r} ({type(config).__name__}); it is a zkdv.ZKDVConfig, or None")
        self.path = Path(path)
        self.config = ZKDVConfig() if config is None else config
        self.max_in_flight = checked_integer("max_in_flight", max_in_flight, 1, MAX_IN_FLIGHT_LIMIT)
        self.replay_snapshot_interval = checked_integer(
            "replay_snapshot_interval", replay_snapshot_interval, 1, REPLAY_SNAPSHOT_INTERVAL_LIMIT
        )
        self.backend = backend
        self.queue = PipelineQueue(
            self.max_in_flight,
            *(() if annotation is None else (annotation,)),
            max_lag=self.config.max_check_lag(self.replay_snapshot_interval, self.max_in_flight),
            on_failure=self._tell_other_ranks,
        )
        self.update_lock = threading.RLock()
        self.rolling_window = 0
        self.rolling_base = 0
        self.probe_ratio = 0.0
        self._pipeline: Pipeline | None = None
        self._open_control = open_control
        self._session: OwnerSession | None = None
        self._state: State = "new"
        self._unclosed: weakref.finalize[..., Any] | None = None
        self._pid = os.getpid()
        self._lock = threading.RLock()

    def start(self, rolling_window: int = 32, *, probe_ratio: float = 0.01) -> None:
        """Open the transcript and write its root and environment records.

        Args:
            rolling_window: Words in one window of a batch row; at most the row's width.
            probe_ratio: The part of each leaf's last dimension that a probe keeps, above 0 and at most 1.

        Raises:
            TypeError: An argument of another type.
            ValueError: An argument out of range.
            ZKDVError: The run was started before, the folder holds a transcript or can't be written, the identity key
                can't be used, or the configuration asks for what this version does not have. Over several processes
                also: another rank met any of these, is gone, or was started with something else. None of these poisons
                the proof.
            TimeoutError: Another rank did not come in time.
        """
        rolling_window = checked_integer("rolling_window", rolling_window, 1, ROLLING_WINDOW_LIMIT_WORDS)
        probe_ratio = checked_ratio("probe_ratio", probe_ratio)
        with self._lock:
            if self._state != "new":
                again = "is closed" if self._state == "closed" else "was started before"
                raise ZKDVError(f"the proof in {self.path} {again}; start() is called once")
            self.config.refuse_unavailable()
            session = OwnerSession(
                self.path,
                self.config,
                self._open_control(),
                backend=self.backend,
                replay_snapshot_interval=self.replay_snapshot_interval,
                max_in_flight=self.max_in_flight,
                rolling_window=rolling_window,
                probe_ratio=probe_ratio,
            )
            self._session = session
            # Should the proof never be closed, its lock still goes with the object.
            self._unclosed = weakref.finalize(self, _leave_open, session, self.path, self._pid, calling_place())
            try:
                if session.set_aside is not None:
                    warn(
                        f"{self.path} held a transcript of a run that ended before its first update; it is kept as "
                        f"{session.set_aside}"
                    )
                self.rolling_window, self.probe_ratio = rolling_window, probe_ratio
                self.rolling_base = _native.rolling_base(session.root_digest)
                self._pipeline = self.backend.pipeline(self, self.queue)
                if self.config.evidence.requested:
                    self._pipeline.kept = self._keep_evidence(session, self._pipeline)
            except BaseException as error:
                self._state = "closed"
                self._unclosed.detach()
                session.leave(failure_in_one_line(error))
                session.release()
                raise
            self._state = "running"

    @property
    def state(self) -> State:
        """Where the run is: `"new"` before `start()`, `"running"`, or `"closed"`."""
        return self._state

    @property
    def root_digest(self) -> bytes:
        """Digest of the root record, 32 bytes: the name of the run."""
        return self.session.root_digest

    @property
    def head(self) -> bytes:
        """Digest of the last record, 32 bytes; on a follower of the last one that it was told of."""
        return self.session.head

    @property
    def session(self) -> OwnerSession:
        """The transcript of the run, as this process sees it.

        Raises:
            ZKDVError: The proof was not started.
        """
        if self._session is None:
            raise ZKDVError(f"the proof in {self.path} was not started; call start() first")
        return self._session

    @property
    def pipeline(self) -> Pipeline:
        """The pipeline of the running proof.

        Raises:
            ZKDVError: The proof was not started, is closed, or this is a forked process.
            ZKDVPoisonedError: The proof has failed.
        """
        if self._state == "new" or self._pipeline is None:
            raise ZKDVError(f"the proof in {self.path} was not started; call start() before the first update")
        if self._state == "closed":
            raise ZKDVError(f"the proof in {self.path} is closed; open a new one for further updates")
        if os.getpid() != self._pid:
            raise ZKDVError("this process was forked from the one that opened the proof; updates are made there alone")
        self.queue.check()
        return self._pipeline

    @property
    def checks_possible(self) -> bool:
        """Whether any update can be sampled."""
        policy = self.config.sampling_policy
        return policy.check_every is not None or policy.update_check_probability > 0

    def may_sample(self, index: int) -> bool:
        """Return whether update `index` can be sampled: False where that is known before its record is written."""
        every = self.config.sampling_policy.check_every
        return self.checks_possible and (every is None or (index + 1) % every == 0)

    def store_program(self, digest: bytes, extension: str, blob: bytes) -> None:
        """Write a sealed program to the folder, under its digest; a program that is there is left alone.

        Followers store nothing.
        """
        if self.session.rank != 0:
            return
        folder = self.path / "programs"
        target = folder / f"{digest.hex()}.{extension}"
        try:
            folder.mkdir(exist_ok=True)
            if target.is_file() and _native.leaf_digest(target.read_bytes()) == digest:
                return
            partial = target.with_suffix(".partial")
            with partial.open("wb") as file:
                file.write(blob)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(target)
        except OSError as error:
            raise ZKDVError(f"the sealed program can't be written to {target}: {error.strerror}") from error

    def join(self) -> None:
        """Wait until every update's commitment and check is on record. Never needed for each update.

        Raises:
            ZKDVPoisonedError: The proof has failed.
            ZKDVError: The proof is not running.
        """
        pipeline = self.pipeline
        # While another thread is in the middle of an update, nothing was cut short.
        if self.update_lock.acquire(blocking=False):
            try:
                pipeline.recover()
            finally:
                self.update_lock.release()
        with pipeline.checks_may_launch():
            pipeline.queue.join()

    def close(self) -> None:
        """Wait for all commitments and checks, write the closing records and end the run. Closing twice does no harm.

        Raises:
            ZKDVPoisonedError: The proof failed, now or before; the transcript is closed as poisoned. Over several
                processes it stays open, unless it was a check that failed.
            ZKDVError: The closing records could not be written.
        """
        # No update begins while the proof is closing.
        with self._lock, self.update_lock:
            if self._state != "running" or os.getpid() != self._pid:
                self._state = "closed" if self._state == "new" else self._state
                return
            pipeline = self.pipeline_of_closing()
            finished = False
            try:
                if self.queue.failure is None:
                    pipeline.recover()
                with pipeline.checks_may_launch():
                    self.queue.join()
                pipeline.finish()
                self._write_close("finished")
                self.session.finish()
                finished = True
            except BaseException as error:
                self.session.leave(failure_in_one_line(error))
                if isinstance(error, ZKDVPoisonedError):
                    # What a stage has at hand is written before the record that nothing comes after.
                    self.queue.close(cancel=True)
                    # Ranks that lost each other have not failed: the run can go on from what is recorded.
                    if self.session.size == 1 or isinstance(self.queue.failure, ZKDVVerificationError):
                        self._write_close("poisoned")
                raise
            finally:
                # An interrupt waits for no checks.
                self._end(cancel=not finished)

    def abandon(self) -> None:
        """End the run at once and leave its transcript open: commitments at hand are written, checks are dropped.

        Over several processes every rank's run ends by it.
        """
        with self._lock:
            if self._state == "running" and os.getpid() == self._pid:
                self._end(cancel=True)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled, for one into a process that was spawned."""
        raise TypeError(
            f"the proof in {self.path} can't be sent to another process: its transcript is written by the one that "
            "opened it; call the training function there, and send arrays"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, ZKDVPoisonedError):
            try:
                self.close()
            except ZKDVPoisonedError:
                # The failure is on its way to the user already.
                if error is None:
                    raise
        else:
            if self._session is not None and self._state == "running" and os.getpid() == self._pid:
                self._session.leave(failure_in_one_line(error))
            self.abandon()

    def pipeline_of_closing(self) -> Pipeline:
        """Return the pipeline, failed or not."""
        if self._pipeline is None:
            raise ZKDVError(f"the proof in {self.path} was not started")
        return self._pipeline

    def _write_close(self, reason: Literal["finished", "poisoned"]) -> None:
        counts = self.pipeline_of_closing().counts
        try:
            self.session.append(
                "close",
                {
                    "updates": counts.updates,
                    "sampled": counts.sampled,
                    "passed": counts.passed,
                    "failed": counts.failed,
                    "edits": counts.edits,
                    "reason": reason,
                },
            )
        except ZKDVError:
            # A transcript that can't be written to stays open; the failure that led here says why.
            if reason == "finished":
                raise

    def _keep_evidence(self, session: OwnerSession, pipeline: Pipeline) -> RunEvidence:
        if session.size > 1:
            raise ZKDVError(
                "EvidencePolicy asks for evidence, which this version of ZKDV does not keep in runs over several "
                "processes; leave it at its defaults"
            )
        return RunEvidence(pipeline, self.config.evidence, self.path)

    def _tell_other_ranks(self, failure: BaseException) -> None:
        # The failure of a check is every rank's own.
        if self._session is not None and not isinstance(failure, ZKDVVerificationError):
            self._session.leave(failure_in_one_line(failure))

    def _end(self, *, cancel: bool) -> None:
        self._state = "closed"
        try:
            if cancel:
                # Whoever waits for another rank waits no longer.
                self.session.leave("the run was abandoned")
            self.queue.close(cancel=cancel)
            self.pipeline_of_closing().clear()
        finally:
            self._release()

    def _release(self) -> None:
        try:
            self.session.release()
        finally:
            if self._unclosed is not None:
                self._unclosed.detach()


def _leave_open(session: OwnerSession, path: Path, pid: int, started: CodePlace) -> None:
    """Let go of the transcript of a proof that is gone, or that outlives the interpreter."""
    session.release()
    # Whoever is forked off has nothing to close, and nobody to tell.
    if os.getpid() == pid:
        session.leave("the proof was never closed")
        warn(
            f"the proof in {path} was never closed: its transcript stays open, and `zkdv verify` calls it incomplete; "
            "use the proof in a `with` block, or call close() after the last update",
            started,
        )
