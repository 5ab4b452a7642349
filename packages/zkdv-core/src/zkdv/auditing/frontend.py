"""What an audit asks of a frontend: to load a sealed program and to run it. Plugins declare one for each prover.

`zkdv audit` runs a frontend in a process of its own (`zkdv.auditing._worker`), since native code reads what a stranger
wrote: a program that crashes it ends that process, and the audit goes on to say so.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from zkdv.schema import Schema

__all__ = ["AuditFrontend", "LoadedProgram", "SealedFiles"]


@dataclass(frozen=True)
class SealedFiles:
    """A sealed program as it lies in a run's folder.

    Attributes:
        blob: The program; None where the file is missing or is not the committed one.
        text: Its text form, UTF-8; None likewise.
        format: What kind of program the record says it is.
        platforms: The platforms that it was lowered for.
    """

    blob: bytes | None
    text: bytes | None
    format: str
    platforms: tuple[str, ...]


class LoadedProgram(ABC):
    """A program that can be run."""

    source: str
    """What it was loaded from: `program` or `text`."""

    notes: Sequence[str] = ()
    """What a reader should know of how it was loaded, in words."""

    @abstractmethod
    def place(self, state: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return state leaves, parameters first, where the program takes them."""

    @abstractmethod
    def run(self, state: Sequence[Any], batch: Sequence[NDArray[Any]]) -> Sequence[Any]:
        """Return the state leaves after one update.

        Args:
            state: The leaves before it, as `place` or `run` returned them.
            batch: The batch leaves.
        """

    @abstractmethod
    def read(self, leaf: Any) -> NDArray[Any]:
        """Return a leaf as an array on the host, in C order."""


class AuditFrontend(Protocol):
    """Loads the programs of one prover."""

    @property
    def framework(self) -> Mapping[str, str]:
        """Versions of the distributions that numbers depend on."""

    @property
    def flags(self) -> Sequence[str]:
        """Environment variables that change the framework's results."""

    def prepare(self, devices: Sequence[str]) -> Sequence[str]:
        """Make the framework ready, before it computes anything.

        Args:
            devices: Kinds of the devices that the run had.

        Returns:
            Kinds of the devices that are here.
        """

    def load(self, files: SealedFiles, schema: Schema) -> LoadedProgram:
        """Load a program, from its text where it can't be loaded otherwise.

        Raises:
            ZKDVError: It can't be loaded, or asks for something that no program needs; says why.
        """
