"""Updates that a function declares by itself, and the overlap policy of each call."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_run import batches, check_every, make_state, records, train_step, verified

import zkdv
import zkdv.jax
from zkdv import overlap
from zkdv.errors import ZKDVError

TX = optax.sgd(0.1, momentum=0.9)


def step(params, opt_state, images, labels, policy=overlap.UNCHECKED):
    transaction = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state, overlap=policy)
    grads = jax.grad(lambda p: ((images @ p["w"]).sum(-1) - labels).mean() ** 2)(params)
    deltas, opt_state = TX.update(grads, opt_state, params)
    params = optax.apply_updates(params, deltas)
    transaction.update(deltas=deltas, params=params, opt_state=opt_state)
    return params, opt_state


@pytest.fixture
def proof(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        yield proof


@pytest.fixture
def state():
    params = {"w": jnp.ones((5, 3)) / 7}
    return params, TX.init(params)


def test_an_explicit_update_is_committed_and_replays_exactly(proof, state, tmp_path):
    params, opt_state = state
    jitted = proof.jit(step, donate_argnames="params")
    plain_params, plain_opt_state = jax.tree.map(jnp.copy, state)
    for images, labels in batches(6):
        params, opt_state = jitted(params, opt_state, images, labels)
        plain_params, plain_opt_state = jax.jit(step)(plain_params, plain_opt_state, images, labels)
    proof.close()
    assert np.asarray(params["w"]).tobytes() == np.asarray(plain_params["w"]).tobytes()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates, report.sampled) == ("passed", 6, 6)
    assert all(check["body"]["exact"] for check in records(tmp_path / "proof", "check"))


def test_a_rectangular_matrix_of_words_is_committed_as_it_is(proof, state, tmp_path):
    def word_step(params, opt_state, words):
        transaction = zkdv.jax.Transaction(batch=words, params=params, opt_state=opt_state)
        deltas, after = TX.update(jax.tree.map(lambda leaf: leaf * words.sum(), params), opt_state, params)
        return transaction.update(deltas=deltas, params=optax.apply_updates(params, deltas), opt_state=after)

    from blake3 import blake3

    from zkdv import _native

    words = np.arange(12, dtype=np.uint32).reshape(2, 6)
    proof.jit(word_step)(*state, words)
    proof.close()
    [update] = records(tmp_path / "proof", "update")
    commitment = _native.batch_commit(words, 4, _native.rolling_base(proof.root_digest))
    assert commitment.matrix == blake3(words.tobytes()).digest()
    assert update["body"]["batch"] == commitment.digest


@pytest.mark.parametrize("policy", list(overlap.Policy))
def test_the_policy_may_be_a_constant_of_the_transaction(proof, state, tmp_path, policy):
    def constant(params, opt_state, images, labels):
        return step(params, opt_state, images, labels, policy)

    jitted = proof.jit(constant)
    for images, labels in batches(3):
        state = jitted(*state, images, labels)
    proof.close()
    assert [update["body"]["overlap"] for update in records(tmp_path / "proof", "update")] == [policy] * 3
    assert verified(tmp_path / "proof").verdict == "passed"


def count_compilations(monkeypatch):
    counts = []
    original = zkdv.jax._function.JitFunction._step

    def counted(self, *args, **kwargs):
        counts.append(1)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(zkdv.jax._function.JitFunction, "_step", counted)
    return counts


def test_the_policy_may_be_an_argument_that_changes_at_every_call(proof, state, tmp_path, monkeypatch):
    traces = count_compilations(monkeypatch)
    jitted = proof.jit(step)
    policies = [overlap.ALWAYS, overlap.NEVER, overlap.UNCHECKED, overlap.ALWAYS]
    for policy, (images, labels) in zip(policies, batches(4), strict=True):
        state = jitted(*state, images, labels, int(policy))
    proof.close()
    assert [update["body"]["overlap"] for update in records(tmp_path / "proof", "update")] == policies
    assert len(traces) == 1


def test_the_policy_of_a_train_state_changes_at_every_call_and_compiles_once(proof, tmp_path, monkeypatch):
    traces = count_compilations(monkeypatch)
    jitted, state = proof.jit(train_step, donate_argnums=0), make_state(proof)
    policies = [overlap.UNCHECKED, overlap.ALWAYS, overlap.NEVER, overlap.ALWAYS, overlap.UNCHECKED]
    for policy, (images, labels) in zip(policies, batches(5), strict=True):
        state, _ = jitted(state.replace(zkdv_overlap=policy), images, labels)
        assert state.zkdv_overlap == policy
    proof.close()
    assert [update["body"]["overlap"] for update in records(tmp_path / "proof", "update")] == policies
    assert len(traces) == 1


def test_a_policy_computed_in_the_function_is_refused(proof, state):
    def computed(params, opt_state, images, labels, policy):
        return step(params, opt_state, images, labels, policy + 1)

    [(images, labels)] = batches(1)
    with pytest.raises(ZKDVError, match="overlap policy is computed inside"):
        proof.jit(computed)(*state, images, labels, 0)


def test_donated_optimizer_state_is_refused_by_the_argument_name(proof, state):
    [(images, labels)] = batches(1)
    with pytest.raises(ZKDVError, match=r"donates opt_state.*donate the parameters alone"):
        proof.jit(step, donate_argnums=(0, 1))(*state, images, labels)


def test_a_transaction_without_its_update_is_refused(proof, state):
    def forgetful(params, opt_state, images, labels):
        zkdv.jax.Transaction(batch=images, params=params, opt_state=opt_state)
        return step(params, opt_state, images, labels)

    [(images, labels)] = batches(1)
    with pytest.raises(ZKDVError, match="forgetful: a Transaction was opened and never updated"):
        proof.jit(forgetful)(*state, images, labels)


def test_a_function_makes_one_update_wherever_its_transactions_stand(proof, state, tmp_path):
    def one_after_the_other(params, opt_state, images, labels):
        return step(*step(params, opt_state, images, labels), images, labels)

    def one_inside_the_other(params, opt_state, images, labels):
        outer = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state)
        after, opt_after = step(params, opt_state, images, labels)
        return outer.update(deltas=params, params=after, opt_state=opt_after)

    def none(params, opt_state, images, labels):
        return params, opt_state

    def from_elsewhere(params, opt_state, images, labels):
        return step(jax.tree.map(lambda leaf: leaf * 1, params), opt_state, images, labels)

    def from_a_closure(params, opt_state, images, labels):
        return step(state[0], opt_state, images, labels)

    [(images, labels)] = batches(1)
    for function, message in (
        (one_after_the_other, "the function declares 2 updates; it must declare exactly one"),
        (one_inside_the_other, "the function declares 2 updates; it must declare exactly one"),
        (none, "the function declares no updates; it must declare exactly one"),
        (from_elsewhere, "parameter w before the update is not an input of the function"),
        (from_a_closure, "parameter w before the update is not an input of the function"),
    ):
        with pytest.raises(ZKDVError, match=message):
            proof.jit(function)(*state, images, labels)
    proof.jit(step)(*state, images, labels)
    proof.close()
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", 1)


def test_updating_a_transaction_twice_is_refused(proof, state):
    def twice(params, opt_state, images):
        transaction = zkdv.jax.Transaction(batch=images, params=params, opt_state=opt_state)
        transaction.update(deltas=params, params=params, opt_state=opt_state)
        return transaction.update(deltas=params, params=params, opt_state=opt_state)

    [(images, _)] = batches(1)
    with pytest.raises(ZKDVError, match="called twice"):
        proof.jit(twice)(*state, images)


def test_an_input_outside_of_state_and_batch_that_the_update_needs_is_refused_by_name(proof, state):
    def leaky(params, opt_state, images, labels, scale):
        return step(params, opt_state, images * scale, labels)

    def hidden(params, opt_state, images, labels, scale):
        transaction = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state)
        deltas = jax.tree.map(lambda leaf: leaf * scale, params)
        return transaction.update(deltas=deltas, params=optax.apply_updates(params, deltas), opt_state=opt_state)

    [(images, labels)] = batches(1)
    with pytest.raises(ZKDVError, match="batch leaf 0 before the update is not an input"):
        proof.jit(leaky)(*state, images, labels, 2.0)
    with pytest.raises(ZKDVError, match="depends on input scale, which is neither state nor in the batch"):
        proof.jit(hidden)(*state, images, labels, 2.0)
    [(images, labels)] = batches(1)
    proof.jit(step)(*state, images, labels)


def test_a_wrong_policy_is_refused_where_it_is_given():
    with pytest.raises(ValueError, match="7"):
        zkdv.jax.Transaction(batch=(), params=(), opt_state=(), overlap=7)
    with pytest.raises(ValueError, match="integer scalar"):
        zkdv.jax.Transaction(batch=(), params=(), opt_state=(), overlap=jnp.ones(3))
