"""`zkdv audit`: execute updates of a run again."""

import re
from pathlib import Path
from typing import Annotated

import typer

from zkdv.cli import _terminal as terminal
from zkdv.cli._options import Debug, Json

_RANGE = re.compile(r"(\d+)(?::(\d+))?")


def audit(
    path: Annotated[Path, typer.Argument(help="A run's folder, with the evidence in it.")],
    *,
    segments: Annotated[
        int | None,
        typer.Option(
            "--segments", metavar="K", min=1, help="Draw K segments, each from one checkpoint to the next; default 4."
        ),
    ] = None,
    updates: Annotated[
        str | None, typer.Option("--updates", metavar="A:B", help="Execute updates A to B - 1, without a draw.")
    ] = None,
    sampled: Annotated[
        bool, typer.Option("--sampled", help="Execute the updates that the run's own draws have chosen.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="Execute every update.")] = False,
    batches: Annotated[
        Path | None,
        typer.Option(
            "--batches", metavar="FOLDER", help="Take batches from these safetensors files, matched by digest."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(metavar="N", help="Repeat the draw that was made with this seed.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long loading a program, or one update, may take; default an hour."),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Execute updates of a run again from its sealed program, and compare with what it has committed to.

    The program is a stranger's. It runs in a process of its own, which is no sandbox.

    Exit codes: 0 identical or within tolerance, 1 differs or the transcript does not hold, 2 wrong usage or unreadable,
    3 another platform class or not auditable.
    """
    # Other commands do without NumPy, which an audit needs, and start sooner.
    from zkdv.auditing import DEFAULT_TIMEOUT_SECONDS  # noqa: PLC0415
    from zkdv.auditing import audit as audit_run  # noqa: PLC0415
    from zkdv.cli._findings import write_findings  # noqa: PLC0415

    ways = [segments is not None, updates is not None, sampled, everything]
    if sum(ways) > 1:
        raise typer.BadParameter("--segments, --updates, --sampled and --all exclude each other")
    try:
        with terminal.progress(f"executing {path}", counting=True) as progress:
            report = audit_run(
                path,
                segments="all" if everything else segments,
                updates=None if updates is None else _indices(updates),
                sampled=sampled,
                batches=batches,
                seed=seed,
                timeout=DEFAULT_TIMEOUT_SECONDS if timeout is None else timeout,
                progress=progress,
            )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if as_json:
        terminal.write_json(report.as_json())
    else:
        write_findings(report)
    raise typer.Exit(report.exit_code)


def _indices(text: str) -> range:
    found = _RANGE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not of the form A:B, for one 100:110", param_hint="--updates")
    first = int(found[1])
    stop = first + 1 if found[2] is None else int(found[2])
    if stop <= first:
        raise typer.BadParameter(f"{text} holds no update; B is the first one that is left out", param_hint="--updates")
    return range(first, stop)
