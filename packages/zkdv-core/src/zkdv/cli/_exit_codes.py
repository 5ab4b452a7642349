"""Exit codes of every command (docs/guides/command-line.md)."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command says to the shell."""

    PASSED = 0
    """What was asked for was done; `verify`: closed, and no violation."""

    FAILED = 1
    """`verify`: a violation, a failed check, an edit that was not allowed, or a requirement not met; `audit`: the run
    differs; `match`: nothing matches; `membership verify`: the proof does not hold; all of these and `membership
    prove`: the transcript does not hold; `plugins`: a conflict or a broken plugin."""

    UNUSABLE = 2
    """No result: wrong usage, something unreadable, or an internal error."""

    INCOMPLETE = 3
    """`verify`: no violation, but not closed, with a torn tail, an unresolved check or an unlinked resume; `match`: a
    match in such a transcript; `membership verify`: a proof that holds, in such a transcript; `audit`: another platform
    class, or not auditable."""

    INTERRUPTED = 130
    """Stopped by the user (128 + SIGINT)."""

    OUTPUT_CLOSED = 141
    """Whoever read the output stopped reading (128 + SIGPIPE)."""
