"""How much training may run ahead of its commitments and checks.

A policy bounds how many generations of training buffers are live, not how many bytes the allocator holds. The strictest
policy among active updates sets the limit, and `max_in_flight` is the ceiling.
"""

from enum import IntEnum

__all__ = ["ALWAYS", "NEVER", "UNCHECKED", "Policy"]


class Policy(IntEnum):
    """The overlap policy of one update, strictest first; recorded with the update."""

    NEVER = 0
    """No update is admitted until this one's commitment and any check have retired: least memory, fully sequential."""

    UNCHECKED = 1
    """The default. Commitments are pipelined; a sampled check is a fence, with at most one admitted successor."""

    ALWAYS = 2
    """Training and checking run side by side, with at most two generations of buffers and one check's workspace.

    The slot is free again once a check holds its device inputs. A failure that comes later poisons the calls after it,
    and `close()` always reports it.
    """


NEVER = Policy.NEVER
UNCHECKED = Policy.UNCHECKED
ALWAYS = Policy.ALWAYS
