"""`zkdv inspect`: what a transcript says, without judging it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from zkdv._native import ReadRecord, RecordReader
from zkdv.cli import _terminal as terminal
from zkdv.cli._exit_codes import ExitCode
from zkdv.cli._options import Debug, Json
from zkdv.errors import ZKDVError

NOT_VERIFIED = "Nothing here is verified: `zkdv verify` says what holds."
SHOWN_ITEMS = 12
"""Most items of one list in the text form; JSON has all of them."""


_RECORD_TYPES = frozenset(
    {"root", "environment", "schema", "program", "state", "update", "challenge", "check", "checkpoint", "resume"}
    | {"close"}
)
# What a summary shows whole: the first of the first, the last of the others.
_SHOWN_FIRST = ("root", "environment")
_SHOWN_LAST = ("schema", "program", "resume", "close")


def inspect(
    path: Annotated[Path, typer.Argument(help="A run's folder, or its records file.")],
    update: Annotated[
        int | None, typer.Option("--update", metavar="N", min=0, help="Show what is recorded of update N.")
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
        _list(reader, as_json=as_json)
    elif update is not None:
        _show_update(reader, update, as_json=as_json)
    else:
        _summarize(reader, as_json=as_json)
    if reader.error is not None:
        terminal.complain(f"{path}: {reader.error}; `zkdv verify` says what follows from it")
        raise typer.Exit(ExitCode.UNUSABLE)


def _list(reader: RecordReader, *, as_json: bool) -> None:
    for record in reader:
        if as_json:
            terminal.write_json(record, indent=None)
        else:
            index = _update_index(record)
            subject = "" if index is None else f" {index}"
            terminal.write(
                f"record {record['number']}  byte {record['offset']}  {record['length']} bytes  "
                f"{record['digest'].hex()}  {_type(record)}{subject}"
            )


def _show_update(reader: RecordReader, update: int, *, as_json: bool) -> None:
    found = [record for record in reader if _update_index(record) == update]
    if not any(record["type"] == "update" for record in found):
        raise ZKDVError(f"no update {update} is recorded; `zkdv inspect` without --update says which are")
    if as_json:
        terminal.write_json(found)
        return
    for record in found:
        _write_record(record)
    terminal.write(NOT_VERIFIED)


def _type(record: ReadRecord) -> str:
    return "unreadable" if record["type"] is None else terminal.harmless(record["type"])


def _update_index(record: ReadRecord) -> int | None:
    """The update that a record is of: its own, or that of its challenge, check or checkpoint."""
    body = record["body"]
    index = body.get("update") if isinstance(body, Mapping) else None
    return index if isinstance(index, int) else None


def _summarize(reader: RecordReader, *, as_json: bool) -> None:
    counts: Counter[str] = Counter()
    shown: dict[str, ReadRecord] = {}
    last: ReadRecord | None = None
    updates: list[int] = []
    for record in reader:
        kind = record["type"] if record["type"] in _RECORD_TYPES else "unknown"
        counts[kind] += 1
        last = record
        if kind in _SHOWN_LAST or (kind in _SHOWN_FIRST and kind not in shown):
            shown[kind] = record
        if kind == "update" and (index := _update_index(record)) is not None:
            updates = [min(index, *updates), max(index, *updates)] if updates else [index, index]
    if last is None:
        raise ZKDVError("there are no records in it")
    summary = {
        "head": last["digest"],
        "bytes": last["offset"] + last["length"],
        "records": dict(counts),
        "updates": updates or None,
        **{kind: record["body"] for kind, record in shown.items()},
    }
    if as_json:
        terminal.write_json({"verified": False, **summary})
        return
    terminal.write(f"head     {last['digest'].hex()}")
    terminal.write(
        f"records  {sum(counts.values())}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    )
    terminal.write(f"updates  {updates[0]} to {updates[1]}" if updates else "updates  none")
    terminal.write(f"closed   {'yes' if last['type'] == 'close' else 'no'}")
    for record in shown.values():
        _write_record(record)
    terminal.write(NOT_VERIFIED)


def _write_record(record: ReadRecord) -> None:
    place = f"  record {record['number']}, byte {record['offset']}"
    terminal.write(Text.assemble((_type(record), "bold"), (place, "dim")))
    for line in _lines(record["body"], "  "):
        terminal.write(line)


def _lines(value: Any, indent: str) -> Iterator[str]:
    """One line for each plain value, indented by depth."""
    if isinstance(value, Mapping):
        named = [(terminal.harmless(str(name)), item) for name, item in value.items()]
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        named = [(str(position), item) for position, item in enumerate(value[:SHOWN_ITEMS])]
    else:
        yield f"{indent}{_plain(value)}"
        return
    for name, item in named:
        if _is_nested(item):
            yield f"{indent}{name}"
            yield from _lines(item, f"{indent}  ")
        else:
            yield f"{indent}{name}: {_plain(item)}"
    if (hidden := len(value) - len(named)) > 0:
        yield f"{indent}… and {hidden} more (--json shows all)"


def _is_nested(value: Any) -> bool:
    """Whether a value takes lines of its own: maps, and lists that hold more than plain values."""
    if isinstance(value, Mapping):
        return True
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping | list | tuple) for item in value)


def _plain(value: Any) -> str:
    if isinstance(value, bytes):
        return value.hex() or "empty"
    if isinstance(value, list | tuple):
        shown = ", ".join(_plain(item) for item in value[:SHOWN_ITEMS])
        return f"[{shown}{', …' if len(value) > SHOWN_ITEMS else ''}]"
    return terminal.harmless(value) if isinstance(value, str) else str(value)
