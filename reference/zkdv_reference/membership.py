"""Proofs of membership, version 1 (docs/protocol/membership.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zkdv_reference import cbor
from zkdv_reference.batches import BLOCK_NUMBERS, Batch, rolling_base, rolling_hash, row_bytes
from zkdv_reference.blake3 import derive, digest
from zkdv_reference.trees import root, u64, verify_leaf

MOST_BYTES = 16 << 20
MOST_PATH = 64
BATCH = {
    "rows": int,
    "width": int,
    "matrix": "digest",
    "row-root": "digest",
    "window-root": "digest",
    "window-count": int,
}
ROW = {"row": int, "words": "words", "path": "path"}
BLOCK = {"block": int, "numbers": "block", "path": "path"}
CLAIMS: dict[str, dict[str, Any]] = {
    "row": ROW,
    "window": {"row": ROW, "position": int, "length": int},
    "absent": {"words": "words", "position": int, "blocks": [BLOCK]},
}
COMMON = {"zkdv-membership": int, "run": "digest", "record": int, "update": int, "batch": BATCH}


@dataclass(frozen=True)
class Update:
    """An update as a verified transcript has it."""

    run: bytes
    record: int
    update: int
    batch: bytes
    rolling_window: int


def prove_row(update: Update, batch: Batch, row: int) -> bytes:
    """A proof that row `row` is in the batch."""
    return _encode(update, batch, "row", _row(batch, row))


def prove_words(update: Update, batch: Batch, sought: Sequence[int]) -> bytes:
    """A proof that words are in the batch, at the first place where they are, or that they are not.

    `ValueError` where they are not and that cannot be shown.
    """
    sought, length = list(sought), len(sought)
    for index, row in enumerate(batch.rows):
        for position in range(batch.width - length + 1):
            if list(row[position : position + length]) != sought:
                continue
            if length == batch.width:
                return prove_row(update, batch, index)
            window = {"row": _row(batch, index), "position": position, "length": length}
            return _encode(update, batch, "window", window)
    numbers = batch.numbers()
    for position in range(length - batch.rolling_window + 1):
        window = sought[position : position + batch.rolling_window]
        if rolling_hash(window, batch.base) + 1 not in numbers:
            opened = [
                {"block": block, "numbers": data, "path": path} for block, data, path in batch.open_absent(window)
            ]
            absent = {"words": row_bytes(sought), "position": position, "blocks": opened}
            return _encode(update, batch, "absent", absent)
    raise ValueError("the words are absent, and no window of theirs shows it")


def check(data: bytes, update: Update) -> tuple[str, list[int]]:
    """The claim that a proof shows about an update, and its words; `ValueError` where it shows none."""
    proof = _decode(data)
    batch = proof["batch"]
    if (proof["run"], proof["record"], proof["update"]) != (update.run, update.record, update.update):
        raise ValueError("another run or record")
    parts = u64(batch["rows"]) + u64(batch["width"]) + batch["matrix"] + batch["row-root"] + batch["window-root"]
    if derive("zkdv 1 batch", parts + u64(batch["window-count"])) != update.batch:
        raise ValueError("another batch")
    if "absent" in proof:
        return "absent", _check_absent(proof["absent"], batch, update)
    window = proof.get("window")
    row = proof["row"] if window is None else window["row"]
    if len(row["words"]) != 4 * batch["width"] or not verify_leaf(
        "batch-rows",
        batch["row-root"],
        count=batch["rows"],
        index=row["row"],
        data=digest(row["words"]),
        path=row["path"],
    ):
        raise ValueError("the row is not in the batch")
    found = words_of(row["words"])
    if window is None:
        return "row", found
    return "window", found[window["position"] :][: window["length"]]


def _check_absent(absent: dict[str, Any], batch: dict[str, Any], update: Update) -> list[int]:
    sought = words_of(absent["words"])
    window = sought[absent["position"] :][: update.rolling_window]
    if len(window) != update.rolling_window:
        raise ValueError("no window at that position")
    number = rolling_hash(window, rolling_base(update.run)) + 1
    count = batch["window-count"] + 2
    blocks = []
    for block in absent["blocks"]:
        data, index = block["numbers"], block["block"]
        if len(data) != 8 * min(BLOCK_NUMBERS, max(0, count - BLOCK_NUMBERS * index)) or not verify_leaf(
            "batch-windows",
            batch["window-root"],
            count=-(-count // BLOCK_NUMBERS),
            index=index,
            data=data,
            path=block["path"],
        ):
            raise ValueError("a block is not in the list")
        blocks.append([int.from_bytes(data[start : start + 8], "little") for start in range(0, len(data), 8)])
    if len(blocks) == 1:
        shown = any(low < number < high for low, high in zip(blocks[0], blocks[0][1:], strict=False))
    else:
        lower, upper = absent["blocks"]
        shown = upper["block"] == lower["block"] + 1 and blocks[0][-1] < number < blocks[1][0]
    if not shown:
        raise ValueError("the neighbours do not enclose the window")
    return sought


def words_of(data: bytes) -> list[int]:
    """Words of 4 bytes each."""
    return [int.from_bytes(data[start : start + 4], "little") for start in range(0, len(data), 4)]


def _row(batch: Batch, row: int) -> dict[str, Any]:
    return {"row": row, "words": row_bytes(batch.rows[row]), "path": batch.open_row(row)}


def _encode(update: Update, batch: Batch, claim: str, shown: dict[str, Any]) -> bytes:
    parts = {
        "rows": len(batch.rows),
        "width": batch.width,
        "matrix": batch.matrix(),
        "row-root": root("batch-rows", batch.row_leaves()),
        "window-root": root("batch-windows", batch.window_leaves()),
        "window-count": batch.window_count(),
    }
    proof = {"zkdv-membership": 1, "run": update.run, "record": update.record, "update": update.update, "batch": parts}
    return cbor.encode(proof | {claim: shown})


def _decode(data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise ValueError("too long")
    proof: dict[str, Any] = cbor.decode(data)
    claims = [name for name in CLAIMS if isinstance(proof, dict) and name in proof]
    if len(claims) != 1:
        raise ValueError("not one claim")
    _require(proof, COMMON | {claims[0]: CLAIMS[claims[0]]})
    if proof["zkdv-membership"] != 1:
        raise ValueError("another version")
    if claims == ["window"]:
        window = proof["window"]
        if not 1 <= window["length"] <= len(window["row"]["words"]) // 4 - window["position"]:
            raise ValueError("words outside of the row")
    if claims == ["absent"] and not 1 <= len(proof["absent"]["blocks"]) <= 2:
        raise ValueError("not one or two blocks")
    return proof


def _require(value: Any, form: Any) -> None:
    """`ValueError` where a value does not have the form that the grammar says."""
    match form:
        case dict():
            good = isinstance(value, dict) and value.keys() == form.keys()
            for key, inner in form.items() if good else ():
                _require(value[key], inner)
        case list():
            good = isinstance(value, list)
            for inner in value if good else ():
                _require(inner, form[0])
        case "path":
            good = isinstance(value, list) and len(value) <= MOST_PATH
            for inner in value if good else ():
                _require(inner, "digest")
        case "digest":
            good = isinstance(value, bytes) and len(value) == 32
        case "words":
            good = isinstance(value, bytes) and len(value) % 4 == 0
        case "block":
            good = isinstance(value, bytes) and len(value) <= 8 * BLOCK_NUMBERS
        case _:
            good = isinstance(value, int)
    if not good:
        raise ValueError(f"not what the grammar says: {form}")
