"""Merkle trees, scheme `zkdv-tree-1`."""

from collections.abc import Sequence

from zkdv_reference.blake3 import derive

KINDS = (
    "parameters",
    "optimizer",
    "parameter-probes",
    "optimizer-probes",
    "batch-rows",
    "batch-windows",
    "attached",
    "inputs",
)


def root(kind: str, leaves: Sequence[bytes]) -> bytes:
    """The root over the data of `leaves`."""
    top = _levels(kind, leaves)[-1][0] if leaves else b""
    return _derive(kind, "root", u64(len(leaves)) + top)


def open_leaf(kind: str, leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The siblings of leaf `index` from the bottom up, none at levels where its node is promoted."""
    path = []
    for level in _levels(kind, leaves):
        if index ^ 1 < len(level):
            path.append(level[index ^ 1])
        index //= 2
    return path


def verify_leaf(kind: str, expected_root: bytes, *, count: int, index: int, data: bytes, path: Sequence[bytes]) -> bool:
    """Whether `path` shows that leaf `index` of `count` has this data."""
    if not 0 <= index < count:
        return False
    node = _derive(kind, "leaf", data)
    siblings = list(path)
    width = count
    while width > 1:
        if index ^ 1 < width:
            if not siblings:
                return False
            sibling = siblings.pop(0)
            node = _derive(kind, "node", sibling + node if index % 2 else node + sibling)
        index //= 2
        width = (width + 1) // 2
    return not siblings and _derive(kind, "root", u64(count) + node) == expected_root


def u64(number: int) -> bytes:
    """Eight bytes, little-endian."""
    return number.to_bytes(8, "little")


def _levels(kind: str, leaves: Sequence[bytes]) -> list[list[bytes]]:
    levels = [[_derive(kind, "leaf", data) for data in leaves]]
    while len(levels[-1]) > 1:
        below = levels[-1]
        pairs = [_derive(kind, "node", below[i] + below[i + 1]) for i in range(0, len(below) - 1, 2)]
        levels.append(pairs + below[len(below) & ~1 :])
    return levels


def _derive(kind: str, part: str, data: bytes) -> bytes:
    return derive(f"zkdv 1 tree {kind} {part}", data)
