"""`zkdv membership`: proofs that words were, or were not, in a batch."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from zkdv.cli import _terminal as terminal
from zkdv.cli._options import AllowEdits, Debug, Head, Identity, Json, parsed_digest, parsed_key
from zkdv.errors import ZKDVError

application = typer.Typer(
    help="Show that a row or a window was, or was not, in the batch of an update.",
    no_args_is_help=False,
    rich_markup_mode=None,
)

RunPath = Annotated[Path, typer.Argument(help="A run's folder, or its records file.")]
Words = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Words (uint32, one dimension), or one element of each leaf of a row by name: .npy, .npz, safetensors.",
    ),
]


@application.command("prove")
def prove(
    path: RunPath,
    batch: Annotated[
        Path,
        typer.Argument(
            help="The batch: words (uint32, rows by width), or its leaves by name: .npy, .npz, safetensors."
        ),
    ],
    *,
    update: Annotated[int, typer.Option("--update", metavar="N", min=0, help="The update whose batch it is.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write the proof to.")],
    row: Annotated[int | None, typer.Option("--row", metavar="I", min=0, help="Show row I.")] = None,
    words: Words = None,
    identity: Identity = None,
    head: Head = None,
    allow_edits: AllowEdits = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Make a proof about the batch of an update: of a row, or that words are in it or not.

    Exit codes: 0 the proof was written; 1 the transcript fails; 2 wrong usage, unreadable, or it cannot be shown.
    """
    # Other commands do without NumPy, which proofs need, and start sooner.
    from zkdv import membership  # noqa: PLC0415
    from zkdv.cli._membership_report import write_proof  # noqa: PLC0415

    key, digest = parsed_key(identity), parsed_digest(head)
    if (row is None) == (words is None):
        raise typer.BadParameter("exactly one of --row and --words must be given")
    try:
        with terminal.progress(f"verifying {path}") as progress:
            proof = membership.prove(
                path,
                update,
                batch,
                row=row,
                words=words,
                identity=key,
                head=digest,
                allow_edits=allow_edits,
                progress=progress,
            )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--row") from error
    _write_file(output, proof.data)
    if as_json:
        terminal.write_json({"output": str(output), "bytes": len(proof.data), "proof": proof.as_json()})
        return
    write_proof(proof, output)


@application.command("verify")
def verify(
    path: RunPath,
    proof: Annotated[Path, typer.Argument(help="The proof.")],
    *,
    words: Words = None,
    identity: Identity = None,
    head: Head = None,
    allow_edits: AllowEdits = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Hold a proof against a transcript; the batch is not needed. The transcript is verified first.

    Exit codes: 0 it holds; 1 it does not, or the transcript fails; 2 wrong usage or unreadable; 3 it holds, in a
    transcript that is incomplete.
    """
    # Other commands do without NumPy, which proofs need, and start sooner.
    from zkdv import membership  # noqa: PLC0415
    from zkdv.cli._membership_report import write_membership  # noqa: PLC0415

    key, digest = parsed_key(identity), parsed_digest(head)
    with terminal.progress(f"verifying {path}") as progress:
        report = membership.verify(
            path, proof, words=words, identity=key, head=digest, allow_edits=allow_edits, progress=progress
        )
    if as_json:
        terminal.write_json(report.as_json())
    else:
        write_membership(report, proof)
    raise typer.Exit(report.exit_code)


def _write_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    if path.is_dir():
        raise ZKDVError(f"{path} is a folder; name a file for the proof")
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        # The file is not secret: like any other that the user writes.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
