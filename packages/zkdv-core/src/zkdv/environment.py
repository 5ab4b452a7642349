"""What a transcript says of the platform that training ran on: what bit-exact replay may depend on, and no more.

The record names no path, host, user or process, and takes only those environment variables that change results. What in
a flag looks like a path or an address is left out of its value.
"""

import csv
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from zkdv._native import leaf_digest

__all__ = [
    "FLAGS",
    "EnvironmentValue",
    "collect",
    "distributions_digest",
    "installed_versions",
    "platform_differences",
    "platform_facts",
]

EnvironmentValue = str | int | float | bool | bytes | Sequence["EnvironmentValue"] | Mapping[str, "EnvironmentValue"]
"""What a value of the record can be (`environment-value` in docs/protocol/transcript.cddl)."""

FLAGS = (
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "KMP_DETERMINISTIC_REDUCTION",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "PYTHONHASHSEED",
)
"""Environment variables that change numbers or their order whatever the framework; a frontend adds its own."""

REVISION_TIMEOUT_SECONDS = 5.0
SCRIPT_LIMIT_BYTES = 16 * 1024 * 1024

# Instruction sets that compilers and libraries choose kernels by, on x86 and Arm.
_VECTOR_ISA = re.compile(
    r"(a?sse|ssse)\w*|pni|avx\w*|fma\w*|f16c|bmi[12]|amx\w*|aes|vaes|v?pclmulqdq|sha_ni|gfni|asimd\w*|neon|sve\w*|sme\d*(_\w+)?|"
    r"bf16|i8mm|fphp|fcma|sha[123]\w*"
)
# Slashes of either kind, home folders, user@host, host:port, and addresses of four numbers.
_PLACE = re.compile(r"[/\\~@]|:\d|\d+\.\d+\.\d+\.\d+")


def collect(
    *, framework: Mapping[str, str], devices: Sequence[str], flags: Iterable[str] = (), script: Path | None = None
) -> dict[str, EnvironmentValue]:
    """Collect the body of an `environment` record.

    Args:
        framework: Versions of the framework and the libraries that numbers depend on, by distribution.
        devices: Kind of each device that the run uses, for one `["cpu"]`.
        flags: Names of environment variables that change the framework's results, besides `FLAGS`.
        script: The entry script; default: the file that the interpreter was started with, if there is one.

    Returns:
        The body. `distributions` holds their number and `distributions_digest`; `script` is the BLAKE3-256 of the entry
        script's bytes, and `revision` the commit that its folder has checked out in git, each where there is one.
    """
    script = _entry_script() if script is None else script
    body: dict[str, EnvironmentValue] = {
        "zkdv": metadata.version("zkdv-core"),
        "python": {"implementation": platform.python_implementation(), "version": platform.python_version()},
        "distributions": _distributions(),
        **platform_facts(framework=framework, devices=devices, flags=flags),
    }
    if script is not None:
        if (digest := _script_digest(script)) is not None:
            body["script"] = digest
        if (revision := _revision(script.parent)) is not None:
            body["revision"] = revision
    return body


def platform_facts(
    *, framework: Mapping[str, str], devices: Sequence[str], flags: Iterable[str] = ()
) -> dict[str, EnvironmentValue]:
    """Collect the part of an `environment` record that decides whether numbers come out bit for bit the same.

    Args:
        framework: As for `collect`.
        devices: As for `collect`.
        flags: As for `collect`.
    """
    return {
        "framework": dict(framework),
        "platform": {"system": platform.system(), "machine": platform.machine(), "libc": " ".join(platform.libc_ver())},
        "devices": list(devices),
        "cpu": _cpu(),
        "flags": {name: _without_places(os.environ[name]) for name in sorted({*FLAGS, *flags}) if name in os.environ},
    }


def platform_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[str, ...]:
    """Say what keeps two platforms out of one class, inside of which numbers come out bit for bit the same.

    Versions of the framework, operating system and machine, kinds of devices, instruction sets, the processors that may
    be used, and flags all count.

    Args:
        theirs: An `environment` record's body.
        ours: What `platform_facts` returned.

    Returns:
        One line for each difference, with both values; empty where the class is the same.
    """
    found: list[str] = []
    for place in _CLASS_PLACES:
        one, other = _at(theirs, place), _at(ours, place)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            names = sorted({*one, *other}, key=str)
            found += [
                f"{name}: the run had {_said(one.get(name))}, here is {_said(other.get(name))}"
                for name in names
                if one.get(name) != other.get(name)
            ]
        elif one != other:
            name = " ".join(place)
            found.append(f"{name}: the run had {_said(one)}, here is {_said(other)}")
    return tuple(found)


