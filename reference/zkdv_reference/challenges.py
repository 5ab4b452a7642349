"""Challenges, scheme `zkdv-challenge-1`."""

from collections.abc import Iterator, Mapping
from itertools import count

from zkdv_reference.blake3 import xof


def draw(
    record_digest: bytes,
    randomness: bytes,
    sampling: Mapping[str, float],
    *,
    update: int,
    parameters: int,
    optimizer: int,
) -> tuple[bool, int | None, int | None]:
    """Whether an update is sampled, and the coordinates among so many elements of parameters and optimizer state."""
    words = _words(record_digest + randomness)
    word = next(words)
    if "every" in sampling:
        is_sampled = (update + 1) % sampling["every"] == 0
    else:
        is_sampled = word < int(sampling["probability"] * 2**64)
    return is_sampled, _below(words, parameters), _below(words, optimizer)


def _below(words: Iterator[int], bound: int) -> int | None:
    if bound == 0:
        return None
    accepted = 2**64 // bound * bound
    return next(word % bound for word in words if word < accepted)


def _words(data: bytes) -> Iterator[int]:
    for index in count():
        stream = xof("zkdv 1 challenge", data, 8 * (index + 1))
        yield int.from_bytes(stream[-8:], "little")
