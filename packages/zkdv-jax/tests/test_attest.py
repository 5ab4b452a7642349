"""The user's own statement of the update: what it is given, what it must be, and what it finds."""

import functools
import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from small_run import MODEL, batches, check_every, make_state, records, train_step, verified

import zkdv
import zkdv.jax
import zkdv.jax.contrib.equinox
import zkdv.jax.contrib.nnx
from zkdv.errors import ZKDVError, ZKDVPoisonedError, ZKDVVerificationError, ZKDVWarning

TX = optax.adam(1e-2)


def loss(params, images, labels):
    return ((images @ params["w"]).sum(-1) - labels).mean() ** 2


def step_with(tx):
    def step(params, opt_state, images, labels):
        transaction = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state)
        deltas, opt_state = tx.update(jax.grad(loss)(params, images, labels), opt_state, params)
        return transaction.update(deltas=deltas, params=optax.apply_updates(params, deltas), opt_state=opt_state)

    return step


step = step_with(TX)


def described_by(tx):
    """An attest program for `step` under this optimizer."""

    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        images, labels = batch
        deltas, after = tx.update(jax.grad(loss)(params_before, images, labels), opt_state_before, params_before)
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    return attest


@pytest.fixture
def proof(tmp_path):
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(1), replay_snapshot_interval=3)
    proof.start(rolling_window=4)
    yield proof
    if proof.queue.failure is None:
        proof.close()


def trained(proof, function=step, dtype=jnp.float32, updates=6, tx=TX):
    params = {"w": (jnp.ones((5, 3)) / 7).astype(dtype)}
    opt_state = tx.init(params)
    jitted = proof.jit(function, donate_argnames="params")
    for images, labels in batches(updates):
        params, opt_state = jitted(params, opt_state, images.astype(dtype), labels)
    return params, opt_state


def trained_and_closed(proof, **options):
    try:
        return trained(proof, **options)
    finally:
        proof.close()


def attested(folder):
    """The attested coordinates of a run that passed in every check."""
    report = verified(folder)
    assert (report.verdict, report.checks_passed) == ("passed", report.sampled)
    assert report.sampled > 0
    bodies = [record["body"] for record in records(folder, "check")]
    assert all(body["exact"] for body in bodies)
    return [body["parameter"] for body in bodies], [body.get("optimizer") for body in bodies]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("x64", [False, True])
def test_a_program_that_describes_the_update_agrees_at_every_check(proof, tmp_path, dtype, x64):
    with jax.enable_x64(x64):
        proof.attest(described_by(TX))
        trained(proof, dtype=dtype)
        proof.close()
    parameters, optimizer = attested(tmp_path / "proof")
    assert all({"attested", "committed", "opening", "before", "before-opening"} <= set(body) for body in parameters)
    assert all("attested" in body and "committed" in body for body in optimizer)
    roles = [record["body"]["role"] for record in records(tmp_path / "proof", "program")]
    assert roles == ["replay", "attest"]


def test_the_program_is_sealed_before_the_first_update_as_bytes_and_text(proof, tmp_path):
    proof.attest(described_by(TX))
    trained(proof, updates=1)
    proof.close()
    kinds = [record["type"] for record in records(tmp_path / "proof")]
    attest = records(tmp_path / "proof", "program")[1]["body"]
    assert kinds[:6] == ["root", "environment", "schema", "program", "program", "state"]
    assert attest["format"] == "jax-export"
    blob = (tmp_path / "proof" / "programs" / f"{attest['digest'].hex()}.{attest['extension']}").read_bytes()
    exported = jax.export.deserialize(bytearray(blob))
    assert [str(aval.dtype) for aval in exported.in_avals[-2:]] == ["uint64", "uint64"]


