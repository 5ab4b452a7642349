"""Cheats of a lying prover: what it encodes, chains and declares."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from forge import BODY, KIND, PREV, SEQ, Forge, Record, Style, encode, key
from retelling import Lie, Told, on, retell
from trained import Trained
from victims import Attacked, Runs, attack

# Bodies of all kinds, of which none is closed to further fields but by the grammar.
KINDS = ("schema", "program", "state", "update", "check", "close")


def told_with(run: Trained, kind: str, nth: int, push: Callable[[Forge, Record], object]) -> Attacked:
    """The run with one record pushed in another way."""
    return Attacked(run, retell(run, on(kind, nth, lambda record: lambda forge: push(forge, record))))


def with_body(run: Trained, kind: str, nth: int, body: bytes) -> Attacked:
    return told_with(run, kind, nth, lambda forge, _: forge.push_body(kind, body))


def styled(run: Trained, style: Style, *kinds: str) -> Iterator[Attacked]:
    for kind in kinds:
        yield told_with(run, kind, 0, lambda forge, record: forge.push(record, style))


def with_field(record: Record, name: str, value: Any) -> Record:
    return Record(record.kind, record.body | {name: value})


@attack("encoding-not-deterministic")
def the_same_values_encoded_otherwise(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    everywhere = ("root", "environment", *KINDS)
    yield from styled(run, Style(long_integers=True), *everywhere)
    yield from styled(run, Style(long_lengths=True), *everywhere)
    yield from styled(run, Style(backwards=True), *everywhere)
    yield from styled(run, Style(indefinite=True), *everywhere)
    yield from styled(run, Style(tagged_text=True), *everywhere)
    # The root of this run holds a float that has a shorter form.
    yield from styled(runs["sampled"], Style(long_floats=True), "root")

    def another_nan(forge: Forge, record: Record) -> None:
        forge.push(with_field(record, "nan", math.nan), Style(other_nan=True))

    yield told_with(run, "environment", 0, another_nan)


@attack("encoding-not-deterministic")
def items_that_the_format_does_not_have(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for item in (
        "1801",
        "190001",
        "1b0000000000000001",
        "f7",
        "f820",
        "c101",
        "fb7ff8000000000000",
        "f97e01",
        "fa3f800000",
    ):
        yield with_body(run, "check", 3, b"\xa1\x61a" + bytes.fromhex(item))


@attack("encoding-duplicate-key")
def a_key_twice(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield from styled(run, Style(first_key_twice=True), "root", "environment", *KINDS)
    yield with_body(run, "check", 3, b"\xa2\x61a\x01\x61a\x02")


@attack("encoding-trailing-bytes")
def bytes_after_the_payload(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind in ("root", "environment", *KINDS):
        for tail in (b"\0", b"\xf6", b"\xa0", b"\xff"):

            def push(forge: Forge, record: Record, tail: bytes = tail) -> None:
                content = encode({SEQ: forge.seq, PREV: forge.prev, KIND: record.kind, BODY: record.body})
                forge.push_payload(content + tail, forge.identity if record.kind == "root" else forge.session)

            yield told_with(run, kind, 0, push)


@attack("encoding-too-deep")
def bodies_nested_without_end(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for levels in (17, 20, 100_000):
        for opening in (b"\x81", b"\xa1\x61a"):
            yield with_body(run, "environment", 0, b"\xa1\x61a" + opening * levels + b"\x01")
    # Without anything inside.
    yield with_body(run, "check", 3, b"\xa1\x61a" + b"\x81" * 1000)


@attack("record-malformed")
def payloads_that_are_none(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for body in (
        "a161a1",
        "a161a19bffffffffffffffff",
        "a161a15bffffffffffffffff",
        "a161a162ffff",
        "a161a11c",
        "a1",
        "01",
    ):
        yield with_body(run, "check", 3, bytes.fromhex(body))

    def fields(*names: int, **changes: Any) -> Callable[[Forge, Record], object]:
        def push(forge: Forge, record: Record) -> None:
            content = {SEQ: forge.seq, PREV: forge.prev, KIND: record.kind, BODY: record.body, 5: 0, 0: 0}
            content |= {int(name[1:]): value for name, value in changes.items()}
            forge.push_payload(encode({name: content[name] for name in names}), forge.session)

        return push

    for push in (
        fields(1, 2, 3),
        fields(1, 3, 4),
        fields(0, 1, 2, 3, 4),
        fields(1, 2, 3, 4, 5),
        fields(1, 2, 3, 4, _1=-1),
        fields(1, 2, 3, 4, _2=bytes(31)),
        fields(1, 2, 3, 4, _3=b"check"),
        fields(1, 2, 3, 4, _4=[]),
    ):
        yield told_with(run, "check", 3, push)
    for content in (b"", b"\xa0", b"\x80", b"\xf6", b"text"):
        yield told_with(run, "check", 3, lambda forge, _, content=content: forge.push_payload(content, forge.session))


@attack("record-too-large")
def a_record_beyond_the_limit(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield Attacked(
        run, retell(run, on("environment", 0, lambda record: with_field(record, "zeros", bytes(16 * 2**20))))
    )


@attack("type-unknown")
def types_of_other_versions(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind in ("", "chekc", "Check", "statement", "check\0", "update2"):
        yield told_with(run, "check", 3, lambda forge, record, kind=kind: forge.push(Record(kind, record.body)))
    yield Attacked(run, retell(run, on("close", 0, lambda record: [Record("audit", {}), record])))


@attack("body-invalid")
def fields_that_the_grammar_does_not_have(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind in ("root", *KINDS):
        yield Attacked(run, retell(run, on(kind, 0, lambda record: with_field(record, "verified", value=True))))
        yield Attacked(run, retell(run, on(kind, 0, lambda record: with_field(record, "", 0))))
    for kind, name in (("root", "configuration"), ("schema", "batch"), ("state", "roots"), ("check", "tolerance")):
        lie = on(kind, 0, lambda record, name=name: with_field(record, name, record.body[name] | {"more": 1}))
        yield Attacked(run, retell(run, lie))


@attack("body-invalid")
def fields_that_are_missing(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind in ("root", *KINDS):
        others = {"next-key", "parameter", "optimizer", "identity", "session-key", "protocol"}
        for name in sorted(run.bodies(kind)[0].keys() - others):
            lie = on(kind, 0, lambda record, name=name: record.but(**{name: ...}))
            yield Attacked(run, retell(run, lie))


@attack("body-invalid")
def values_of_other_types(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind in KINDS:
        for name in sorted(run.bodies(kind)[0]):
            for value in (None, -1, 1.5, [[]], {"": 0}, bytes(31)):
                yield Attacked(run, retell(run, on(kind, 0, lambda record, at=(name, value): with_field(record, *at))))


@attack("body-invalid")
def counts_beyond_all_bounds(runs: Runs) -> Iterable[Attacked]:
    """Sums and products that overflow, lists beyond their limits: refused, and nothing allocated by them."""
    run = runs["checked"]
    leaf = run.bodies("schema")[0]["parameters"][0]
    for leaves in (
        [leaf | {"shape": [2**63, 2]}],
        [leaf | {"shape": [2**32] * 3}],
        [leaf | {"shape": [2**63]}] * 2,
        [leaf | {"shape": [1] * 33}],
        [leaf] * 65_537,
        [leaf | {"aliases": ["a"] * 65_537}],
        [leaf | {"aliases": []}],
        [leaf | {"name": "n" * 1025}],
        [leaf | {"name": ""}],
        [leaf | {"dtype": "int4"}],
    ):
        yield Attacked(run, retell(run, on("schema", 0, lambda record, leaves=leaves: record.but(parameters=leaves))))
    edit = {"tree": "parameters", "leaf": 0, "digest": bytes(32)}
    for edits in ([], [edit | {"value": bytes(65)}], [edit] * 131_073):
        yield Attacked(run, retell(run, on("update", 2, lambda record, edits=edits: record.but(edits=edits))))


@attack("protocol-unsupported")
def another_version_of_the_protocol(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for version in (0, 2, 2**64 - 1):
        yield Attacked(run, retell(run, on("root", 0, lambda record, version=version: record.but(protocol=version))))


@attack("scheme-unsupported")
def weaker_schemes(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind, scheme in run.records[0].body["schemes"].items():
        for name in ("none", "md5", scheme + "0", scheme.upper()):

            def weaker(record: Record, kind: str = kind, name: str = name) -> Record:
                return record.but(schemes=record.body["schemes"] | {kind: name})

            yield Attacked(run, retell(run, on("root", 0, weaker)))


def configured(run: Trained, **changes: Any) -> Attacked:
    changes = {name.replace("_", "-"): value for name, value in changes.items()}

    def other(record: Record) -> Record:
        return record.but(configuration=record.body["configuration"] | changes)

    return Attacked(run, retell(run, on("root", 0, other)))


@attack("configuration-invalid")
def configurations_out_of_range(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    lag = run.records[0].body["configuration"]["max-check-lag"]
    for changed in (lag + 1, lag - 1, 0, 2**63):
        yield configured(run, max_check_lag=changed)
    for name, value in (
        ("replay_snapshot_interval", 0),
        ("replay_snapshot_interval", 65_537),
        ("max_in_flight", 0),
        ("max_in_flight", 1025),
        ("max_in_flight", 2**64 - 1),
        ("rolling_window", 0),
        ("probe_ratio", 0.0),
        ("probe_ratio", math.nan),
        ("probe_ratio", 1.5),
        ("tolerance", {"absolute": math.inf, "relative": 0.0}),
        ("tolerance", {"absolute": 0.0, "relative": math.nan}),
        ("tolerance", {"absolute": -1.0, "relative": 0.0}),
    ):
        yield configured(run, **{name: value})


@attack("configuration-invalid")
def chances_that_are_none(runs: Runs) -> Iterable[Attacked]:
    """Each of them would sample nothing, were it computed with."""
    for chance in (-0.5, -1e-300, math.nan, -math.inf, math.inf, 1.0000000000000002):
        run = runs["sampled"]
        fixed = Attacked(run, retell(run, _with_sampling({"probability": chance}), records=run.records))
        yield fixed
    run = runs["checked"]
    yield Attacked(run, retell(run, _with_sampling({"every": 0})))


def _with_sampling(sampling: dict[str, Any]) -> Lie:
    """The draws stay those of the run: what is sampled cannot be told."""

    def lie(record: Record) -> Iterator[Told]:
        if record.kind == "root":
            record = record.but(configuration=record.body["configuration"] | {"sampling": sampling})
        yield record

    return lie


@attack("chain-broken")
def a_record_put_after_another_one(runs: Runs) -> Iterable[Attacked]:
    """By the right key, with the right number, and with the digest of another record."""
    run = runs["checked"]
    for kind, nth in (("environment", 0), ("schema", 0), ("update", 0), ("update", 3), ("check", 4), ("close", 0)):
        for prev in (bytes(32), b"\xff" * 32, run.bodies("program")[0]["digest"]):

            def push(forge: Forge, record: Record, prev: bytes = prev) -> None:
                forge.prev = prev
                forge.push(record)

            yield told_with(run, kind, nth, push)
    # A root that follows on something.
    yield told_with(run, "root", 0, lambda forge, record: (setattr(forge, "prev", b"\1" * 32), forge.push(record)))


@attack("signature-invalid")
def a_resume_signed_by_a_session_key(runs: Runs) -> Iterable[Attacked]:
    """Whoever stole a session key cannot go on under keys of their own."""
    from retelling import resumed

    run = runs["checked"]

    def stolen(forge: Forge, record: Record) -> None:
        identity, forge.identity = forge.identity, forge.session
        forge.push(record)
        forge.identity = identity

    lie = on("resume", 0, lambda record: lambda forge: stolen(forge, record))
    yield Attacked(run, retell(run, lie, records=resumed(run, 12)))


@attack("signature-invalid")
def records_signed_by_a_key_of_before(runs: Runs) -> Iterable[Attacked]:
    """A key that was rotated out signs nothing any more, and the identity key signs no updates."""
    run = runs["checked"]
    for kind, nth in (("update", 2), ("check", 3), ("state", 1), ("close", 0)):
        for signer in (key("a 0"), run.identity):

            def push(forge: Forge, record: Record, signer: Any = signer) -> None:
                forge.push_payload(
                    encode({SEQ: forge.seq, PREV: forge.prev, KIND: record.kind, BODY: record.body}), signer
                )

            yield told_with(run, kind, nth, push)
