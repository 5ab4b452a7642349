"""Options that every command has."""

from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from zkdv.identity import parse_public_key
from zkdv.verification import parse_digest

Debug = Annotated[bool, typer.Option("--debug", help="Show a traceback with an error.")]
"""Read from the command line by `debug_requested`, since an error can come before any option is parsed."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs, in place of text.")]

Identity = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", help="The run must be signed by this key: 64 hexadecimal digits, or a PEM file (PUBLIC KEY)."
    ),
]

Head = Annotated[str | None, typer.Option(metavar="DIGEST", help="The last record must have this digest.")]

AllowEdits = Annotated[
    bool, typer.Option("--allow-edits", help="Accept recorded changes of the state between updates.")
]


def parsed_key(identity: str | None) -> bytes | None:
    """Read what `--identity` was given.

    Raises:
        typer.BadParameter: It is no key.
    """
    return None if identity is None else _parsed("--identity", parse_public_key, identity)


def parsed_digest(head: str | None) -> bytes | None:
    """Read what `--head` was given.

    Raises:
        typer.BadParameter: It is no digest.
    """
    return None if head is None else _parsed("--head", parse_digest, head)


def _parsed(option: str, parse: Callable[[str], bytes], text: str) -> bytes:
    try:
        return parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def debug_requested(arguments: Sequence[str]) -> bool:
    """Whether `--debug` stands among the options of a command line."""
    options = list(arguments)
    return "--debug" in (options[: options.index("--")] if "--" in options else options)
