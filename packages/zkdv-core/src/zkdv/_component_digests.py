"""Digests of single parameters that a run keeps as evidence, read for `match`: believed where they lead to the root."""

import re
from pathlib import Path

from zkdv import _native, tensor_files
from zkdv.errors import ZKDVError
from zkdv.evidence_files import COMPONENT_FOLDER, component_file

__all__ = ["kept_updates", "parameter_digests"]

DIGEST_BYTES = 32


def kept_updates(folder: Path) -> frozenset[int]:
    """Return the updates of which a run's folder keeps digests; none, where only a file of records was given."""
    names = (file.name for file in (folder / COMPONENT_FOLDER).glob("*.safetensors"))
    return frozenset(int(found[1]) for name in names if (found := re.fullmatch(r"(\d{1,20})\.safetensors", name)))


def parameter_digests(folder: Path, update: int, root: bytes, leaves: int) -> list[bytes] | None:
    """Return the digests of all parameters after an update; None where the file does not hold those under the root.

    Args:
        folder: The run's folder.
        update: The update.
        root: The recorded root of the parameters after it.
        leaves: How many parameters there are.
    """
    path = folder / component_file(update)
    if path.is_symlink() or not path.is_file():
        return None
    try:
        kept = tensor_files.read(path).get("parameters/digests")
        if kept is None or (kept.dtype, kept.shape) != ("uint8", (leaves, DIGEST_BYTES)):
            return None
        data = kept.elements().tobytes()
    except ZKDVError:
        return None
    digests = [data[place : place + DIGEST_BYTES] for place in range(0, len(data), DIGEST_BYTES)]
    return digests if _native.tree_root("parameters", digests) == root else None
