"""Ranks as errors name them."""

from collections.abc import Iterable

NAMED = 10


def rank_names(ranks: Iterable[int]) -> str:
    """`rank 1`, or `ranks 1, 2`; of many, the first ten."""
    named = sorted(ranks)
    shown = ", ".join(map(str, named[:NAMED]))
    more = f" and {len(named) - NAMED} more" if len(named) > NAMED else ""
    return f"rank {shown}" if len(named) == 1 else f"ranks {shown}{more}"
