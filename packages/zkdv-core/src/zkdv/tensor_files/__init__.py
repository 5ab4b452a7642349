"""Tensors in files, whatever wrote them: their names, dtypes and shapes, and the bytes of one at a time.

`read` looks at what a file holds, not at its name. safetensors (one file, an index with its files, a folder of files),
`.npz` and `.npy` are read here; other formats by plugins (`zkdv.hooks.zkdv_tensor_files`), so that a framework is
imported only for a file of its own. Nothing is unpickled by this package, and nothing is converted.
"""

from zkdv.tensor_files._formats import read
from zkdv.tensor_files._stored import StoredTensor, Tensors

__all__ = ["StoredTensor", "Tensors", "read"]
