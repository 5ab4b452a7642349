"""A run told again by its owner, who has every key and may lie.

Session keys never leave the process that trained, so whoever wants valid signatures signs everything anew. All that
follows from the digests of records is made to fit: chain, keys, draws, receipts and places of resumes. What remains is
one lie.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from typing import Any

import numpy as np
from forge import RECEIPT_AAD, Forge, Record, digest, encode, key, public, seal
from trained import Trained
from zkdv_reference import challenges, leaves, trees

# A digest of nothing.
ELSEWHERE = b"\x5a" * 32

Told = Record | Callable[[Forge], object]
"""A record, or whatever else is done with the forge in its place."""

Lie = Callable[[Record], Iterable[Told]]

RECEIPTS = {"name": "forged", "key": public(key("challenger"))}


def on(kind: str, nth: int, change: Callable[[Record], Any]) -> Lie:
    """The lie that tells one record otherwise: the `nth` of its kind, counted from 0, as one or several."""
    seen = -1

    def lie(record: Record) -> Iterator[Told]:
        nonlocal seen
        seen += record.kind == kind
        if record.kind != kind or seen != nth:
            yield record
            return
        told = change(record)
        yield from told if isinstance(told, list) else [told]

    return lie


def dropped(kind: str, nth: int) -> Lie:
    return on(kind, nth, lambda _: [])


def twice(kind: str, nth: int) -> Lie:
    return on(kind, nth, lambda record: [record, record])


def before(kind: str, nth: int, *others: Record) -> Lie:
    return on(kind, nth, lambda record: [*others, record])


def after(kind: str, nth: int, *others: Record) -> Lie:
    return on(kind, nth, lambda record: [record, *others])


def each(change: Callable[[Record], list[Told]]) -> Lie:
    def lie(record: Record) -> Iterator[Told]:
        yield from change(record)

    return lie


def with_root(record: Record, name: str, root: Any, field: str = "after") -> Record:
    roots = record.body[field] | {name: root}
    return record.but(**{field: {name: root for name, root in roots.items() if root is not ...}})


def honest(record: Record) -> Iterator[Told]:
    yield record


def retell(
    run: Trained,
    lie: Lie = honest,
    *,
    records: Iterable[Record] | None = None,
    receipts: bool = False,
    genuine: int = 0,
    name: str = "a",
) -> bytes:
    """Write a run again.

    Args:
        run: What happened.
        lie: Is given every record just before it is signed, and says what is written instead.
        records: The records to tell; default: those of the run.
        receipts: Whether a challenger answers every update.
        genuine: How many of the run's own records are left as they are, before the first that is told.
        name: What the new session keys follow from.
    """
    return b"".join(Retelling(run, lie, receipts=receipts, name=name).tell(records or run.records, genuine))


class Retelling:
    """The state of one."""

    def __init__(self, run: Trained, lie: Lie, *, receipts: bool, name: str) -> None:
        self.run = run
        self.forge = Forge(run.identity, name)
        self.lie = lie
        self.receipts = receipts
        self.root = bytes(32)
        self.sampling: dict[str, Any] = {}
        self.elements = {"parameters": 0, "optimizer": 0}
        self.program = 0
        # By update: number, offset and digest of its record.
        self.updates: dict[int, tuple[int, int, bytes]] = {}

    def tell(self, records: Iterable[Record], genuine: int = 0) -> list[bytes]:
        for record in records:
            seq, offset, body = self.forge.seq, self.forge.offset, deepcopy(record.body)
            fit = getattr(self, f"_fit_{record.kind}", None)
            if fit is not None:
                fit(body)
            if seq < genuine:
                pushed = self.forge.push_bytes(self.run.raw[seq])
            else:
                pushed = self.write(Record(record.kind, body))
            if record.kind == "root":
                self.root = self.forge.prev
            elif record.kind == "program" and body["role"] == "replay":
                self.program = seq
            elif record.kind == "update":
                self.updates[body["update"]] = (seq, offset, pushed)
                if self.receipts:
                    self.write(self.receipt(body["update"]))
        return self.forge.records

    def write(self, record: Record) -> bytes:
        """Write a record as the lie has it; give the digest of the last of the same kind."""
        pushed = self.forge.prev
        for told in self.lie(record):
            if isinstance(told, Record):
                last = self.forge.push(told)
                pushed = last if told.kind == record.kind else pushed
            else:
                told(self.forge)
                pushed = self.forge.prev
        return pushed

    def receipt(self, update: int) -> Record:
        seq, _, record = self.updates[update]
        answer = {1: self.root, 2: seq, 3: record, 4: randomness(update), 5: 1}
        return Record("challenge", {"update": update, "receipt": seal(encode(answer), key("challenger"), RECEIPT_AAD)})

    def _fit_root(self, body: dict[str, Any]) -> None:
        if self.receipts:
            body["challenger"] = RECEIPTS
        self.sampling = body["configuration"]["sampling"]

    def _fit_schema(self, body: dict[str, Any]) -> None:
        for tree in self.elements:
            self.elements[tree] = sum(int(np.prod(leaf["shape"])) for leaf in body[tree])

    def _fit_update(self, body: dict[str, Any]) -> None:
        body["program"] = self.program

    def _fit_check(self, body: dict[str, Any]) -> None:
        _, _, record = self.updates[body["update"]]
        drawn = randomness(body["update"]) if self.receipts else b""
        _, parameter, optimizer = challenges.draw(record, drawn, self.sampling, update=body["update"], **self.elements)
        body |= {"parameter": {"index": parameter}, "optimizer": {"index": optimizer}}
        if self.run.plan.attested:
            for tree in ("parameter", "optimizer"):
                body[tree] = attested(self.run, body["update"], tree, body[tree]["index"])

    def _fit_resume(self, body: dict[str, Any]) -> None:
        body["record"], body["offset"], _ = self.updates[body["updates"] - 1]


def randomness(update: int) -> bytes:
    return digest(b"randomness %d" % update)


def resumed(run: Trained, keep: int) -> list[Record]:
    """The run with a resume after its last update, which goes on from the state after `keep` updates."""
    at = run.index("state", -1)
    after = next(body["after"] for body in run.bodies("update") if body["update"] == keep - 1)
    resume = Record("resume", {"torn": 0, "updates": keep, "linked": True, "session-key": b""})
    state = Record("state", {"updates": keep, "reason": "resume", "roots": after})
    again = [r for r in run.records if r.kind in {"update", "check"} and r.body["update"] >= keep]
    close = run.records[-1]
    counts = {name: close.body[name] + again_of(again, name) for name in ("updates", "sampled", "passed")}
    environment = run.records[run.index("environment")]
    return [*run.records[:at], resume, environment, state, *again, run.records[at], close.but(**counts)]


def again_of(records: list[Record], count: str) -> int:
    kind = "update" if count == "updates" else "check"
    return sum(record.kind == kind for record in records)


def inexact(run: Trained, check: Record, *, by: float = 1e-6) -> Record:
    """A check that is not bit-exact: values off by so much, with openings of the committed ones."""
    update = check.body["update"]
    after = next(body["after"] for body in run.bodies("update") if body["update"] == update)
    coordinates, distance, within = {}, 0.0, True
    for field, tree in (("parameter", "parameters"), ("optimizer", "optimizer")):
        coordinate, off, near = opened(run, update, tree, check.body[field]["index"], by=by, due=tree in after)
        coordinates[field] = check.body[field] | coordinate
        distance, within = max(distance, off), within and near
    return check.but(
        **coordinates, exact=False, verdict="passed" if within else "failed", distance=distance, probes=within
    )


def opened(
    run: Trained, update: int, tree: str, index: int, *, by: float, due: bool
) -> tuple[dict[str, Any], float, bool]:
    """An element after an update, one that is off by so much, and the opening of the first where its root is `due`."""
    state = run.states[update + 1][tree]
    leaf = 0
    rest = index
    while rest >= state[leaf].size:
        rest -= state[leaf].size
        leaf += 1
    value = state[leaf].reshape(-1)[rest]
    moved = value if state[leaf].dtype.kind == "i" else np.float32(value + np.float32(by))
    distance = abs(float(moved) - float(value))
    coordinate: dict[str, Any] = {"index": index, "committed": value.tobytes(), "replayed": moved.tobytes()}
    if due:
        data, chunk = state[leaf].tobytes(), rest * value.nbytes // 1024
        inside, chain = leaves.open_chunk(data, chunk)
        path = trees.open_leaf(tree, [digest(other.tobytes()) for other in state], leaf)
        coordinate["opening"] = {"digest": digest(data), "path": path, "chunk": chunk, "bytes": inside, "chain": chain}
    tolerance = run.records[0].body["configuration"]["tolerance"]
    allowed = tolerance["absolute"] + tolerance["relative"] * max(abs(float(value)), abs(float(moved)))
    return coordinate, distance, distance <= allowed


def attested(run: Trained, update: int, field: str, index: int) -> dict[str, Any]:
    """A coordinate of an exact check with what an attest program gives, in a run that the program describes."""
    tree = "parameters" if field == "parameter" else "optimizer"
    after = next(body["after"] for body in run.bodies("update") if body["update"] == update)
    coordinate, _, _ = opened(run, update, tree, index, by=0, due=tree in after)
    del coordinate["replayed"]
    value = element(run, update, tree, index)
    if field == "optimizer":
        return coordinate | {"attested": value}
    earlier, _, _ = opened(run, update - 1, tree, index, by=0, due=True)
    return coordinate | {
        "attested": value - element(run, update - 1, tree, index),
        "before": earlier["committed"],
        "before-opening": earlier["opening"],
    }


def element(run: Trained, update: int, tree: str, index: int) -> float:
    """An element after an update; before the first one for -1."""
    return float(np.concatenate([leaf.reshape(-1).astype(np.float64) for leaf in run.states[update + 1][tree]])[index])


def nearby(value: bytes, by: float) -> bytes:
    """A float32 that is off by so much."""
    return struct.pack("<f", struct.unpack("<f", value)[0] + by)
