"""Whether an installed frontend and the installed core fit together.

Each distribution states the range of `zkdv-core` that it works with once, in its requirements. Installers keep to it;
what was installed around them (`--no-deps`, two checkouts) would otherwise fail oddly, somewhere inside.
"""

import re
from importlib import metadata

__all__ = ["require_core"]

CORE = "zkdv-core"


def require_core(distribution: str) -> None:
    """Refuse to go on where a distribution was made for another version of the core; a frontend calls this first.

    Args:
        distribution: The frontend's distribution, for one `zkdv-jax`.

    Raises:
        ImportError: The installed core is outside the range that the distribution requires; says both, and what to do.
    """
    installed = metadata.version(CORE)
    for requirement in metadata.requires(distribution) or ():
        ranges = re.fullmatch(rf"{CORE}([\s<>=\d.,]*)(;.*)?", requirement)
        if ranges is None:
            continue
        bounds = re.findall(r"(>=|<)\s*(\d+(?:\.\d+)*)", ranges[1])
        if not all(_holds(installed, comparison, bound) for comparison, bound in bounds):
            wanted = ",".join(sorted(f"{comparison}{bound}" for comparison, bound in bounds))
            raise ImportError(
                f"{distribution} {metadata.version(distribution)} works with {CORE} {wanted}, and {installed} is "
                f"installed; install versions that fit: `uv add {distribution} '{CORE}{wanted}'`",
                name="zkdv",
            )


def _holds(installed: str, comparison: str, bound: str) -> bool:
    reached = _release(installed) >= _release(bound)
    return reached if comparison == ">=" else not reached


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version without trailing zeros, so that 0.1 and 0.1.0 are the same."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(number) for number in re.sub(r"(\.0+)*$", "", numbers[0]).split(".")) if numbers else ()
