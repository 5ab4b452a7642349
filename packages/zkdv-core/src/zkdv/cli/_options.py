"""Options that every command has."""

from collections.abc import Sequence
from typing import Annotated

import typer

Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]
"""Read from the command line by `debug_requested`, since an error can come before any option is parsed."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs, in place of text.")]


def debug_requested(arguments: Sequence[str]) -> bool:
    """Whether `--debug` stands among the options of a command line."""
    options = list(arguments)
    return "--debug" in (options[: options.index("--")] if "--" in options else options)
