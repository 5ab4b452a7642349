"""Processes of a run under test, each told over a pipe what to do with its control."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

ANSWER_SECONDS = 180.0
"""Until a rank that does not answer counts as one that hangs: far beyond what a busy machine needs."""


class RankError(Exception):
    """What a rank raised.

    Attributes:
        kind: Name of the first of its type's bases that is a built-in: `RuntimeError` for a `ZKDVError`.
        message: Its text.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Answer:
    """What a rank has been asked, answered or not."""

    def __init__(self) -> None:
        self._answered = threading.Event()
        self._answer: Mapping[str, Any] = {}

    @property
    def answered(self) -> bool:
        """Whether the rank has answered."""
        return self._answered.is_set()

    def result(self) -> Any:
        """Wait for the answer.

        Raises:
            RankError: What the rank raised; `kind` is `ended` where the process has ended.
            AssertionError: The rank hangs.
        """
        if not self._answered.wait(ANSWER_SECONDS):
            raise AssertionError(f"a rank has not answered within {ANSWER_SECONDS:g} s")
        if "error" in self._answer:
            raise RankError(self._answer["error"], self._answer["message"])
        return self._answer["value"]

    def error(self) -> RankError:
        """Wait for the answer, which must be an error.

        Raises:
            AssertionError: It is none.
        """
        try:
            value = self.result()
        except RankError as error:
            return error
        raise AssertionError(f"a rank answered {value!r} where an error was due")

    def settle(self, answer: Mapping[str, Any]) -> None:
        """Keep the rank's answer."""
        self._answer = answer
        self._answered.set()


class Rank:
    """One process, started at once; `zkdv.testing._rank_process` is what runs in it.

    Args:
        environment: Variables added to this process's own.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in kill)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "zkdv.testing._rank_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **(environment or {})},
        )
        self._waiting: dict[int, Answer] = {}
        self._lock = threading.Lock()
        self._asked = 0
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, action: str, **arguments: object) -> Answer:
        """Have the process do something, on a thread of its own.

        Args:
            action: Name of a method of `Actions` in `zkdv.testing._rank_process`.
            **arguments: Its arguments, as JSON holds them.
        """
        answer = Answer()
        with self._lock:
            self._asked += 1
            number = self._asked
            if self._ended:
                answer.settle(_ENDED)
                return answer
            self._waiting[number] = answer
        line = json.dumps({"number": number, "action": action, "arguments": arguments}).encode() + b"\n"
        try:
            self._input.write(line)
            self._input.flush()
        except OSError:
            answer.settle(_ENDED)
        return answer

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        self._process.kill()
        self.wait()

    def wait(self) -> int:
        """Wait until the process has ended by itself; return its exit status.

        Raises:
            AssertionError: It hangs.
        """
        try:
            return self._process.wait(ANSWER_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"a rank that was to end still runs after {ANSWER_SECONDS:g} s") from None

    def said(self) -> str:
        """What the process has written to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def discard(self) -> None:
        """End the process, and let go of what belongs to it."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._errors.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # What could not be written any more is of no interest.
                    pipe.close()

    @property
    def _input(self) -> Any:
        return self._process.stdin

    def _read(self) -> None:
        output: Any = self._process.stdout
        for line in output:
            answer = json.loads(line)
            with self._lock:
                asked = self._waiting.pop(answer["number"])
            asked.settle(answer)
        with self._lock:
            self._ended = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for asked in waiting:
            asked.settle(_ENDED)


_ENDED = {"error": "ended", "message": "the process has ended"}
