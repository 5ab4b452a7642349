"""The process that executes updates again, as the audit sees it: asked in turn, and allowed to die."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import IO, Any, Self, TypeVar

from zkdv.errors import ZKDVError

__all__ = ["DEFAULT_TIMEOUT_SECONDS", "ReplayProcess", "ReplayProcessDiedError"]

DEFAULT_TIMEOUT_SECONDS = 3_600.0
"""How long loading a program, or one update, may take where nothing is said."""

# Without the folder that the audit is started in: nothing is imported from there.
WORKER = [sys.executable, "-P", "-m", "zkdv.auditing._worker"]

ANSWER_LIMIT_BYTES = 256 * 1024 * 1024
"""No honest answer is longer: it would be the probes of more than 16 million numbers."""

LINE_LIMIT_CHARACTERS = 300


_Read = TypeVar("_Read")


class ReplayProcessDiedError(ZKDVError):
    """The process ended, or gave no answer, in the middle of a request."""


class ReplayProcess:
    """Executes updates in a process of its own, which is started when it is first asked.

    It is an ordinary process of the user: a crash ends it alone, but it is no sandbox.

    Args:
        timeout: How long an answer may take, in seconds: a stranger's program need not end.
    """

    def __init__(self, timeout: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._timeout = timeout
        self._late = False
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None

    @property
    def running(self) -> bool:
        """Whether the process was started, and has not died."""
        return self._process is not None

    def ask(self, do: str, read: Callable[[Mapping[str, Any]], _Read], /, **request: Any) -> _Read:
        """Have it do something, and return what it answers.

        Args:
            do: What to do.
            read: Reads the answer. A process that a stranger's program has taken over may answer anything: where this
                raises, the answer is none.
            request: What goes with it, as JSON.

        Raises:
            ZKDVError: It says that it can't, and why.
            ReplayProcessDiedError: It died, or was ended because it gave no answer in time; says how. The next request
                starts another one, which knows nothing.
        """
        process = self._started()
        if process.stdin is None or process.stdout is None:
            raise ZKDVError("the process that executes updates has no pipes")
        self._late = False
        limit = threading.Timer(self._timeout, self._end_late, (process,))
        limit.start()
        try:
            process.stdin.write(json.dumps({"do": do, **request}, default=_as_json).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline(ANSWER_LIMIT_BYTES)
        except BrokenPipeError:
            line = b""
        finally:
            limit.cancel()
        try:
            answer = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise ReplayProcessDiedError(self._death(ended=not line))
        if "error" in answer:
            raise ZKDVError(str(answer["error"]))
        try:
            return read(answer)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise ReplayProcessDiedError(self._death(ended=False)) from error

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._errors is not None:
            self._errors.close()
        self._process = self._errors = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
            self._process = subprocess.Popen(  # noqa: S603 (a constant)
                WORKER,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
            )
        return self._process

    def _end_late(self, process: subprocess.Popen[bytes]) -> None:
        self._late = True
        process.kill()

    def _death(self, *, ended: bool) -> str:
        """Say how the process ended, and end it where it has not."""
        process, last = self._process, ""
        if process is None:
            return "the process that executes updates was not started"
        try:
            code = process.wait(timeout=5 if ended else 0)
        except subprocess.TimeoutExpired:
            code = None
        if self._errors is not None:
            self._errors.seek(0)
            lines = [line for line in self._errors.read().decode(errors="replace").splitlines() if line.strip()]
            last = f" ({lines[-1].strip()[:LINE_LIMIT_CHARACTERS]})" if lines else ""
        self.close()
        if self._late:
            how = f"gave no answer within {self._timeout:g} s and was ended; allow more with --timeout"
        elif code is None:
            how = "gave an answer that is none"
        elif code < 0:
            how = (
                f"was ended by {signal.Signals(-code).name}"
                if -code in set(signal.Signals)
                else f"was ended by {-code}"
            )
        else:
            how = f"ended with code {code}"
        return f"the process that executes the program {how}{last}"


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} can't be sent")
