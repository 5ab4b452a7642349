"""Training on several devices, as `test_several_devices.py` runs it: in a process that has them.

Not collected by itself, because the number of virtual devices of a process is fixed once JAX has started.
"""

import functools
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from safetensors.numpy import save_file
from small_run import check_every, records, verified
from zkdv_reference import leaves as reference_leaves
from zkdv_reference import trees as reference_trees
from zkdv_reference.blake3 import digest as reference_digest

import zkdv.jax
from zkdv import _native
from zkdv.jax import _layout
from zkdv.jax._pipeline import JAXPipeline
from zkdv.sharding import leaf_digest, shard_arrays

MODEL = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(8)])
OPTIMIZER = optax.adam(1e-2)
ROWS, WIDTH, UPDATES = 16, 24, 5
RATIO = 0.3
BOTH = ("data", "model")


def tensor_parallel(path, shape):
    if not shape:
        return P()
    if "layers_0" in path:
        return P(None, "model") if len(shape) == 2 else P("model")
    return P("model", None) if len(shape) == 2 else P()


def fully_sharded(_path, shape):
    return P(BOTH) if shape else P()


def kernels_by_rows(_path, shape):
    return P("data") if len(shape) == 2 else P()


def replicated(_path, _shape):
    return P()


def whole_biases(_path, shape):
    return P(*BOTH) if len(shape) == 2 else P()


def mixed(_path, shape):
    return P(*BOTH) if len(shape) == 2 else P("model") if shape else P()


# How a leaf of this path and shape lies, and how a batch does.
LAYOUTS = {
    "data": (replicated, P(BOTH)),
    "tensor": (tensor_parallel, P()),
    "fsdp": (fully_sharded, P(BOTH)),
    "mixed": (mixed, P("data")),
    # Where plain jit, unless it is told, leaves a bias as its gradient lies.
    "whole biases": (whole_biases, P("data")),
}


def mesh_of(axis_type=AxisType.Auto):
    return jax.make_mesh((jax.device_count() // 2, 2), BOTH, axis_types=(axis_type, axis_type))


def make_state(proof=None):
    params = MODEL.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
    return zkdv.jax.contrib.TrainState.create(proof=proof, apply_fn=MODEL.apply, params=params, tx=OPTIMIZER)


def placed(state, mesh, rule):
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: jax.device_put(leaf, NamedSharding(mesh, rule(jax.tree_util.keystr(path), jnp.shape(leaf)))),
        state,
    )


def batches(count=UPDATES):
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield (
            generator.normal(size=(ROWS, WIDTH)).astype(np.float32),
            generator.integers(0, 8, ROWS).astype(np.int32),
        )


def train_step(state, images, labels):
    def loss(params):
        logits = state.apply_fn({"params": params}, images)
        # Not picked by index: on a mesh of explicit axes JAX can't tell how the gradient of that is laid out.
        return optax.softmax_cross_entropy(logits, labels[:, None] == jnp.arange(logits.shape[-1])).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def pointers(state):
    return [
        [shard.data.unsafe_buffer_pointer() for shard in leaf.addressable_shards]
        for leaf in jax.tree.leaves(state.params)
    ]


def train(step, state, batch_sharding):
    """Train, and say whether each update wrote its parameters where the ones before it were."""
    aliased = []
    for batch in batches():
        before = pointers(state)
        state, _ = step(state, *jax.device_put(batch, batch_sharding))
        aliased.append(before == pointers(state))
    return state, aliased


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(2), replay_snapshot_interval=3) as proof:
        proof.start(rolling_window=4, probe_ratio=RATIO)
        yield proof


def collectives(text):
    """Return the operations between devices in a compiled program, with the types of their results."""
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    return sorted(" ".join(found) for found in re.findall(rf"= (\([^=]*?\)|\S+) ({kinds})(?:-start)?\(", text))


def aliases(text):
    return len(re.findall(r"(?:may|must)-alias", text.split("\n", 1)[0]))


