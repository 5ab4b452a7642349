"""`zkdv match`: the update after which the parameters were those in a file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import AllowEdits, Debug, Head, Identity, Json, parsed_digest, parsed_key
from zkdv.cli._terminal import harmless, write
from zkdv.errors import ZKDVError
from zkdv.leaf_names import MappingError
from zkdv.matching import MatchedState, MatchReport, MatchVerdict
from zkdv.matching import match as match_file
from zkdv.verification import Verdict
from zkdv.verified import UnverifiedRunError

SHOWN = 10
MAX_MAPPING_BYTES = 64 << 20


def match(
    path: Annotated[Path, typer.Argument(help="A run's folder, or its records file.")],
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="What holds the parameters: safetensors (a file, an index or a folder), .npz, an Orbax checkpoint, or "
            "a .pt file of tensors alone; several where they hold one model together.",
        ),
    ],
    *,
    mapping: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help='JSON object {"name in the file": "name in the run"}; null for one to leave out.'
        ),
    ] = None,
    allow_extra: Annotated[
        bool, typer.Option("--allow-extra", help="Accept tensors in the file that are no parameters of the run.")
    ] = False,
    reader: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The plugin that reads FILE; by default what FILE holds decides."),
    ] = None,
    identity: Identity = None,
    head: Head = None,
    allow_edits: AllowEdits = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Find the update after which the parameters were exactly those in a file. The transcript is verified first.

    Exit codes: 0 they match; 1 nothing matches, or the transcript fails; 2 wrong usage or unreadable; 3 they match, in
    a transcript that is incomplete.
    """
    key, digest = parsed_key(identity), parsed_digest(head)
    names = None if mapping is None else _read_mapping(mapping)
    try:
        with terminal.progress(f"verifying {path}") as progress:
            report = match_file(
                path,
                *files,
                mapping=names,
                allow_extra=allow_extra,
                reader=reader,
                identity=key,
                head=digest,
                allow_edits=allow_edits,
                progress=progress,
            )
    except UnverifiedRunError as error:
        terminal.report(error)
        raise typer.Exit(ExitCode.FAILED) from error
    except MappingError as error:
        raise typer.BadParameter(str(error), param_hint="--mapping") from error
    if as_json:
        terminal.write_json(report.as_json())
    else:
        _write(report)
    raise typer.Exit(report.exit_code)


def _read_mapping(path: Path) -> dict[str, str | None]:
    with path.open("rb") as file:
        text = file.read(MAX_MAPPING_BYTES + 1)
    if len(text) > MAX_MAPPING_BYTES:
        raise ZKDVError(f"{path} is longer than {MAX_MAPPING_BYTES} bytes")
    try:
        mapping: Any = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ZKDVError(f"{path} is no mapping: {error}") from error
    if not isinstance(mapping, dict) or not all(name is None or isinstance(name, str) for name in mapping.values()):
        raise ZKDVError(f'{path} is no mapping; it is a JSON object {{"name in the file": "name in the run"}}')
    return mapping


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("one name stands twice")
    return found


def _write(report: MatchReport) -> None:
    files = harmless(", ".join(report.files))
    if report.verdict is MatchVerdict.MATCHES:
        first, *more = report.matches
        write(Text.assemble(("MATCHES", "bold green"), f"  {files} holds the parameters {_place(first)}"))
        for state in more[: SHOWN - 1]:
            write(f"  also {_place(state)}")
        _write_hidden(report.matches_total, SHOWN)
    elif report.verdict is MatchVerdict.EXTRA:
        write(
            Text.assemble(
                ("EXTRA", "bold red"),
                f"  {files} holds the parameters {_place(report.matches[0])}, and other tensors that are no parameters "
                "of the run and that a program may use; --allow-extra accepts them, null in a mapping one of them",
            )
        )
    else:
        _write_differences(report, files)
    if report.renaming:
        write(f"  names: {harmless(report.renaming)}")
    for name in report.extra[:SHOWN]:
        write(f"  not of the run: {harmless(name)}")
    _write_hidden(report.extra_total, SHOWN)
    write()
    run = report.run
    if run.verdict is Verdict.INCOMPLETE:
        for missing in run.incomplete:
            write(Text.assemble(("incomplete", "yellow"), f"  {harmless(missing)}"))
    pinned = run.identity is not None and run.identity.pinned
    if run.identity is not None:
        write(f"identity    {run.identity.key}  ({'pinned' if pinned else 'not pinned: anyone can make a key'})")
    write(f"head        {run.head}")
    write("That values came from running the program is not shown by this: `zkdv verify` says what is.")


def _write_differences(report: MatchReport, files: str) -> None:
    write(
        Text.assemble(
            ("DIFFERS", "bold red"),
            f"  {files} holds the parameters of none of the {report.states} committed states",
        )
    )
    for difference in report.differences[:SHOWN]:
        write(f"  {harmless(difference.message)}")
    _write_hidden(report.differences_total, SHOWN)
    if not report.differences:
        write("  every parameter is there, with its dtype and shape; at least one has other values")
    for trace in report.traces[:SHOWN]:
        relation = "is as it was" if trace.equal else "is not as it was"
        write(f"  {harmless(trace.leaf)} {relation} {_done(trace.updates)} (record {trace.record})")
    _write_hidden(report.traces_total, SHOWN)
    if report.closest is not None:
        write(f"  closest, by the leaves whose digests are known by themselves: {_done(report.closest)}")
    elif not report.traces:
        write("  the transcript holds roots over all parameters and no digest of a single one, so it cannot say which")


def _place(state: MatchedState) -> str:
    edited = ", as edited" if state.edited else ""
    abandoned = "; the run was rewound to before it" if state.abandoned else ""
    return f"{_done(state.updates)}{edited} (record {state.record}{abandoned})"


def _done(updates: int) -> str:
    return f"after update {updates - 1}" if updates else "before the first update"


def _write_hidden(total: int, shown: int) -> None:
    if total > shown:
        write(f"  … and {total - shown} more (--json lists up to 100)")
