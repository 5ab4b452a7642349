"""Cheats of people without keys: they change, move and mix the bytes of finished transcripts."""

from collections.abc import Iterable

from forge import encode, key, payload, public, read, seal, split
from retelling import Retelling, honest, retell
from trained import Trained
from victims import Attacked, Runs, attack

GARBAGE = [
    b"\0",
    b"\0" * 100,
    b"text",
    b"\xff\xff",
    bytes.fromhex("d28443a10127a0"),
    bytes.fromhex("d28443a10127a05a00"),
]
STRANGER = key("stranger")


def exchanged(run: Trained, number: int, *records: bytes) -> bytes:
    """The transcript with other bytes in place of a record."""
    return b"".join([*run.raw[:number], *records, *run.raw[number + 1 :]])


def inserted(run: Trained, number: int, record: bytes) -> bytes:
    return b"".join([*run.raw[:number], record, *run.raw[number:]])


@attack("empty-transcript")
def a_file_without_a_whole_record(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for length in (0, 1, 6, 7, 9, 200, len(run.raw[0]) - 1):
        yield Attacked(run, run.data[:length])


@attack("record-damaged")
def bytes_that_are_no_record(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for number in (0, 1, 5, 7, len(run.raw) - 1):
        for garbage in GARBAGE:
            yield Attacked(run, inserted(run, number, garbage))
    for number in (1, 5, 7):
        yield Attacked(run, exchanged(run, number, bytes(len(run.raw[number]))))


@attack("record-damaged")
def a_record_that_swallows_those_after_it(runs: Runs) -> Iterable[Attacked]:
    """Its declared length reaches into, or past, the records after it: cut by it, they would vanish."""
    run = runs["checked"]
    for number in (4, 6, 9):
        for reach in (number + 1, number + 4, len(run.raw) - 1):
            length = sum(map(len, run.raw[number:reach])) - 3
            head = run.raw[number][:7] + b"\x5a" + length.to_bytes(4, "big")
            yield Attacked(run, exchanged(run, number, head + run.raw[number][10:]))


@attack("record-damaged")
def damage_at_the_end_that_is_no_torn_record(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    opened = b"".join(run.raw[:-2])
    for tail in (b"\0", bytes(512), b"\xd2\x84\x00", run.raw[5][2:]):
        yield Attacked(run, opened + tail)


@attack("record-malformed")
def frames_with_other_headers(runs: Runs) -> Iterable[Attacked]:
    run, number = runs["checked"], 8
    content = payload(run.raw[number])
    signature, protected = bytes(64), bytes.fromhex("a10127")
    for frame in (
        b"\xd3" + encode([protected, {}, content, signature]),
        encode([protected, {}, content, signature]),
        b"\xd2" + encode([bytes.fromhex("a10126"), {}, content, signature]),
        b"\xd2" + encode([protected, {4: b"key"}, content, signature]),
        b"\xd2" + encode([protected, {}, None, signature]),
        b"\xd2" + encode([protected, {}, content, signature[:-1]]),
        b"\xd2" + encode([protected, {}, content]),
        b"\xd2" + encode([{1: -8}, {}, content, signature]),
        run.raw[number][1:],
    ):
        yield Attacked(run, exchanged(run, number, frame))
        yield Attacked(run, inserted(run, number, frame))


@attack("record-too-large")
def huge_declared_lengths(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for number in (0, 1, 5, len(run.raw) - 1):
        for length in ("5bffffffffffffffff", "5b7fffffffffffffff", "5affffffff", "5a01000000"):
            head = run.raw[number][:7] + bytes.fromhex(length)
            yield Attacked(run, exchanged(run, number, head, run.raw[number][10:]))
            yield Attacked(run, inserted(run, number, head))


@attack("encoding-too-deep")
def frames_nested_without_end(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for deep in (b"\x81" * 40 + b"\0", b"\x81" * 100_000, b"\xc1" * 100_000, b"\x9f" * 50):
        yield Attacked(run, inserted(run, 6, deep))


@attack("encoding-not-deterministic")
def frames_with_longer_heads(runs: Runs) -> Iterable[Attacked]:
    run, number = runs["checked"], 8
    record, content = run.raw[number], payload(run.raw[number])
    signature = record[-66:]
    for frame in (
        b"\xd8\x12" + record[1:],
        b"\xd2\x98\x04" + record[2:],
        b"\xd2\x9f" + record[2:] + b"\xff",
        record[:7] + b"\x5a" + len(content).to_bytes(4, "big") + content + signature,
        record[:7] + b"\x5f" + encode(content) + b"\xff" + signature,
        record[:-66] + b"\x59\x00\x40" + record[-64:],
        record[:6] + b"\xb8\x00" + record[7:],
    ):
        yield Attacked(run, exchanged(run, number, frame))


@attack("signature-invalid")
def flipped_bits_in_what_is_signed(runs: Runs) -> Iterable[Attacked]:
    """In the digests, values and signatures of every kind of record: still well-formed, and not what was signed."""
    run = runs["checked"]
    for number in range(len(run.raw)):
        for place in (-1, -20, -64):
            changed = bytearray(run.raw[number])
            changed[place] ^= 0x10
            yield Attacked(run, exchanged(run, number, bytes(changed)))
    for number in (run.index("state"), run.index("update", 3), run.index("check", 5)):
        for text in (b"parameters", b"optimizer", b"update"):
            at = run.raw[number].find(text)
            if at > 0:
                changed = bytearray(run.raw[number])
                changed[at] ^= 0x01
                yield Attacked(run, exchanged(run, number, bytes(changed)))


@attack("signature-invalid")
def records_signed_by_a_stranger(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for number, record in enumerate(run.raw):
        yield Attacked(run, exchanged(run, number, seal(payload(record), STRANGER)))


@attack("signature-invalid")
def records_signed_as_something_else(runs: Runs) -> Iterable[Attacked]:
    """By the right key, over the right payload, as a receipt or a statement."""
    run = runs["checked"]
    for number in (0, 1, 5):
        for aad in (b"zkdv 1 receipt", b"zkdv 1 statement", b""):

            def lie(record, number=number, aad=aad):
                def otherwise(forge):
                    signer = forge.identity if number == 0 else forge.session
                    forge.push(record)
                    forge.records[-1] = seal(payload(forge.records[-1]), signer, aad)

                lie.count += 1
                yield otherwise if lie.count == number + 1 else record

            lie.count = 0
            yield Attacked(run, retell(run, lie))


@attack("signature-invalid")
def a_tail_chained_again_with_a_new_key(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for start in (1, 4, 5, 8, 17, len(run.raw) - 1):
        yield Attacked(run, retell(run, genuine=start))


@attack("signature-invalid")
def a_root_with_a_weaker_configuration(runs: Runs) -> Iterable[Attacked]:
    """Signed by nobody, or by an identity that is not the one that it names."""
    run = runs["sampled"]
    root = run.records[0]
    weaker = root.body["configuration"] | {"sampling": {"probability": 0.0}}
    named = encode({1: 0, 2: bytes(32), 3: "root", 4: root.body | {"configuration": weaker}})
    signature = run.raw[0][-64:]
    yield Attacked(run, exchanged(run, 0, b"\xd2" + encode([bytes.fromhex("a10127"), {}, named, signature])))
    yield Attacked(run, exchanged(run, 0, seal(named, STRANGER)))


@attack("signature-invalid")
def a_head_of_one_run_and_the_tail_of_another(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    other = split(retell(run))
    for number in (1, 2, 4, 5, 8, 9, 20, len(run.raw) - 1):
        yield Attacked(run, b"".join(run.raw[:number] + other[number:]))
        yield Attacked(run, b"".join(other[:number] + run.raw[number:]))


@attack("sequence-broken")
def records_dropped(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for number in range(len(run.raw) - 1):
        yield Attacked(run, exchanged(run, number))
    for first, last in ((1, 4), (5, 9), (6, 25), (3, len(run.raw) - 2)):
        yield Attacked(run, b"".join(run.raw[:first] + run.raw[last:]))


@attack("sequence-broken")
def records_duplicated(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for number in range(len(run.raw) - 1):
        yield Attacked(run, inserted(run, number, run.raw[number]))
        yield Attacked(run, inserted(run, len(run.raw) - 1, run.raw[number]))


@attack("sequence-broken")
def records_swapped(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for number in range(1, len(run.raw) - 2):
        yield Attacked(run, b"".join([*run.raw[:number], run.raw[number + 1], run.raw[number], *run.raw[number + 2 :]]))


@attack("sequence-broken")
def checks_dropped(runs: Runs) -> Iterable[Attacked]:
    for name in ("checked", "sampled", "third"):
        run = runs[name]
        kept = [raw for raw, record in zip(run.raw, run.records, strict=True) if record.kind != "check"]
        yield Attacked(run, b"".join(kept))


@attack("record-after-close")
def transcripts_concatenated(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield Attacked(run, run.data + run.data)
    yield Attacked(run, run.data + runs["sampled"].data)


@attack("record-after-close")
def anything_after_the_close(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for tail in (b"\0", run.raw[-1], run.raw[0], run.raw[5], run.raw[5][:50], run.raw[0][:7]):
        yield Attacked(run, run.data + tail)


@attack("order-invalid")
def a_run_that_goes_on_as_another(runs: Runs) -> Iterable[Attacked]:
    """A closed run is put behind an open one, to close it."""
    run = runs["checked"]
    for kept in (1, 5, 9, len(run.raw) - 1):
        yield Attacked(run, b"".join(run.raw[:kept]) + runs["sampled"].data)


@attack("identity-mismatch")
def a_run_of_somebody_else(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield Attacked(run, run.data, {"identity": public(STRANGER)})
    yield Attacked(run, run.data, {"identity": read(run.raw[0]).body["session-key"]})
    # Told again, whole and consistent, by a stranger.
    told = Retelling(Trained(run.name, run.folder, STRANGER), honest, receipts=False, name="stranger")
    yield Attacked(run, b"".join(told.tell(run.records)))


@attack("head-mismatch")
def a_tail_dropped_where_the_head_is_pinned(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kept in (1, 4, 5, 9, len(run.raw) - 2, len(run.raw) - 1):
        yield Attacked(run, b"".join(run.raw[:kept]), {"head": run.head})
    yield Attacked(run, run.data, {"head": runs["sampled"].head})


@attack("requirement-unmet")
def what_the_verifier_asks_for_is_not_there(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield Attacked(run, b"".join(run.raw[:-1]), {"require": ["closed"]})
    yield Attacked(run, run.data, {"require": ["identity"], "identity": None})
    yield Attacked(run, run.data, {"require": ["level=checked"]})
    yield Attacked(run, run.data, {"require": ["level=audited"]})
    # Which updates are checked is known beforehand, and no probability.
    yield Attacked(run, run.data, {"require": ["probability>=0.01"]})
    yield Attacked(runs["edited"], runs["edited"].data, {"require": ["no-edits"], "allow_edits": True})


@attack("requirement-unmet")
def a_run_that_is_checked_less_than_asked_for(runs: Runs) -> Iterable[Attacked]:
    run = runs["sampled"]

    def lie(record):
        if record.kind == "root":
            record = record.but(configuration=record.body["configuration"] | {"sampling": {"probability": 0.0}})
        if record.kind == "close":
            record = record.but(sampled=0, passed=0)
        if record.kind != "check":
            yield record

    yield Attacked(run, retell(run, lie), {"require": ["probability>=0.5"]})


@attack("edit-not-allowed")
def edits_that_nobody_allowed(runs: Runs) -> Iterable[Attacked]:
    yield Attacked(runs["edited"], runs["edited"].data)