@functools.cache
def plain_run(layout, axis_type):
    """Train without a proof: the state after it, whether donation aliased, and the compiled program."""
    rule, batch_spec = LAYOUTS[layout]
    mesh = mesh_of(axis_type)
    state, batch_sharding = placed(make_state(), mesh, rule), NamedSharding(mesh, batch_spec)
    kept = jax.tree.map(lambda leaf: leaf.sharding, state)

    def keeping_step(state, images, labels):
        state, loss = train_step(state, images, labels)
        return jax.lax.with_sharding_constraint(state, kept), loss

    step = jax.jit(keeping_step if layout == "whole biases" else train_step, donate_argnums=(0,))
    compiled = step.lower(state, *jax.device_put(next(batches()), batch_sharding)).compile()
    state, aliased = train(step, state, batch_sharding)
    return state, aliased, compiled


CASES = [(layout, AxisType.Auto) for layout in LAYOUTS] + [("data", AxisType.Explicit)]


@pytest.mark.parametrize(("layout", "axis_type"), CASES)
def test_training_is_that_of_plain_jit_and_every_check_is_exact(proof, tmp_path, layout, axis_type):
    rule, batch_spec = LAYOUTS[layout]
    mesh = mesh_of(axis_type)
    batch_sharding = NamedSharding(mesh, batch_spec)
    step = proof.jit(train_step, donate_argnums=(0,))
    state, aliased = train(step, placed(make_state(proof), mesh, rule), batch_sharding)
    proof.close()

    plain_state, plain_aliased, _ = plain_run(layout, axis_type)
    for own, other in zip(jax.tree.leaves(state), jax.tree.leaves(plain_state), strict=True):
        np.testing.assert_array_equal(own, other)
        assert own.sharding.is_equivalent_to(other.sharding, own.ndim)
    assert aliased == plain_aliased == [True] * UPDATES

    report = verified(tmp_path / "proof")
    assert report.verdict == "passed"
    checks = [record["body"] for record in records(tmp_path / "proof", "check")]
    assert [(check["exact"], check["verdict"]) for check in checks] == [(True, "passed")] * 2
    assert_committed(tmp_path / "proof", state)
    assert_matched(tmp_path, state)


def assert_matched(folder, state):
    """Hold a file of the whole arrays against the run, which commits to their shards."""
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.params)[0]
    }
    save_file(arrays, folder / "model.safetensors")
    report = zkdv.match(folder / "proof", folder / "model.safetensors")
    assert (report.verdict, [found.updates for found in report.matches]) == ("matches", [UPDATES])
    name = next(iter(arrays))
    arrays[name] = arrays[name] + 1
    save_file(arrays, folder / "model.safetensors")
    assert zkdv.match(folder / "proof", folder / "model.safetensors").verdict == "differs"


def assert_committed(folder, state):
    """Hold the last state record against the whole arrays and what the schema says of their layout."""
    [schema] = records(folder, "schema")
    [root] = records(folder, "root")
    roots = [record["body"]["roots"] for record in records(folder, "state")][-1]
    leaves = schema["body"]["parameters"]
    arrays = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.params)[0]
    }
    placements = {
        jax.tree_util.keystr(path, simple=True, separator="."): list(leaf.sharding.shard_shape(leaf.shape))
        for path, leaf in jax.tree_util.tree_flatten_with_path(state.params)[0]
    }
    digests, probe_digests = [], []
    for index, leaf in enumerate(leaves):
        array, extents = arrays[leaf["name"]], leaf.get("sharding")
        assert (extents or leaf["shape"]) == placements[leaf["name"]]
        digests.append(leaf_digest(array, extents))
        assert digests[-1] == _reference_digest(array, extents)
        pieces = [array] if extents is None else shard_arrays(array, extents)
        found = [_probe_digest(np.array(piece), root["digest"], index) for piece in pieces]
        probe_digests.append(found[0] if extents is None else _native.sharded_leaf_digest(array.shape, extents, found))
    assert reference_trees.root("parameters", digests) == roots["parameters"]
    assert reference_trees.root("parameter-probes", probe_digests) == roots["parameter-probes"]


