"""The guide to training code: what it shows runs as printed, under a proof that verifies without an edit."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import zkdv
import zkdv.jax

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "training-code.md"
ROWS, WIDTH = 8, 5


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=False)(nn.Dense(8)(x))
        return nn.Dense(3)(nn.Dropout(0.2, deterministic=False)(x))


def snippet(title):
    return re.search(rf'```python title="{title}"\n(.*?)```', GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]


def batches(count):
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield generator.normal(size=(ROWS, WIDTH)).astype(np.float32), generator.integers(0, 3, ROWS).astype(np.int32)


@pytest.fixture
def run(tmp_path):
    """Opens a proof that checks every update; what is yielded verifies it."""
    config = zkdv.ZKDVConfig(sampling_policy=zkdv.SamplingPolicy.DEBUGCheckEvery(1))
    proof = zkdv.jax.ZKDV(tmp_path / "proof", config)
    proof.start(rolling_window=4)

    def verify():
        proof.close()
        [report] = zkdv.verify(tmp_path / "proof").runs
        return report.verdict, report.checks_passed

    yield proof, verify
    proof.close()


def test_statistics_and_keys_are_fields_of_the_state(run):
    proof, verify = run
    model = Normalised()
    rngs = {"params": jax.random.key(0), "dropout": jax.random.key(2)}
    names = {
        "Any": Any,
        "jax": jax,
        "model": model,
        "optax": optax,
        "proof": proof,
        "variables": model.init(rngs, jnp.zeros((ROWS, WIDTH))),
        "zkdv": zkdv,
        "__name__": __name__,
    }
    exec(snippet("Statistics and a key"), names)  # noqa: S102 (the guide is ours)
    state = names["state"]
    for images, labels in batches(4):
        state, _ = names["train_step"](state, images, labels)
    assert verify() == ("passed", 4)


def signature(lowered):
    """Operations by name and target, inputs and results of a lowered program, and which inputs are donated."""
    text = lowered.as_text()
    operations = re.findall(r"stablehlo\.(\w+(?: @\w+)?)", text)
    [public] = [line for line in text.splitlines() if "func.func public" in line]
    inputs, results = public.split(" -> ")
    arguments = re.findall(r"%arg\d+: tensor<(\S+)>( {[^}]*tf.aliasing_output[^}]*})?", inputs)
    types = [[kind for kind, _ in arguments], re.findall(r"tensor<(\S+)>", results)]
    donated = [kind for kind, alias in arguments if alias]
    return Counter(operations), *map(Counter, types), donated


def as_jax(kinds):
    """`28x8xui32` as `uint32[28,8]`."""
    names = {"ui": "uint", "f": "float"}
    parts = [(*kind.split("x")[:-1], re.fullmatch(r"([a-z]+)(\d+)", kind.split("x")[-1])) for kind in kinds]
    return ", ".join(f"{names[kind[1]]}{kind[2]}[{','.join(shape)}]" for *shape, kind in parts)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the guide shows the program on CPU")
def test_the_guide_names_all_that_is_added_to_the_lowered_program(run):
    proof, _ = run
    model = nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)])
    params = model.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
    state = zkdv.jax.contrib.TrainState.create(proof=proof, apply_fn=model.apply, params=params, tx=optax.adam(1e-2))

    def train_step(state, images, labels):
        def loss(params):
            logits = state.apply_fn({"params": params}, images)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, grads = jax.value_and_grad(loss)(state.params)
        jax.debug.callback(lambda _: None, value)
        return state.apply_gradients(grads=grads), value

    arguments = (state, *next(batches(1)))
    ours = signature(proof.jit(train_step, donate_argnums=0).lower(*arguments))
    plain = signature(jax.jit(train_step, donate_argnums=0).lower(*arguments))
    assert all(not theirs - mine for mine, theirs in zip(ours[:3], plain[:3], strict=True)), "nothing is left out"
    operations, inputs, results = (mine - theirs for mine, theirs in zip(ours[:3], plain[:3], strict=True))
    added = (
        f"operations: {', '.join(operations.elements())}\n"
        f"inputs: {as_jax(inputs.elements())}\n"
        f"results: {as_jax(results.elements())}\n"
    )
    stated = re.search(r'```text title="Added by ZKDV"\n(.*?)```', GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert added == stated
    assert ours[3] == plain[3], "what is donated"


def test_an_average_of_the_new_parameters_is_declared_by_a_transaction(run):
    proof, verify = run
    model = nn.Dense(3)

    def loss(params, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(model.apply(params, images), labels).mean()

    names = {"jax": jax, "loss": loss, "optax": optax, "proof": proof, "tx": optax.adam(1e-2), "zkdv": zkdv}
    exec(snippet("Moving average of the parameters"), names)  # noqa: S102 (the guide is ours)
    params = model.init(jax.random.key(0), jnp.zeros((1, WIDTH)))
    opt_state, average = names["tx"].init(params), jax.tree.map(jnp.copy, params)
    for images, labels in batches(4):
        params, opt_state, average = names["train_step"](params, opt_state, average, images, labels)
    assert verify() == ("passed", 4)


def test_an_attest_program_describes_the_update_of_a_train_state(run, tmp_path):
    proof, verify = run
    model = nn.Dense(3)
    names = {"jax": jax, "model": model, "optax": optax, "proof": proof, "zkdv": zkdv}
    exec(snippet("An attest program"), names)  # noqa: S102 (the guide is ours)
    state = zkdv.jax.contrib.TrainState.create(
        proof=proof,
        apply_fn=model.apply,
        params=model.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"],
        tx=optax.adam(1e-3),
    )
    for images, labels in batches(4):
        state, _ = names["train_step"](state, images, labels)
    assert verify() == ("passed", 4)
    [report] = zkdv.verify(tmp_path / "proof").runs
    assert sorted(program.role for program in report.programs) == ["attest", "replay"]
