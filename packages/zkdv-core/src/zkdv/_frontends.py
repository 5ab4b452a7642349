"""Clear errors where a part of `zkdv` that ships as its own distribution is missing, or a stranger's is there.

Runs at `import zkdv`, so it imports nothing that an interpreter does not hold already.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

FRONTENDS = {"zkdv.control": "zkdv-control", "zkdv.jax": "zkdv-jax", "zkdv.torch": "zkdv-torch"}
"""Sub-packages by the distribution that adds them."""

PLANNED = ("zkdv.lora",)
"""Sub-packages that no released distribution adds yet."""


class MissingFrontendFinder:
    """Last in `sys.meta_path`: asked for a known sub-package when nothing else found it, and says how to add it."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find nothing; raise where `name` is a sub-package that another distribution adds.

        Args:
            name: Full name of the module that is imported.
            path: Where its parent package looks for it; not used.
            target: The module that is reloaded; not used.

        Raises:
            ModuleNotFoundError: With the command that adds the sub-package.
        """
        del path, target
        if name in FRONTENDS:
            distribution = FRONTENDS[name]
            needed = "" if name == "zkdv.control" else "./packages/zkdv-control "
            raise ModuleNotFoundError(
                f"{name} is not installed; add it with `uv add {distribution}`, or from a checkout of ZKDV with "
                f"`pip install {needed}./packages/{distribution}`",
                name=name,
            )
        if name in PLANNED:
            available = ", ".join(FRONTENDS)
            raise ModuleNotFoundError(f"{name} is not part of this version of ZKDV; there is: {available}", name=name)
        return None


def install_finder() -> None:
    """Append the finder to `sys.meta_path`, once however often `zkdv` is loaded."""
    # A reloaded package makes a new class: the name decides, not the object.
    if not any(getattr(finder, "__name__", "") == MissingFrontendFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.append(MissingFrontendFinder)


def refuse_unrelated_distribution(package_path: Sequence[str]) -> None:
    """Refuse to run where the unrelated distribution `zkdv` shares our folders: its files replace ours, or ours its.

    Args:
        package_path: `zkdv.__path__`.

    Raises:
        ImportError: Naming that distribution, its version and the commands that set things right.
    """
    for folder in {os.path.dirname(os.path.abspath(entry)) for entry in package_path}:  # noqa: PTH100, PTH120
        try:
            names = os.listdir(folder)  # noqa: PTH208 (pathlib is an import that an interpreter does not hold yet)
        except OSError:
            continue
        for name in names:
            # Folders are `name-version.dist-info`, a `-` in the name written as `_`: ours is `zkdv_core-….dist-info`.
            if name.startswith("zkdv-") and name.endswith(".dist-info"):
                version = name.removeprefix("zkdv-").removesuffix(".dist-info")
                raise ImportError(
                    f"the unrelated distribution `zkdv` {version} is installed beside `zkdv-core` and ships the same "
                    "import name; remove it and install ours again: `uv pip uninstall zkdv`, then "
                    "`uv pip install --reinstall zkdv-core` (or the same with pip and `--force-reinstall`)",
                    name="zkdv",
                )
