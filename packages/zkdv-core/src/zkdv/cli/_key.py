"""`zkdv key`: the identity key that signs runs."""

from pathlib import Path
from typing import Annotated

import typer

from zkdv import identity
from zkdv.cli import _terminal as terminal
from zkdv.cli._options import Debug, Json
from zkdv.errors import ZKDVError

application = typer.Typer(help="Create and show identity keys.", no_args_is_help=False, rich_markup_mode=None)


@application.command("new")
def new(
    path: Annotated[
        Path | None, typer.Argument(help="File to create; default: your own key in the user configuration folder.")
    ] = None,
    *,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Create an identity key in a new file that only you can read. A file that exists is left as it is."""
    target = identity.default_path() if path is None else path
    created = identity.create(target)
    if as_json:
        terminal.write_json({"path": str(target), "public_key": created.public_key})
        return
    terminal.write(f"created {terminal.harmless(str(target))}; keep it private, and a copy of it safe")
    terminal.write(f"public key {created.public_key.hex()}")
    if path is not None:
        terminal.write(
            f"use it with ZKDVConfig(identity=...) or the environment variable {identity.ENVIRONMENT_VARIABLE}"
        )


@application.command("show")
def show(
    key: Annotated[
        str | None,
        typer.Argument(
            help="A key file, or signer-plugin:argument; default: what the environment variable ZKDV_IDENTITY names, "
            "else your own key."
        ),
    ] = None,
    *,
    pem: Annotated[bool, typer.Option("--pem", help="Print the public key as a PEM file.")] = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Print the public key of an identity: what others give to `zkdv verify --identity`. Creates no key."""
    if key is None and identity.named_by_environment() is None and not identity.default_path().exists():
        raise ZKDVError(
            f"you have no identity key yet ({identity.default_path()}); "
            "`zkdv key new` creates one, and so does your first run"
        )
    shown = identity.load(key)
    if as_json:
        terminal.write_json({"public_key": shown.public_key, "pem": shown.public_pem()})
    elif pem:
        terminal.write(shown.public_pem().rstrip("\n"))
    else:
        terminal.write(shown.public_key.hex())
