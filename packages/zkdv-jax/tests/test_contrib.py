"""Flax NNX and Equinox: the same numbers as the frameworks' own jit, and every checked update replays exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_run import WIDTH, batches, check_every, records, verified

import zkdv.jax
import zkdv.jax.contrib.nnx
from zkdv.errors import ZKDVError

UPDATES = 6


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        yield proof


def finish(proof, tmp_path):
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_passed, report.edits) == ("passed", UPDATES, ())
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))
    [schema] = records(tmp_path / "proof", "schema")
    return {tree: [leaf["name"] for leaf in schema["body"][tree]] for tree in ("parameters", "optimizer")}


def words(leaf):
    return np.asarray(jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf).tobytes()


class Model(nnx.Module):
    """Batch statistics and a random stream, which change in the forward pass."""

    def __init__(self, rngs):
        self.first = nnx.Linear(WIDTH, 16, rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)
        self.second = nnx.Linear(16, 3, rngs=rngs)

    def __call__(self, images):
        return self.second(self.dropout(nnx.relu(self.norm(self.first(images)))))


def nnx_step(model, optimizer, images, labels):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimizer.update(model, grads)
    return value


def nnx_pair(optimizer):
    model = Model(nnx.Rngs(0))
    return model, optimizer(model, optax.adam(1e-2), wrt=nnx.Param)


@pytest.mark.parametrize("donate", [False, True])
def test_nnx_trains_as_under_its_own_jit(proof, tmp_path, donate):
    pair, plain = nnx_pair(zkdv.jax.contrib.nnx.Optimizer), nnx_pair(nnx.Optimizer)
    step, plain_step = zkdv.jax.contrib.nnx.jit(proof, nnx_step, donate=donate), nnx.jit(nnx_step)
    for images, labels in batches(UPDATES):
        assert step(*pair, images, labels) == plain_step(*plain, images, labels)
    names = finish(proof, tmp_path)
    for ours, theirs in zip(jax.tree.leaves(nnx.state(pair)), jax.tree.leaves(nnx.state(plain)), strict=True):
        assert words(ours) == words(theirs)
    assert "first.kernel" in names["parameters"]
    assert {"model.norm.mean", "model.dropout.rngs.count", "optimizer.step"} <= set(names["optimizer"])


def test_an_nnx_function_makes_exactly_one_update(proof):
    [(images, labels)] = batches(1)
    decorate = zkdv.jax.contrib.nnx.jit(proof)
    with pytest.raises(ZKDVError, match="nnx_step: the function makes no updates"):
        decorate(nnx_step)(*nnx_pair(nnx.Optimizer), images, labels)

    def twice(model, optimizer, images, labels):
        nnx_step(model, optimizer, images, labels)
        return nnx_step(model, optimizer, images, labels)

    with pytest.raises(ZKDVError, match="twice: the function makes 2 updates"):
        decorate(twice)(*nnx_pair(zkdv.jax.contrib.nnx.Optimizer), images, labels)
    # Nothing of this poisons the proof.
    for images, labels in batches(1):
        decorate(nnx_step)(*nnx_pair(zkdv.jax.contrib.nnx.Optimizer), images, labels)


def test_an_nnx_optimizer_is_an_ordinary_one_outside_of_a_proof():
    model, optimizer = nnx_pair(zkdv.jax.contrib.nnx.Optimizer)
    for images, labels in batches(2):
        nnx.jit(nnx_step)(model, optimizer, images, labels)
    assert int(optimizer.step.get_value()) == 2


@pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")
@pytest.mark.parametrize("donate", ["none", "all"])
def test_equinox_trains_as_under_its_own_filter_jit(proof, tmp_path, donate):
    eqx = pytest.importorskip("equinox", reason="an optional extra: uv add equinox")
    import zkdv.jax.contrib.equinox as contrib

    optimizer = optax.adam(1e-2)

    def pair():
        model = eqx.nn.MLP(WIDTH, 3, 16, 1, key=jax.random.key(0))
        return model, optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def loss(model, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels).mean()

    def step(model, opt_state, images, labels):
        value, grads = eqx.filter_value_and_grad(loss)(model, images, labels)
        model, opt_state = contrib.apply_gradients(model, opt_state, grads, optimizer)
        return model, opt_state, value, "a static result"

    ours, theirs = pair(), pair()
    jitted, plain = contrib.filter_jit(proof, step, donate=donate), eqx.filter_jit(step)
    for images, labels in batches(UPDATES):
        *ours, value, text = jitted(*ours, jnp.asarray(images), jnp.asarray(labels))
        *theirs, expected, _ = plain(*theirs, jnp.asarray(images), jnp.asarray(labels))
        assert (value, text) == (expected, "a static result")
    names = finish(proof, tmp_path)
    for mine, other in zip(jax.tree.leaves(ours[0]), jax.tree.leaves(theirs[0]), strict=True):
        if eqx.is_array(mine):
            assert words(mine) == words(other)
    assert "layers.0.weight" in names["parameters"]


def test_another_donation_is_refused_by_its_value(proof):
    pytest.importorskip("equinox", reason="an optional extra: uv add equinox")
    import zkdv.jax.contrib.equinox as contrib

    with pytest.raises(ValueError, match="'some'"):
        contrib.filter_jit(proof, nnx_step, donate="some")
