"""Whether the ranks of a run were started alike: the owner's description of something, against each rank's own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zkdv.transport import Control

PART_CHARACTERS = 8_192
"""Characters of a long description in one round: as JSON within JSON far below the limit, whatever they are."""

SHOWN_CHARACTERS = 80


def first_difference(control: Control, key: str, facts: Mapping[str, Any]) -> str | None:
    """Return in words where this rank's facts differ first from the owner's; None where they are the same.

    Args:
        control: What carries decisions.
        key: What the names of the rounds start with.
        facts: What JSON can hold, and bytes, of any length.
    """
    # As a decision gives them back, so that a tuple is a list on either side.
    mine = json.loads(json.dumps(facts, default=as_json))
    theirs = json.loads(_exchange_text(control, key, json.dumps(mine)))
    difference = _difference(theirs, mine)
    if difference is None:
        return None
    where, owner, own = difference
    return f"{where} is {own}, on the owner {owner}"


def _exchange_text(control: Control, key: str, text: str) -> str:
    """Return the owner's text, which may be longer than a round holds."""
    parts = [text[start : start + PART_CHARACTERS] for start in range(0, len(text), PART_CHARACTERS)]
    count = int(str(control.exchange(f"{key}/parts", len(parts))))
    return "".join(
        str(control.exchange(f"{key}/{part}", parts[part] if control.rank == 0 else None)) for part in range(count)
    )


def _difference(theirs: Any, mine: Any, where: str = "") -> tuple[str, str, str] | None:
    """Return where two descriptions differ first, the owner's value and this rank's."""
    if theirs == mine:
        return None
    pairs: Iterator[tuple[str, Any, Any]]
    if isinstance(theirs, dict) and isinstance(mine, dict):
        keys = [*theirs, *(key for key in mine if key not in theirs)]
        pairs = ((f"{where}.{key}" if where else key, theirs.get(key), mine.get(key)) for key in keys)
    elif isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        pairs = ((f"{where}[{index}]", *pair) for index, pair in enumerate(zip(theirs, mine, strict=True)))
    elif isinstance(theirs, str) and isinstance(mine, str) and "\n" in theirs and "\n" in mine:
        return _first_line(theirs.splitlines(), mine.splitlines(), where)
    else:
        return where, _shown(theirs), _shown(mine)
    return next(found for pair in pairs if (found := _difference(pair[1], pair[2], pair[0])) is not None)


def _first_line(theirs: Sequence[str], mine: Sequence[str], where: str) -> tuple[str, str, str]:
    longest = max(len(theirs), len(mine))
    padded = ([*lines, *[""] * (longest - len(lines))] for lines in (theirs, mine))
    for number, (owner, own) in enumerate(zip(*padded, strict=True), 1):
        if owner != own:
            return f"line {number} of {where}", _shown(owner.strip()), _shown(own.strip())
    return where, "ended otherwise", "the same lines"


def _shown(value: Any) -> str:
    text = "not there" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "…"


def as_json(value: Any) -> str:
    """Return bytes as JSON can hold them."""
    if isinstance(value, bytes):
        return value.hex()
    raise TypeError(f"{value!r} ({type(value).__name__}) is no fact that ranks can compare")
