"""Cheats of a lying prover: its checks and its receipts."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import cbor2
from forge import RECEIPT_AAD, Record, encode, key, payload, seal
from retelling import Lie, Told, after, each, inexact, nearby, on, randomness, resumed, retell
from trained import Trained
from victims import Attacked, Runs, attack


def without_check(update: int, *, counted: bool = True) -> Lie:
    """The run without the check of an update; the close counts as if it were there, or does not."""

    def lie(record: Record) -> list[Told]:
        if record.kind == "check" and record.body["update"] == update:
            return []
        if record.kind == "close" and not counted:
            return [record.but(passed=record.body["passed"] - 1, sampled=record.body["sampled"] - 1)]
        return [record]

    return each(lie)


@attack("check-missing")
def checks_never_made(runs: Runs) -> Iterable[Attacked]:
    for name, updates in (("checked", (0, 5, 11)), ("sampled", (0, 2, 5)), ("third", (2, 5))):
        run = runs[name]
        for update in updates:
            yield Attacked(run, retell(run, without_check(update)))
            yield Attacked(run, retell(run, without_check(update, counted=False)))
        yield Attacked(run, retell(run, lambda record: [record] * (record.kind != "check")))


@attack("check-missing")
def a_check_left_open_too_long(runs: Runs) -> Iterable[Attacked]:
    """The transcript is not closed; the check was due before its last update all the same."""
    run = runs["checked"]
    yield Attacked(run, retell(run, without_check(2), records=run.records[:-2]))


@attack("check-missing")
def a_sampling_rule_that_checks_do_not_follow(runs: Runs) -> Iterable[Attacked]:
    """More updates are declared to be sampled than were checked."""
    run = runs["third"]

    def often(record: Record) -> list[Told]:
        if record.kind == "root":
            return [record.but(configuration=record.body["configuration"] | {"sampling": {"every": 1}})]
        return [record]

    yield Attacked(run, retell(run, each(often)))


@attack("check-late")
def checks_held_back(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    lag = run.records[0].body["configuration"]["max-check-lag"]
    for update in (0, 3):
        for delay in (lag + 1, lag + 2, 8):
            yield Attacked(run, retell(run, held_back("check", update, update + delay)))


@attack("check-late")
def checks_repeated_after_a_resume(runs: Runs) -> Iterable[Attacked]:
    """Long after its update, when nothing of it is remembered, another check says something else."""
    run = runs["checked"]
    for verdict in ("passed", "failed", "unresolved"):
        kept: dict[str, Record] = {}

        def lie(record: Record, verdict: str = verdict, kept: dict[str, Record] = kept) -> list[Told]:
            if record.kind == "check" and record.body["update"] == 1:
                kept["check"] = record.but(verdict=verdict)
            if record.kind == "state" and record.body["reason"] == "resume":
                return [record, kept["check"]]
            if record.kind == "close":
                counts = {name: record.body[name] + (verdict == name) for name in ("passed", "failed")}
                return [record.but(**counts)]
            return [record]

        yield Attacked(run, retell(run, each(lie), records=resumed(run, 4)))


def held_back(kind: str, update: int, until: int) -> Lie:
    """A record of an update that comes directly after a later update's record."""
    held: list[Record] = []

    def lie(record: Record) -> list[Told]:
        if record.kind == kind and record.body["update"] == update:
            held.append(record)
            return []
        if record.kind == "update" and record.body["update"] == until:
            return [record, *held]
        return [record]

    return each(lie)


