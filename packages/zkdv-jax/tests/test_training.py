"""Training under a proof: the same numbers as plain JAX, and a transcript that holds what happened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blake3 import blake3
from flax.errors import ScopeParamShapeError
from small_run import ROWS, WIDTH, batches, check_every, make_state, records, run, train_step, verified

import zkdv
import zkdv.jax
from zkdv import _native
from zkdv.errors import ZKDVError, ZKDVPoisonedError, ZKDVVerificationError, ZKDVWarning


def test_training_under_a_proof_equals_plain_training_bit_for_bit(tmp_path):
    state = run(tmp_path / "proof", check_every(3), updates=20)
    plain, step = make_state(), jax.jit(train_step, donate_argnums=(0,))
    for images, labels in batches(20):
        plain, _ = step(plain, images, labels)
    for ours, theirs in zip(jax.tree.leaves(state), jax.tree.leaves(plain), strict=True):
        assert np.asarray(ours).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("interval", [1, 4, 12, 100])
@pytest.mark.parametrize("commit", ["parameters", "every"])
def test_every_checked_update_replays_exactly(tmp_path, interval, commit):
    run(tmp_path / "proof", check_every(1, commit=commit), updates=13, replay_snapshot_interval=interval)
    report = verified(tmp_path / "proof")
    assert report.verdict == "passed", report
    assert (report.updates, report.sampled) == (13, 13)
    checks = records(tmp_path / "proof", "check")
    assert [check["body"]["exact"] for check in checks] == [True] * 13
    assert all(check["body"]["snapshot"] == check["body"]["update"] // interval * interval for check in checks)


def test_the_transcript_commits_to_the_final_parameters_and_every_batch(tmp_path):
    state = run(tmp_path / "proof", check_every(5))
    digests = [blake3(np.asarray(leaf).tobytes()).digest() for leaf in jax.tree.leaves(state.params)]
    root = _native.tree_root("parameters", digests)
    final = records(tmp_path / "proof", "state")[-1]["body"]
    assert final["reason"] == "close"
    assert final["roots"]["parameters"] == root
    base = _native.rolling_base(records(tmp_path / "proof")[0]["digest"])
    for update, (images, labels) in zip(records(tmp_path / "proof", "update"), batches(10), strict=True):
        words = np.concatenate([images.view(np.uint32), labels.view(np.uint32)[:, None]], axis=1)
        assert update["body"]["batch"] == _native.batch_commit(np.ascontiguousarray(words), 4, base).digest


def test_an_unchecked_update_costs_one_small_record(tmp_path):
    with pytest.warns(ZKDVWarning, match="no update of this run will be checked"):
        policy = zkdv.SamplingPolicy(update_check_probability=0.0)
    run(tmp_path / "proof", zkdv.ZKDVConfig(sampling_policy=policy), updates=30)
    updates = records(tmp_path / "proof", "update")
    assert len(records(tmp_path / "proof")) == 30 + len(
        ["root", "environment", "schema", "program", "state", "state", "close"]
    )
    assert all(update["length"] <= (480 if "next-key" in update["body"] else 420) for update in updates)


def test_buffers_are_really_donated(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(2)) as proof:
        proof.start(rolling_window=4)
        step = proof.jit(train_step, donate_argnums=(0,))
        state = make_state(proof)
        for images, labels in batches(6):
            before = state
            pointer = before.params["layers_0"]["kernel"].unsafe_buffer_pointer()
            state, _ = step(state, images, labels)
            assert before.params["layers_0"]["kernel"].is_deleted()
            assert state.params["layers_0"]["kernel"].unsafe_buffer_pointer() == pointer


def test_loaders_may_reuse_their_buffers(tmp_path):
    images, labels = np.zeros((ROWS, WIDTH), np.float32), np.zeros(ROWS, np.int32)
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step = proof.jit(train_step, donate_argnums=(0,))
        state = make_state(proof)
        for fresh_images, fresh_labels in batches(8):
            images[:], labels[:] = fresh_images, fresh_labels
            state, loss = step(state, images, labels)
            jax.block_until_ready(loss)
    assert verified(tmp_path / "proof").verdict == "passed"


def test_a_replay_that_differs_fails_the_check_and_poisons_the_run(tmp_path, monkeypatch):
    honest = zkdv.jax._pipeline.JAXPipeline.replay

    def off(self, update, state):
        after = list(honest(self, update, state))
        return [after[0].at[0].add(1), *after[1:]]

    monkeypatch.setattr(zkdv.jax._pipeline.JAXPipeline, "replay", off)
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(1))
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step, donate_argnums=(0,)), make_state(proof)

    def train():
        nonlocal state
        for images, labels in batches(3):
            state, _ = step(state, images, labels)

    with pytest.raises(ZKDVPoisonedError, match="update 0 does not replay") as raised:
        train()
    assert isinstance(raised.value.__cause__, ZKDVVerificationError)
    with pytest.raises(ZKDVPoisonedError, match="update 0 does not replay"):
        proof.close()
    report = verified(tmp_path / "proof")
    assert report.verdict == "failed"
    assert {violation.code for violation in report.violations} == {"check-failed"}


def test_a_replay_within_tolerance_passes_with_openings(tmp_path, monkeypatch):
    honest = zkdv.jax._pipeline.JAXPipeline.replay

    def nearly(self, update, state):
        after = list(honest(self, update, state))
        return [leaf * (1 + 1e-6) if leaf.dtype == jnp.float32 else leaf for leaf in after]

    monkeypatch.setattr(zkdv.jax._pipeline.JAXPipeline, "replay", nearly)
    run(tmp_path / "proof", check_every(2, commit="every"), updates=6, replay_snapshot_interval=1)
    checks = records(tmp_path / "proof", "check")
    assert [check["body"]["exact"] for check in checks] == [False] * 3
    assert all("opening" in check["body"]["parameter"] for check in checks)
    assert all(0 < check["body"]["distance"] < 1e-4 for check in checks)
    assert verified(tmp_path / "proof").verdict == "passed"


def test_weights_edited_between_updates_are_recorded_and_refused(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        for number, (images, labels) in enumerate(batches(5)):
            if number == 2:
                params = jax.tree.map(jnp.copy, state.params)
                params["layers_0"]["kernel"] = params["layers_0"]["kernel"] * 2
                state = state.replace(params=params)
            elif number == 3:
                state = state.replace(step=state.step + 10)
            if number in {2, 3}:
                with pytest.warns(ZKDVWarning, match="changed between updates"):
                    state, _ = step(state, images, labels)
            else:
                state, _ = step(state, images, labels)
    report = verified(tmp_path / "proof")
    assert {violation.code for violation in report.violations} == {"edit-not-allowed"}
    assert [(edit.update, edit.tree, edit.name) for edit in report.edits] == [
        (2, "parameters", "layers_0.kernel"),
        (3, "optimizer", "step"),
    ]
    assert verified(tmp_path / "proof", allow_edits=True).verdict == "passed"


def test_state_moved_without_change_is_no_edit(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        for images, labels in batches(3):
            state, _ = step(jax.tree.map(jnp.copy, state), images, labels)
    assert verified(tmp_path / "proof").edits == ()


def test_typed_keys_scalars_and_bfloat16_in_the_batch_replay_exactly(tmp_path):
    def noisy_step(state, images, key, scale):
        def loss(params):
            noise = jax.random.normal(key, images.shape, images.dtype)
            return (state.apply_fn({"params": params}, images + scale * noise) ** 2).mean()

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=2)
        step, state = proof.jit(noisy_step, donate_argnames="state"), make_state(proof)
        for number, (images, _) in enumerate(batches(4)):
            state = step(state, jnp.asarray(images, jnp.bfloat16), jax.random.key(number), scale=0.1 * number)
    report = verified(tmp_path / "proof")
    assert report.verdict == "passed"
    assert report.sampled == 4


def test_an_exception_in_the_loop_leaves_the_transcript_open(tmp_path):

    def train():
        with zkdv.jax.ZKDV(tmp_path / "proof", check_every(2)) as proof:
            proof.start(rolling_window=4)
            step, state = proof.jit(train_step), make_state(proof)
            for images, labels in batches(3):
                state, _ = step(state, images, labels)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        train()
    report = verified(tmp_path / "proof")
    assert report.verdict == "incomplete"
    assert not report.closed
    assert not report.violations


def test_a_function_that_fails_to_trace_does_not_poison(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        state = make_state(proof)
        [(images, labels)] = batches(1)
        with pytest.raises(ZKDVError, match="declares no updates"):
            proof.jit(lambda state, images: (state, images))(state, images)
        with pytest.raises(TypeError, match="missing"):
            proof.jit(train_step)(state, images)
        with pytest.raises(ScopeParamShapeError):
            proof.jit(train_step)(state, images.T, labels)
        state, _ = proof.jit(train_step)(state, images, labels)
    assert verified(tmp_path / "proof").verdict == "passed"


def test_a_window_wider_than_a_row_says_the_row_width(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=7)
        [(images, labels)] = batches(1)
        with pytest.raises(ValueError, match=r"rolling_window is 7 .* 6 words"):
            proof.jit(train_step)(make_state(proof), images, labels)


def test_a_changed_batch_shape_names_the_input_and_does_not_poison(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        for images, labels in batches(2):
            state, _ = step(state, images, labels)
        with pytest.raises(ZKDVError, match=r"input images was float32\[8,5\].* now float32\[4,5\]"):
            step(state, images[:4], labels[:4])
        state, _ = step(state, images, labels)
    assert verified(tmp_path / "proof").updates == 3


@pytest.mark.parametrize("path", ["proof", "file"])
def test_an_existing_path_is_never_overwritten(tmp_path, path):
    run(tmp_path / "proof", check_every(1), updates=2)
    (tmp_path / "file").write_text("mine")
    before = (tmp_path / "proof" / "records.cborl").read_bytes()
    proof = zkdv.jax.ZKDV(tmp_path / path, check_every(1))
    with pytest.raises(ZKDVError, match=path):
        proof.start()
    assert (tmp_path / "proof" / "records.cborl").read_bytes() == before
    assert (tmp_path / "file").read_text() == "mine"


def test_updates_need_a_started_and_unclosed_proof(tmp_path):
    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(1))
    step, state = proof.jit(train_step), make_state(proof)
    [(images, labels)] = batches(1)
    with pytest.raises(ZKDVError, match="start"):
        step(state, images, labels)
    proof.start(rolling_window=4)
    with pytest.raises(ZKDVError, match="once"):
        proof.start()
    step(state, images, labels)
    proof.close()
    proof.close()
    with pytest.raises(ZKDVError, match="closed"):
        step(state, images, labels)


@pytest.mark.filterwarnings("always::zkdv.ZKDVWarning")
def test_a_run_whose_loss_becomes_nan_is_recorded_and_verifies(tmp_path, recwarn):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        for images, labels in batches(3):
            state, loss = step(state, images * np.float32("nan"), labels)
    assert np.isnan(loss)
    [warning] = [str(given.message) for given in recwarn if issubclass(given.category, ZKDVWarning)]
    assert "holds NaN since update 0; the run goes on" in warning
    assert verified(tmp_path / "proof").verdict == "passed"


def test_the_state_behaves_the_same_under_plain_jit():
    state, step = make_state(), jax.jit(train_step)
    for images, labels in batches(2):
        state, _ = step(state, images, labels)
    assert int(state.step) == 2


def test_the_portable_commitments_give_the_same_leaf_and_batch_roots(tmp_path):
    script = """
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
sys.path.insert(0, sys.argv[2])
from small_run import check_every, records, run
run(folder, check_every(3), updates=7, replay_snapshot_interval=4)
after = [record["body"]["after"] for record in records(folder, "update")]
print(json.dumps([{tree: root.hex() for tree, root in roots.items() if "probes" not in tree} for roots in after]))
"""
    results = []
    for form in ("cpu", "portable"):
        command = [sys.executable, "-c", script, str(tmp_path / form), str(Path(__file__).parent)]
        done = subprocess.run(
            command, env=os.environ | {"ZKDV_LOWERING": form}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        results.append(json.loads(done.stdout))
        assert verified(tmp_path / form).verdict == "passed"
    assert results[0] == results[1]
    assert [sorted(roots) for roots in results[0]] == [["parameters"]] * 3 + [["optimizer", "parameters"]] + [
        ["parameters"]
    ] * 3
