"""AOT Inductor packages beside exported programs: compiled in the background, found again by content, measured.

A package is native code and never bit-equal to the exported program that it was made of, which replay and audit use.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import platformdirs
import torch

from zkdv import _native
from zkdv.errors import ZKDVError
from zkdv.torch import _framework

__all__ = [
    "SWITCH",
    "SealedPackage",
    "compile_package",
    "is_wanted",
    "largest_distance",
    "load_package",
    "refuse_missing_compiler",
]

SWITCH: Final = "ZKDV_AOT"
"""Environment variable: `off` seals exported programs alone, wherever the training script does not say otherwise."""

FORMAT: Final = "torch-aotinductor"
POLL_SECONDS: Final = 0.2
LINES_OF_FAILURE: Final = 3


@dataclass(frozen=True)
class SealedPackage:
    """A compiled update.

    Attributes:
        blob: The package.
        text: What it was compiled from, in words, UTF-8.
        platforms: Kinds of the devices that it runs on.
        convention: How arguments and results are ordered, and how far it was from the exported program.
    """

    blob: bytes
    text: bytes
    platforms: tuple[str, ...]
    convention: str

    def record(self) -> dict[str, Any]:
        """Return what the program record says beside the digests."""
        return {
            "role": "aoti",
            "format": FORMAT,
            "extension": "pt2",
            "platforms": list(self.platforms),
            "convention": self.convention,
        }


def is_wanted(asked: bool | None) -> bool:  # noqa: FBT001 (what a decorator was given)
    """Return whether packages are sealed: as the script says, else as the environment says, else yes.

    Raises:
        ValueError: The environment variable is neither `on` nor `off`.
    """
    if asked is not None:
        return asked
    value = os.environ.get(SWITCH, "on")
    if value not in {"on", "off"}:
        raise ValueError(f"{SWITCH} is {value!r}; it is `on` or `off`")
    return value == "on"


def refuse_missing_compiler() -> None:
    """Refuse to begin a run whose packages could not be compiled at its end.

    Raises:
        ZKDVError: There is no C++ compiler; says what to install, and how to do without.
    """
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise ZKDVError(
            f"there is no C++ compiler ({compiler}), which AOT Inductor needs to compile the update; install one (on "
            "Debian or Ubuntu `apt install g++`) or name it in CXX, or seal the portable program alone: "
            f"@proof.attest(aot=False), or {SWITCH}=off in the environment"
        )


def compile_package(blob: bytes, cancelled: Callable[[], bool]) -> bytes | None:
    """Return the package of an exported program: what an earlier run compiled from the same bytes, or a new one.

    Args:
        blob: The exported program.
        cancelled: Whether nobody waits for it any more; looked at several times a second.

    Returns:
        The package; None where it was cancelled.

    Raises:
        ZKDVError: It can't be compiled; says why.
    """
    known = _find(blob)
    if known is not None:
        return known
    with tempfile.TemporaryDirectory(prefix="zkdv-aot-") as folder:
        source, target, log = Path(folder, "program.pt2"), Path(folder, "package.pt2"), Path(folder, "log")
        source.write_bytes(blob)
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 (our own module)
                [sys.executable, "-m", "zkdv.torch._aot_compile", str(source), str(target)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Its paths stand in the package, and would name the user.
                env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache"))},
            )
            try:
                while process.poll() is None:
                    if cancelled():
                        return None
                    time.sleep(POLL_SECONDS)
            finally:
                process.kill()
                process.wait()
        if process.returncode != 0 or not target.is_file():
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise ZKDVError(
                f"AOT Inductor can't compile the update: {' / '.join(lines[-LINES_OF_FAILURE:])}; the portable program "
                f"is sealed all the same; @proof.attest(aot=False) or {SWITCH}=off does without the package"
            )
        package = target.read_bytes()
    _remember(blob, package)
    return package


def load_package(package: bytes) -> Callable[..., Sequence[torch.Tensor]]:
    """Load a package that this process, or an earlier run of this user, has compiled: it is native code."""
    # The loader unpacks the file, so that it may go.
    with tempfile.TemporaryDirectory(prefix="zkdv-aot-") as folder:
        path = Path(folder, "package.pt2")
        path.write_bytes(package)
        return _framework.load_package(str(path))


def largest_distance(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> float:
    """Return the largest absolute difference of two results; equal infinities and NaNs are none."""
    largest = 0.0
    for one, other in zip(ours, theirs, strict=True):
        wide, others = one.detach().cpu().to(torch.complex128), other.detach().cpu().to(torch.complex128)
        apart = torch.where((wide == others) | (wide.isnan() & others.isnan()), 0, (wide - others).abs())
        if apart.numel():
            largest = max(largest, float(apart.max()))
    return largest


def _key(blob: bytes) -> str:
    facts = (
        torch.__version__,
        platform.machine(),
        torch.backends.cpu.get_cpu_capability(),
        os.environ.get("CXX", "g++"),
    )
    return _native.leaf_digest(_native.leaf_digest(blob) + "\0".join(facts).encode()).hex()


def _folder() -> Path:
    return Path(platformdirs.user_cache_path("zkdv"), "aot")


def _find(blob: bytes) -> bytes | None:
    """Return what was compiled from these bytes on such a machine before; its name holds its digest."""
    for path in sorted(_folder().glob(f"{_key(blob)}-*.pt2")):
        try:
            package = path.read_bytes()
        except OSError:
            continue
        if path.stem.endswith(_native.leaf_digest(package).hex()):
            return package
    return None


def _remember(blob: bytes, package: bytes) -> None:
    folder = _folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        target = folder / f"{_key(blob)}-{_native.leaf_digest(package).hex()}.pt2"
        partial = target.with_suffix(f".{os.getpid()}.partial")
        partial.write_bytes(package)
        partial.replace(target)
    except OSError:
        # A cache that can't be written to costs time at the next run, nothing else.
        return
