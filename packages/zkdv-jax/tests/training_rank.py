"""One process of a training run over several, told over a pipe what to do; `processes.py` starts it.

A line of JSON in, one action, and a line of JSON out. Nothing here waits for a time: who asks decides what comes when.
"""

import ctypes
import json
import os
import sys
import warnings
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from replay_of_processes import replay

import zkdv.jax
from zkdv.control import HostControl
from zkdv.jax._pipeline import JAXPipeline

MODEL = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(8)])
ROWS, WIDTH = 16, 24
BOTH = ("data", "model")
EXACT_REPLAY = JAXPipeline.replay


def tensor_parallel(path, shape):
    if "layers_0" in path:
        return P(None, "model") if len(shape) == 2 else P("model")
    return P("model", None) if len(shape) == 2 else P()


def mixed(_path, shape):
    return P(*BOTH) if len(shape) == 2 else P("model") if shape else P()


def replicated(_path, _shape):
    return P()


# How a leaf of this path and shape lies, how a batch does, and which axis of the mesh crosses processes.
LAYOUTS = {
    "data": (replicated, P(BOTH), "data"),
    "tensor": (tensor_parallel, P("data"), "model"),
    "mixed": (mixed, P("data"), "data"),
}


def mesh_of(axis):
    devices = np.array(jax.devices()).reshape(jax.process_count(), -1)
    return jax.sharding.Mesh(devices if axis == "data" else devices.T, BOTH)


def placed(array, sharding):
    array = np.asarray(array)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def host_state(proof=None, rate=1e-2):
    params = MODEL.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
    return zkdv.jax.contrib.TrainState.create(
        proof=proof, apply_fn=MODEL.apply, params=params, tx=optax.adam(rate), zkdv_overlap=zkdv.overlap.UNCHECKED
    )


def host_batch(update):
    generator = np.random.default_rng(update)
    images = generator.normal(size=(ROWS, WIDTH)).astype(np.float32)
    return images, generator.integers(0, 8, ROWS).astype(np.int32), np.float32(1 + update / 8)


