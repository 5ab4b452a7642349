"""What `jax.jit` takes and offers, under a proof."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_run import batches, check_every, make_state, train_step, verified

import zkdv
import zkdv.jax


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        yield proof


def finish(proof, tmp_path, updates):
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates, report.checks_passed) == ("passed", updates, updates)
    return report


def test_methods_with_a_static_self(proof, tmp_path):
    class Trainer:
        @functools.partial(proof.jit, static_argnums=0, donate_argnames="state")
        def step(self, state, images, labels):
            return train_step(state, images, labels)

    trainer, state = Trainer(), make_state(proof)
    for images, labels in batches(3):
        state, _ = trainer.step(state, images, labels)
    finish(proof, tmp_path, 3)


def test_bound_methods_partials_and_keyword_only_arguments(proof, tmp_path):
    class Trainer:
        scale = 2.0

        def step(self, state, *, images, labels):
            return train_step(state, images * self.scale, labels)

    state = make_state(proof)
    first, second = proof.jit(Trainer().step), proof.jit(functools.partial(Trainer().step))
    for images, labels in batches(2):
        state, _ = first(state, images=images, labels=labels)
        state, _ = second(labels=labels, state=state, images=images)
    report = finish(proof, tmp_path, 4)
    assert [program.updates for program in report.programs] == [2, 2]


def test_each_static_value_seals_a_program_of_its_own(proof, tmp_path):
    def step(state, images, labels, flip):
        return train_step(state, -images if flip else images, labels)

    jitted, state = proof.jit(step, static_argnames="flip"), make_state(proof)
    for number, (images, labels) in enumerate(batches(4)):
        state, _ = jitted(state, images, labels, flip=number == 3)
    report = finish(proof, tmp_path, 4)
    assert [program.updates for program in report.programs] == [3, 1]


def test_lowering_tracing_and_shapes_write_nothing(proof, tmp_path):
    jitted, state = proof.jit(train_step), make_state(proof)
    [(images, labels)] = batches(1)
    records = proof.head
    assert "zkdv_commit" in jitted.lower(state, images, labels).as_text()
    assert jitted.trace(state, images, labels).jaxpr is not None
    shapes = jitted.eval_shape(state, images, labels)
    assert jax.tree.structure(shapes) == jax.tree.structure(jax.eval_shape(train_step, state, images, labels))
    assert proof.head == records
    state, _ = jitted(state, images, labels)
    jitted.clear_cache()
    jitted(state, images, labels)
    finish(proof, tmp_path, 2)


def test_the_wrapper_looks_like_the_function(proof):
    jitted = proof.jit(train_step)
    assert jitted.__name__ == "train_step"
    assert jitted.__wrapped__ is train_step


def test_placement_and_shardings_are_passed_on(proof, tmp_path):
    device = jax.devices()[0]
    sharding = jax.sharding.SingleDeviceSharding(device)
    jitted = proof.jit(train_step, in_shardings=(sharding, None, None), out_shardings=sharding)
    state = jax.device_put(make_state(proof), device)
    for images, labels in batches(2):
        state, loss = jitted(state, images, labels)
    assert loss.sharding == sharding
    finish(proof, tmp_path, 2)


def test_scan_remat_custom_derivatives_and_nested_jit_inside_the_loss(proof, tmp_path):
    @jax.custom_vjp
    def doubled(x):
        return x * 2

    doubled.defvjp(lambda x: (doubled(x), None), lambda _, gradient: (gradient * 2,))

    def step(state, images, labels):
        @jax.jit
        def loss(params):
            def body(total, row):
                return total + doubled(state.apply_fn({"params": params}, row[None])).sum() ** 2, None

            return jax.lax.scan(jax.checkpoint(body), jnp.float32(0), images)[0] + labels.sum()

        value, grads = jax.value_and_grad(loss)(state.params)
        jax.debug.callback(lambda value: seen.append(float(value)), value)
        return state.apply_gradients(grads=grads), {"loss": value, "images": images}

    seen = []
    jitted, state = proof.jit(step, donate_argnums=0), make_state(proof)
    for images, labels in batches(3):
        state, auxiliary = jitted(state, images, labels)
        assert np.array_equal(auxiliary["images"], images)
    jax.effects_barrier()
    finish(proof, tmp_path, 3)
    assert len(seen) == 3
