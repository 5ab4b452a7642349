"""Starts the processes of a training run, and asks them to do things; `training_rank.py` is what runs in each."""

import contextlib
import json
import os
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

SCRIPT = Path(__file__).parent / "training_rank.py"
ANSWER_SECONDS = 300
"""Until a rank that does not answer counts as one that hangs: far beyond what a busy machine needs."""


class RankError(Exception):
    """What a rank raised, or that it has ended."""

    def __init__(self, kind, message):
        super().__init__(f"{kind}: {message}")
        self.kind, self.message = kind, message


class Rank:
    """One process, started at once."""

    def __init__(self):
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed in discard)
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=os.environ | {"PYTHONPATH": str(SCRIPT.parent), "JAX_PLATFORMS": "cpu"},
            text=True,
        )
        self.warnings = []
        self._answers = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def ask(self, action, **arguments):
        """Have the process do something; `answer` waits for it."""
        with contextlib.suppress(OSError):  # Where it has ended, the answer will say so.
            self.process.stdin.write(json.dumps({"action": action, "arguments": arguments}) + "\n")
            self.process.stdin.flush()

    def answer(self, timeout=ANSWER_SECONDS):
        """Wait for the next answer.

        Raises:
            RankError: What the rank raised; `kind` is `ended` where the process has ended.
            queue.Empty: There is none in time.
        """
        answer = self._answers.get(timeout=timeout)
        if answer is None:
            self._answers.put(None)
            raise RankError("ended", f"the process has ended with {self.process.wait()}: {self.said()[-3000:]}")
        self.warnings += answer["warnings"]
        if "error" in answer:
            raise RankError(answer["error"], answer["message"])
        return answer["value"]

    def error(self):
        """Wait for the next answer, which must be an error, and return it."""
        try:
            value = self.answer()
        except RankError as error:
            return error
        raise AssertionError(f"a rank answered {value!r} where an error was due")

    def wait(self):
        """Wait until the process has ended by itself."""
        self.ask("exit")
        return self.process.wait(ANSWER_SECONDS)

    def said(self):
        """What the process has written to its standard error."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")

    def discard(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self._errors.close()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # What could not be written any more is of no interest.
                pipe.close()

    def _read(self):
        for line in self.process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)


class Ranks:
    """The processes of a run, brought together by JAX."""

    def __init__(self, size, devices=2):
        self.ranks = [Rank() for _ in range(size)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        try:
            for number, rank in enumerate(self.ranks):
                rank.ask("prepare", rank=number, size=size, address=address, devices=devices)
            for rank in self.ranks:
                rank.answer()
        except BaseException:
            self.discard()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.discard()

    def ask(self, action, **arguments):
        """Have every rank do the same."""
        for rank in self.ranks:
            rank.ask(action, **arguments)

    def do(self, action, **arguments):
        """Have every rank do the same; return the answers."""
        self.ask(action, **arguments)
        return [rank.answer() for rank in self.ranks]

    def open(self, folder, **options):
        """Open a proof: the owner's in `folder`, the followers' in places where nothing may appear."""
        for number, rank in enumerate(self.ranks):
            rank.ask("open", folder=str(folder if number == 0 else f"{folder}-{number}"), **options)
        return [rank.answer() for rank in self.ranks]

    def errors(self):
        """Return the error that each rank answers."""
        return [rank.error() for rank in self.ranks]

    def discard(self):
        for rank in self.ranks:
            rank.discard()
