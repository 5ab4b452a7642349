"""What commands print: text to people, JSON to programs, errors in one line, progress where there is a terminal.

Colours and progress bars appear on a terminal alone; `NO_COLOR` (https://no-color.org) turns colours off there too.
Text from a transcript is a stranger's: nothing of it reaches the terminal as a control character or as markup.
"""

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

Progressed = Callable[[int, int], None]
"""Told how far something is: `(done, total)`, in bytes."""


@functools.cache
def output() -> Console:
    """Standard output."""
    return Console(highlight=False, markup=False, emoji=False)


@functools.cache
def errors() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def accept_any_text() -> None:
    """Let standard output and error replace what their encoding lacks, in place of failing."""
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="replace")


def write(line: str | Text = "") -> None:
    """Print one line to standard output; never broken, except by a terminal at words."""
    console = output()
    console.print(line, soft_wrap=not console.is_terminal)


def complain(message: str) -> None:
    """Print one line to standard error."""
    line = Text.assemble(("error: ", "bold red"), harmless(" ".join(message.split())))
    errors().print(line, soft_wrap=True)


def described(error: Exception) -> str:
    """What an error says; of the operating system's, the path and the reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def write_json(value: Any, *, indent: int | None = 2) -> None:
    """Print JSON to standard output: bytes as lower-case hexadecimal digits, numbers that JSON lacks as text."""
    sys.stdout.write(json.dumps(_as_json(value), indent=indent, allow_nan=False) + "\n")


def harmless(text: str) -> str:
    """Text with everything escaped that is not printable: control characters, line breaks, direction marks."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


@contextmanager
def progress(title: str) -> Iterator[Progressed]:
    """Show a progress bar on standard error while something runs, where that is a terminal."""
    console = errors()
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(Text(harmless(title)).plain, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield show


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