@attack("check-duplicate")
def checks_made_until_one_passes(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for nth in (0, 5):
        yield Attacked(run, retell(run, on("check", nth, lambda record: [record, record])))
        yield Attacked(
            run, retell(run, on("check", nth, lambda record: [record, record.but(snapshot=0, verdict="unresolved")]))
        )


@attack("check-unexpected")
def checks_of_what_was_not_sampled(runs: Runs) -> Iterable[Attacked]:
    run = runs["third"]
    for update in (0, 1):
        lie = on("check", 0, lambda record, update=update: [record, record.but(update=update, snapshot=0)])
        yield Attacked(run, retell(run, lie))


@attack("check-coordinates")
def elements_that_were_chosen(runs: Runs) -> Iterable[Attacked]:
    for name in ("checked", "sampled"):
        run = runs[name]
        for nth in (0, 3):
            for tree in ("parameter", "optimizer"):
                for change in (lambda index: index ^ 1, lambda _: 2**64 - 1, lambda _: 10**6):

                    def moved(record: Record, tree: str = tree, change: Callable[[int], int] = change) -> Record:
                        return record.but(**{tree: {"index": change(record.body[tree]["index"])}})

                    yield Attacked(run, retell(run, on("check", nth, moved)))
                yield Attacked(run, retell(run, on("check", nth, lambda record, tree=tree: record.but(**{tree: ...}))))


@attack("check-coordinates")
def a_layout_in_which_other_elements_are_drawn(runs: Runs) -> Iterable[Attacked]:
    """A leaf is left out of the schema, so that it is never looked at; the checks are those of the whole state."""
    run = runs["checked"]

    def smaller(record: Record) -> Record:
        return record.but(parameters=record.body["parameters"][:1])

    yield Attacked(run, retell(run, on("schema", 0, smaller)))


@attack("check-snapshot")
def replays_from_snapshots_that_were_gone(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for snapshot in (0, 4, 8, 12, 2**64 - 1):
        yield Attacked(run, retell(run, on("check", 7, lambda record, to=snapshot: record.but(snapshot=to))))
    # Before an edit that only the state after it holds, and before a resume.
    edited = runs["edited"]
    large = next(b["update"] for b in edited.bodies("update") if any("value" not in e for e in b.get("edits", ())))
    lie = on("check", large, lambda record: record.but(snapshot=large - 1))
    yield Attacked(edited, retell(edited, lie), {"allow_edits": True})


def misstated(run: Trained, nth: int, change: Callable[[dict[str, Any]], object], *, by: float = 1e-6) -> Attacked:
    """The run with one check that is near and changed, and counts to match its verdict."""
    verdicts = Counter[str]()

    def told(record: Record) -> Record:
        near = inexact(run, record, by=by)
        change(near.body)
        return near

    one = on("check", nth, told)

    def lie(record: Record) -> Iterator[Told]:
        if record.kind == "close":
            record = record.but(passed=verdicts["passed"], failed=verdicts["failed"])
        for other in one(record):
            if record.kind == "check":
                verdicts[other.body["verdict"]] += 1
            yield other

    return Attacked(run, retell(run, lie))


@attack("check-opening")
def openings_that_lead_elsewhere(runs: Runs) -> Iterable[Attacked]:
    def at(tree: str, name: str, value: Any) -> Callable[[dict[str, Any]], object]:
        """Change one field of an opening; a function changes what is there."""

        def change(body: dict[str, Any]) -> None:
            opening = body[tree]["opening"]
            opening[name] = value(opening[name]) if callable(value) else value

        return change

    def flipped(data: bytes) -> bytes:
        return bytes([data[0] ^ 1]) + data[1:]

    changes = [
        ("digest", flipped),
        ("chunk", lambda chunk: chunk + 1),
        ("chunk", 2**64 - 1),
        ("bytes", flipped),
        ("bytes", b""),
        ("bytes", lambda data: data[:-1]),
        ("path", []),
        ("path", lambda path: [*path, bytes(32)]),
        ("path", lambda path: path[::-1]),
        ("path", lambda path: [bytes(32)] * len(path)),
        ("chain", lambda chain: [*chain, bytes(32)]),
        ("chain", lambda chain: [bytes(32)] * (len(chain) or 1)),
    ]
    for run, nth in ((runs["checked"], 7), (runs["sampled"], 2)):
        for tree in ("parameter", "optimizer"):
            for change in changes:
                yield misstated(run, nth, at(tree, *change))
            yield misstated(run, nth, lambda body, tree=tree: body[tree].pop("opening"))
    # An opening where no root is committed that it could lead to.
    run = runs["checked"]

    def borrowed(body: dict[str, Any]) -> None:
        body["optimizer"]["opening"] = body["parameter"]["opening"]

    yield misstated(run, 6, borrowed)


@attack("check-opening")
def elements_that_were_not_committed(runs: Runs) -> Iterable[Attacked]:
    """The replay's own values are passed off as the committed ones."""
    run = runs["sampled"]
    for tree in ("parameter", "optimizer"):

        def another(body: dict[str, Any], tree: str = tree) -> None:
            element = body[tree]["committed"]
            body[tree]["committed"] = bytes([element[0] ^ 1]) + element[1:]

        yield misstated(run, 2, another)
        for length in (0, 3, 8, 16):
            yield misstated(run, 2, lambda body, at=(tree, length): body[at[0]].update(committed=bytes(at[1])))
        yield misstated(run, 2, lambda body, tree=tree: body[tree].update(replayed=bytes(3)))


@attack("check-tolerance")
def tolerances_that_let_anything_pass(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    allowed = run.records[0].body["configuration"]["tolerance"]
    for changes in ({"absolute": 1.0}, {"relative": 1e-3}, {"absolute": 0.0}, {"relative": math.nan}):
        wider = allowed | changes
        yield Attacked(run, retell(run, on("check", 3, lambda record, wider=wider: record.but(tolerance=wider))))
        yield misstated(run, 3, lambda body, wider=wider: body.update(tolerance=wider))


@attack("check-tolerance")
def failures_passed_off_as_passed(runs: Runs) -> Iterable[Attacked]:
    run = runs["sampled"]
    for by in (0.5, 1e6, math.inf, math.nan):
        yield misstated(run, 2, lambda body: body.update(verdict="passed", probes=True), by=by)
    for tree in ("parameter", "optimizer"):

        def far(body: dict[str, Any], tree: str = tree) -> None:
            body[tree]["replayed"] = nearby(body[tree]["committed"], 1.0)
            body["distance"] = 2.0

        yield misstated(run, 2, far)
    # Probes that disagree, and a distance that is smaller than the values show, or none.
    yield misstated(run, 2, lambda body: body.update(probes=False))
    for distance in (0.0, -1.0, math.nan, -math.inf):
        yield misstated(run, 2, lambda body, distance=distance: body.update(distance=distance))


@attack("check-tolerance")
def values_withheld_under_a_verdict(runs: Runs) -> Iterable[Attacked]:
    """Without values a check is unresolved, or has failed by its probes; it has not passed."""
    run = runs["sampled"]

    def withheld(body: dict[str, Any], *trees: str, verdict: str, probes: bool) -> None:
        for tree in trees:
            body[tree] = {"index": body[tree]["index"]}
        body.update(verdict=verdict, probes=probes)

    for trees in (("parameter",), ("optimizer",), ("parameter", "optimizer")):
        for verdict, probes in (("passed", True), ("failed", True), ("unresolved", False), ("passed", False)):
            options = {"verdict": verdict, "probes": probes}
            yield misstated(run, 2, lambda body, trees=trees, options=options: withheld(body, *trees, **options))


def attest_program(run: Trained) -> Record:
    """The record of an attest program: the replay program's file under another role."""
    return run.records[run.index("program")].but(role="attest")


@attack("attested-missing")
def attest_programs_that_were_never_run(runs: Runs) -> Iterable[Attacked]:
    """A program is shown to whoever reads the transcript, and no check says what it gives."""
    for name in ("checked", "sampled", "third"):
        run = runs[name]
        yield Attacked(run, retell(run, after("program", 0, attest_program(run))))


@attack("attested-missing")
def attested_values_that_were_left_out(runs: Runs) -> Iterable[Attacked]:
    run = runs["attested"]

    def bare(body: dict[str, Any], *trees: str) -> None:
        for tree in trees:
            body[tree] = {"index": body[tree]["index"]}

    for trees in (("parameter",), ("optimizer",), ("parameter", "optimizer")):

        def told(record: Record, trees: tuple[str, ...] = trees) -> Record:
            bare(record.body, *trees)
            return record

        for nth in (0, 3):
            yield Attacked(run, retell(run, on("check", nth, told)))
    for tree in ("parameter", "optimizer"):
        yield misstated(run, 3, lambda body, tree=tree: body[tree].pop("attested"))


@attack("check-tolerance")
def attested_values_of_another_update(runs: Runs) -> Iterable[Attacked]:
    """The program gives something else than what was committed, and the check says that it passed."""
    run = runs["attested"]
    for tree in ("parameter", "optimizer"):
        for change in (lambda value: value + 0.01 + abs(value), lambda _: math.nan, lambda _: math.inf):

            def told(record: Record, tree: str = tree, change: Callable[[float], float] = change) -> Record:
                record.body[tree]["attested"] = change(record.body[tree]["attested"])
                return record

            for nth in (0, 3):
                yield Attacked(run, retell(run, on("check", nth, told)))


@attack("check-failed")
def an_attest_program_that_disagrees(runs: Runs) -> Iterable[Attacked]:
    run = runs["attested"]

    def failing(record: Record) -> list[Told]:
        if record.kind == "check" and record.body["update"] == 2:
            record.body["parameter"]["attested"] += 0.01
            return [record.but(verdict="failed")]
        if record.kind == "close":
            return [record.but(passed=record.body["passed"] - 1, failed=1, reason="poisoned")]
        return [record]

    yield Attacked(run, retell(run, each(failing)))


@attack("check-opening")
def parameters_before_the_update_that_were_not_committed(runs: Runs) -> Iterable[Attacked]:
    """The delta is made to fit by another start."""
    run = runs["attested"]

    def exchanged(body: dict[str, Any]) -> None:
        body["before"], body["before-opening"] = body["committed"], body["opening"]
        body["attested"] = 0.0

    def moved(body: dict[str, Any]) -> None:
        body["before"] = nearby(body["before"], 0.25)
        body["attested"] -= 0.25

    def elsewhere(body: dict[str, Any]) -> None:
        body["before-opening"]["digest"] = bytes(32)

    for change in (exchanged, moved, elsewhere):
        for nth in (0, 1, 3):

            def told(record: Record, change: Callable[[dict[str, Any]], None] = change) -> Record:
                change(record.body["parameter"])
                return record

            yield Attacked(run, retell(run, on("check", nth, told)))


@attack("body-invalid")
def attested_checks_that_say_less_than_they_must(runs: Runs) -> Iterable[Attacked]:
    run = runs["attested"]
    for field in ("before", "before-opening", "committed"):

        def told(record: Record, field: str = field) -> Record:
            del record.body["parameter"][field]
            return record

        yield Attacked(run, retell(run, on("check", 3, told)))


@attack("order-invalid")
def attest_programs_in_the_wrong_place(runs: Runs) -> Iterable[Attacked]:
    """A second statement of the update, and one that comes when it is known what was trained."""
    run = runs["attested"]
    yield Attacked(run, retell(run, after("program", 1, attest_program(run))))
    yield Attacked(run, retell(run, after("update", 1, attest_program(run))))
    yield Attacked(runs["checked"], retell(runs["checked"], after("update", 3, attest_program(runs["checked"]))))


@attack("attested-unexpected")
def attested_values_of_no_program(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for tree in ("parameter", "optimizer"):
        for value in (0.0, math.nan):

            def told(record: Record, tree: str = tree, value: float = value) -> Record:
                return record.but(**{tree: record.body[tree] | {"attested": value}})

            yield Attacked(run, retell(run, on("check", 3, told)))
            yield misstated(run, 7, lambda body, at=(tree, value): body[at[0]].update(attested=at[1]))


@attack("body-invalid")
def checks_that_say_less_than_they_must(runs: Runs) -> Iterable[Attacked]:
    run = runs["sampled"]
    for field in ("distance", "probes"):
        yield misstated(run, 2, lambda body, field=field: body.pop(field))
    for tree in ("parameter", "optimizer"):
        for field in ("committed", "replayed"):
            yield misstated(run, 2, lambda body, at=(tree, field): body[at[0]].pop(at[1]))
        yield misstated(run, 2, lambda body, tree=tree: body[tree].update(committed=bytes(17)))
        for field, value in (
            ("bytes", bytes(1025)),
            ("path", [bytes(32)] * 65),
            ("chain", [bytes(31)]),
            ("digest", b""),
        ):
            yield misstated(run, 2, lambda body, at=(tree, field, value): body[at[0]]["opening"].update([at[1:]]))
    # An exact check has nothing to show.
    yield misstated(run, 2, lambda body: body.update(exact=True))
    yield Attacked(run, retell(run, on("check", 2, lambda record: record.but(distance=0.0))))
    yield Attacked(run, retell(run, on("check", 2, lambda record: record.but(probes=True))))


@attack("check-failed")
def a_replay_that_differs(runs: Runs) -> Iterable[Attacked]:
    """The prover says so itself; closing the run as finished does not help."""
    for run in (runs["checked"], runs["sampled"]):
        for reason in ("finished", "poisoned"):
            for by in (0.5, -0.5, 1e30):

                def failing(record: Record, run: Trained = run, reason: str = reason, by: float = by) -> list[Told]:
                    if record.kind == "check" and record.body["update"] == 4:
                        return [inexact(run, record, by=by)]
                    if record.kind == "close":
                        return [record.but(passed=record.body["passed"] - 1, failed=1, reason=reason)]
                    return [record]

                yield Attacked(run, retell(run, each(failing)))


@attack("challenge-missing")
def updates_that_the_challenger_never_saw(runs: Runs) -> Iterable[Attacked]:
    for name, update in (("checked", 5), ("checked", 11), ("sampled", 2)):
        run = runs[name]

        def unseen(record: Record, update: int = update) -> list[Told]:
            return [] if record.kind in {"challenge", "check"} and record.body["update"] == update else [record]

        yield Attacked(run, retell(run, each(unseen), receipts=True))


@attack("challenge-missing")
def receipts_waited_for(runs: Runs) -> Iterable[Attacked]:
    """A challenger that answers late can be asked until the draw is a good one."""
    run = runs["checked"]
    for delay in (2, 3, 4):
        late = held_back("challenge", 5, 5 + delay)

        def lie(record: Record, late: Lie = late) -> Iterator[Told]:
            if not (record.kind == "check" and record.body["update"] == 5):
                yield from late(record)

        yield Attacked(run, retell(run, lie, receipts=True))


@attack("challenge-unexpected")
def receipts_that_nobody_waits_for(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield Attacked(run, retell(run, on("challenge", 5, lambda record: [record, record]), receipts=True))
    # From a challenger that the root does not name.
    receipt = Record("challenge", {"update": 3, "receipt": b""})
    yield Attacked(run, retell(run, after("update", 3, receipt)))
    # Of an update that was settled long before a resume.
    kept: list[Record] = []

    def again(record: Record) -> list[Told]:
        if record.kind == "challenge" and record.body["update"] == 1:
            kept.append(record)
        if record.kind == "state" and record.body["reason"] == "resume":
            return [record, *kept]
        return [record]

    yield Attacked(run, retell(run, each(again), records=resumed(run, 4), receipts=True))


@attack("challenge-invalid")
def receipts_that_were_not_given(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]

    def answered(change: Callable[[dict[int, Any], Record], bytes]) -> Attacked:
        """With another receipt for update 5, and no check of it: what is drawn is not known."""

        def lie(record: Record) -> list[Told]:
            if record.kind == "challenge" and record.body["update"] == 5:
                fields = cbor2.loads(payload(record.body["receipt"]))
                return [record.but(receipt=change(fields, record))]
            return [] if record.kind == "check" and record.body["update"] == 5 else [record]

        return Attacked(run, retell(run, each(lie), receipts=True))

    def signed(fields: dict[int, Any], name: str = "challenger", aad: bytes = RECEIPT_AAD) -> bytes:
        return seal(encode(fields), key(name), aad)

    yield answered(lambda fields, _: signed(fields, "stranger"))
    yield answered(lambda fields, _: signed(fields, aad=b"zkdv 1 record"))
    yield answered(lambda fields, _: signed(fields | {1: bytes(32)}))
    yield answered(lambda fields, _: signed(fields | {2: fields[2] + 1}))
    yield answered(lambda fields, _: signed(fields | {3: bytes(32)}))
    yield answered(lambda fields, _: signed(fields | {4: randomness(5)[:-1]}))
    yield answered(lambda fields, _: signed(fields | {6: 0}))
    yield answered(lambda fields, _: signed({name: fields[name] for name in (1, 2, 3, 4)}))
    yield answered(lambda _, record: record.body["receipt"] + b"\0")
    # One bit flipped: a signature's last byte is often zero already.
    yield answered(lambda _, record: record.body["receipt"][:-1] + bytes([record.body["receipt"][-1] ^ 1]))
    yield answered(lambda _, __: b"")
    # Chosen randomness, with the signature of the true receipt.
    yield answered(
        lambda fields, record: seal(encode(fields | {4: bytes(32)}), key("x"))[:-64] + record.body["receipt"][-64:]
    )


@attack("configuration-invalid")
def challengers_that_cannot_sign(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    # No point of the curve.
    bad = b"\x02" + bytes(31)
    lie = on("root", 0, lambda record: record.but(challenger={"name": "forged", "key": bad}))
    yield Attacked(run, retell(run, lie))


@attack("body-invalid")
def challengers_that_are_half_named(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for challenger in ({"name": "transcript", "key": bytes(32)}, {"name": "forged"}, {"name": ""}, {}):
        lie = on("root", 0, lambda record, challenger=challenger: record.but(challenger=challenger))
        yield Attacked(run, retell(run, lie))