def test_fields_of_a_train_state_and_the_other_arguments_by_name(proof, tmp_path):
    state = make_state(proof)
    seen = []

    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        seen.append((sorted(opt_state_before), sorted(batch)))

        def loss(params):
            logits = MODEL.apply({"params": params}, batch["images"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        grads = jax.grad(loss)(params_before)
        deltas, opt_state = TX.update(grads, opt_state_before["opt_state"], params_before)
        after = {"opt_state": opt_state, "step": opt_state_before["step"] + 1}
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    jitted = proof.jit(train_step, donate_argnums=0)
    for images, labels in batches(6):
        state, _ = jitted(state, images, labels)
    proof.close()
    attested(tmp_path / "proof")
    assert set(map(str, seen)) == {"(['opt_state', 'step'], ['images', 'labels'])"}


def test_typed_keys_of_the_state_are_keys_inside_and_words_by_position(proof, tmp_path):
    def noisy(params, opt_state, images, labels):
        key, optax_state = opt_state
        transaction = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state)
        deltas, after = noisy_update(params, key, optax_state, images, labels)
        return transaction.update(deltas=deltas, params=optax.apply_updates(params, deltas), opt_state=after)

    def noisy_update(params, key, optax_state, images, labels):
        key, now = jax.random.split(key)
        images = images + jax.random.normal(now, images.shape)
        deltas, optax_state = TX.update(jax.grad(loss)(params, images, labels), optax_state, params)
        return deltas, (key, optax_state)

    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        deltas, after = noisy_update(params_before, *opt_state_before, *batch)
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    params = {"w": jnp.ones((5, 3)) / 7}
    opt_state = (jax.random.key(3), TX.init(params))
    jitted = proof.jit(noisy)
    for images, labels in batches(8):
        params, opt_state = jitted(params, opt_state, images, labels)
    proof.close()
    attested(tmp_path / "proof")


def test_modules_of_nnx(proof, tmp_path):
    model = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    tx = optax.sgd(0.1, momentum=0.9)
    optimizer = zkdv.jax.contrib.nnx.Optimizer(model, tx, wrt=nnx.Param)

    def loss_of(model, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    @zkdv.jax.contrib.nnx.jit(proof)
    def train(model, optimizer, images, labels):
        loss, grads = nnx.value_and_grad(loss_of)(model, images, labels)
        optimizer.update(model, grads)
        return loss

    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        def loss(params):
            logits = batch["images"] @ params["kernel"] + params["bias"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        grads = jax.grad(loss)(params_before)
        before = opt_state_before["optimizer"]["opt_state"][0]["trace"]
        trace = jax.tree.map(lambda grad, old: grad + 0.9 * old, grads, before)
        after = jax.tree.map(lambda leaf: leaf, opt_state_before)
        after["optimizer"]["opt_state"][0]["trace"] = trace
        after["optimizer"]["step"] = after["optimizer"]["step"] + 1
        deltas = jax.tree.map(lambda leaf: -0.1 * leaf, trace)
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    for images, labels in batches(6):
        train(model, optimizer, images, labels)
    proof.close()
    attested(tmp_path / "proof")


def test_modules_of_equinox(proof, tmp_path):
    model = eqx.nn.Linear(5, 3, key=jax.random.key(0))
    opt_state = TX.init(eqx.filter(model, eqx.is_inexact_array))
    rest = eqx.filter(model, eqx.is_inexact_array, inverse=True)

    def loss_of(model, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(images), labels).mean()

    @zkdv.jax.contrib.equinox.filter_jit(proof)
    def train(model, opt_state, images, labels):
        grads = eqx.filter_grad(loss_of)(model, images, labels)
        return zkdv.jax.contrib.equinox.apply_gradients(model, opt_state, grads, TX)

    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        arrays = batch["arrays"]
        model = eqx.combine(params_before, rest)
        grads = eqx.filter_grad(loss_of)(model, arrays["images"], arrays["labels"])
        deltas, after = TX.update(grads, opt_state_before, params_before)
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    for images, labels in batches(6):
        model, opt_state = train(model, opt_state, images, labels)
    proof.close()
    attested(tmp_path / "proof")


def test_a_wrong_learning_rate_fails_the_check_with_both_numbers(proof, tmp_path):
    proof.attest(described_by(optax.adam(1.1e-2)))
    with pytest.raises(ZKDVPoisonedError):
        trained_and_closed(proof)
    cause = proof.queue.failure
    assert isinstance(cause, ZKDVVerificationError)
    pattern = (
        r"update 0 is not the one that the attest program describes: it gives a delta of (\S+) for parameters leaf w, "
        r"element \d+, and the update moved it by (\S+); \S+ is allowed between them"
    )
    gave, moved = map(float, re.search(pattern, str(cause)).groups())
    assert gave / moved == pytest.approx(1.1, rel=1e-3)
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.checks_failed) == ("failed", 1)
    [violation] = report.violations
    assert violation.code == "check-failed"
    assert "the attest program disagrees with update 0" in violation.message
    [check] = records(tmp_path / "proof", "check")
    assert (check["body"]["exact"], check["body"]["verdict"]) == (True, "failed")


def test_an_optimizer_element_that_is_off_fails_the_check(proof):
    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        delta, element = described_by(TX)(
            params_before, opt_state_before, batch, parameter_index, optimizer_state_index
        )
        return delta, element + 0.5

    with pytest.raises(ZKDVPoisonedError):
        trained_and_closed(proof)
    assert re.search(r"it gives \S+ for optimizer leaf \S+, element \d+, and the update left", str(proof.queue.failure))


def test_a_count_of_updates_beside_short_floats_agrees(proof, tmp_path):
    @proof.attest
    def described(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        after = {"counts": opt_state_before["counts"] + 1, "rate": opt_state_before["rate"]}
        deltas = {"w": jnp.full_like(params_before["w"], after["rate"])}
        return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)

    @proof.jit
    def train(params, opt_state, images):
        transaction = zkdv.jax.Transaction(batch=images, params=params, opt_state=opt_state)
        deltas = {"w": jnp.full_like(params["w"], opt_state["rate"])}
        opt_state = opt_state | {"counts": opt_state["counts"] + 1}
        return transaction.update(deltas=deltas, params=optax.apply_updates(params, deltas), opt_state=opt_state)

    params = {"w": jnp.ones(4, jnp.bfloat16)}
    # Every coordinate but one of 65 is a count.
    opt_state = {"counts": jnp.full(64, 70_000, jnp.int32), "rate": jnp.bfloat16(0.25)}
    for images, _ in batches(6):
        params, opt_state = train(params, opt_state, images)
    proof.close()
    attested(tmp_path / "proof")


def test_no_optimizer_elements_and_no_parameters(tmp_path):
    tx = optax.sgd(0.1)

    def counting(params, opt_state, images, labels):
        transaction = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state)
        return transaction.update(deltas={}, params={}, opt_state=opt_state + images.sum())

    def without_optimizer(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        deltas, _ = tx.update(jax.grad(loss)(params_before, *batch), opt_state_before, params_before)
        return zkdv.jax.index(deltas, parameter_index), 0.0

    def without_parameters(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        return 0.0, zkdv.jax.index(opt_state_before + batch[0].sum(), optimizer_state_index)

    for number, (function, attest, initial) in enumerate(
        [
            (step_with(tx), without_optimizer, ({"w": jnp.ones((5, 3))}, tx.init({"w": jnp.ones((5, 3))}))),
            (counting, without_parameters, ({}, jnp.zeros(3))),
        ]
    ):
        folder = tmp_path / str(number)
        with zkdv.jax.ZKDV(folder, check_every(1)) as proof:
            proof.start(rolling_window=4)
            proof.attest(attest)
            jitted, state = proof.jit(function), initial
            for images, labels in batches(3):
                state = jitted(*state, images, labels)
        assert verified(folder).verdict == "passed"
        [*_, check] = records(folder, "check")
        assert ("optimizer" in check["body"], "parameter" in check["body"]) == (number == 1, number == 0)


def test_values_of_another_program_than_the_sealed_one_are_refused(proof, tmp_path):
    proof.attest(described_by(TX))
    trained(proof)
    proof.close()
    path = tmp_path / "proof" / "records.cborl"
    data = path.read_bytes()
    place = data.index(b"hattested") + len(b"hattested") + 3
    path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    report = verified(tmp_path / "proof")
    assert report.verdict == "failed"
    assert "signature-invalid" in {violation.code for violation in report.violations}


def test_edited_parameters_are_opened_under_the_state_that_is_recorded_before_the_update(proof, tmp_path):
    proof.attest(described_by(TX))
    params = {"w": jnp.ones((5, 3)) / 7}
    opt_state = TX.init(params)
    jitted = proof.jit(step)
    [first, second, edited, *rest] = batches(5)
    for batch in (first, second):
        params, opt_state = jitted(params, opt_state, *batch)
    with pytest.warns(ZKDVWarning, match="changed between updates"):
        params, opt_state = jitted({"w": params["w"] * 2}, opt_state, *edited)
    for batch in rest:
        params, opt_state = jitted(params, opt_state, *batch)
    proof.close()
    edits = [record["body"].get("edits") for record in records(tmp_path / "proof", "update")]
    assert [edit is None for edit in edits] == [True, True, False, True, True]
    assert "value" not in edits[2][0]
    assert verified(tmp_path / "proof", allow_edits=True).verdict == "passed"


def test_a_coordinate_past_two_to_the_31_is_a_uint64_inside_without_64_bit_types():
    attest = zkdv.jax.ZKDV("unused").attest(described_by(optax.sgd(1.0, momentum=0.5)))
    assert not jax.config.jax_enable_x64
    count = 2**31 + 7
    leaf = jax.ShapeDtypeStruct((count,), jnp.bfloat16)

    def bare(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        assert parameter_index.dtype == optimizer_state_index.dtype == np.uint64
        assert jnp.arange(2).dtype == jnp.int32
        return zkdv.jax.index(params_before, parameter_index), zkdv.jax.index(opt_state_before, optimizer_state_index)

    attest = zkdv.jax.ZKDV("unused").attest(bare)
    text = str(jax.make_jaxpr(attest)(leaf, leaf, (), np.uint64(0), np.uint64(0)))
    assert f"{count}:u64[]" in text


def test_called_by_itself_it_is_compiled_and_takes_any_integers(proof):
    attest = proof.attest(described_by(TX))
    params = {"w": jnp.ones((5, 3)) / 7}
    [(images, labels)] = batches(1)
    deltas, after = TX.update(jax.grad(loss)(params, images, labels), TX.init(params), params)
    delta, element = attest(params, TX.init(params), (images, labels), 4, np.uint64(3))
    assert delta == pytest.approx(float(deltas["w"].reshape(-1)[4]), rel=1e-6)
    assert element == pytest.approx(float(zkdv.jax.index(after, 3)), rel=1e-6)


@pytest.mark.parametrize("option", ["compiler_options", "in_shardings", "inline", "keep_unused"])
def test_options_of_jit_are_taken(proof, tmp_path, option):
    device = jax.devices()[0]
    options = {
        "compiler_options": {"xla_cpu_enable_fast_math": False},
        "in_shardings": jax.sharding.SingleDeviceSharding(device),
        "inline": True,
        "keep_unused": True,
    }
    proof.attest(described_by(TX), **{option: options[option]})
    trained(proof, updates=2)
    proof.close()
    attested(tmp_path / "proof")


def test_out_shardings_are_ignored_with_a_warning_and_nothing_is_donated(proof, tmp_path):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.warns(ZKDVWarning, match="out_shardings of attest is ignored"):
        attest = proof.attest(out_shardings=sharding, donate_argnums=(0, 1))(described_by(TX))
    params = {"w": jnp.ones((5, 3)) / 7}
    [(images, labels)] = batches(1)
    attest(params, TX.init(params), (images, labels), 0, 0)
    assert not params["w"].is_deleted()
    trained(proof, updates=2)
    proof.close()
    attested(tmp_path / "proof")


def other_names(params, opt_state, batch, i, j):
    raise AssertionError


def other_order(params_before, opt_state_before, batch, optimizer_state_index, parameter_index):
    raise AssertionError


def too_few(params_before, opt_state_before, batch):
    raise AssertionError


def variadic(*args):
    raise AssertionError


@pytest.mark.parametrize("function", [other_names, other_order, too_few, variadic])
def test_other_arguments_are_refused_where_it_is_declared(proof, function):
    with pytest.raises(TypeError, match=rf"ZKDV.attest: {function.__name__} takes"):
        proof.attest(function)
    proof.attest(described_by(TX))


def test_what_a_partial_binds_is_the_users_own(proof, tmp_path):
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index, *, tx, scale=1.0):
        delta, element = described_by(tx)(
            params_before, opt_state_before, batch, parameter_index, optimizer_state_index
        )
        return scale * delta, element

    proof.attest(functools.partial(attest, tx=TX))
    trained(proof, updates=2)
    proof.close()
    attested(tmp_path / "proof")


@pytest.mark.parametrize("option", [{"static_argnums": 3}, {"static_argnames": "batch"}])
def test_static_arguments_are_refused(proof, option):
    with pytest.raises(ValueError, match="no argument of attest is static"):
        proof.attest(described_by(TX), **option)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        (lambda delta, _: delta, r"returns float32\[\]; it returns \(selected_delta, selected_post_state\)"),
        (lambda delta, element: (delta, element, 0.0), "returns tuple of 3"),
        (lambda delta, _: (delta, 1), r"returns int32\[\] as selected_post_state; it is a scalar"),
        (lambda delta, element: (delta * jnp.ones(3), element), r"returns float32\[3\] as selected_delta"),
        (lambda delta, element: (delta + 1j, element), r"complex64\[\] as selected_delta"),
        (lambda _, element: (None, element), "returns NoneType as selected_delta"),
        (lambda delta, _: (delta, "0.5"), "returns str as selected_post_state"),
    ],
)
def test_results_that_are_no_two_scalar_floats_are_refused_before_the_first_update(proof, results, message, tmp_path):
    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        return results(
            *described_by(TX)(params_before, opt_state_before, batch, parameter_index, optimizer_state_index)
        )

    with pytest.raises(ZKDVError, match=message):
        trained(proof)
    assert [record["type"] for record in records(tmp_path / "proof")] == ["root", "environment"]


def declares_by_transaction(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
    params, opt_state = step(params_before, opt_state_before, *batch)
    return zkdv.jax.index(params, parameter_index), zkdv.jax.index(opt_state, optimizer_state_index)


def opens_a_transaction(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
    zkdv.jax.Transaction(batch=batch, params=params_before, opt_state=opt_state_before)
    return zkdv.jax.index(params_before, parameter_index), zkdv.jax.index(opt_state_before, optimizer_state_index)


def declares_by_a_state(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
    state = zkdv.jax.contrib.TrainState.create(apply_fn=None, params=params_before, tx=TX)
    after = jax.jit(lambda state: state.apply_gradients(grads=state.params))(state)
    return zkdv.jax.index(after.params, parameter_index), zkdv.jax.index(after.opt_state, optimizer_state_index)


@pytest.mark.parametrize("function", [declares_by_transaction, opens_a_transaction, declares_by_a_state])
def test_a_program_that_declares_an_update_itself_is_refused(proof, function):
    proof.attest(function)
    with pytest.raises(ZKDVError, match=f"{function.__name__} declares an update itself"):
        trained(proof)


def test_a_program_that_cannot_be_exported_is_refused_before_the_first_update(proof, tmp_path):
    @proof.attest
    def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
        delta = jax.pure_callback(np.sin, jax.ShapeDtypeStruct((), jnp.float32), jnp.float32(1))
        return delta, zkdv.jax.index(opt_state_before, optimizer_state_index)

    with pytest.raises(ZKDVError, match=r"can't be exported for attest \(attest\): .*callback"):
        trained(proof)
    assert [record["type"] for record in records(tmp_path / "proof")] == ["root", "environment"]


def test_a_second_program_is_refused(proof):
    proof.attest(described_by(TX))
    with pytest.raises(ZKDVError, match="has an attest program, attest; a run has one"):
        proof.attest(described_by(TX))


def test_a_program_that_comes_after_the_first_update_is_refused(proof, tmp_path):
    trained(proof, updates=1)
    with pytest.raises(ZKDVError, match="has made its first update; declare the attest program before"):
        proof.attest(described_by(TX))
    proof.close()
    with pytest.raises(ZKDVError, match="is closed; declare the attest program before"):
        proof.attest(described_by(TX))
    assert verified(tmp_path / "proof").verdict == "passed"


def test_several_training_functions_are_held_against_one_program(proof, tmp_path):
    proof.attest(described_by(TX))
    params = {"w": jnp.ones((5, 3)) / 7}
    opt_state = TX.init(params)

    functions = [proof.jit(step_with(tx)) for tx in (TX, TX, optax.adam(1e-3))]
    for function, (images, labels) in zip(functions, batches(3), strict=True):
        params, opt_state = function(params, opt_state, images, labels)
    with pytest.raises(ZKDVPoisonedError):
        proof.close()
    assert "update 2 is not the one that the attest program describes" in str(proof.queue.failure)
    roles = [record["body"]["role"] for record in records(tmp_path / "proof", "program")]
    assert sorted(roles) == ["attest", "replay", "replay", "replay"]
