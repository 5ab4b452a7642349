"""Mistakes that training scripts make: what is said about them, and where."""

import subprocess
import sys
import warnings

import jax
import numpy as np
import optax
import pytest
from flax.training import train_state
from small_run import MODEL, batches, check_every, make_state, train_step, verified

import zkdv
import zkdv.jax


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "run", check_every(2)) as proof:
        proof.start(rolling_window=4)
        yield proof


def first_batch():
    return next(iter(batches(1)))


def test_flax_own_train_state_is_named_as_the_likely_cause(proof):
    state = make_state()
    plain = train_state.TrainState.create(apply_fn=MODEL.apply, params=state.params, tx=state.tx)
    with pytest.raises(zkdv.ZKDVError, match=r"zkdv\.jax\.contrib\.TrainState\.apply_gradients \(Flax's own"):
        proof.jit(train_step)(plain, *first_batch())


def test_a_change_after_the_update_is_warned_about_at_the_first_call_and_as_an_edit_once(tmp_path):
    def decaying_step(state, images, labels):
        state, value = train_step(state, images, labels)
        return state.replace(params=jax.tree.map(lambda leaf: leaf * 0.99, state.params)), value

    with warnings.catch_warnings(record=True) as caught, zkdv.jax.ZKDV(tmp_path / "run", check_every(2)) as proof:
        warnings.simplefilter("always")
        proof.start(rolling_window=4)
        step = proof.jit(decaying_step, donate_argnums=(0,))
        state = make_state(proof)
        for images, labels in batches(4):
            state, _ = step(state, images, labels)

    lost, edited = caught
    assert str(lost.message).startswith("decaying_step does not return layers_0.bias")
    assert "changed between updates 0 and 1" in str(edited.message)
    assert {lost.filename, edited.filename} == {__file__}, "the warnings quote the script"
    assert verified(tmp_path / "run", allow_edits=True).edits_total == 3 * len(jax.tree.leaves(state.params))


def test_new_edits_are_warned_about_after_others_were(proof):
    step = proof.jit(train_step)
    state = make_state(proof)
    for (images, labels), field in zip(batches(4), [None, "step", "step", "params"], strict=True):
        if field == "step":
            state = state.replace(step=state.step + 5)
        if field == "params":
            state = state.replace(params=jax.tree.map(lambda leaf: leaf * 2, state.params))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            state, _ = step(state, images, labels)
        assert len(caught) == (1 if int(state.step) == 7 or field == "params" else 0)


def test_a_proof_that_is_never_closed_says_so_when_the_program_ends(tmp_path):
    program = (
        "import sys, zkdv.jax\n"
        "closed, forgotten = zkdv.jax.ZKDV(sys.argv[1]), zkdv.jax.ZKDV(sys.argv[2])\n"
        "closed.start(), forgotten.start()\n"
        "closed.close()\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "closed", tmp_path / "forgotten"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"ZKDVWarning: the proof in {tmp_path / 'forgotten'} was never closed" in ended.stderr
    assert str(tmp_path / "closed") not in ended.stderr
    assert verified(tmp_path / "forgotten").verdict == "incomplete"


def test_an_argument_that_is_no_array_is_named(proof):
    def step(state, images, labels, mode):
        return train_step(state, images, labels)

    with pytest.raises(TypeError, match=r"step: input mode is 'train' \(str\), which is no array; .*static_argnames"):
        proof.jit(step)(make_state(proof), *first_batch(), "train")


def test_a_static_argument_that_cannot_be_hashed_is_named(proof):
    def step(state, images, labels, sizes):
        return train_step(state, images, labels)

    with pytest.raises(TypeError, match=r"step: the static argument sizes is \[1, 2\], which can't be hashed"):
        proof.jit(step, static_argnames="sizes")(make_state(proof), *first_batch(), [1, 2])


@pytest.mark.parametrize("transform", [jax.jit, lambda f: jax.vmap(f, in_axes=(None, 0, 0)), jax.grad])
def test_a_call_under_a_transformation_is_refused_and_leaves_no_update(proof, transform):
    images, labels = first_batch()
    step, state = proof.jit(train_step), make_state(proof)

    def outer(state, images, labels):
        return step(state, images, labels)[1]

    if transform is jax.grad:
        arguments = (images, state, labels)
        traced = jax.grad(lambda images, state, labels: outer(state, images, labels))
    else:
        arguments, traced = (state, images, labels), transform(outer)
    with pytest.raises(zkdv.ZKDVError, match="train_step was called inside of a function that JAX traces"):
        traced(*arguments)
    step(state, images, labels)
    assert proof.jax_pipeline.updates == 1


def test_an_old_state_is_refused_where_it_was_donated_and_an_edit_where_not(proof):
    images, labels = first_batch()
    step, donating = proof.jit(train_step), proof.jit(train_step, donate_argnums=(0,))
    old = make_state(proof)
    state, _ = step(old, images, labels)
    with pytest.warns(zkdv.ZKDVWarning, match=r"look whether the update got the state that the last one returned"):
        state, _ = step(old, images, labels)
    donating(state, images, labels)
    with pytest.raises(
        zkdv.ZKDVError, match=r"donated or deleted before .*; go on with the state that the last update"
    ):
        donating(state, images, labels)


def test_a_rate_that_is_set_to_a_python_number_is_told_how_to_be_set(proof):
    images, labels = first_batch()
    step = proof.jit(train_step)
    state, _ = step(make_state(proof, optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)), images, labels)
    state.opt_state.hyperparams["learning_rate"] = 0.01
    with pytest.raises(zkdv.ZKDVError, match=r"learning_rate was float32\[\] .* replace it by an array of float32\[\]"):
        step(state, images, labels)


def test_a_smaller_last_batch_is_recognised(proof):
    images, labels = first_batch()
    step = proof.jit(train_step)
    state, _ = step(make_state(proof), images, labels)
    with pytest.raises(zkdv.ZKDVError, match="leave out or pad a last batch that is smaller"):
        step(state, images[:-1], labels[:-1])
    with pytest.raises(zkdv.ZKDVError, match=r"of its first update(\n|$)"):
        step(state, images, labels.astype(np.int8))


def test_functions_of_one_proof_name_their_batch_alike(proof):
    def other_step(state, pictures, labels):
        return train_step(state, pictures, labels)

    images, labels = first_batch()
    state, _ = proof.jit(train_step)(make_state(proof), images, labels)
    with pytest.raises(zkdv.ZKDVError, match=r"batch leaf images was float32\[8, 5\] and is now pictures float32"):
        proof.jit(other_step)(state, images, labels)
