"""What an attack leaves behind, and what zkdv says of it."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge import public
from trained import Trained

import zkdv
from zkdv.verification import RunReport

Runs = Mapping[str, Trained]


@dataclass(frozen=True)
class Attacked:
    """An attacked transcript.

    Attributes:
        run: The run that it was.
        data: The bytes of its records.
        options: What the verifier is asked beyond the defaults; the identity is pinned unless it says otherwise.
        spoil: What else is done to the folder.
    """

    run: Trained
    data: bytes
    options: Mapping[str, Any] = field(default_factory=dict)
    spoil: Callable[[Path], object] | None = None

    def write(self, folder: Path) -> None:
        """Write it to a folder that is not there yet."""
        shutil.copytree(self.run.folder, folder)
        (folder / "records.cborl").write_bytes(self.data)
        if self.spoil is not None:
            self.spoil(folder)

    def verify(self, folder: Path) -> RunReport:
        shutil.rmtree(folder, ignore_errors=True)
        self.write(folder)
        options = {"identity": public(self.run.identity)} | self.options
        [report] = zkdv.verify(folder, **options).runs
        return report


@dataclass(frozen=True)
class Attack:
    """A cheat, made in several places, and the one code that it is found by."""

    code: str
    make: Callable[[Runs], Iterable[Attacked]]

    def __str__(self) -> str:
        return f"{self.code}-{self.make.__name__}"

    def __call__(self, runs: Runs) -> Iterator[Attacked]:
        yield from self.make(runs)


ATTACKS: list[Attack] = []


def attack(code: str) -> Callable[[Callable[[Runs], Iterable[Attacked]]], Callable[[Runs], Iterable[Attacked]]]:
    """Enter a function in the list of attacks: it makes the cheat wherever it can be made."""

    def enter(make: Callable[[Runs], Iterable[Attacked]]) -> Callable[[Runs], Iterable[Attacked]]:
        ATTACKS.append(Attack(code, make))
        return make

    return enter
