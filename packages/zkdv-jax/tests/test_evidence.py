"""What a run keeps for an auditor: which files, for how long, and what happens where they can't be written."""

import threading

import numpy as np
import pytest
from safetensors.numpy import load_file
from small_run import batches, check_every, make_state, records, train_step, verified

import zkdv
import zkdv.jax
from zkdv import _native
from zkdv.evidence_files import write_state


def train(folder, kept, *, updates=14, data=None, between=None, every=1000, commit="parameters"):
    config = check_every(every, evidence=kept, commit=commit)
    with zkdv.jax.ZKDV(folder, config, replay_snapshot_interval=4) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=(0,)), make_state(proof)
        for index, (images, labels) in enumerate(batches(updates) if data is None else data):
            state = state if between is None else between(index, state)
            state, _ = step(state, images, labels)
    return state


def names(folder, kind):
    return sorted(path.name.removesuffix(".safetensors") for path in (folder / kind).iterdir())


def numbers(folder, kind):
    return sorted(map(int, names(folder, kind)))


def test_checkpoints_stand_where_the_whole_state_is_committed(tmp_path):
    train(tmp_path / "proof", zkdv.EvidencePolicy(checkpoint_interval=5))
    assert numbers(tmp_path / "proof", "checkpoints") == [0, 8, 12]
    train(tmp_path / "every", zkdv.EvidencePolicy(checkpoint_interval=5), commit="every")
    assert numbers(tmp_path / "every", "checkpoints") == [0, 5, 10]
    assert sorted(path.name for path in (tmp_path / "every").iterdir()) == [
        ".lock",
        "checkpoints",
        "programs",
        "records.cborl",
    ]


def test_records_commit_to_the_files_and_the_files_hold_the_committed_state(tmp_path):
    train(tmp_path / "proof", zkdv.EvidencePolicy(checkpoint_interval=4))
    (schema,) = records(tmp_path / "proof", "schema")
    found = {record["body"]["update"]: record["body"]["files"] for record in records(tmp_path / "proof", "checkpoint")}
    assert sorted(found) == [0, 4, 8, 12]
    updates = {record["body"]["update"]: record["body"]["after"] for record in records(tmp_path / "proof", "update")}
    for update in (4, 8, 12):
        name = f"checkpoints/{update}.safetensors"
        path = tmp_path / "proof" / name
        assert found[update] == {name: _native.leaf_digest(path.read_bytes())}
        tensors = load_file(path)
        for tree in ("parameters", "optimizer"):
            leaves = [tensors[f"{tree}/{leaf['name']}"] for leaf in schema["body"][tree]]
            digests = [_native.leaf_digest(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8)) for leaf in leaves]
            assert _native.tree_root(tree, digests) == updates[update - 1][tree]
    assert verified(tmp_path / "proof").verdict == "passed"


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    written = threading.Event()

    def write_late(path, schema, leaves):
        # Were update 6 to wait for the checkpoint before update 0, nobody would set the event.
        assert written.wait(120)
        write_state(path, schema, leaves)

    def between(index, state):
        if index == 6:
            assert not (tmp_path / "proof" / "checkpoints").exists()
            written.set()
        return state

    monkeypatch.setattr("zkdv.evidence.write_state", write_late)
    train(tmp_path / "proof", zkdv.EvidencePolicy(checkpoint_interval=8, batches=True), between=between)
    assert numbers(tmp_path / "proof", "checkpoints") == [0, 8]


def test_keep_bounds_what_lies_on_disk(tmp_path):
    kept = zkdv.EvidencePolicy(checkpoint_interval=4, batches=True, components=True, keep=2)
    train(tmp_path / "proof", kept)
    assert numbers(tmp_path / "proof", "checkpoints") == [8, 12]
    assert numbers(tmp_path / "proof", "evidence") == list(range(8, 14))
    digests = {record["body"]["batch"].hex() for record in records(tmp_path / "proof", "update")[8:]}
    assert set(names(tmp_path / "proof", "batches")) == digests
    report = zkdv.audit(tmp_path / "proof", updates=[1])
    assert "checkpoints/0.safetensors is not in the folder" in report.segments[0].message


def test_a_batch_that_comes_again_is_kept_once_and_for_as_long_as_it_is_used(tmp_path):
    first, second = batches(2)
    data = [first, *[second] * 7, first, *[second] * 5]
    train(tmp_path / "proof", zkdv.EvidencePolicy(checkpoint_interval=4, batches=True, keep=1), data=data)
    (last,) = {record["body"]["batch"].hex() for record in records(tmp_path / "proof", "update")[12:]}
    assert names(tmp_path / "proof", "batches") == [last]


