"""What `zkdv match` prints of what it found."""

from rich.text import Text

from zkdv.cli._terminal import harmless, write
from zkdv.cli._verdict import write_basis
from zkdv.matching import MatchedState, MatchReport, MatchVerdict

SHOWN = 10


def write_match(report: MatchReport) -> None:
    """Print the verdict in the first line, then names, differences, and what the transcript is."""
    files = harmless(", ".join(report.files))
    if report.verdict is MatchVerdict.MATCHES:
        first, *more = report.matches
        write(Text.assemble(("MATCHES", "bold green"), f"  {files} holds the parameters {_place(first)}"))
        for state in more[: SHOWN - 1]:
            write(f"  also {_place(state)}")
        _write_hidden(report.matches_total, SHOWN)
    elif report.verdict is MatchVerdict.EXTRA:
        write(
            Text.assemble(
                ("EXTRA", "bold red"),
                f"  {files} holds the parameters {_place(report.matches[0])}, and other tensors that are no parameters "
                "of the run and that a program may use; --allow-extra accepts them, null in a mapping one of them",
            )
        )
    else:
        _write_differences(report, files)
    if report.renaming:
        write(f"  names: {harmless(report.renaming)}")
    for name in report.extra[:SHOWN]:
        write(f"  not of the run: {harmless(name)}")
    _write_hidden(report.extra_total, SHOWN)
    write()
    write_basis(report.run)
    write("That values came from running the program is not shown by this: `zkdv verify` says what is.")


def _write_differences(report: MatchReport, files: str) -> None:
    write(
        Text.assemble(
            ("DIFFERS", "bold red"),
            f"  {files} holds the parameters of none of the {report.states} committed states",
        )
    )
    for difference in report.differences[:SHOWN]:
        write(f"  {harmless(difference.message)}")
    _write_hidden(report.differences_total, SHOWN)
    if not report.differences:
        write("  every parameter is there, with its dtype and shape; at least one has other values")
    for trace in report.traces[:SHOWN]:
        relation = "is as it was" if trace.equal else "is not as it was"
        write(f"  {harmless(trace.leaf)} {relation} {_done(trace.updates)} (record {trace.record})")
    _write_hidden(report.traces_total, SHOWN)
    if report.closest is not None:
        write(f"  closest, by the leaves whose digests are known by themselves: {_done(report.closest)}")
    elif not report.traces:
        write("  the transcript holds roots over all parameters and no digest of a single one, so it cannot say which")


def _place(state: MatchedState) -> str:
    edited = ", as edited" if state.edited else ""
    abandoned = "; the run was rewound to before it" if state.abandoned else ""
    return f"{_done(state.updates)}{edited} (record {state.record}{abandoned})"


def _done(updates: int) -> str:
    return f"after update {updates - 1}" if updates else "before the first update"


def _write_hidden(total: int, shown: int) -> None:
    if total > shown:
        write(f"  … and {total - shown} more (--json lists up to 100)")
