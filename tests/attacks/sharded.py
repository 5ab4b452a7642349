"""A run whose leaves are spread over devices: one of the trained runs, told by its owner as if it had been cut."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from forge import Record, digest
from retelling import Lie, inexact, retell
from trained import Trained
from victims import Attacked, Runs, attack
from zkdv_reference import leaves, trees

TREES = {"parameter": "parameters", "optimizer": "optimizer"}


def extents_of(shape: tuple[int, ...]) -> list[int] | None:
    """Two unequal shards along the first dimension; None for what stays whole."""
    if not shape or shape[0] < 2:
        return None
    return [shape[0] - shape[0] // 3, *shape[1:]]


def shard_data(array: np.ndarray) -> list[bytes]:
    ranges = leaves.shard_ranges(array.shape, extents_of(array.shape) or array.shape)
    return [leaves.shard_elements(array.tobytes(), array.itemsize, array.shape, own) for own in ranges]


def leaf_digest(array: np.ndarray) -> bytes:
    extents = extents_of(array.shape)
    if extents is None:
        return digest(array.tobytes())
    return leaves.sharded_digest(array.shape, extents, [digest(data) for data in shard_data(array)])


def told_in_shards(run: Trained, change: Callable[[Record], Record] = lambda record: record) -> bytes:
    """Tell a run in shards, with checks that are near; `change` has the last word on each record."""

    def roots(body: dict[str, Any], field: str, updates: int) -> dict[str, Any]:
        state = run.states[updates]
        cut = {tree: trees.root(tree, list(map(leaf_digest, state[tree]))) for tree in state if tree in body[field]}
        return body[field] | cut

    def lie(record: Record) -> Iterator[Record]:
        body = record.body
        if record.kind == "schema":
            record = record.but(**{tree: list(map(with_sharding, body[tree])) for tree in TREES.values()})
        elif record.kind == "update":
            record = record.but(after=roots(body, "after", body["update"] + 1))
        elif record.kind == "state":
            record = record.but(roots=roots(body, "roots", body["updates"]))
        elif record.kind == "check":
            record = inexact(run, record)
            for field, tree in TREES.items():
                if "opening" in record.body[field]:
                    record.body[field]["opening"] = opening(run, body["update"], tree, body[field]["index"])
        yield change(record)

    shards: Lie = lie
    return retell(run, shards)


def with_sharding(leaf: dict[str, Any]) -> dict[str, Any]:
    extents = extents_of(tuple(leaf["shape"]))
    return leaf if extents is None else leaf | {"sharding": extents}


def opening(run: Trained, update: int, tree: str, index: int) -> dict[str, Any]:
    """The opening of an element after an update."""
    state = run.states[update + 1][tree]
    leaf = 0
    while index >= state[leaf].size:
        index -= state[leaf].size
        leaf += 1
    array = state[leaf]
    pieces, piece = shard_data(array), 0
    extents = extents_of(array.shape)
    if extents is not None:
        piece, index = leaves.locate(array.shape, extents, index)
    chunk = index * array.itemsize // 1024
    inside, chain = leaves.open_chunk(pieces[piece], chunk)
    found = {
        "digest": leaf_digest(array),
        "path": trees.open_leaf(tree, list(map(leaf_digest, state)), leaf),
        "chunk": chunk,
        "bytes": inside,
        "chain": chain,
    }
    return found if extents is None else found | {"shards": [digest(data) for data in pieces]}


@attack("check-opening")
def shards_that_lead_elsewhere(runs: Runs) -> Iterable[Attacked]:
    run = runs["sampled"]

    def flipped(data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:]

    changes: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
        ("shards", lambda opening: opening["shards"][::-1]),
        ("shards", lambda opening: opening["shards"][:1]),
        ("shards", lambda opening: [*opening["shards"], bytes(32)]),
        ("shards", lambda opening: [flipped(shard) for shard in opening["shards"]]),
        ("shards", lambda opening: [opening["shards"][0], flipped(opening["shards"][1])]),
        ("shards", lambda _: ...),
        ("digest", lambda opening: opening["shards"][0]),
        ("bytes", lambda opening: flipped(opening["bytes"])),
        ("chunk", lambda opening: opening["chunk"] + 1),
    ]
    for name, value in changes:

        def change(record: Record, name: str = name, value: Callable[[dict[str, Any]], Any] = value) -> Record:
            if record.kind == "check":
                for field in TREES:
                    inside = record.body[field]["opening"]
                    if "shards" in inside:
                        inside[name] = value(inside)
                        if inside[name] is ...:
                            del inside[name]
            return record

        yield Attacked(run, told_in_shards(run, change))


@attack("check-opening")
def leaves_cut_otherwise_than_the_schema_says(runs: Runs) -> Iterable[Attacked]:
    run = runs["sampled"]
    for move in (lambda extents: [extents[0] - 1, *extents[1:]], lambda _: None):

        def change(record: Record, move: Callable[[list[int]], list[int] | None] = move) -> Record:
            if record.kind != "schema":
                return record
            return record.but(**{tree: [moved(leaf, move) for leaf in record.body[tree]] for tree in TREES.values()})

        yield Attacked(run, told_in_shards(run, change))


def moved(leaf: dict[str, Any], move: Callable[[list[int]], list[int] | None]) -> dict[str, Any]:
    if "sharding" not in leaf or leaf["shape"][0] < 4:
        return leaf
    extents = move(leaf["sharding"])
    return {name: value for name, value in leaf.items() if name != "sharding"} | (
        {} if extents is None else {"sharding": extents}
    )


@attack("body-invalid")
def cuts_that_are_none(runs: Runs) -> Iterable[Attacked]:
    run = runs["third"]
    leaves_told = run.bodies("schema")[0]["parameters"]
    [kernel, *_] = [leaf for leaf in leaves_told if len(leaf["shape"]) == 2]
    rows, columns = kernel["shape"]
    extents: list[Any] = [[], [1], [rows, columns], [0, columns], [rows + 1, columns], [rows, 2**40], [-1, columns]]
    for sharding in [*extents, "rows"]:
        told = [leaf | ({"sharding": sharding} if leaf is kernel else {}) for leaf in leaves_told]

        def change(record: Record, told: list[dict[str, Any]] = told) -> Record:
            return record.but(parameters=told) if record.kind == "schema" else record

        yield Attacked(run, told_in_shards(run, change))
