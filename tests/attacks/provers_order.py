"""Cheats of a lying prover: what it leaves out, adds and misplaces."""

from collections.abc import Iterable, Iterator
from typing import Any

from forge import Forge, Record, digest, public
from retelling import ELSEWHERE, Lie, Told, after, before, dropped, each, on, resumed, retell, twice, with_root
from victims import Attacked, Runs, attack


@attack("order-invalid")
def records_that_are_missing_where_they_must_stand(runs: Runs) -> Iterable[Attacked]:
    for kind in ("environment", "schema"):
        for run in (runs["checked"], runs["sampled"]):
            yield Attacked(run, retell(run, dropped(kind, 0)))
    # A transcript that begins with anything but a root.
    run = runs["checked"]
    headless = Forge(run.identity)
    for record in run.records[1:]:
        headless.push(record)
    yield Attacked(run, b"".join(headless.records[:1]))


@attack("order-invalid")
def records_that_stand_once_and_stand_twice(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for kind in ("root", "environment", "schema", "state"):
        yield Attacked(run, retell(run, twice(kind, 0)))
    for record in (run.records[run.index(kind)] for kind in ("environment", "schema")):
        yield Attacked(run, retell(run, before("update", 3, record)))


@attack("order-invalid")
def states_in_other_places(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    roots = run.bodies("update")[3]["after"]
    for reason in ("start", "resume"):
        state = Record("state", {"updates": 4, "reason": reason, "roots": roots})
        yield Attacked(run, retell(run, before("update", 4, state)))
    # A state that announces an edit which never comes.
    announced = Record("state", {"updates": 4, "reason": "edit", "roots": roots})
    yield Attacked(run, retell(run, before("update", 4, announced)))
    yield Attacked(
        run, retell(run, before("state", 1, announced.but(updates=12, roots=run.bodies("state")[1]["roots"])))
    )
    # Of another number of updates.
    for updates in (0, 11, 13, 2**64 - 1):
        lie = on("state", 1, lambda record, updates=updates: record.but(updates=updates))
        yield Attacked(run, retell(run, lie))
    # The state before the close, and something after it.
    yield Attacked(run, retell(run, after("state", 1, Record("checkpoint", {"update": 0, "files": {"a": ELSEWHERE}}))))


@attack("order-invalid")
def records_of_what_has_not_happened(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    check = run.records[run.index("check", 4)]
    yield Attacked(run, retell(run, before("update", 2, check.but(update=11))))
    yield Attacked(
        run, retell(run, before("update", 2, Record("checkpoint", {"update": 3, "files": {"a": ELSEWHERE}})))
    )


@attack("record-after-close")
def a_run_that_goes_on_after_its_close(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    update = run.records[run.index("update", 0)].but(update=12)
    resume = Record("resume", {"torn": 0, "updates": 12, "record": 27, "offset": 0, "linked": True, "session-key": b""})
    for record in (update, resume, run.records[-1], run.records[1], run.records[-2]):
        yield Attacked(run, retell(run, after("close", 0, record)))


@attack("update-index")
def updates_that_are_not_counted(runs: Runs) -> Iterable[Attacked]:
    """Left out, told twice, or numbered otherwise, with a chain that has no gap."""
    run = runs["checked"]

    def without(update: int) -> Lie:
        return each(lambda record: [] if record.body.get("update") == update else [record])

    for update in (0, 4, 6):
        yield Attacked(run, retell(run, without(update)))
    # Doubling an update makes the second one's draw count: both say the same, and one check is for both.
    for update, other in ((4, 2), (4, 2**64 - 2), (4, 1000), (2, 0)):
        lie = on("update", update, lambda record, other=other: record.but(update=other, next_key=...))
        yield Attacked(run, retell(run, only_first(lie, run, update)))


def only_first(lie: Lie, run: Any, update: int) -> Lie:
    """The run up to this update alone, left open: what comes later does not matter."""

    def told(record: Record) -> Iterator[Told]:
        number = record.body.get("update", -1)
        if (
            record.kind in {"update", "check"}
            and number >= update
            and not (record.kind == "update" and number == update)
        ):
            return
        if record.kind == "close" or record.body.get("reason") == "close":
            return
        yield from lie(record)

    return told


@attack("program-unknown")
def updates_of_programs_that_nobody_sealed(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for seq in (0, 1, 2, 4, 5, 1000, 2**64 - 1):
        yield Attacked(run, retell(run, on("update", 3, lambda record, seq=seq: record.but(program=seq))))


@attack("program-unknown")
def updates_of_programs_for_something_else(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for role in ("attest", "aoti"):
        yield Attacked(run, retell(run, on("program", 0, lambda record, role=role: record.but(role=role))))

    # Sealed after the update that ran it.
    program = run.records[run.index("program")]

    def late(record: Record) -> list[Told]:
        if record.kind == "program":
            return []
        if record.kind == "update" and record.body["update"] == 0:
            return [record.but(program=5), program]
        if record.kind == "update":
            return [record.but(program=5)]
        return [record]

    yield Attacked(run, retell(run, each(late)))


@attack("program-digest")
def a_program_of_another_length(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    length = run.bodies("program")[0]["length"]
    for other in (0, length - 1, length + 1, 10**6):
        yield Attacked(run, retell(run, on("program", 0, lambda record, other=other: record.but(length=other))))
        # Beside the honest record of the same file.
        yield Attacked(run, retell(run, after("program", 0, run.records[run.index("program")].but(length=other))))


@attack("order-invalid")
def programs_beyond_all_bounds(runs: Runs) -> Iterable[Attacked]:
    """In number and in bytes: a verifier hashes every file that is named."""
    run = runs["third"]
    program = run.records[run.index("program")]
    yield Attacked(run, retell(run, after("program", 0, program.but(length=2**64 - 1))))
    yield Attacked(run, retell(run, after("program", 0, *[program] * 4096)))


@attack("program-missing")
def a_program_that_is_not_in_the_folder(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for changes in ({"digest": ELSEWHERE}, {"extension": "txt"}):
        yield Attacked(run, retell(run, on("program", 0, lambda record, to=changes: record.but(**to))))


@attack("body-invalid")
def programs_outside_the_folder(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for extension in ("../x", "a/b", "", "A", "a.b", "a\0", "a" * 17, "/etc/passwd"):
        yield Attacked(run, retell(run, on("program", 0, lambda record, to=extension: record.but(extension=to))))


@attack("roots-due")
def roots_left_out_or_added(runs: Runs) -> Iterable[Attacked]:
    """Update 3 is at a snapshot and update 4 is not: state leaves no commitment behind where none is looked for."""
    run = runs["checked"]
    for update, name in ((3, "parameters"), (3, "optimizer"), (3, "optimizer-probes"), (4, "parameter-probes")):
        yield Attacked(run, retell(run, on("update", update, lambda record, name=name: with_root(record, name, ...))))
    for name in ("optimizer", "optimizer-probes"):
        yield Attacked(run, retell(run, on("update", 4, lambda record, name=name: with_root(record, name, ELSEWHERE))))
    for nth in (0, 1):
        for name in ("parameters", "optimizer", "parameter-probes", "optimizer-probes"):
            lie = on("state", nth, lambda record, name=name: with_root(record, name, ..., "roots"))
            yield Attacked(run, retell(run, lie))
    # Every update of this run commits to everything.
    every = runs["sampled"]
    for name in ("optimizer", "optimizer-probes"):
        yield Attacked(every, retell(every, on("update", 1, lambda record, name=name: with_root(record, name, ...))))


@attack("next-key-due")
def session_keys_kept_or_changed_at_will(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for update in (1, 3, 11):
        yield Attacked(run, retell(run, on("update", update, lambda record: record.but(next_key=...))))
    for update in (0, 4, 10):
        yield Attacked(run, retell(run, on("update", update, lambda record: record.but(next_key=b""))))


@attack("state-missing")
def states_left_out(runs: Runs) -> Iterable[Attacked]:
    for name in ("checked", "sampled"):
        for nth in (0, 1):
            yield Attacked(runs[name], retell(runs[name], dropped("state", nth)))
    run = runs["checked"]
    for keep in (4, 12):
        yield Attacked(run, retell(run, dropped("state", 1), records=resumed(run, keep)))
    # Edits are announced by the state that they lead to.
    edited = runs["edited"]
    yield Attacked(edited, retell(edited, dropped("state", 1)), {"allow_edits": True})


@attack("state-discontinuous")
def states_that_come_from_nowhere(runs: Runs) -> Iterable[Attacked]:
    """Other weights are published than were trained."""
    for name in ("checked", "sampled"):
        run = runs[name]
        for root in ("parameters", "parameter-probes", "optimizer", "optimizer-probes"):
            lie = on("state", 1, lambda record, root=root: with_root(record, root, ELSEWHERE, "roots"))
            yield Attacked(run, retell(run, lie))
    run = runs["checked"]
    for root in ("parameters", "optimizer"):
        lie = on("state", 1, lambda record, root=root: with_root(record, root, ELSEWHERE, "roots"))
        yield Attacked(run, retell(run, lie, records=resumed(run, 4)))


@attack("state-discontinuous")
def edits_beside_those_that_are_listed(runs: Runs) -> Iterable[Attacked]:
    """Weights are edited, and the update says that it was the optimizer state."""
    run = runs["edited"]
    [edit] = run.bodies("update")[2]["edits"]
    for leaf in range(3):
        other = edit | {"tree": "optimizer", "leaf": leaf}
        lie = on("update", 2, lambda record, other=other: record.but(edits=[other]))
        yield Attacked(run, retell(run, lie), {"allow_edits": True})


@attack("state-discontinuous")
def states_exchanged_behind_a_schema(runs: Runs) -> Iterable[Attacked]:
    """The same layout is declared again after a resume, as if it were another one."""
    run = runs["checked"]
    schema = run.records[run.index("schema")]
    renamed = [leaf | {"name": f"{leaf['name']}.again"} for leaf in schema.body["parameters"]]
    for again in (schema, schema.but(parameters=renamed)):

        def lie(record: Record, again: Record = again) -> list[Told]:
            if record.kind == "state" and record.body["reason"] == "resume":
                return [again, with_root(record, "parameters", ELSEWHERE, "roots")]
            return [record]

        yield Attacked(run, retell(run, each(lie), records=resumed(run, 4)))


@attack("edit-invalid")
def edits_that_cannot_be(runs: Runs) -> Iterable[Attacked]:
    run = runs["edited"]
    edits = [(body["update"], body["edits"][0]) for body in run.bodies("update") if "edits" in body]
    small = next((update, edit) for update, edit in edits if "value" in edit)
    large = next((update, edit) for update, edit in edits if "value" not in edit)
    leaves = len(run.bodies("schema")[0]["optimizer"])
    value = small[1]["value"]
    for changes in (
        {"leaf": leaves},
        {"leaf": 2**64 - 1},
        {"digest": ELSEWHERE},
        {"value": bytes(len(value))},
        {"value": value + b"\0"},
        {"value": value[:-1], "digest": digest(value[:-1])},
    ):
        yield edited(runs, small[0], [small[1] | changes])
    yield edited(runs, small[0], [small[1], small[1]])
    yield edited(runs, large[0], [large[1], large[1]])
    yield edited(runs, large[0], [large[1] | {"leaf": 1000}])


def edited(runs: Runs, update: int, edits: list[dict[str, Any]]) -> Attacked:
    """With other edits before an update, and counts to match."""
    run = runs["edited"]

    def lie(record: Record) -> list[Told]:
        if record.kind == "update" and record.body["update"] == update:
            return [record.but(edits=edits)]
        if record.kind == "close":
            count = record.body["edits"] + len(edits) - 1
            return [record.but(edits=count)]
        return [record]

    return Attacked(run, retell(run, each(lie)), {"allow_edits": True})


@attack("count-mismatch")
def counts_that_are_not_those_of_the_run(runs: Runs) -> Iterable[Attacked]:
    for name in ("checked", "sampled", "third"):
        run = runs[name]
        for field in ("updates", "sampled", "passed", "failed", "edits"):
            for count in (run.records[-1].body[field] + 1, 2**64 - 1):
                lie = on("close", 0, lambda record, to=(field, count): record.but(**dict([to])))
                yield Attacked(run, retell(run, lie))


@attack("count-mismatch")
def edits_left_out_of_the_count(runs: Runs) -> Iterable[Attacked]:
    run = runs["edited"]
    yield Attacked(run, retell(run, on("close", 0, lambda record: record.but(edits=0))), {"allow_edits": True})


@attack("closed-poisoned")
def a_run_that_failed_without_a_failed_check(runs: Runs) -> Iterable[Attacked]:
    for name in ("checked", "sampled"):
        run = runs[name]
        yield Attacked(run, retell(run, on("close", 0, lambda record: record.but(reason="poisoned"))))


@attack("identity-mismatch")
def a_root_that_names_another_identity(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    yield Attacked(run, retell(run), {"identity": public(key_of_session(run))})


def key_of_session(run: Any) -> Any:
    return Forge(run.identity).session
