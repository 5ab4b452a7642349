"""What `zkdv verify` prints of one transcript."""

from collections.abc import Iterator

from rich.text import Text

from zkdv.cli._terminal import harmless, moment, write
from zkdv.verification import Edit, RunReport, Verdict

SHOWN_VIOLATIONS = 20
SHOWN_EDITS = 10
SHOWN_ELEMENTS = 8

_STYLES = {Verdict.PASSED: "bold green", Verdict.FAILED: "bold red", Verdict.INCOMPLETE: "bold yellow"}

# What the level `record` shows and does not show (docs/concepts/levels-of-assurance.md).
SHOWN = (
    "One unbroken chain of records, in order, signed by the identity below. Every sampling decision and every check is "
    "the one that the protocol asks for."
)
NOT_SHOWN = (
    "That the values came from running the program: the checks are the prover's own. That nothing was dropped after "
    "the last record, or before a resume. That the program or the data are sensible."
)


def write_verdict(run: RunReport) -> None:
    """Print the verdict in the first line, then what it shows, the facts, and what is wrong."""
    write(Text.assemble((run.verdict.upper(), _STYLES[run.verdict]), f"  {harmless(run.path)}: {_reason(run)}"))
    for violation in run.violations[:SHOWN_VIOLATIONS]:
        place = "" if violation.record is None else f"record {violation.record}, byte {violation.offset}: "
        write(Text.assemble(("  ", ""), (violation.code, "red"), f"  {place}{harmless(violation.message)}"))
    if (hidden := run.violations_total - SHOWN_VIOLATIONS) > 0:
        write(f"  … and {hidden} more (--json lists up to 1000)")
    for missing in run.incomplete:
        write(Text.assemble("  ", ("incomplete", "yellow"), f"  {harmless(missing)}"))
    for warning in run.warnings:
        write(Text.assemble("  ", ("warning", "yellow"), f"  {harmless(warning)}"))
    if run.root is None:
        return
    write()
    if run.verdict is Verdict.FAILED:
        write(Text("What the transcript says of itself:", "bold"))
    else:
        write(Text.assemble((f"Shown (level {run.level})  ", "bold"), SHOWN))
        write(Text.assemble(("Not shown  ", "bold"), NOT_SHOWN))
        write()
    for name, value in _facts(run):
        write(Text.assemble((f"{name:<12}", "dim"), harmless(value)))
    for edit in run.edits[:SHOWN_EDITS]:
        leaf = harmless(edit.name or f"leaf {edit.leaf}")
        write(f"  {edit.tree} {leaf}, changed before update {edit.update}: {_value(edit)}digest {edit.digest}")
    if (hidden := run.edits_total - SHOWN_EDITS) > 0:
        write(f"  … and {hidden} more (--json lists up to 100)")


def write_basis(run: RunReport) -> None:
    """Print what a conclusion from a transcript without a violation rests on: what is missing, signer and head."""
    for missing in run.incomplete:
        write(Text.assemble(("incomplete", "yellow"), f"  {harmless(missing)}"))
    if run.identity is not None:
        pinned = "pinned" if run.identity.pinned else "not pinned: anyone can make a key"
        write(f"identity    {run.identity.key}  ({pinned})")
    write(f"head        {run.head}")


def _value(edit: Edit) -> str:
    """What an edit changed a leaf to, with its dtype; nothing where the transcript does not have it."""
    if edit.elements is None:
        return f"bytes {edit.value}, " if edit.value is not None else ""
    shown = ", ".join(str(element) for element in edit.elements[:SHOWN_ELEMENTS])
    more = f", … ({len(edit.elements)} elements)" if len(edit.elements) > SHOWN_ELEMENTS else ""
    return f"now {shown or 'without elements'}{more} ({edit.dtype}), "


def _reason(run: RunReport) -> str:
    """The verdict in plain words."""
    if run.verdict is not Verdict.FAILED and run.updates == 0:
        closed = "it is closed" if run.closed else "it is not closed"
        return f"nothing was trained under this transcript: it holds no update, {closed}, and nothing is wrong with it"
    if run.verdict is Verdict.PASSED:
        return f"{_count(run.updates, 'update')} in one unbroken, signed chain that is closed; nothing is wrong with it"
    if run.verdict is Verdict.INCOMPLETE:
        return f"nothing is wrong with {_count(run.records, 'record')}, but the transcript is not complete"
    if run.violations_total == 1:
        return "this transcript must not be believed as it stands, for one reason"
    return f"this transcript must not be believed as it stands, for {run.violations_total} reasons"


def _facts(run: RunReport) -> Iterator[tuple[str, str]]:
    """What people judge, one line each."""
    started = "" if run.time is None else f", started {moment(run.time)} by the prover's clock"
    yield "run", f"{run.run}, written by {run.prover}{started}"
    yield "root", run.root or "unreadable"
    yield "head", f"{run.head}" + ("  (--head pins it)" if run.verdict is Verdict.PASSED else "")
    if run.parent is not None:
        yield "continues", f"the run with head {run.parent}"
    if run.identity is not None:
        pinned = (
            "pinned"
            if run.identity.pinned
            else "not pinned: anyone can make a key; --identity KEY pins the one you expect"
        )
        yield "identity", f"{run.identity.key}  ({pinned})"
    yield "updates", f"{run.updates}" + (f" on {run.ranks} processes" if run.ranks not in {None, 1} else "")
    for program in run.programs:
        yield "  program", f"{program.digest} ({program.role}): {_count(program.updates, 'update')}"
    yield "sampling", _sampling(run)
    yield "checks", _checks(run)
    if run.tolerance_absolute is not None:
        yield (
            "tolerance",
            f"{run.tolerance_absolute:g} absolute, {run.tolerance_relative:g} relative, where a check is not bit-exact",
        )
    yield "commits to", _commitments(run)
    yield "edits", f"{_count(run.edits_total, 'change')} of the state between updates" if run.edits_total else "none"
    if run.resumes:
        yield "resumes", f"{run.resumes}, {run.unlinked} of them unlinked"


def _sampling(run: RunReport) -> str:
    drawn = "" if run.challenger is None else f", drawn by {run.challenger.name}"
    if run.every is not None:
        return f"every {run.every}. update{drawn} (debug policy: known in advance)"
    return f"each update with p = {run.probability:g}{drawn}" if run.probability is not None else "unknown"


def _checks(run: RunReport) -> str:
    parts = [f"{run.sampled} sampled", f"{run.checks_passed} passed", f"{run.checks_failed} failed"]
    if run.checks_unresolved:
        parts.append(f"{run.checks_unresolved} unresolved")
    if run.checks_outstanding:
        parts.append(f"{run.checks_outstanding} outstanding")
    return ", ".join(parts)


def _commitments(run: RunReport) -> str:
    if run.commit == "every":
        return "parameters and optimizer state, every update"
    return f"parameters every update, optimizer state every {run.replay_snapshot_interval} updates"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