def train_step(state, images, labels, scale):
    def loss(params):
        logits = state.apply_fn({"params": params}, images)
        return scale * optax.softmax_cross_entropy(logits, labels[:, None] == jnp.arange(logits.shape[-1])).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def described(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
    def loss(params):
        logits = MODEL.apply({"params": params}, batch["images"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
        return batch["scale"] * losses.mean()

    grads = jax.grad(loss)(params_before)
    deltas, opt_state = optax.adam(1e-2).update(grads, opt_state_before["opt_state"])
    after = {"opt_state": opt_state, "step": opt_state_before["step"] + 1}
    return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)


class SilentControl(HostControl):
    """A control that, once it is cut off, gets nothing through and hears nothing: a network that is partitioned."""

    cut_off = False

    def exchange(self, key, value=None):
        return super().exchange(f"{key} beyond the partition" if self.cut_off else key, value)


class Actions:
    def prepare(self, rank, size, address, devices):
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_num_cpu_devices", devices)
        jax.distributed.initialize(address, size, rank)

    def open(
        self, folder, *, layout="data", every=2, rate=1e-2, transport=None, attested=False, apart=False, **options
    ):
        """Open a proof, and start it; `apart` has each process train on its own devices alone."""
        self.rule, self.batch_spec, axis = LAYOUTS[layout]
        self.mesh = jax.make_mesh((1, 2), BOTH, devices=jax.local_devices()) if apart else mesh_of(axis)
        self.updates = 0
        policy = zkdv.SamplingPolicy.DEBUGCheckEvery(every)
        config = zkdv.ZKDVConfig(name="processes", sampling_policy=policy, **options)
        self.control = None
        if transport == "silent":
            rank, size = jax.process_index(), jax.process_count()
            shared = {"address": "jax-kv", "token": "shared by all of the ranks"}
            self.control = SilentControl(rank, size, transport="jax-kv", timeout=20, **shared)
        elif transport is not None:
            self.control = HostControl.for_backend("jax", transport=transport)
        self.proof = zkdv.jax.ZKDV(folder, config, replay_snapshot_interval=3, control=self.control)
        self.proof.start(rolling_window=4, probe_ratio=0.3)
        if attested:
            self.proof.attest(described)
        self.state = jax.tree_util.tree_map_with_path(self._placed_leaf, host_state(self.proof, rate))
        self.step = self.proof.jit(train_step, donate_argnums=(0,))
        return self.proof.root_digest.hex()

    def train(self, updates=1, overlap=1, scale=None, drop=0, nan=False):
        """Make updates; return the losses."""
        losses = []
        for _ in range(updates):
            images, labels, own_scale = host_batch(self.updates)
            if nan:
                images[0, 0] = np.nan
            images, labels = images[drop:], labels[drop:]
            batch = [
                placed(images, NamedSharding(self.mesh, self.batch_spec)),
                placed(labels, NamedSharding(self.mesh, self.batch_spec)),
                own_scale if scale is None else np.float32(scale),
            ]
            self.state = self.state.replace(zkdv_overlap=zkdv.overlap.Policy(overlap))
            self.state, loss = self.step(self.state, *batch)
            losses.append(float(loss))
            self.updates += 1
        return losses

    def edit(self, path):
        """Replace a parameter by its half, on every rank."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(self.state)
        edited = [leaf * 0.5 if jax.tree_util.keystr(name) == path else leaf for name, leaf in leaves]
        self.state = jax.tree.unflatten(tree, edited)

    def flip_a_bit(self, path):
        """Change a bit of what this process's first device has of a leaf, behind everybody's back."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(self.state)
        [leaf] = [leaf for name, leaf in leaves if jax.tree_util.keystr(name) == path]
        jax.block_until_ready(self.state)
        pointer = leaf.addressable_shards[0].data.unsafe_buffer_pointer()
        word = ctypes.c_uint32.from_address(pointer)
        word.value ^= 1 << 10

    def join(self):
        self.proof.join()

    def cut_off(self):
        self.control.cut_off = True

    def replay_inexactly(self, relative):
        """Have replays give other values, as on another platform, on every rank alike; with 0 the same ones again."""

        def inexact(pipeline, update, state):
            return [leaf * (1 + relative) if leaf.ndim else leaf for leaf in EXACT_REPLAY(pipeline, update, state)]

        JAXPipeline.replay = inexact if relative else EXACT_REPLAY

    def close(self):
        """Close the proof; return what this rank counted, and the head that it knows."""
        self.proof.close()
        counts = self.proof.pipeline_of_closing().counts
        return {name: getattr(counts, name) for name in ("updates", "sampled", "passed", "failed", "edits")} | {
            "head": self.proof.head.hex()
        }

    def fail(self):
        """Leave the `with` block of the proof by an exception of the user's own."""
        with self.proof:
            raise FileNotFoundError("the next shard of the data set is gone")

    def replay(self, folder):
        return replay(Path(folder), host_state(), lambda update: [np.asarray(leaf) for leaf in host_batch(update)])

    def save(self, folder):
        """Write the whole state, each leaf from shards that this process has; return the names of its parameters."""
        gather = jax.jit(lambda tree: tree, out_shardings=NamedSharding(self.mesh, P()))
        whole = jax.tree_util.tree_flatten_with_path(gather(self.state.params))[0]
        arrays = {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in whole}
        if jax.process_index() == 0:
            np.savez(Path(folder) / "final.npz", **arrays)
        return sorted(arrays)

    def _placed_leaf(self, path, leaf):
        return placed(leaf, NamedSharding(self.mesh, self.rule(jax.tree_util.keystr(path), jnp.shape(leaf))))


def main():
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # What frameworks print is no answer.
    actions = Actions()
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["action"] == "exit":
            return
        noticed = []
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                value = getattr(actions, asked["action"])(**asked["arguments"])
            noticed = [str(warning.message) for warning in caught if warning.category is zkdv.errors.ZKDVWarning]
            answer = {"value": value}
        except Exception as error:  # noqa: BLE001 (whatever it is, it is the answer)
            answer = {"error": type(error).__name__, "message": str(error)}
        output.write(json.dumps(answer | {"warnings": noticed}) + "\n")
        output.flush()


if __name__ == "__main__":
    main()
