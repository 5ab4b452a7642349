"""Which tensors of a file may be which leaves of a run, by their names.

A file and a run name the same array differently: nested names are joined by `.` or `/`, wrappers add parts of names
(`module.`, `_orig_mod.`), a checkpoint holds the parameters below a name of its own (`params.`). `pairings` finds the
ways to read the file's names as the run's that differ by one common beginning and one common end. Which of them holds
is not decided by names but by digests.
"""

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zkdv.schema import LeafSpec

__all__ = ["MappingError", "Pairing", "pairings"]

# Parts of names that frameworks' wrappers add and their users never wrote.
WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
MAX_CHANGES = 64
MAX_PAIRINGS = 32


class MappingError(ValueError):
    """A mapping of names names what is not there."""


@dataclass(frozen=True)
class Pairing:
    """One way to read a file's names as those of a run.

    Attributes:
        keys: For each leaf the names of the file's tensors that stand for it; more than one where the leaf is tied, or
            the file holds it twice; none where the file lacks it.
        renaming: The common change from the run's names to the file's, in words; empty where there is none.
    """

    keys: tuple[tuple[str, ...], ...]
    renaming: str

    @property
    def missing(self) -> int:
        """Number of leaves that the file lacks."""
        return sum(not keys for keys in self.keys)


@dataclass(frozen=True)
class _Change:
    """What is put around, or taken from around, the run's names to get the file's."""

    before: str = ""
    after: str = ""
    taken: bool = False

    def apply(self, name: str) -> str | None:
        if not self.taken:
            return self.before + name + self.after
        inner = name.removeprefix(self.before).removesuffix(self.after)
        return inner if inner and self.before + inner + self.after == name else None

    def in_words(self) -> str:
        if not self.before and not self.after:
            return ""
        shape = f"{self.before}NAME{self.after}"
        return f"{shape} of the run is NAME in the file" if self.taken else f"NAME of the run is {shape} in the file"


def pairings(
    leaves: Sequence[LeafSpec], keys: Iterable[str], mapping: Mapping[str, str | None] | None = None
) -> list[Pairing]:
    """Find how a file's names may be read as a run's.

    Args:
        leaves: The leaves, with their aliases.
        keys: Names of the file's tensors.
        mapping: Names of leaves by names in the file; None for a tensor that stands for no leaf. What it names is
            settled; everything else is found.

    Returns:
        At least one pairing, those that cover most leaves first.

    Raises:
        MappingError: The mapping names a tensor or a leaf that there is not.
    """
    mapping = mapping or {}
    keys = list(keys)
    settled = _settled(leaves, keys, mapping)
    free: dict[str, list[str]] = {}
    for key in keys:
        if key not in mapping:
            free.setdefault(_plain(key), []).append(key)
    names = [[_plain(name) for name in (leaf.name, *leaf.aliases)] for leaf in leaves]
    found: dict[tuple[tuple[str, ...], ...], Pairing] = {}
    for change in _changes([own for own, chosen in zip(names, settled, strict=True) if not chosen], free):
        paired = tuple(
            (
                *chosen,
                *(key for name in own if (renamed := change.apply(name)) is not None for key in free.get(renamed, ())),
            )
            for own, chosen in zip(names, settled, strict=True)
        )
        found.setdefault(paired, Pairing(paired, change.in_words()))
    # A stable sort: among equals the smaller change comes first.
    return sorted(found.values(), key=lambda pairing: pairing.missing)[:MAX_PAIRINGS]


def closest(name: str, names: Iterable[str]) -> str:
    """Return what to add to a message about an unknown name: the nearest known ones."""
    near = difflib.get_close_matches(name, list(names)[:10_000], n=3, cutoff=0.5)
    return f"; near it: {', '.join(near)}" if near else ""


def _settled(
    leaves: Sequence[LeafSpec], keys: Sequence[str], mapping: Mapping[str, str | None]
) -> list[tuple[str, ...]]:
    places = {name: index for index, leaf in enumerate(leaves) for name in (leaf.name, *leaf.aliases)}
    known = set(keys)
    settled: list[list[str]] = [[] for _ in leaves]
    for key, name in mapping.items():
        if key not in known:
            raise MappingError(f"the mapping names {key!r}, which the file does not hold{closest(key, keys)}")
        if name is None:
            continue
        if name not in places:
            raise MappingError(f"the mapping names {name!r}, which is no parameter of the run{closest(name, places)}")
        settled[places[name]].append(key)
    return [tuple(chosen) for chosen in settled]


def _plain(name: str) -> str:
    parts = [part for part in name.replace("/", ".").split(".") if part not in WRAPPERS]
    return ".".join(parts)


def _changes(names: Sequence[Sequence[str]], keys: Iterable[str]) -> list[_Change]:
    """Return the changes by which keys can be the names: those that several names ask for first, then small ones."""
    votes: Counter[_Change] = Counter()
    keys = list(keys)
    flat = sorted({name for own in names for name in own}, key=lambda name: (-name.count("."), -len(name), name))
    # A few names are enough, but one is not: it may be missing. A long one is part of few keys.
    for name in dict.fromkeys([*flat[:3], *flat[len(flat) // 2 :][:1], *flat[-1:]]):
        asked = set()
        for key in keys:
            for outer, inner, taken in ((key, name, False), (name, key, True)):
                place = f".{outer}.".find(f".{inner}.")
                if inner and place >= 0:
                    before, after = outer[:place], outer[place + len(inner) :]
                    asked.add(_Change(before, after, taken and bool(before or after)))
        votes.update(asked)
    votes[_Change()] += len(flat)
    ordered = sorted(
        votes.items(), key=lambda item: (-item[1], len(item[0].before) + len(item[0].after), item[0].before)
    )
    return [change for change, _ in ordered[:MAX_CHANGES]]
