"""What training code does beside calling an optimizer: every kind of transformation, precision, settings of JAX."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_run import batches, check_every, make_state, records, train_step, verified

import zkdv
import zkdv.jax

UPDATES = 4


def labelled(params):
    return {layer: "frozen" if layer == "layers_0" else "trained" for layer in params}


OPTIMIZERS = {
    "multi_steps": lambda: optax.MultiSteps(optax.adam(1e-2), every_k_schedule=2),
    "injected": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2, weight_decay=1e-3),
    "multi_transform": lambda: optax.multi_transform(
        {"frozen": optax.set_to_zero(), "trained": optax.adam(1e-2)}, labelled
    ),
    "masked": lambda: optax.chain(
        optax.masked(optax.add_decayed_weights(1e-3), lambda params: jax.tree.map(lambda leaf: leaf.ndim > 1, params)),
        optax.adam(optax.cosine_decay_schedule(1e-2, 10)),
    ),
    "averaged": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2), optax.ema(0.9)),
}


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        yield proof


def finish(proof, tmp_path, updates=UPDATES):
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_passed, report.edits) == ("passed", updates, ())
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))
    return report


def assert_equal(ours, theirs):
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.asarray(mine).tobytes() == np.asarray(other).tobytes()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optax_transformation_trains_as_in_plain_jax(proof, tmp_path, name):
    step, plain_step = proof.jit(train_step, donate_argnums=0), jax.jit(train_step, donate_argnums=0)
    state, plain = make_state(proof, OPTIMIZERS[name]()), make_state(None, OPTIMIZERS[name]())
    for images, labels in batches(UPDATES):
        state, _ = step(state, images, labels)
        plain, _ = plain_step(plain, images, labels)
    assert_equal(state, plain)
    finish(proof, tmp_path)


def test_a_rate_and_moments_edited_by_hand_are_recorded_shown_and_refused(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=0), make_state(proof, OPTIMIZERS["injected"]())
        for number, (images, labels) in enumerate(batches(UPDATES)):
            if number == 1:
                state.opt_state.hyperparams["learning_rate"] = jnp.float32(0.05)
            elif number == 2:
                state = state.replace(opt_state=jax.tree.map(jnp.zeros_like, state.opt_state))
            warned = pytest.warns(zkdv.ZKDVWarning, match="changed between updates")
            with warned if number in {1, 2} else contextlib.nullcontext():
                state, _ = step(state, images, labels)
    report = verified(tmp_path / "proof")
    assert {violation.code for violation in report.violations} == {"edit-not-allowed"}
    first, *others = report.edits
    assert (first.update, first.name) == (1, "opt_state.hyperparams.learning_rate")
    assert (first.dtype, first.elements) == ("float32", (0.05,))
    assert {edit.update for edit in others} == {2}
    assert any(edit.name == "opt_state.inner_state.0.mu.layers_0.kernel" and edit.value is None for edit in others)
    allowed = verified(tmp_path / "proof", allow_edits=True)
    assert (allowed.verdict, allowed.checks_passed) == ("passed", UPDATES)


def test_mixed_precision_with_a_scaled_loss(proof, tmp_path):
    def mixed_step(state, images, labels, scale):
        def loss(params):
            half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params)
            logits = state.apply_fn({"params": half}, images.astype(jnp.bfloat16)).astype(jnp.float32)
            return scale * optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=jax.tree.map(lambda grad: grad / scale, grads)), value / scale

    step, plain_step = proof.jit(mixed_step, donate_argnums=0), jax.jit(mixed_step)
    state, plain = make_state(proof), make_state()
    for number, (images, labels) in enumerate(batches(UPDATES)):
        state, _ = step(state, images, labels, 2.0**number)
        plain, _ = plain_step(plain, images, labels, 2.0**number)
    assert_equal(state, plain)
    finish(proof, tmp_path)


def test_functions_of_one_proof_take_turns(proof, tmp_path):
    """A warm-up step, the step and one with noise: each seals its own program, and each record says which ran."""

    def small_step(state, images, labels):
        return train_step(state, images * 0.5, labels)

    steps = [proof.jit(train_step, donate_argnums=0), proof.jit(small_step, donate_argnums=0)]
    state = make_state(proof)
    for number, (images, labels) in enumerate(batches(UPDATES)):
        state, _ = steps[number % 3 > 0](state, images, labels)
    report = finish(proof, tmp_path)
    assert [program.updates for program in report.programs] == [2, 2]
    programs = [update["body"]["program"] for update in records(tmp_path / "proof", "update")]
    assert [programs[0] == program for program in programs] == [True, False, False, True]


def noisy_step(state, images, labels, key):
    noise = jax.random.normal(key, images.shape, images.dtype)
    return train_step(state, images + 0.1 * noise, labels)


@pytest.mark.parametrize("setting", ["x64", "threefry"])
def test_settings_that_hold_for_one_thread_hold_for_its_checks(tmp_path, setting):
    """`with jax.enable_x64(True)` is a setting of the training thread; checks run on another, and close() behind it."""
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(1))
    # Each against what the test suite itself runs under.
    held = {"x64": lambda: jax.enable_x64(True), "threefry": lambda: jax.threefry_partitionable(False)}[setting]
    with held():
        proof.start(rolling_window=4)
        step, state = proof.jit(noisy_step, donate_argnums=0), make_state(proof)
        if setting == "x64":
            params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), state.params)
            state = state.replace(params=params, opt_state=state.tx.init(params))
        for number, (images, labels) in enumerate(batches(UPDATES)):
            state, _ = step(state, images.astype("f8" if setting == "x64" else "f4"), labels, jax.random.key(number))
    finish(proof, tmp_path)
    [schema] = records(tmp_path / "proof", "schema")
    expected = "float64" if setting == "x64" else "float32"
    assert {leaf["dtype"] for leaf in schema["body"]["parameters"]} == {expected}


def test_x64_switched_on_for_the_whole_process(tmp_path):
    script = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
import zkdv.jax
from small_run import batches, check_every, make_state, records, train_step, verified

folder = Path(sys.argv[1])
with zkdv.jax.ZKDV(folder, check_every(1)) as proof:
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step, donate_argnums=0), make_state(proof)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), state.params)
    state = state.replace(params=params, opt_state=state.tx.init(params), step=jnp.int64(0))
    for images, labels in batches(4):
        state, value = step(state, images.astype(np.float64), labels.astype(np.int64))
report = verified(folder)
[schema] = records(folder, "schema")
dtypes = {leaf["dtype"] for tree in ("parameters", "optimizer") for leaf in schema["body"][tree]}
print(report.verdict, report.checks_passed, value.dtype, sorted(dtypes), schema["body"]["batch"]["width"])
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "proof")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent), "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "passed 4 float64 ['float64', 'int32', 'int64'] 12"


def test_an_array_of_the_state_that_changes_after_the_first_update_is_named(proof, tmp_path):
    step, state = proof.jit(train_step), make_state(proof)
    images, labels = next(iter(batches(1)))
    state, _ = step(state, images, labels)
    wrong = jax.tree.map(jnp.copy, state.params)
    wrong["layers_0"]["kernel"] = wrong["layers_0"]["kernel"].astype(jnp.bfloat16)
    with pytest.raises(
        zkdv.ZKDVError, match=r"parameters leaf layers_0\.kernel was float32\[5, 16\] .* is now bfloat16\[5, 16\]"
    ):
        step(state.replace(params=wrong), images, labels)
    with pytest.raises(zkdv.ZKDVError, match=r"optimizer leaf step was int32\[\] .* is now int32\[1\]"):
        step(state.replace(step=state.step[None]), images, labels)
    tree = {"layers_0": state.params["layers_0"], "layers_2": state.params["layers_2"]}
    other = make_state(proof, optax.sgd(1e-2)).replace(params=tree)
    with pytest.raises(zkdv.ZKDVError, match=r"the update's arrays changed within the run: optimizer"):
        step(other, images, labels)
    state, _ = step(state, images, labels)
    finish(proof, tmp_path, 2)
