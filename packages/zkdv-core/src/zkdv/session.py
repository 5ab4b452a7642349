"""Runs over several processes: the transcript on the owner, and its decisions on every rank.

The owner, rank 0, holds the one transcript of a run; its followers hold none. Every rank runs the same program on the
same global arrays and sees the digests of all of them, so that each can say what is to be written. What only the owner
knows comes by rounds of a `Control`: the digests of the root and of each update's record, from which all draw alike. A
run in one process is one without a control, and writes as it goes.
"""

import hashlib
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zkdv import _native, environment, identity
from zkdv._agreement import as_json, first_difference
from zkdv._native_errors import native_errors
from zkdv.config import FloatTolerance, ZKDVConfig
from zkdv.errors import ZKDVError, ZKDVPoisonedError
from zkdv.schema import TREES, TreeName
from zkdv.transport import Control

if TYPE_CHECKING:
    from zkdv.driver import Backend

__all__ = ["Control", "OwnerChallenge", "OwnerSession", "OwnerSubmission", "failure_in_one_line"]

SCHEMES = {
    "leaf": "blake3-256",
    "sharded-leaf": "zkdv-sharded-leaf-1",
    "tree": "zkdv-tree-1",
    "batch": "zkdv-batch-1",
    "probe": "zkdv-probe-1",
    "challenge": "zkdv-challenge-1",
}

SHOWN_CHARACTERS = 4_096
"""Most characters of the owner's error that followers repeat."""

CALLED: Mapping[TreeName, str] = {"parameters": "param_idx", "optimizer": "state_idx"}


