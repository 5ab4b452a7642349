"""`zkdv membership`: proofs that words were, or were not, in a batch."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from zkdv import membership
from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import AllowEdits, Debug, Head, Identity, Json, parsed_digest, parsed_key
from zkdv.cli._terminal import harmless, write
from zkdv.errors import ZKDVError
from zkdv.membership import ABSENCE_IS_THE_PROVERS_WORD, Claim, MembershipProof, MembershipReport
from zkdv.verification import Verdict
from zkdv.verified import UnverifiedRunError

SHOWN_WORDS = 8

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
    except UnverifiedRunError as error:
        terminal.report(error)
        raise typer.Exit(ExitCode.FAILED) from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--row") from error
    _write_file(output, proof.data)
    if as_json:
        terminal.write_json({"output": str(output), "bytes": len(proof.data), "proof": proof.as_json()})
        return
    write(f"{_stated(proof)}; proof of {len(proof.data)} bytes in {harmless(str(output))}")
    _write_caveat(proof)


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
    key, digest = parsed_key(identity), parsed_digest(head)
    try:
        with terminal.progress(f"verifying {path}") as progress:
            report = membership.verify(
                path, proof, words=words, identity=key, head=digest, allow_edits=allow_edits, progress=progress
            )
    except UnverifiedRunError as error:
        terminal.report(error)
        raise typer.Exit(ExitCode.FAILED) from error
    if as_json:
        terminal.write_json(report.as_json())
    else:
        _write(report, proof)
    raise typer.Exit(report.exit_code)


def _write(report: MembershipReport, path: Path) -> None:
    proof, run = report.proof, report.run
    if report.holds:
        write(Text.assemble(("HOLDS", "bold green"), f"  {_stated(proof)}"))
    else:
        write(Text.assemble(("REFUSED", "bold red"), f"  {harmless(str(path))} shows nothing: {report.reason}"))
    shown = ", ".join(map(str, proof.words[:SHOWN_WORDS]))
    more = f", … ({len(proof.words)} words)" if len(proof.words) > SHOWN_WORDS else ""
    write(f"words       {shown}{more}")
    if report.holds:
        _write_caveat(proof)
    if report.abandoned:
        write(Text.assemble(("warning", "yellow"), "  the run was later rewound to before this update"))
    for missing in run.incomplete if run.verdict is Verdict.INCOMPLETE else ():
        write(Text.assemble(("incomplete", "yellow"), f"  {harmless(missing)}"))
    if run.identity is not None:
        pinned = "pinned" if run.identity.pinned else "not pinned: anyone can make a key"
        write(f"identity    {run.identity.key}  ({pinned})")
    write(f"head        {run.head}")


def _stated(proof: MembershipProof) -> str:
    where = f"the batch of update {proof.update} (record {proof.record})"
    match proof.claim:
        case Claim.ROW:
            return f"the words are row {proof.row} of {where}"
        case Claim.WINDOW:
            return f"the words stand in row {proof.row} of {where}, after {proof.position} others"
        case Claim.ABSENT:
            return f"the words stand in no row of {where}, as the prover states"


def _write_caveat(proof: MembershipProof) -> None:
    if proof.claim is Claim.ABSENT:
        write(Text.assemble(("note", "yellow"), f"        {ABSENCE_IS_THE_PROVERS_WORD}"))


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
