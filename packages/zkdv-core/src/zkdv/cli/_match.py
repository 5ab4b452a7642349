"""`zkdv match`: the update after which the parameters were those in a file."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from zkdv.cli import _terminal as terminal
from zkdv.cli._options import AllowEdits, Debug, Head, Identity, Json, parsed_digest, parsed_key
from zkdv.errors import ZKDVError

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
    # Other commands do without NumPy, which matching needs, and start sooner.
    from zkdv.cli._match_report import write_match  # noqa: PLC0415
    from zkdv.leaf_names import MappingError  # noqa: PLC0415
    from zkdv.matching import match as match_file  # noqa: PLC0415

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
    except MappingError as error:
        raise typer.BadParameter(str(error), param_hint="--mapping") from error
    if as_json:
        terminal.write_json(report.as_json())
    else:
        write_match(report)
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
