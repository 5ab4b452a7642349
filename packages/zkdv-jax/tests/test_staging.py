"""The split of a traced training function at its transition."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from zkdv.errors import ZKDVError
from zkdv.jax._staging import stage
from zkdv.jax._transition import mark

TX = optax.adam(1e-3)


def declared_update(params, opt_state, grads):
    deltas, after = TX.update(grads, opt_state, params)
    return mark(
        api="test",
        batch=None,
        parameters=(params, optax.apply_updates(params, deltas)),
        optimizer=(opt_state, after),
        deltas=deltas,
    )


def gradients(params, images):
    return jax.grad(lambda p: (jnp.tanh(images @ p["w"] + p["b"]) ** 2).mean())(params)


def step(params, opt_state, images):
    params, opt_state = declared_update(params, opt_state, gradients(params, images))
    return params, opt_state, images.sum()


def nested_step(params, opt_state, images):
    params, opt_state = jax.jit(declared_update)(params, opt_state, gradients(params, images))
    return params, opt_state, images.sum()


@pytest.fixture
def arguments():
    params = {"w": jnp.ones((3, 4)) / 3, "b": jnp.zeros(4)}
    return params, TX.init(params), jnp.arange(15.0).reshape(5, 3)


def split(function, arguments):
    return stage(function, arguments, function.__name__, ("params", "opt_state", "images"))


@pytest.mark.parametrize("function", [step, nested_step])
def test_step_and_replay_compute_what_the_function_computes(function, arguments):
    staged = split(function, arguments)
    leaves = jax.tree.leaves(arguments)
    expected = jax.tree.leaves(jax.jit(function)(*arguments))
    results = jax.jit(staged.step)(*leaves)
    for ours, theirs in zip(results, expected, strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()
    replayed = jax.jit(staged.replay)(*(leaves[index] for index in (*staged.state_inputs, *staged.batch_inputs)))
    count = len(staged.parameter_inputs)
    for ours, position in zip(replayed[count:], staged.after_results, strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(expected[position]).tobytes()


def test_leaves_are_named_as_in_a_state_dict(arguments):
    staged = split(step, arguments)
    assert staged.layout.parameters == ("b", "w")
    assert staged.layout.optimizer == ("0.count", "0.mu.b", "0.mu.w", "0.nu.b", "0.nu.w")
    assert staged.batch_names == ("images",)
    assert staged.input_names[:2] == ("params.b", "params.w")


def test_state_that_is_not_returned_is_added_to_the_results(arguments):
    def keeps_state(params, opt_state, images):
        declared_update(params, opt_state, gradients(params, images))
        return images.sum()

    staged = split(keeps_state, arguments)
    assert staged.result_count == 1
    assert staged.after_results == tuple(range(1, 8))


def test_replay_holds_no_side_effect_of_the_function(arguments, capfd):
    def prints(params, opt_state, images):
        jax.debug.print("loss {}", images.sum())
        return declared_update(params, opt_state, gradients(params, images))

    staged = split(prints, arguments)
    leaves = jax.tree.leaves(arguments)
    jax.block_until_ready(jax.jit(staged.replay)(*leaves))
    jax.effects_barrier()
    assert "loss" not in capfd.readouterr().out
    jax.block_until_ready(jax.jit(staged.step)(*leaves))
    jax.effects_barrier()
    assert "loss 105.0" in capfd.readouterr().out


def test_a_function_without_an_update_is_refused(arguments):
    def forgetful(params, opt_state, images):
        return params, opt_state, images

    with pytest.raises(ZKDVError, match="forgetful: the function declares no updates"):
        split(forgetful, arguments)


def test_two_updates_in_one_call_are_refused(arguments):
    def twice(params, opt_state, images):
        grads = gradients(params, images)
        return declared_update(params, opt_state, grads), declared_update(params, opt_state, grads)

    with pytest.raises(ZKDVError, match="twice: the function declares 2 updates"):
        split(twice, arguments)


def test_an_update_inside_control_flow_is_refused_by_its_name(arguments):
    def scanned(params, opt_state, images):
        def body(carry, _):
            return declared_update(*carry, gradients(carry[0], images)), None

        return jax.lax.scan(body, (params, opt_state), None, length=2)

    with pytest.raises(ZKDVError, match="inside scan"):
        split(scanned, arguments)


def test_state_that_is_no_input_is_refused_by_name(arguments):
    def scaled(params, opt_state, images):
        params = jax.tree.map(lambda leaf: leaf * 2, params)
        return declared_update(params, opt_state, gradients(params, images))

    with pytest.raises(ZKDVError, match="parameter b before the update is not an input"):
        split(scaled, arguments)


def test_a_changed_dtype_is_refused_by_the_leaf_name(arguments):
    params, opt_state, _ = arguments

    def narrowed(params, opt_state):
        after = {"w": params["w"].astype(jnp.bfloat16), "b": params["b"]}
        return mark(api="test", batch=None, parameters=(params, after), optimizer=(opt_state, opt_state), deltas=params)

    with pytest.raises(ZKDVError, match=r"parameters leaf w from float32\[3,4\] to bfloat16\[3,4\]"):
        jax.make_jaxpr(narrowed)(params, opt_state)


def test_derivatives_and_batching_of_an_update_are_refused(arguments):
    params, opt_state, images = arguments

    def loss(params):
        after, _ = declared_update(params, opt_state, gradients(params, images))
        return after["b"].sum()

    with pytest.raises(ZKDVError, match="can't be differentiated"):
        jax.grad(loss)(params)
    with pytest.raises(ZKDVError, match=r"jax\.vmap"):
        jax.vmap(lambda rows: declared_update(params, opt_state, gradients(params, rows[None])))(images)


def test_the_marker_is_an_identity_under_plain_jit_and_eagerly(arguments):
    compiled = jax.jit(step)(*arguments)
    eager = step(*arguments)
    assert jax.tree.structure(compiled) == jax.tree.structure(eager)
    text = jax.jit(step).lower(*arguments).compile().as_text()
    assert "zkdv_transition" not in text
    assert "custom-call" not in text