_CLASS_PLACES = (
    ("framework",),
    ("platform", "system"),
    ("platform", "machine"),
    ("devices",),
    ("cpu", "isa"),
    ("cpu", "affinity"),
    ("flags",),
)


def _at(body: Mapping[str, Any], place: Sequence[str]) -> Any:
    value: Any = body
    for name in place:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _said(value: Any) -> str:
    if value is None:
        return "nothing"
    return (
        ", ".join(map(str, value)) or "nothing"
        if isinstance(value, Sequence) and not isinstance(value, str)
        else str(value)
    )


def installed_versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the version of each of these distributions that is installed, by name."""
    versions: dict[str, str] = {}
    for distribution in distributions:
        try:
            versions[distribution] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return versions


def distributions_digest(installed: Iterable[metadata.Distribution] | None = None) -> bytes:
    """Digest which code is installed, so that two environments with the same wheels have the same digest.

    The BLAKE3-256 of UTF-8 lines, sorted, each ended by a line feed: for every distribution its normalised name
    (PEP 503) and version, and for every file in its `RECORD` that has a digest there, except what an installer adds
    (its own `.dist-info` folder, scripts outside the packages, `.pth` files), the same and the file's name and digest,
    all joined by tabs. Of an editable install only the name and version are known.

    Args:
        installed: Distributions; default: those of this environment.

    Returns:
        The digest, 32 bytes.
    """
    lines: set[str] = set()
    for distribution in metadata.distributions() if installed is None else installed:
        # A broken leftover in site-packages has no name.
        if "Name" not in distribution.metadata:
            continue
        name = distribution.metadata["Name"]
        identity = f"{re.sub(r'[-_.]+', '-', name).lower()}\t{distribution.version}"
        lines.add(identity)
        lines.update(f"{identity}\t{file}\t{digest}" for file, digest in _recorded_files(distribution))
    return leaf_digest("".join(f"{line}\n" for line in sorted(lines)).encode())


def _recorded_files(distribution: metadata.Distribution) -> Iterable[tuple[str, str]]:
    rows = csv.reader((distribution.read_text("RECORD") or "").splitlines())
    for row in rows:
        if len(row) < 2 or not row[1]:
            continue
        file, digest = row[0], row[1]
        top = file.partition("/")[0]
        if top.endswith(".dist-info") or top == ".." or file.startswith("/") or file.endswith(".pth"):
            continue
        yield file, digest


def _distributions() -> dict[str, EnvironmentValue]:
    installed = list(metadata.distributions())
    return {"count": len(installed), "digest": distributions_digest(installed)}


def _cpu() -> dict[str, EnvironmentValue]:
    cpu: dict[str, EnvironmentValue] = {"count": os.cpu_count() or 0, "isa": list(_isa_flags())}
    if sys.platform == "linux":
        cpu["affinity"] = len(os.sched_getaffinity(0))
    return cpu


def _isa_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Vector instruction sets of the first processor; none where the platform does not tell."""
    try:
        text = cpuinfo.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ()
    found = re.search(r"^(?:flags|Features)\s*:\s*(.*)$", text, re.MULTILINE)
    return tuple(sorted({flag for flag in found[1].split() if _VECTOR_ISA.fullmatch(flag)})) if found else ()


def _without_places(value: str) -> str:
    """A flag's value without what could be a path or an address: `--xla_dump_to=/home/…` becomes `--xla_dump_to=…`."""
    # What the environment holds need not be UTF-8; the record is.
    words = value.encode(errors="replace").decode().split()
    return " ".join(_without_place(word) for word in words)


def _without_place(word: str) -> str:
    if not _PLACE.search(word):
        return word
    name, equals, _ = word.partition("=")
    return f"{name}=…" if equals and not _PLACE.search(name) else "…"


def _entry_script() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).resolve() if isinstance(file, str) else None


def _script_digest(script: Path) -> bytes | None:
    try:
        with script.open("rb") as file:
            content = file.read(SCRIPT_LIMIT_BYTES + 1)
    except OSError:
        return None
    return leaf_digest(content) if len(content) <= SCRIPT_LIMIT_BYTES else None


def _revision(folder: Path) -> dict[str, EnvironmentValue] | None:
    """The commit that `folder` has checked out in git, and whether tracked files differ from it."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None or not re.fullmatch(r"[0-9a-f]{40,64}", commit):
        return None
    revision: dict[str, EnvironmentValue] = {"system": "git", "commit": commit}
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    if changes is not None:
        revision["changed"] = bool(changes)
    return revision


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        finished = subprocess.run(  # noqa: S603 (fixed arguments, no shell)
            ["git", "--no-optional-locks", "-C", str(folder), *arguments],  # noqa: S607 (the user's own git)
            capture_output=True,
            timeout=REVISION_TIMEOUT_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return finished.stdout.decode(errors="replace").strip() if finished.returncode == 0 else None
