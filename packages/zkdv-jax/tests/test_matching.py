"""Files of a real run are found among its updates: safetensors, Orbax checkpoints, arrays of NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax.traverse_util import flatten_dict
from safetensors.numpy import save_file
from small_run import batches, check_every, make_state, train_step

import zkdv
import zkdv.jax
from zkdv import tensor_files
from zkdv.cli import main

UPDATES = 4


def flat(params, separator="."):
    return {name: np.asarray(array) for name, array in flatten_dict(params, sep=separator).items()}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and copies of its state before every update and after the last."""
    folder = tmp_path_factory.mktemp("matching")
    config = zkdv.ZKDVConfig(
        name="test", sampling_policy=zkdv.SamplingPolicy.DEBUGCheckEvery(2), identity=folder / "identity.pem"
    )
    zkdv.identity.create(folder / "identity.pem")
    states = []
    with zkdv.jax.ZKDV(folder / "proof", config) as proof:
        proof.start(rolling_window=4)
        step = proof.jit(train_step)
        state = make_state(proof)
        for images, labels in batches(UPDATES):
            states.append(state)
            state, _ = step(state, images, labels)
        states.append(state)
    return folder / "proof", states


@pytest.mark.parametrize("done", [0, 1, UPDATES])
def test_a_safetensors_file_of_each_moment_is_found(trained, tmp_path, done):
    proof, states = trained
    save_file(flat(states[done].params), tmp_path / "model.safetensors")
    report = zkdv.match(proof, tmp_path / "model.safetensors")
    assert (report.verdict, report.exit_code, report.run.verdict) == ("matches", 0, "passed")
    assert [found.updates for found in report.matches] == [done]


def test_the_same_training_without_a_proof_gives_a_file_that_matches(trained, tmp_path):
    proof, _ = trained
    state, step = make_state(tx=optax.adam(1e-2)), jax.jit(train_step)
    for images, labels in batches(UPDATES):
        state, _ = step(state, images, labels)
    np.savez(tmp_path / "model.npz", **flat(state.params, "/"))
    assert zkdv.match(proof, tmp_path / "model.npz").matches[0].updates == UPDATES


def test_one_changed_weight_is_found_in_no_update(trained, tmp_path):
    proof, states = trained
    tensors = flat(states[2].params)
    kernel = tensors["layers_0.kernel"].copy()
    kernel[0, 0] = np.nextafter(kernel[0, 0], np.float32(np.inf))
    save_file(tensors | {"layers_0.kernel": kernel}, tmp_path / "model.safetensors")
    report = zkdv.match(proof, tmp_path / "model.safetensors")
    assert (report.verdict, report.exit_code, report.states) == ("differs", 1, UPDATES + 1)


def saved(path, tree, how):
    if how == "standard":
        with ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(path, tree)
        return path
    if how == "plain files":
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False)) as checkpointer:
            checkpointer.save(path, tree)
        return path
    with ocp.CheckpointManager(path) as manager:
        manager.save(3, args=ocp.args.StandardSave(tree))
        manager.wait_until_finished()
    return path / "3"


@pytest.mark.parametrize("how", ["standard", "plain files", "manager"])
def test_orbax_checkpoints_of_parameters_are_found(trained, tmp_path, how):
    proof, states = trained
    report = zkdv.match(proof, saved(tmp_path / "checkpoint", {"params": states[3].params}, how))
    assert report.matched
    assert report.matches[0].updates == 3
    assert report.renaming == "NAME of the run is params.NAME in the file"


def test_an_orbax_checkpoint_of_the_whole_state_holds_more_than_parameters(trained, tmp_path, capsys):
    proof, states = trained
    state = states[3]
    # The moments of Adam have the names of the parameters too: what is committed tells them apart.
    path = saved(tmp_path / "c", {"a": state.opt_state, "params": state.params, "step": state.step}, "standard")
    assert main(["match", str(proof), str(path)]) == 1
    printed = capsys.readouterr().out
    assert "holds the parameters after update 2" in printed
    assert "not of the run: step" in printed
    assert main(["match", str(proof), str(path), "--allow-extra"]) == 0


def test_an_orbax_checkpoint_of_other_parameters_is_not_found(trained, tmp_path):
    proof, states = trained
    params = jax.tree.map(lambda leaf: leaf.at[(0,) * leaf.ndim].add(1), states[3].params)
    assert zkdv.match(proof, saved(tmp_path / "checkpoint", params, "standard")).verdict == "differs"


def test_dtypes_of_orbax_checkpoints_are_not_converted(trained, tmp_path):
    proof, states = trained
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), states[3].params)
    report = zkdv.match(proof, saved(tmp_path / "checkpoint", params, "standard"))
    assert {difference.problem for difference in report.differences} == {"dtype"}
    assert "bfloat16 in the file, float32 in the run" in report.differences[0].message


def test_a_damaged_orbax_checkpoint_is_one_clear_error(trained, tmp_path):
    proof, states = trained
    path = saved(tmp_path / "checkpoint", states[3].params, "standard")
    (path / "_METADATA").write_text("{}")
    with pytest.raises(zkdv.ZKDVError, match="checkpoint"):
        zkdv.match(proof, path)
    (path / "_METADATA").unlink()
    with pytest.raises(zkdv.ZKDVError, match="holds no tree of arrays"):
        tensor_files.read(path)


def test_a_checkpoint_of_several_trees_is_asked_about(trained, tmp_path):
    _, states = trained
    items = ocp.args.Composite(one=ocp.args.StandardSave(states[0].params), two=ocp.args.StandardSave(states[1].params))
    with ocp.CheckpointManager(tmp_path / "steps") as manager:
        manager.save(1, args=items)
        manager.wait_until_finished()
    with pytest.raises(zkdv.ZKDVError, match=r"several trees \(one, two\)"):
        tensor_files.read(tmp_path / "steps" / "1")


def test_a_run_that_is_not_closed_matches_and_is_incomplete(tmp_path):
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(2))
    proof.start(rolling_window=4)
    state = make_state(proof)
    step = proof.jit(train_step)
    for images, labels in batches(2):
        state, _ = step(state, images, labels)
    proof.join()
    save_file(flat(state.params), tmp_path / "model.safetensors")
    report = zkdv.match(tmp_path / "proof", tmp_path / "model.safetensors")
    assert (report.verdict, report.exit_code, report.matches[0].updates) == ("matches", 3, 2)
    proof.close()
    assert zkdv.match(tmp_path / "proof", tmp_path / "model.safetensors").exit_code == 0