@pytest.mark.slow
def test_what_is_behind_a_sampled_update_is_kept_for_ever(tmp_path):
    kept = zkdv.EvidencePolicy(checkpoint_interval=4, keep=1, sampled=True)
    train(tmp_path / "proof", kept, every=7)
    # Updates 6 and 13 are sampled: their checks start from the copies before 4 and 12.
    assert numbers(tmp_path / "proof", "checkpoints") == [4, 12]
    assert numbers(tmp_path / "proof", "evidence") == [4, 5, 6, 12, 13]
    assert len(names(tmp_path / "proof", "batches")) == 5
    report = zkdv.audit(tmp_path / "proof", sampled=True)
    assert [(one.first, one.updates, one.outcome) for one in report.segments] == [
        (4, 3, "identical"),
        (12, 2, "identical"),
    ]
    assert report.bound() == (
        "The updates were fixed beforehand by the debug policy, not drawn: nothing follows for the others.",
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*changed between updates:zkdv.ZKDVWarning")
def test_edits_are_applied_where_they_are_on_record_and_start_a_segment_where_they_are_not(tmp_path):
    def between(index, state):
        if index == 3:
            params = state.params | {"layers_2": state.params["layers_2"] | {"bias": np.float32([1, 2, 3])}}
            return state.replace(params=params)
        if index == 6:
            kernel = state.params["layers_0"]["kernel"] * 2
            return state.replace(params=state.params | {"layers_0": state.params["layers_0"] | {"kernel": kernel}})
        return state

    train(tmp_path / "proof", zkdv.EvidencePolicy(checkpoint_interval=8, batches=True), between=between)
    assert numbers(tmp_path / "proof", "checkpoints") == [0, 6, 8]
    report = zkdv.audit(tmp_path / "proof", segments="all")
    assert [(one.first, one.updates, one.outcome) for one in report.segments] == [
        (0, 6, "identical"),
        (6, 2, "identical"),
        (8, 6, "identical"),
    ]
    assert report.verification.edits_total == 2


def test_evidence_that_cannot_be_written_poisons_the_run_with_path_and_cause(tmp_path):
    folder = tmp_path / "proof"
    folder.mkdir()
    (folder / "batches").write_text("in the way")
    with pytest.raises(zkdv.ZKDVPoisonedError, match=r"evidence can't be written to .*batches"):
        train(folder, zkdv.EvidencePolicy(batches=True))
    report = verified(folder)
    assert report.poisoned
    assert {violation.code for violation in report.violations} == {"closed-poisoned"}


def test_a_run_that_is_abandoned_commits_to_what_was_handed_over_and_keeps_its_evidence(tmp_path):
    gate = threading.Event()

    def open_when_abandoned(proof):
        try:
            proof.queue.wait_until(lambda: proof.queue.cancelled)
        finally:
            gate.set()

    config = check_every(1000, evidence=zkdv.EvidencePolicy(checkpoint_interval=4, batches=True))
    with zkdv.jax.ZKDV(tmp_path / "proof", config, replay_snapshot_interval=4) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step, donate_argnums=(0,)), make_state(proof)
        proof.queue.submit("commit", gate.wait, 300)
        for images, labels in batches(2):
            state, _ = step(state, images, labels)
        threading.Thread(target=open_when_abandoned, args=(proof,)).start()
        proof.abandon()
    updates = records(tmp_path / "proof", "update")
    assert len(updates) == 2
    assert names(tmp_path / "proof", "batches") == sorted(update["body"]["batch"].hex() for update in updates)
    assert len(records(tmp_path / "proof", "checkpoint")) == 1
    assert verified(tmp_path / "proof").verdict == "incomplete"


@pytest.mark.slow
def test_a_run_that_is_abandoned_leaves_whole_files_alone(tmp_path):
    def between(index, state):
        if index == 9:
            raise KeyError("the script failed")
        return state

    with pytest.raises(KeyError):
        train(tmp_path / "proof", zkdv.EvidencePolicy(checkpoint_interval=4, batches=True), between=between)
    assert not list((tmp_path / "proof").rglob("*.partial"))
    report = zkdv.audit(tmp_path / "proof", updates=[5])
    assert report.outcome == "identical"
    assert report.verification.verdict == "incomplete"