def _reference_digest(array, extents):
    if extents is None:
        return reference_digest(array.tobytes())
    shards = [
        reference_digest(reference_leaves.shard_elements(array.tobytes(), array.itemsize, array.shape, ranges))
        for ranges in reference_leaves.shard_ranges(array.shape, extents)
    ]
    return reference_leaves.sharded_digest(array.shape, extents, shards)


def _probe_digest(piece, root_digest, index):
    signs = _native.probe_signs(root_digest, 0, index, piece.shape[-1])
    _, probe = _native.commit_leaf(piece, str(piece.dtype), piece.shape, RATIO, signs)
    return _native.leaf_digest(probe)


@pytest.mark.parametrize(("layout", "axis_type"), CASES)
def test_the_compiled_step_keeps_layouts_and_gathers_no_more_than_plain_jit(proof, layout, axis_type):
    rule, batch_spec = LAYOUTS[layout]
    mesh = mesh_of(axis_type)
    batch = jax.device_put(next(batches()), NamedSharding(mesh, batch_spec))
    step = proof.jit(train_step, donate_argnums=(0,))
    own = step.lower(placed(make_state(proof), mesh, rule), *batch).compile()
    _, _, plain = plain_run(layout, axis_type)

    inputs, plain_inputs = jax.tree.leaves(own.input_shardings), jax.tree.leaves(plain.input_shardings)
    # Before the user's inputs stand the flags and signs of the commitment, after the results its own.
    assert inputs[-len(plain_inputs) :] == plain_inputs
    outputs, plain_outputs = jax.tree.leaves(own.output_shardings), jax.tree.leaves(plain.output_shardings)
    assert outputs[: len(plain_outputs)] == plain_outputs
    assert collectives(own.as_text()) == collectives(plain.as_text())
    assert bool(collectives(plain.as_text()))
    assert own.as_text().count('custom_call_target="zkdv_commit"') == 1
    assert aliases(own.as_text()) == aliases(plain.as_text()) > 0


def test_the_portable_form_commits_to_the_same(tmp_path, monkeypatch):
    roots = []
    mesh = mesh_of()
    for form in ("cpu", "portable"):
        monkeypatch.setenv("ZKDV_LOWERING", form)
        folder = tmp_path / form
        with zkdv.jax.ZKDV(folder, check_every(2), replay_snapshot_interval=3) as proof:
            proof.start(rolling_window=4, probe_ratio=RATIO)
            step = proof.jit(train_step, donate_argnums=(0,))
            state = placed(make_state(proof), mesh, mixed)
            text = (
                step.lower(state, *jax.device_put(next(batches()), NamedSharding(mesh, P("data")))).compile().as_text()
            )
            train(step, state, NamedSharding(mesh, P("data")))
        assert ("zkdv_commit" in text) == (form == "cpu")
        assert collectives(text) == collectives(plain_run("mixed", AxisType.Auto)[2].as_text())
        assert verified(folder).verdict == "passed"
        assert all(record["body"]["exact"] for record in records(folder, "check"))
        roots.append(
            [
                {tree: record["body"]["after"].get(tree) for tree in ("parameters", "optimizer")}
                for record in records(folder, "update")
            ]
        )
    assert roots[0] == roots[1]


def test_an_element_of_a_sharded_leaf_is_opened_where_a_replay_is_not_exact(proof, tmp_path, monkeypatch):
    exact_replay = JAXPipeline.replay

    def inexact_replay(self, update, state):
        return [leaf * (1 + 2**-20) if leaf.ndim else leaf for leaf in exact_replay(self, update, state)]

    monkeypatch.setattr(JAXPipeline, "replay", inexact_replay)
    mesh = mesh_of()
    step = proof.jit(train_step, donate_argnums=(0,))
    train(step, placed(make_state(proof), mesh, fully_sharded), NamedSharding(mesh, P(BOTH)))
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.violations) == ("passed", ())
    checks = [record["body"] for record in records(tmp_path / "proof", "check")]
    assert [check["exact"] for check in checks] == [False, False]
    for check in checks:
        assert len(check["parameter"]["opening"]["shards"]) == jax.device_count()

    [schema] = records(tmp_path / "proof", "schema")
    inspect = [sys.executable, "-m", "zkdv", "inspect", str(tmp_path / "proof")]
    shown = subprocess.run(inspect, capture_output=True, text=True, check=True).stdout.splitlines()
    for leaf in schema["body"]["parameters"]:
        [line] = [line for line in shown if f"name {leaf['name']}," in line and "dtype float32" in line]
        assert f"sharding {leaf['sharding']}" in line


