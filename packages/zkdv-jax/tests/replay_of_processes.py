"""Replays a run over several processes from its folder, on as many processes.

Initial state and batches are what an auditor is given; program, mesh and layouts come from the folder.
"""

import re

import jax
import numpy as np
from small_run import records

from zkdv import _native
from zkdv.jax import _replay_export
from zkdv.sharding import leaf_digest

TREES = ("parameters", "optimizer")


def replay(folder, state, batch_of):
    """Return the updates whose roots come out as committed.

    Args:
        folder: The proof folder.
        state: The initial state, a `TrainState`.
        batch_of: Gives the batch leaves of an update.
    """
    [schema] = records(folder, "schema")
    [program] = records(folder, "program")
    blob = (folder / "programs" / f"{program['body']['digest'].hex()}.jaxexport").read_bytes()
    sealed = _replay_export.load(blob)
    mesh = _mesh(sealed, program["body"]["convention"])
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    # Given otherwise, the compiler may cut, and round, otherwise.
    places = [whole if place is None else place for place in sealed.in_shardings_jax(mesh)]
    gather = jax.jit(lambda arrays: arrays, out_shardings=whole)
    others = {"step": state.step, "opt_state": state.opt_state}
    named = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for tree in (state.params, others)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }
    specs = {tree: schema["body"][tree] for tree in TREES}
    leaves = [named[leaf["name"]] for tree in TREES for leaf in specs[tree]]
    count = len(specs["parameters"])
    call = jax.jit(lambda *arguments: sealed.call(*arguments)[count:])
    replayed = []
    for body in (update["body"] for update in records(folder, "update")):
        arguments = [
            jax.make_array_from_callback(leaf.shape, place, lambda index, leaf=leaf: leaf[index])
            for leaf, place in zip([*leaves, *batch_of(body["update"])], places, strict=True)
        ]
        leaves = [np.asarray(leaf) for leaf in gather(call(*arguments))]
        roots = {}
        for tree, own in zip(TREES, (leaves[:count], leaves[count:]), strict=True):
            digests = [leaf_digest(leaf, spec.get("sharding")) for leaf, spec in zip(own, specs[tree], strict=True)]
            roots[tree] = _native.tree_root(tree, digests)
        if roots == {tree: body["after"][tree] for tree in TREES}:
            replayed.append(body["update"])
    return replayed


def _mesh(sealed, convention):
    """The mesh that the program runs on, each device on the rank that its record says."""
    [axes] = re.findall(r"sdy\.mesh @mesh = <\[(.*?)\]", sealed.mlir_module())
    names, extents = zip(*re.findall(r'"(\w+)"=(\d+)', axes), strict=True)
    ranks = [int(rank) for rank in re.search(r"; devices on ranks ([\d ]+)$", convention)[1].split()]
    of_rank = {rank: iter([each for each in jax.devices() if each.process_index == rank]) for rank in set(ranks)}
    devices = [next(of_rank[rank]) for rank in ranks]
    return jax.sharding.Mesh(np.reshape(devices, [int(extent) for extent in extents]), names)
