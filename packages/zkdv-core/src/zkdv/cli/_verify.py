"""`zkdv verify`: say whether transcripts hold, in words that need no knowledge of the format."""

from pathlib import Path
from typing import Annotated

import typer

from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import AllowEdits, Debug, Identity, Json, parsed_digest, parsed_key
from zkdv.cli._verdict import write_verdict
from zkdv.errors import ZKDVError
from zkdv.verification import RunReport, VerificationReport
from zkdv.verification import verify as verify_transcripts

# Gravest first; an unreadable path is no verdict, and worse than an incomplete one.
_GRAVITY = (ExitCode.FAILED, ExitCode.UNUSABLE, ExitCode.INCOMPLETE, ExitCode.PASSED)


def verify(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Runs' folders, or their records files.")],
    *,
    identity: Identity = None,
    head: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="The last record must have this digest; one PATH only.")
    ] = None,
    require: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION,...",
            help="Fail unless met: closed, no-edits, identity, level=record|checked|audited, probability>=NUMBER.",
        ),
    ] = None,
    allow_edits: AllowEdits = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Say whether transcripts hold: every record, signature, link, sampling decision and check.

    Exit codes: 0 passed, 1 failed, 2 wrong usage or unreadable, 3 incomplete (not closed, or unresolved).
    """
    if head is not None and len(paths) > 1:
        raise typer.BadParameter(f"it is of one transcript, and there are {len(paths)} paths", param_hint="--head")
    key, digest = parsed_key(identity), parsed_digest(head)
    conditions = [condition.strip() for group in require or () for condition in group.split(",")]
    codes: set[int] = set()
    runs: list[RunReport] = []
    for path in paths:
        try:
            with terminal.progress(f"verifying {path}") as progress:
                (run,) = verify_transcripts(
                    path, identity=key, head=digest, require=conditions, allow_edits=allow_edits, progress=progress
                ).runs
        except (ZKDVError, OSError) as error:
            terminal.report(error)
            codes.add(ExitCode.UNUSABLE)
            continue
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--require") from error
        runs.append(run)
        codes.add(run.exit_code)
        if not as_json:
            if len(runs) > 1:
                terminal.write()
            write_verdict(run)
    code = next(code for code in _GRAVITY if code in codes)
    if as_json:
        terminal.write_json({**VerificationReport(tuple(runs)).as_json(), "exit_code": int(code)})
    raise typer.Exit(code)