class OwnerSession:
    """The transcript of a run as one rank sees it: the owner writes it, followers take part in its decisions.

    Every rank makes one, with the same arguments. A follower whose configuration, versions or flags are not the owner's
    is refused before anything is written.

    Args:
        path: The proof folder, on the owner; followers write nothing.
        config: The configuration.
        control: What carries decisions; None where one process is the whole run. The session closes it.
        backend: The frontend.
        replay_snapshot_interval: As `zkdv.driver.Driver` takes it.
        max_in_flight: As `zkdv.driver.Driver` takes it.
        rolling_window: As `zkdv.driver.Driver.start` takes it.
        probe_ratio: As `zkdv.driver.Driver.start` takes it.

    Raises:
        ZKDVError: The transcript can't be opened, on every rank what the owner met; or a rank differs from the owner,
            with its number and what differs; or a rank is gone.
        TimeoutError: A rank did not come in time.
    """

    def __init__(
        self,
        path: Path,
        config: ZKDVConfig,
        control: Control | None = None,
        *,
        backend: "Backend",
        replay_snapshot_interval: int = 12,
        max_in_flight: int = 2,
        rolling_window: int = 32,
        probe_ratio: float = 0.01,
    ) -> None:
        self.path = path
        self.control = control
        self.rank = 0 if control is None else control.rank
        self.size = 1 if control is None else control.size
        self._native: _native.Transcript | None = None
        self._written = 0
        self._agreed = 0
        self._left = False
        self._lock = threading.Lock()
        configuration = config.as_record(
            replay_snapshot_interval=replay_snapshot_interval,
            max_in_flight=max_in_flight,
            rolling_window=rolling_window,
            probe_ratio=probe_ratio,
        )
        try:
            facts = environment.collect(framework=backend.framework, devices=backend.devices, flags=backend.flags)
            self.agree(
                "what it was started with",
                {"prover": backend.prover, "run": config.name, "configuration": configuration}
                | {key: facts[key] for key in ("zkdv", "python", "framework", "flags")},
            )
            root = {
                "protocol": 1,
                "prover": backend.prover,
                "run": config.name,
                "time": time.time_ns() // 1_000_000,
                "ranks": self.size,
                "challenger": {"name": config.challenger},
                "schemes": SCHEMES,
                "configuration": configuration,
            }
            self._root_digest = self._create(root, config, facts)
        except BaseException as error:
            self.leave(failure_in_one_line(error))
            self.release()
            raise

    @property
    def native(self) -> _native.Transcript | None:
        """The transcript on the owner; None on followers."""
        return self._native

    @property
    def set_aside(self) -> str | None:
        """Where a transcript that held no update was put, if there was one; None on followers."""
        return None if self._native is None else self._native.set_aside

    @property
    def root_digest(self) -> bytes:
        """Digest of the root record, 32 bytes: the name of the run."""
        return self._root_digest

    @property
    def head(self) -> bytes:
        """Digest of the last record, 32 bytes; on followers of the last one that they were told of."""
        return self._head if self._native is None else self._native.head

    def append(self, kind: "_native.RecordType", body: Mapping[str, Any]) -> int:
        """Write a record on the owner; followers count it.

        Returns:
            Its number.

        Raises:
            ZKDVError: It could not be written.
        """
        number = self._written
        if self._native is not None:
            with native_errors():
                number, _ = self._native.append(kind, dict(body))
        self._written = number + 1
        return number

    def append_update(self, index: int, body: Mapping[str, Any]) -> bytes:
        """Write an update's record on the owner.

        Returns:
            Its digest, 32 bytes, on every rank.

        Raises:
            ZKDVError: It could not be written; or a rank would have written something else, and which; or one is gone.
        """
        digest = OwnerSubmission(self.control, index, self._native).append(body)
        self._written += 1
        self._head = digest
        return digest

    def challenge(
        self, index: int, coordinates: Mapping[TreeName, int | None], tolerance: FloatTolerance
    ) -> "OwnerChallenge":
        """Begin the check of a sampled update, on every rank."""
        descriptor: dict[str, int | float | None] = {CALLED[tree]: coordinates[tree] for tree in TREES}
        descriptor |= {"tolerance_abs": tolerance.abs, "tolerance_rel": tolerance.rel}
        return OwnerChallenge(self.control, index, self._native, descriptor)

    def conclude(self, challenge: "OwnerChallenge", body: Mapping[str, Any]) -> None:
        """Write the record of a check on the owner, and have every rank know its verdict."""
        challenge.append(body)
        self._written += 1

    def agree(self, subject: str, facts: Mapping[str, Any]) -> None:
        """Refuse ranks whose facts are not the owner's, on every rank. Does nothing in one process.

        Args:
            subject: What the facts are of, for messages.
            facts: What JSON can hold, of any length.

        Raises:
            ZKDVError: On the rank that differs and on the owner: the rank, and the first fact that differs. On other
                followers: that a rank was refused.
            TimeoutError: A rank did not come in time.
        """
        if self.control is None:
            return
        key = f"zkdv/agree/{self._agreed}"
        self._agreed += 1
        difference = first_difference(self.control, key, facts)
        if difference is not None:
            message = f"rank {self.rank} differs from the owner in {subject}: {difference}"
            self.leave(message)
            raise ZKDVError(f"{message}; start every rank with the same program and arguments")
        # Nobody goes on before all have seen that they agree.
        self.control.exchange(f"{key}/agreed", value=True)

    def finish(self) -> None:
        """Tell followers that the closing record is written; they wait for it.

        Raises:
            ZKDVError: The owner is gone, and its transcript may be open.
        """
        if self.control is not None:
            told = self.control.exchange("zkdv/closed", self.head.hex())
            if self._native is None:
                self._head = bytes.fromhex(str(told))
        self.leave("the run is finished")

    def leave(self, reason: str) -> None:
        """Take part in no more rounds, and tell the other ranks why. Doing it again does nothing."""
        with self._lock:
            left, self._left = self._left, True
        if self.control is not None and not left:
            self.control.close(reason if reason.startswith("rank ") else f"rank {self.rank}: {reason}")

    def release(self) -> None:
        """Let go of the transcript and its lock; an open one stays open."""
        if self._native is not None:
            with native_errors():
                self._native.release()

    def _create(self, root: dict[str, Any], config: ZKDVConfig, facts: Mapping[str, Any]) -> bytes:
        """Write root and environment on the owner; return the root's digest on every rank."""
        answer: dict[str, str] = {}
        error: Exception | None = None
        if self.rank == 0:
            try:
                with native_errors():
                    self._native = _native.Transcript.create(str(self.path), root, identity.load(config.identity))
                answer = {"root": self._native.root_digest.hex()}
                self._written = 1
                self.append("environment", facts)
            except Exception as failure:  # noqa: BLE001 (whatever it is, followers are told before it is raised)
                answer, error = {"error": f"{type(failure).__name__}: {failure}"[:SHOWN_CHARACTERS]}, failure
        else:
            self._written = 2
        if self.control is not None:
            answer = cast("dict[str, str]", self.control.exchange("zkdv/start", answer))
        if error is not None:
            raise error
        if "error" in answer:
            raise ZKDVError(f"the owner, rank 0, could not open the transcript: {answer['error']}")
        self._head = bytes.fromhex(answer["root"])
        return self._head


