"""What `zkdv audit` prints of what it found."""

from rich.text import Text

from zkdv.auditing import AuditOutcome, AuditReport, SegmentReport
from zkdv.cli import _terminal as terminal
from zkdv.verification import Verdict

SHOWN_SEGMENTS = 20
SHOWN_DIFFERENCES = 8

_STYLES = {
    AuditOutcome.IDENTICAL: "bold green",
    AuditOutcome.WITHIN_TOLERANCE: "bold green",
    AuditOutcome.DIFFERENT_PLATFORM_CLASS: "bold yellow",
    AuditOutcome.NOT_AUDITABLE: "bold yellow",
    AuditOutcome.DIFFERS: "bold red",
}


def write_findings(report: AuditReport) -> None:
    """Print the outcome in the first line, then what is different here, each segment, and what follows."""
    outcome = report.outcome
    chosen = "drawn" if report.drawn else "chosen"
    write, harmless = terminal.write, terminal.harmless
    write(
        Text.assemble(
            (outcome.upper(), _STYLES[outcome]),
            f"  {harmless(report.path)}: {report.executed} of {report.updates_total} updates executed again, in "
            f"{len(report.segments)} {chosen} of {report.segments_total} segments",
        )
    )
    if report.platform_differences:
        write(
            Text.assemble(
                ("platform  ", "yellow"),
                "this is another platform class than the run's, so that other bits are no sign of anything:",
            )
        )
        for line in report.platform_differences[:SHOWN_DIFFERENCES]:
            write(f"  {harmless(line)}")
        if (hidden := len(report.platform_differences) - SHOWN_DIFFERENCES) > 0:
            write(f"  … and {hidden} more (--json lists all)")
    # What is wrong comes first where not everything is shown.
    order = sorted(report.segments, key=lambda one: one.outcome is AuditOutcome.IDENTICAL)
    for segment in order[:SHOWN_SEGMENTS]:
        write(_line(segment))
    if (hidden := len(order) - SHOWN_SEGMENTS) > 0:
        write(f"  … and {hidden} more (--json lists all)")
    for note in report.notes:
        write(Text.assemble("  ", ("note", "yellow"), f"  {harmless(note)}"))
    write()
    for sentence in report.bound():
        write(sentence)
    write("Not shown: that program and data are the wanted ones. People judge that; the program is in the folder.")
    verification = report.verification
    if verification.verdict is not Verdict.PASSED or verification.edits_total:
        write("`zkdv verify` has more to say of this transcript.")


def _line(segment: SegmentReport) -> Text:
    last = segment.first + segment.updates - 1
    where = f"update {last}" if segment.updates == 1 else f"updates {segment.first} to {last}"
    return Text.assemble(
        f"  {where}: ",
        (str(segment.outcome), _STYLES[segment.outcome].removeprefix("bold ")),
        f": {terminal.harmless(segment.message)}",
    )
