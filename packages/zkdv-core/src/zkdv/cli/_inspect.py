"""`zkdv inspect`: what a transcript says, without judging it."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from zkdv._native import RecordReader
from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import Debug, Json
from zkdv.errors import ZKDVError

if TYPE_CHECKING:
    from zkdv._native import ReadRecord

NOT_VERIFIED = "Nothing here is verified: `zkdv verify` says what holds."
# What the text form shows of long values; JSON has all of them.
SHOWN_ITEMS = 12
SHOWN_BYTES = 64
SHOWN_CHARACTERS = 1000

# Record types by what a summary shows of them: the first one, the last one, how many there are.
_SHOWN_FIRST = ("root", "environment")
_SHOWN_LAST = ("schema", "program", "resume", "close")
_COUNTED = ("state", "update", "challenge", "check", "checkpoint")


def inspect(
    path: Annotated[Path, typer.Argument(help="A run's folder, or its records file.")],
    update: Annotated[
        int | None,
        typer.Option(
            "--update", metavar="N", min=0, help="Show what is recorded of update N; with --json as --records."
        ),
    ] = None,
    *,
    records: Annotated[
        bool, typer.Option("--records", help="List every record; with --json one JSON object a line.")
    ] = False,
    as_json: Json = False,
    debug: Debug = False,  # noqa: ARG001 (read before parsing)
) -> None:
    """Show what a transcript says. Nothing is verified: that is `zkdv verify`.

    Exit code 2 where the file cannot be read to its end; what could be read is shown.
    """
    if update is not None and records:
        raise typer.BadParameter("--update and --records exclude each other")
    reader = RecordReader(path)
    if records:
        for record in reader:
            _write_json_line(record) if as_json else _write_line(record)
    elif update is not None:
        _show_update(reader, update, as_json=as_json)
    else:
        _summarize(reader, path, as_json=as_json)
    if reader.error is not None:
        terminal.complain(f"{path}: {reader.error}; `zkdv verify` says what follows from it")
        raise typer.Exit(ExitCode.UNUSABLE)


def _show_update(reader: RecordReader, update: int, *, as_json: bool) -> None:
    found = False
    for record in reader:
        if _update_index(record) == update:
            found = True
            _write_json_line(record) if as_json else _write_record(record)
    if not found:
        raise ZKDVError(f"nothing is recorded of update {update}; `zkdv inspect` without --update says what there is")
    if not as_json:
        terminal.write(NOT_VERIFIED)


def _summarize(reader: RecordReader, path: Path, *, as_json: bool) -> None:
    counts: Counter[str] = Counter()
    shown: dict[str, ReadRecord] = {}
    last: ReadRecord | None = None
    updates: list[int] = []
    for record in reader:
        kind = _type(record) if _type(record) in {*_SHOWN_FIRST, *_SHOWN_LAST, *_COUNTED} else "unknown"
        counts[kind] += 1
        last = record
        if kind in _SHOWN_LAST or (kind in _SHOWN_FIRST and kind not in shown):
            shown[kind] = record
        if kind == "update" and (index := _update_index(record)) is not None:
            updates = [min(index, *updates), max(index, *updates)] if updates else [index, index]
    if last is None:
        raise ZKDVError(f"{path}: {reader.error or 'the file is empty'}; there is no record to show")
    if as_json:
        summary = {
            "verified": False,
            "head": last["digest"],
            "bytes": last["offset"] + last["length"],
            "records": counts,
            "updates": updates or None,
        }
        terminal.write_json(summary | {kind: record["body"] for kind, record in shown.items()})
        return
    terminal.write(f"head     {last['digest'].hex()}")
    kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    terminal.write(f"records  {counts.total()}: {kinds}")
    terminal.write(f"updates  {updates[0]} to {updates[1]}" if updates else "updates  none")
    terminal.write(f"closed   {'yes' if last['type'] == 'close' else 'no'}")
    if "root" in shown and isinstance(started := _body(shown["root"]).get("time"), int):
        terminal.write(f"started  {terminal.moment(started)} by the prover's clock")
    for record in shown.values():
        _write_record(record)
    terminal.write(NOT_VERIFIED)


def _write_json_line(record: "ReadRecord") -> None:
    terminal.write_json(record, indent=None)


def _write_line(record: "ReadRecord") -> None:
    index = _update_index(record)
    subject = "" if index is None else f" {index}"
    terminal.write(
        f"record {record['number']}  byte {record['offset']}  {record['length']} bytes  "
        f"{record['digest'].hex()}  {_type(record)}{subject}"
    )


def _write_record(record: "ReadRecord") -> None:
    place = f"  record {record['number']}, byte {record['offset']}"
    terminal.write(Text.assemble((_type(record), "bold"), (place, "dim")))
    for line in _lines(_body(record), "  "):
        terminal.write(line)


def _type(record: "ReadRecord") -> str:
    return "unreadable" if record["type"] is None else terminal.harmless(record["type"])


def _body(record: "ReadRecord") -> Mapping[str, Any]:
    """The body; nothing where it is no map, since what is read here need not follow the grammar."""
    return record["body"] if isinstance(record["body"], Mapping) else {}


def _update_index(record: "ReadRecord") -> int | None:
    """The update that a record is of: its own, or that of its challenge, check or checkpoint."""
    index = _body(record).get("update")
    return index if isinstance(index, int) else None


def _lines(value: Mapping[str, Any] | list[Any], indent: str) -> Iterator[str]:
    """One line for each plain value and for each plain map in a list, indented by depth."""
    named = value.items() if isinstance(value, Mapping) else enumerate(value[:SHOWN_ITEMS])
    for name, item in named:
        label = f"{indent}{terminal.harmless(str(name))}"
        if not _is_nested(item):
            yield f"{label}: {_plain(item)}"
        elif isinstance(value, list) and isinstance(item, Mapping) and not any(map(_is_nested, item.values())):
            yield f"{label}: " + ", ".join(f"{terminal.harmless(key)} {_plain(inner)}" for key, inner in item.items())
        else:
            yield label
            yield from _lines(item, f"{indent}  ")
    if isinstance(value, list) and (hidden := len(value) - SHOWN_ITEMS) > 0:
        yield f"{indent}… and {hidden} more (--json shows all)"


def _is_nested(value: Any) -> bool:
    """Whether a value takes lines of its own: maps, and lists that hold more than plain values."""
    if isinstance(value, Mapping):
        return len(value) > 0
    return isinstance(value, list) and any(isinstance(item, Mapping | list) for item in value)


def _plain(value: Any) -> str:
    match value:
        case bytes():
            shown = value[:SHOWN_BYTES].hex()
            return f"{shown}… ({len(value)} bytes)" if len(value) > SHOWN_BYTES else shown or "no bytes"
        case str():
            shown = terminal.harmless(value[:SHOWN_CHARACTERS])
            return f"{shown}… ({len(value)} characters)" if len(value) > SHOWN_CHARACTERS else shown
        case list():
            shown = ", ".join(_plain(item) for item in value[:SHOWN_ITEMS])
            return f"[{shown}, … ({len(value)} items)]" if len(value) > SHOWN_ITEMS else f"[{shown}]"
        case bool() | None:
            return {True: "true", False: "false", None: "null"}[value]
        case Mapping():
            return "none"
        case _:
            return str(value)
