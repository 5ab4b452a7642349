"""What Torch does not document is used in one module alone, which names the version that it was tested with."""

import ast
from pathlib import Path

import pytest

import zkdv.torch

PACKAGE = Path(zkdv.torch.__file__).parent
FRAMEWORK = "_framework.py"


def private_names(source):
    """Private names that code takes from `torch`, and private attributes of its objects, as far as they are known."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            dotted = [alias.name.split(".") for alias in node.names]
            names = [name for parts in dotted if parts[0] == "torch" for name in parts]
        elif isinstance(node, ast.Attribute):
            root = node.value
            while isinstance(root, ast.Attribute):
                root = root.value
            root = root.id if isinstance(root, ast.Name) else None
            private = root == "torch" or (root != "self" and node.attr in {"_version", "_schema", "_orig_mod"})
            names = [node.attr] if private else []
        else:
            continue
        found += [name for name in names if name.startswith("_") and not name.startswith("__")]
    return found


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import torch\ntorch._check(True)", ["_check"]),
        ("import torch\ntorch._inductor.aoti_load_package('x')", ["_inductor"]),
        ("from torch._ops import OpOverload", ["_ops"]),
        ("import torch._dynamo.eval_frame", ["_dynamo"]),
        ("tensor._version", ["_version"]),
        ("import torch\ntorch.__version__, self._schema(), torch.export.load", []),
    ],
)
def test_names_are_found(source, expected):
    assert private_names(source) == expected


def test_private_names_of_torch_stand_in_one_module():
    found = {
        str(path.relative_to(PACKAGE)): private_names(path.read_text(encoding="utf-8"))
        for path in PACKAGE.rglob("*.py")
    }
    assert found.pop(FRAMEWORK)
    assert {path: names for path, names in found.items() if names} == {}
