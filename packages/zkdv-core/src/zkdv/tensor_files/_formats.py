"""Which reader a file is for."""

import json
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from zkdv.errors import ZKDVError
from zkdv.plugins import registry
from zkdv.tensor_files import _numpy, _safetensors
from zkdv.tensor_files._stored import StoredTensor, Tensors

__all__ = ["read"]

HOOK = "zkdv_tensor_files"
INDEX_SUFFIX = ".safetensors.index.json"
MAX_INDEX_BYTES = 64 << 20
MAX_FILES = 65_536
# What stands in the folder of an Orbax checkpoint, of one item or of several.
ORBAX_FILES = ("_METADATA", "_CHECKPOINT_METADATA", "manifest.ocdbt", "_sharding")
# Distributions that read formats which this one does not.
READERS = {"orbax": "'zkdv-jax[orbax]'", "torch": "zkdv-torch"}


def read(path: Path | str, *more_paths: Path | str, reader: str | None = None) -> Tensors:
    """Open a file of tensors, or several that hold one model together.

    Args:
        path: A safetensors file, an index of several (`model.safetensors.index.json`) or a folder of them; an `.npz`
            or `.npy` file; what plugins read: an Orbax checkpoint (with `zkdv-jax`), a file that `torch.save` wrote of
            tensors alone (with `zkdv-torch`).
        more_paths: Further ones, with tensors of other names.
        reader: The plugin that reads them, by name; default: what they hold decides.

    Returns:
        The tensors by name. Bytes are read when they are asked for, except by plugins whose format allows nothing else.

    Raises:
        ZKDVError: A file cannot be read, is none of these, is malformed, or repeats the name of another's tensor; the
            message names it. Or no plugin has the reader.
    """
    paths = [Path(one) for one in (path, *more_paths)]
    if reader is not None:
        registry().find(HOOK, reader)
        return _joined((str(one), _read_by_plugin(reader, one)) for one in paths)
    return _joined((str(one), _read_one(one)) for one in paths)


def _read_one(path: Path) -> Tensors:
    try:
        if path.is_dir():
            return _read_folder(path)
        with path.open("rb") as file:
            start = file.read(9)
        if path.name.endswith(INDEX_SUFFIX):
            return _read_index(path)
        if start.startswith(b"PK\x03\x04"):
            return _read_archive(path)
        if start.startswith(_numpy.NPY_MAGIC):
            return _numpy.read_npy(path)
        if start[8:9] == b"{":
            return _safetensors.read(path)
        if start.startswith(b"\x80"):
            return _read_by_plugin("torch", path)
    except OSError as error:
        raise ZKDVError(f"{path}: {error.strerror or error}") from error
    raise ZKDVError(
        f"{path} is no file of tensors that this version reads: safetensors, an index of safetensors files, .npz, "
        ".npy, an Orbax checkpoint, or what torch.save writes"
    )


def _read_archive(path: Path) -> Tensors:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ZKDVError(f"{path} is damaged: {error}") from error
    if any(name.rsplit("/", 1)[-1] == "data.pkl" for name in names):
        return _read_by_plugin("torch", path)
    return _numpy.read_npz(path)


def _read_folder(path: Path) -> Tensors:
    indexes = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if len(indexes) == 1:
        return _read_index(indexes[0])
    if len(indexes) > 1:
        raise ZKDVError(f"{path} holds several models ({', '.join(index.name for index in indexes)}); name one of them")
    if any((path / name).exists() for name in ORBAX_FILES):
        return _read_by_plugin("orbax", path)
    files = sorted(path.glob("*.safetensors"))
    if files:
        return _joined((str(file), _safetensors.read(file)) for file in files)
    raise ZKDVError(f"{path} is a folder that holds neither safetensors files nor an Orbax checkpoint; name the file")


def _read_index(path: Path) -> Tensors:
    try:
        with path.open("rb") as file:
            text = file.read(MAX_INDEX_BYTES + 1)
        if len(text) > MAX_INDEX_BYTES:
            raise ZKDVError(f"{path} is longer than {MAX_INDEX_BYTES} bytes, which no index of tensors is")
        index: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ZKDVError(f"{path} is no JSON: {error}") from error
    places = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(places, dict) or not all(isinstance(place, str) for place in places.values()):
        raise ZKDVError(
            f"{path} is no index of safetensors files: it has no 'weight_map' of tensor names to file names"
        )
    names = sorted(set(places.values()))
    for name in names:
        if name != Path(name).name or name in {"", ".", ".."}:
            raise ZKDVError(f"{path} names the file {name!r}; files of an index stand beside it")
    if len(names) > MAX_FILES:
        raise ZKDVError(f"{path} names {len(names)} files; there may be {MAX_FILES}")
    tensors = _joined((name, _safetensors.read(path.parent / name)) for name in names)
    for tensor, name in places.items():
        if tensor not in tensors or Path(tensors[tensor].file).name != name:
            raise ZKDVError(f"{path} says that {name} holds {tensor!r}, and it does not")
    if unlisted := sorted(tensors.keys() - places.keys()):
        raise ZKDVError(f"{path} does not list {unlisted[0]!r}, which {tensors[unlisted[0]].file} holds")
    return tensors


def _read_by_plugin(name: str, path: Path) -> Tensors:
    """Read a file of a framework's own format."""
    if name not in registry().names(HOOK):
        raise ZKDVError(
            f"{path} has the format {name!r}, and no installed plugin reads that; add one with `uv add {READERS[name]}`"
        )
    reader: Callable[[Path], Tensors] = registry().resolve(HOOK, name)  # type: ignore[assignment]
    try:
        return reader(path)
    except ZKDVError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500]
        raise ZKDVError(f"{path} cannot be read as {name!r}: {reason}") from error


def _joined(parts: Iterable[tuple[str, Tensors]]) -> Tensors:
    joined: dict[str, StoredTensor] = {}
    for path, tensors in parts:
        for name, tensor in tensors.items():
            if name in joined:
                raise ZKDVError(f"{path} and {joined[name].file} both hold a tensor {name!r}; give one of them")
            joined[name] = tensor
    return joined