class OwnerSubmission:
    """One update's record: written by the owner, and checked by every follower against what it would have written.

    Args:
        control: What carries decisions; None in a run of one process.
        index: The update's index.
        native: The transcript on the owner; None on followers.
    """

    def __init__(self, control: Control | None, index: int, native: _native.Transcript | None) -> None:
        self.control = control
        self.index = index
        self.native = native

    def append(self, body: Mapping[str, Any]) -> bytes:
        """Write the record.

        Args:
            body: What this rank says of the update.

        Returns:
            The record's digest, 32 bytes, on every rank.

        Raises:
            ZKDVError: It could not be written; or this rank says something else than the owner, and of what; or a rank
                is gone.
        """
        digest = b""
        if self.native is not None:
            with native_errors():
                _, digest = self.native.append("update", dict(body))
        if self.control is None:
            return digest
        mine = _fingerprints(body)
        theirs = cast(
            "dict[str, str]", self.control.exchange(f"zkdv/update/{self.index}", {"record": digest.hex()} | mine)
        )
        record = theirs.pop("record")
        differing = _differing(mine, theirs)
        if differing:
            raise ZKDVError(
                f"rank {self.control.rank} and the owner do not say the same of update {self.index}: they differ in "
                f"{', '.join(differing)}"
            )
        return bytes.fromhex(record)


class OwnerChallenge:
    """What one sampled update is checked for, equal on every rank, and the verdict.

    Args:
        control: What carries decisions; None in a run of one process.
        index: The update's index.
        native: The transcript on the owner; None on followers.
        descriptor: `param_idx`, `state_idx` (None where a tree has no elements), `tolerance_abs`, `tolerance_rel`, as
            this rank has drawn and configured them.

    Attributes:
        param_idx: The drawn coordinate over all parameters, as the owner has drawn it.
        state_idx: The drawn coordinate over the optimizer state.
        tolerance_abs: Absolute tolerance.
        tolerance_rel: Relative tolerance.

    Raises:
        ZKDVError: This rank has drawn something else than the owner, or a rank is gone.
    """

    def __init__(
        self,
        control: Control | None,
        index: int,
        native: _native.Transcript | None,
        descriptor: Mapping[str, int | float | None],
    ) -> None:
        self.control = control
        self.index = index
        self.native = native
        if control is not None:
            decided = cast("dict[str, Any]", control.exchange(f"zkdv/challenge/{index}", dict(descriptor)))
            if decided != dict(descriptor):
                raise ZKDVError(
                    f"rank {control.rank} would check update {index} for {dict(descriptor)}, the owner for {decided}"
                )
        self.param_idx = cast("int | None", descriptor["param_idx"])
        self.state_idx = cast("int | None", descriptor["state_idx"])
        self.tolerance_abs = cast("float", descriptor["tolerance_abs"])
        self.tolerance_rel = cast("float", descriptor["tolerance_rel"])

    @property
    def coordinates(self) -> dict[TreeName, int | None]:
        """The drawn coordinate in each tree; None where it has no elements."""
        return {"parameters": self.param_idx, "optimizer": self.state_idx}

    def append(self, body: Mapping[str, Any]) -> None:
        """Write the check's record on the owner, and force it to disk.

        Args:
            body: What this rank's replay has found.

        Raises:
            ZKDVError: It could not be written; or this rank has found something else than the owner; or a rank is gone.
        """
        if self.native is not None:
            with native_errors():
                self.native.append("check", dict(body))
                self.native.sync()
        if self.control is None:
            return
        mine = _fingerprints(body)
        theirs = cast("dict[str, str]", self.control.exchange(f"zkdv/check/{self.index}", mine))
        differing = _differing(mine, theirs)
        if differing:
            raise ZKDVError(
                f"the check of update {self.index} on rank {self.control.rank} differs from the owner's in "
                f"{', '.join(differing)}: the verdict here is {body['verdict']}"
            )


def _fingerprints(body: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands for the values of a record in a round, whatever their length."""
    return {
        key: hashlib.blake2b(json.dumps(value, default=as_json, sort_keys=True).encode(), digest_size=16).hexdigest()
        for key, value in body.items()
    }


def _differing(mine: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    return sorted(key for key in {*mine, *theirs} if mine.get(key) != theirs.get(key))


def failure_in_one_line(error: BaseException) -> str:
    """Return a failure in one line, for the other ranks."""
    cause = error.__cause__ if isinstance(error, ZKDVPoisonedError) and error.__cause__ is not None else error
    return " ".join(f"{type(cause).__name__}: {cause}".split())
