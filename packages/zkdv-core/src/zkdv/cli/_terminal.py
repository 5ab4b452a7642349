"""What commands print: text to people, JSON to programs, errors in one line, progress where there is a terminal.

Colours and progress bars appear on a terminal alone; `NO_COLOR` (https://no-color.org) turns colours off there too.
Text from a transcript is a stranger's: nothing of it reaches the terminal as a control character or as markup.
"""

import functools
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from zkdv._native import NativeError
from zkdv.errors import ZKDVError

# The base of all errors in a command line; releases of typer differ in where it is.
_COMMAND_LINE_ERROR: Any = typer.BadParameter.__mro__[2]

_debugging = False

Progressed = Callable[[int, int], None]
"""Told how far something is: `(done, total)`, in bytes or in things."""


class OutputClosedError(Exception):
    """Whoever read the output has stopped reading."""


class _Terminal(Console):
    """A console that leaves it to us what happens when nobody reads any more; rich would end the process."""

    def on_broken_pipe(self) -> None:
        raise OutputClosedError


@functools.cache
def output() -> Console:
    """Standard output."""
    return _Terminal(highlight=False, markup=False, emoji=False)


@functools.cache
def errors() -> Console:
    """Standard error."""
    return _Terminal(stderr=True, highlight=False, markup=False, emoji=False)


def accept_any_text() -> None:
    """Let standard output and error replace what their encoding lacks, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")


def write(line: str | Text = "") -> None:
    """Print one line to standard output; never broken, except by a terminal at words."""
    console = output()
    console.print(line, soft_wrap=not console.is_terminal)


def report(error: Exception) -> None:
    """Print one line that says what went wrong, after its traceback where `--debug` asks for one."""
    if _debugging:
        traceback.print_exception(error)
    complain(_described(error))


def show_tracebacks(*, wanted: bool) -> None:
    """Say whether errors are reported with their traceback."""
    global _debugging  # noqa: PLW0603 (a process runs one command line)
    _debugging = wanted


def complain(message: str) -> None:
    """Print one line to standard error."""
    line = Text.assemble(("error: ", "bold red"), harmless(" ".join(message.split())))
    errors().print(line, soft_wrap=True)


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON to standard output: bytes as lower-case hexadecimal digits, numbers that JSON lacks as text."""
    try:
        sys.stdout.write(json.dumps(_as_json(value), indent=indent, allow_nan=False) + "\n")
    except BrokenPipeError:
        raise OutputClosedError from None


def finish() -> None:
    """Write out what is still buffered, so that a reader who is gone shows here and not when the interpreter ends."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise OutputClosedError from None


def give_up_output() -> None:
    """Send standard output nowhere: what is still buffered must not fail again when the interpreter ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def harmless(text: str) -> str:
    """Text with everything escaped that is not printable: control characters, line breaks, direction marks."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


def moment(milliseconds: int) -> str:
    """A time in milliseconds since 1970 for people; any 64-bit number may stand in a transcript."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{milliseconds} ms after 1970"


@contextmanager
def progress(title: str, *, counting: bool = False) -> Iterator[Progressed]:
    """Show a progress bar on standard error while something runs, where that is a terminal; of bytes, or of things."""
    console = errors()
    if not console.is_terminal:
        # Releases of rich print an empty line for a bar that is not shown.
        yield lambda _done, _total: None
        return
    amount = MofNCompleteColumn() if counting else DownloadColumn(binary_units=True)
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(Text(harmless(title)).plain, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


def _described(error: Exception) -> str:
    """What went wrong and what to do."""
    if isinstance(error, _COMMAND_LINE_ERROR):
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "zkdv"
        return f"{error.format_message().rstrip('.')}; see `{command} --help`"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    if isinstance(error, ZKDVError | NativeError | OSError):
        return str(error)
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)"


def _as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _as_json(item) for name, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_as_json(item) for item in value]
    return value
