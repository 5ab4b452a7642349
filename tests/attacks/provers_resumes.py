"""Cheats of a lying prover: where it goes on from."""

from collections.abc import Iterable, Iterator

from forge import Forge, Record
from retelling import ELSEWHERE, Lie, Told, each, on, resumed, retell, with_root
from victims import Attacked, Runs, attack


@attack("resume-invalid")
def resumes_from_where_nothing_stood(runs: Runs) -> Iterable[Attacked]:
    run = runs["checked"]
    for keep in (4, 12):

        def place(record: Record, name: str) -> int:
            return record.body[name]

        for name, change in (
            ("offset", 1),
            ("offset", -1),
            ("offset", 2**40),
            ("record", 1),
            ("record", -1),
            ("updates", 1),
            ("updates", -1),
            ("updates", 2**40),
        ):
            lie = on("resume", 0, lambda record, name=name, by=change: record.but(**{name: place(record, name) + by}))
            yield Attacked(run, retell(run, until_resume(lie), records=resumed(run, keep)))
        for name, value in (("offset", 0), ("offset", 2**64 - 1), ("record", 0), ("updates", 2**64 - 1)):
            lie = on("resume", 0, lambda record, to=(name, value): record.but(**dict([to])))
            yield Attacked(run, retell(run, until_resume(lie), records=resumed(run, keep)))


def until_resume(lie: Lie) -> Lie:
    """The run up to its resume, left open."""
    seen = False

    def told(record: Record) -> Iterator[Told]:
        nonlocal seen
        if not seen:
            yield from lie(record)
        seen = seen or record.kind == "resume"

    return told


@attack("resume-invalid")
def resumes_that_call_themselves_linked(runs: Runs) -> Iterable[Attacked]:
    """From an update that commits to no optimizer state."""
    run = runs["checked"]
    yield Attacked(run, retell(run, until_resume(lambda record: [record]), records=resumed(run, 5)))


@attack("resume-invalid")
def resumes_from_a_record_inside_a_record(runs: Runs) -> Iterable[Attacked]:
    """An update that was never part of the run stands in the bytes of the environment."""
    run = runs["checked"]
    inner = run.raw[run.index("update", 3)]
    hidden = on("environment", 0, lambda record: Record("environment", record.body | {"inner": inner}))
    at = retell(run, hidden).index(inner)
    seen = iter(range(2))

    def lie(record: Record) -> list[Told]:
        if record.kind == "environment" and next(seen) == 0:
            return [Record("environment", record.body | {"inner": inner})]
        if record.kind == "resume":
            return [record.but(offset=at, record=run.index("update", 3), updates=4)]
        return [record]

    yield Attacked(run, retell(run, until_resume(each(lie)), records=resumed(run, 12)))


@attack("resume-invalid")
def edits_hidden_by_a_resume(runs: Runs) -> Iterable[Attacked]:
    """The state of an edit is recorded and gone on from; the edit itself is never listed."""
    run = runs["checked"]
    place = {}

    def lie(record: Record) -> list[Told]:
        body = record.body
        if record.kind == "resume":
            roots = run.bodies("state")[1]["roots"] | {"parameters": ELSEWHERE}

            def announce(forge: Forge) -> None:
                place.update(record=forge.seq, offset=forge.offset)
                forge.push(Record("state", {"updates": 12, "reason": "edit", "roots": roots}))

            return [announce, lambda forge: forge.push(record.but(**place))]
        if record.kind == "state" and body["reason"] != "start":
            return [with_root(record, "parameters", ELSEWHERE, "roots")]
        return [record]

    yield Attacked(run, retell(run, each(lie), records=resumed(run, 12)))
