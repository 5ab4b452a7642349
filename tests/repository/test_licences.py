"""What the products are built from fits MIT OR Apache-2.0."""

import json
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path

from license_expression import get_spdx_licensing
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
ALLOWED = frozenset(tomllib.loads((REPOSITORY / "deny.toml").read_text())["licenses"]["allow"])
# Licences that Python distributions still name in free text, and what it stands for.
FREE_TEXT = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache 2.0": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
# Linked into no product: imported beside it, under terms that allow any use.
ALLOWED_IN_PYTHON = ALLOWED | {"BSL-1.0", "PSF-2.0", "MIT-CMU"}
# NVIDIA's own libraries, which Torch's wheels for Linux bring along and use by themselves; nothing here imports them.
LIBRARIES_OF_TORCH = ("nvidia-", "cuda-toolkit")


def is_allowed(expression: str, allowed: frozenset[str]) -> bool:
    """Whether an SPDX expression can be met with allowed licences only."""
    licensing = get_spdx_licensing()
    # Older crates write `A/B` for `A OR B`.
    parsed = licensing.parse(expression.replace("/", " OR "))
    truth = {symbol: licensing.TRUE if str(symbol) in allowed else licensing.FALSE for symbol in parsed.get_symbols()}
    return parsed.subs(truth, simplify=True) == licensing.TRUE


def test_expressions_are_met_by_one_side_of_or_and_both_sides_of_and():
    allowed = frozenset({"MIT", "Apache-2.0 WITH LLVM-exception"})
    assert is_allowed("MIT", allowed)
    assert is_allowed("GPL-3.0 OR MIT", allowed)
    assert is_allowed("GPL-3.0/MIT", allowed)
    assert is_allowed("(GPL-3.0 OR MIT) AND Apache-2.0 WITH LLVM-exception", allowed)
    assert not is_allowed("GPL-3.0 AND MIT", allowed)
    assert not is_allowed("Apache-2.0", allowed)


def test_every_rust_dependency_has_an_allowed_licence():
    metadata = json.loads(
        subprocess.run(
            ["cargo", "metadata", "--locked", "--format-version", "1"],
            cwd=REPOSITORY,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    )
    packages = {package["name"]: package["license"] or "no licence stated" for package in metadata["packages"]}
    assert len(packages) > 10
    refused = {name: licence for name, licence in packages.items() if not is_allowed(licence, ALLOWED)}
    assert refused == {}


def test_every_python_dependency_of_a_package_has_an_allowed_licence():
    closure = _installed_closure(["zkdv-core", "zkdv-jax", "zkdv-torch"])
    licences = {name: _licence(name) for name in closure if not name.startswith(LIBRARIES_OF_TORCH)}
    assert {"numpy", "jax", "pluggy", "torch"} <= set(licences)
    refused = {name: licence for name, licence in licences.items() if not is_allowed(licence, ALLOWED_IN_PYTHON)}
    assert refused == {}


def _installed_closure(roots: list[str]) -> set[str]:
    closure: set[str] = set()
    pending = list(roots)
    while pending:
        name = canonicalize_name(pending.pop())
        if name in closure:
            continue
        closure.add(name)
        for line in distribution(name).requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                pending.append(requirement.name)
    return closure


def _licence(name: str) -> str:
    metadata = distribution(name).metadata
    if expression := metadata.get("License-Expression"):
        return expression
    for classifier in metadata.get_all("Classifier", []):
        prefix, _, licence = classifier.rpartition(" :: ")
        if prefix.startswith("License"):
            return FREE_TEXT.get(licence, licence)
    return FREE_TEXT.get(text := metadata.get("License", "no licence stated"), text)