def test_an_attest_program_speaks_of_a_sharded_state(proof, tmp_path):
    @proof.attest
    def described(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        def loss(params):
            logits = MODEL.apply({"params": params}, batch["images"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        deltas, opt_state = OPTIMIZER.update(jax.grad(loss)(params_before), opt_state_before["opt_state"])
        after = {"opt_state": opt_state, "step": opt_state_before["step"] + 1}
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    mesh = mesh_of()
    step = proof.jit(train_step, donate_argnums=(0,))
    train(step, placed(make_state(proof), mesh, fully_sharded), NamedSharding(mesh, P(BOTH)))
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.violations) == ("passed", ())
    checks = [record["body"] for record in records(tmp_path / "proof", "check")]
    assert [check["verdict"] for check in checks] == ["passed", "passed"]
    assert all(len(check["parameter"]["before-opening"]["shards"]) == jax.device_count() for check in checks)


def test_the_guide_to_training_code_trains_as_printed(proof, tmp_path):
    guide = (Path(__file__).parents[3] / "docs" / "guides" / "training-code.md").read_text(encoding="utf-8")
    [snippet] = re.findall(r'```python title="Several devices"\n(.*?)```', guide, re.DOTALL)
    names = {
        "AxisType": AxisType,
        "NamedSharding": NamedSharding,
        "P": P,
        "batches": batches(),
        "jax": jax,
        "jnp": jnp,
        "model": MODEL,
        "optax": optax,
        "params": make_state().params,
        "proof": proof,
        "train_step": train_step,
        "zkdv": zkdv,
    }
    exec(snippet, names)  # noqa: S102 (the guide is ours)
    proof.close()
    assert verified(tmp_path / "proof").verdict == "passed"
    assert all(record["body"]["exact"] for record in records(tmp_path / "proof", "check"))
    plain_state, _, _ = plain_run("whole biases", AxisType.Auto)
    for own, other in zip(*map(jax.tree.leaves, (names["state"], plain_state)), strict=True):
        np.testing.assert_array_equal(own, other)
        assert own.sharding.is_equivalent_to(other.sharding, own.ndim)


def test_snapshots_and_replays_keep_the_layout(proof, monkeypatch):
    replayed = []
    exact_replay = JAXPipeline.replay
    monkeypatch.setattr(
        JAXPipeline, "replay", lambda *arguments: replayed.append(exact_replay(*arguments)) or replayed[-1]
    )
    mesh = mesh_of()
    step = proof.jit(train_step, donate_argnums=(0,))
    train(step, placed(make_state(proof), mesh, mixed), NamedSharding(mesh, P("data")))
    proof.join()
    pipeline = proof.jax_pipeline
    assert len(replayed) == 3
    for own in replayed:
        for leaf, sharding in zip(own, pipeline.layout.shardings, strict=True):
            assert leaf.sharding.is_equivalent_to(sharding, leaf.ndim)
    copies = pipeline.restore(pipeline.launch_snapshot(replayed[-1], None))
    for copy, leaf, sharding in zip(copies, replayed[-1], pipeline.layout.shardings, strict=True):
        np.testing.assert_array_equal(copy, leaf)
        assert copy.sharding.is_equivalent_to(sharding, leaf.ndim)


def test_a_state_that_is_placed_by_the_options_of_jit_alone(proof, tmp_path):
    mesh = mesh_of()
    state = make_state(proof)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, placed(state, mesh, mixed))
    batch_sharding = NamedSharding(mesh, P("data"))
    step = proof.jit(
        train_step,
        in_shardings=(shardings, batch_sharding, batch_sharding),
        out_shardings=(shardings, None),
        donate_argnums=(0,),
    )
    for batch in batches():
        state, _ = step(state, *batch)
    proof.close()
    plain_state, _, _ = plain_run("mixed", AxisType.Auto)
    for own, other in zip(jax.tree.leaves(state), jax.tree.leaves(plain_state), strict=True):
        np.testing.assert_array_equal(own, other)
    assert verified(tmp_path / "proof").verdict == "passed"
    assert all(record["body"]["exact"] for record in records(tmp_path / "proof", "check"))
    assert_committed(tmp_path / "proof", state)


def test_a_state_that_is_not_placed_follows_a_batch_that_is(proof, tmp_path):
    mesh = mesh_of()
    step = proof.jit(train_step, donate_argnums=(0,))
    state = make_state(proof)
    for batch in batches():
        state, _ = step(state, *jax.device_put(batch, NamedSharding(mesh, P(BOTH))))
    proof.close()
    assert verified(tmp_path / "proof").verdict == "passed"
    assert all(record["body"]["exact"] for record in records(tmp_path / "proof", "check"))
    [schema] = records(tmp_path / "proof", "schema")
    assert not any("sharding" in leaf for leaf in schema["body"]["parameters"])
    assert_committed(tmp_path / "proof", state)


def test_a_mesh_that_is_set_and_constraints_in_its_terms(proof, tmp_path):
    mesh = mesh_of()

    def constrained(state, images, labels):
        state, loss = train_step(state, jax.lax.with_sharding_constraint(images, P("data")), labels)
        return state, loss

    with jax.set_mesh(mesh):
        step = proof.jit(constrained, donate_argnums=(0,))
        train(step, placed(make_state(proof), mesh, mixed), NamedSharding(mesh, P("data")))
    proof.close()
    assert verified(tmp_path / "proof").verdict == "passed"
    assert all(record["body"]["exact"] for record in records(tmp_path / "proof", "check"))


def test_leaves_of_every_kind_of_dtype_in_a_transaction(proof, tmp_path):
    mesh = mesh_of()
    make = {
        "bf16": (jnp.bfloat16, (8, 6), P("data", "model")),
        "c64": (jnp.complex64, (8, 4), P("model")),
        "i32": (jnp.int32, (16,), P(BOTH)),
        "bool": (jnp.bool_, (4, 8), P(None, BOTH)),
        "empty": (jnp.float32, (8, 0), P(BOTH)),
        "scalar": (jnp.float32, (), P()),
    }
    params = {
        name: jax.device_put(jnp.ones(shape, dtype), NamedSharding(mesh, spec))
        for name, (dtype, shape, spec) in make.items()
    }

    def step(params, keys, batch):
        tx = zkdv.jax.Transaction(batch=batch, params=params, opt_state=keys)
        noise = jax.random.uniform(keys[0], ())
        new = {name: leaf + (batch.sum() * noise).astype(leaf.dtype) for name, leaf in params.items()}
        deltas = {name: (new[name] ^ leaf if name == "bool" else new[name] - leaf) for name, leaf in params.items()}
        new_keys = jax.vmap(lambda key: jax.random.split(key)[0])(keys)
        return tx.update(deltas=deltas, params=new, opt_state=new_keys)

    keys = jax.device_put(jax.random.split(jax.random.key(1), 8), NamedSharding(mesh, P("model")))
    step = proof.jit(step)
    for row in range(4):
        params, keys = step(params, keys, np.full((2, 8), row, np.uint32))
    proof.close()
    assert verified(tmp_path / "proof").verdict == "passed"
    [schema] = records(tmp_path / "proof", "schema")
    sharding = {leaf["name"]: leaf.get("sharding") for leaf in schema["body"]["parameters"]}
    count = jax.device_count()
    assert sharding == {
        "bf16": [16 // count, 3],
        "c64": [4, 4],
        "i32": [16 // count],
        "bool": [4, 8 // count],
        "empty": None,
        "scalar": None,
    }
    assert schema["body"]["optimizer"][0]["sharding"] == [4, 2]


def test_a_leaf_put_back_is_no_edit_and_another_one_is(proof, tmp_path):
    mesh = mesh_of()
    step = proof.jit(train_step)
    state = placed(make_state(proof), mesh, mixed)
    batch = jax.device_put(next(batches()), NamedSharding(mesh, P("data")))
    state, _ = step(state, *batch)
    again = jax.tree.map(lambda leaf: jax.device_put(np.asarray(leaf), leaf.sharding), state)
    state, _ = step(again, *batch)
    doubled = state.replace(params=jax.tree.map(lambda leaf: leaf * 2, state.params))
    with pytest.warns(UserWarning, match="changed between updates 1 and 2"):
        step(doubled, *batch)
    proof.close()
    updates = [record["body"] for record in records(tmp_path / "proof", "update")]
    assert [len(update.get("edits", [])) for update in updates] == [0, 0, 4]
    assert verified(tmp_path / "proof", allow_edits=True).verdict == "passed"
    assert verified(tmp_path / "proof").verdict == "failed"
    [schema] = records(tmp_path / "proof", "schema")
    for edit in updates[2]["edits"]:
        leaf = schema["body"]["parameters"][edit["leaf"]]
        array = np.asarray(doubled.params[leaf["name"].split(".")[0]][leaf["name"].split(".")[1]])
        assert edit["digest"] == leaf_digest(array, leaf["sharding"])


def test_replicas_that_have_come_apart_are_named(proof):
    mesh = mesh_of()
    state = placed(make_state(proof), mesh, replicated)
    kernel = state.params["layers_0"]["kernel"]
    copies = [jax.device_put(np.asarray(kernel), device) for device in mesh.devices.flat]
    copies[3] = copies[3] + 1
    apart = jax.make_array_from_single_device_arrays(kernel.shape, kernel.sharding, copies)
    state = state.replace(params={**state.params, "layers_0": {**state.params["layers_0"], "kernel": apart}})
    step = proof.jit(train_step)
    batch = jax.device_put(next(batches()), NamedSharding(mesh, P(BOTH)))
    state, _ = step(state, *batch)
    proof.join()
    device = mesh.devices.flat[3]
    with pytest.warns(UserWarning, match=rf"layers_0.kernel has other elements on {re.escape(str(device))}"):
        step(state, *batch)


@pytest.mark.parametrize("place", ["another axis", "one device", "another mesh"])
def test_a_state_that_is_moved_between_updates_is_refused(proof, place):
    mesh = mesh_of()
    step = proof.jit(train_step)
    state = placed(make_state(proof), mesh, kernels_by_rows)
    batch = jax.device_put(next(batches()), NamedSharding(mesh, P("data")))
    state, _ = step(state, *batch)
    kernel = state.params["layers_2"]["kernel"]
    other = {
        "another axis": NamedSharding(mesh, P(None, "model")),
        "one device": jax.devices()[1],
        "another mesh": NamedSharding(Mesh(np.array(jax.devices()), "x"), P("x")),
    }[place]
    layers = {"layers_2": {**state.params["layers_2"], "kernel": jax.device_put(kernel, other)}}
    message = r"parameters leaf layers_2.kernel was laid out as P\('data',?\) on a mesh of data=\d, model=2 and is now "
    with pytest.raises(zkdv.ZKDVError, match=message):
        step(state.replace(params=state.params | layers), *batch)


def test_a_state_that_moves_onto_a_mesh_after_the_first_update_is_refused(proof):
    step = proof.jit(train_step)
    batch = next(batches())
    state, _ = step(make_state(proof), *batch)
    message = r"parameters leaf .* was laid out as one array, not placed on a mesh and is now laid out as P\(\)"
    with pytest.raises(zkdv.ZKDVError, match=message):
        step(placed(state, mesh_of(), replicated), *batch)


def test_a_batch_that_is_moved_is_refused(proof):
    mesh = mesh_of()
    step = proof.jit(train_step)
    state = placed(make_state(proof), mesh, mixed)
    batch = next(batches())
    state, _ = step(state, *jax.device_put(batch, NamedSharding(mesh, P("data"))))
    with pytest.raises(
        zkdv.ZKDVError, match=r"input images was laid out as P\('data',?\).* now laid out as P\('model',?\)"
    ):
        step(state, *jax.device_put(batch, NamedSharding(mesh, P("model"))))
    with pytest.raises(zkdv.ZKDVError, match="now laid out as one array, not placed on a mesh"):
        step(state, *batch)
    step(state, *jax.device_put(batch, NamedSharding(mesh, P("data"))))


def test_results_that_are_to_lie_elsewhere_are_refused(proof):
    mesh = mesh_of()
    state = placed(make_state(proof), mesh, mixed)
    batch = jax.device_put(next(batches()), NamedSharding(mesh, P("data")))
    step = proof.jit(train_step, out_shardings=NamedSharding(mesh, P()))
    with pytest.raises(zkdv.ZKDVError, match=r"state.params.layers_0.bias lies as P\('model',?\) .* to lie as P\(\)"):
        step(state, *batch)


def test_an_update_that_reshards_on_an_explicit_mesh_is_refused(proof):
    mesh = mesh_of(AxisType.Explicit)
    weights = jax.device_put(jnp.ones((8, 8)), NamedSharding(mesh, P("data", None)))

    def step(weights, batch):
        tx = zkdv.jax.Transaction(batch=batch, params=weights, opt_state=())
        delta = weights * batch.sum().astype(jnp.float32)
        moved = jax.sharding.reshard(weights + delta, NamedSharding(mesh, P(None, "model")))
        return tx.update(deltas=delta, params=moved, opt_state=())

    message = r"parameters leaf value lies as P\('data', None\) .* before the update and as P\(None, 'model'\)"
    with pytest.raises(zkdv.ZKDVError, match=message):
        proof.jit(step)(weights, np.ones((2, 4), np.uint32))


def test_a_state_that_an_update_puts_on_a_mesh_by_itself_is_refused(proof):
    mesh = mesh_of()

    def step(weights, batch):
        tx = zkdv.jax.Transaction(batch=batch, params=weights, opt_state=())
        delta = weights * batch.sum().astype(jnp.float32)
        spread = jax.lax.with_sharding_constraint(weights + delta, NamedSharding(mesh, P("data")))
        return tx.update(deltas=delta, params=spread, opt_state=())

    message = "parameters leaf value was laid out as one array, .* and the update left it as .*jax.device_put"
    with pytest.raises(zkdv.ZKDVError, match=message):
        proof.jit(step)(jnp.ones((8, 8)), np.ones((2, 4), np.uint32))


def test_a_state_on_two_meshes_is_refused(proof):
    first, second = mesh_of(), Mesh(np.array(jax.devices()), "all")
    state = placed(make_state(proof), first, mixed)
    kernel = jax.device_put(state.params["layers_2"]["kernel"], NamedSharding(second, P("all")))
    state = state.replace(params=state.params | {"layers_2": {**state.params["layers_2"], "kernel": kernel}})
    batch = jax.device_put(next(batches()), NamedSharding(first, P("data")))
    with pytest.raises(
        zkdv.ZKDVError, match=r"layers_2.kernel lies as .* a mesh of all=\d, and other leaves lie on a mesh"
    ):
        proof.jit(train_step)(state, *batch)


def test_layouts_that_no_mesh_describes_are_refused():
    mesh = mesh_of()
    unnamed = SimpleNamespace(num_devices=2)
    with pytest.raises(zkdv.ZKDVError, match=r"w lies on 2 devices by .*place it with one"):
        _layout.placement(SimpleNamespace(sharding=unnamed), "w")
    partial = NamedSharding(mesh_of(AxisType.Explicit), P(None, unreduced={"data"}))
    with pytest.raises(zkdv.ZKDVError, match="w lies as unreduced partial sums"):
        _layout.placement(SimpleNamespace(sharding=partial), "w")
    abstract = NamedSharding(mesh.abstract_mesh, P("data"))
    with pytest.raises(zkdv.ZKDVError, match=r"a mesh of data=.*has no devices"):
        _layout.StateLayout.of(["w"], [(8,)], [abstract], [None], [])
