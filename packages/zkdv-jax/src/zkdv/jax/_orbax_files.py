"""Orbax checkpoints as files of tensors: names, dtypes and shapes from their metadata, one array at a time."""

import functools
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from numpy.typing import NDArray

from zkdv.errors import ZKDVError
from zkdv.jax._transition import leaf_name
from zkdv.tensor_files import StoredTensor, Tensors

__all__ = ["read"]

# What stands in the folder of one tree; a checkpoint of several items has one such folder for each.
TREE_FILE = "_METADATA"


def read(path: Path) -> Tensors:
    """Read the metadata of a checkpoint: of one tree, or of one step that holds one tree.

    Args:
        path: The checkpoint's folder.

    Returns:
        Its arrays by name, keys and positions joined by dots. They are restored when they are asked for, as NumPy
        arrays on the host, whatever devices they were on.

    Raises:
        ZKDVError: The folder holds no tree, or several.
    """
    folder = _tree_folder(path).absolute()
    leaves = jax.tree_util.tree_leaves_with_path(_metadata(folder))
    return {
        leaf_name(place): StoredTensor(
            str(np.dtype(leaf.dtype)), tuple(leaf.shape), str(path), functools.partial(_restore, folder, place)
        )
        for place, leaf in leaves
    }


def _tree_folder(path: Path) -> Path:
    if (path / TREE_FILE).is_file():
        return path
    items = sorted(item.parent for item in path.glob(f"*/{TREE_FILE}"))
    if len(items) == 1:
        return items[0]
    if items:
        raise ZKDVError(
            f"{path} holds several trees ({', '.join(item.name for item in items)}); name the folder of one"
        )
    raise ZKDVError(f"{path} holds no tree of arrays that Orbax wrote; name the folder of a step")


def _metadata(folder: Path) -> Any:
    # The handler of a tree, which asks for nothing that only the folder of a whole checkpoint has.
    return ocp.PyTreeCheckpointHandler().metadata(folder).tree


def _restore(folder: Path, place: tuple[Any, ...]) -> NDArray[Any]:
    """Restore the array at one place of the tree, and nothing else."""
    tree = _metadata(folder)

    def wanted(own: tuple[Any, ...], leaf: Any) -> Any:
        return leaf if own == place else ocp.PLACEHOLDER

    item = jax.tree_util.tree_map_with_path(wanted, tree)
    as_numpy = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), tree)
    restored = ocp.PyTreeCheckpointHandler().restore(
        folder, args=ocp.args.PyTreeRestore(item=item, restore_args=as_numpy)
    )
    found = dict(jax.tree_util.tree_leaves_with_path(restored))
    return np.asarray(found[place])
