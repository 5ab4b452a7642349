"""Audits of JAX runs, made by `zkdv audit` and `zkdv.audit` from the run's folder alone."""

import json
import os
import shutil
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from small_run import batches, records

import zkdv
import zkdv.jax
import zkdv.membership
from zkdv import _native
from zkdv.schema import Schema

UPDATES, INTERVAL = 10, 4
KEPT = zkdv.EvidencePolicy(checkpoint_interval=INTERVAL, batches=True)


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """A run of ten updates in three segments, trained by a script of its own in a folder that is gone afterwards."""
    folder = tmp_path_factory.mktemp("honest")
    script = folder / "scripts" / "train.py"
    script.parent.mkdir()
    script.write_text(
        f"""
import sys
import types
sys.path.insert(0, {str(Path(__file__).parent)!r})
import zkdv
from small_run import check_every, run
kept = zkdv.EvidencePolicy(checkpoint_interval={INTERVAL}, batches=True, components=True)
run(sys.argv[1], check_every(5, evidence=kept), updates={UPDATES}, replay_snapshot_interval={INTERVAL})
"""
    )
    identity = folder / "identity.pem"
    _native.Identity.generate(str(identity))
    environment = os.environ | {"ZKDV_IDENTITY": str(identity)}
    subprocess.run([sys.executable, str(script), str(folder / "proof")], check=True, env=environment, cwd=folder)
    shutil.rmtree(script.parent)
    return folder / "proof"


@pytest.fixture
def copied(honest, tmp_path):
    return Path(shutil.copytree(honest, tmp_path / "proof"))


def test_a_batch_that_is_kept_as_evidence_is_what_proofs_of_membership_are_made_of(honest):
    [batch] = [record["body"]["batch"] for record in records(honest, "update") if record["body"]["update"] == 3]
    made = zkdv.membership.prove(honest, 3, honest / "batches" / f"{batch.hex()}.safetensors", row=5)
    assert zkdv.membership.verify(honest, made).holds


def audited(folder, **options):
    return zkdv.audit(folder, **({"segments": "all"} | options))


def schema_of(folder):
    return Schema.from_record(records(folder, "schema")[0]["body"])


def test_a_third_process_audits_a_run_from_the_folder_alone(honest, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", "-m", "zkdv", "audit", str(honest), "--all", "--json"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    report = json.loads(done.stdout)
    assert (done.returncode, report["exit_code"], report["outcome"]) == (0, 0, "identical")
    assert [segment["executed"] for segment in report["segments"]] == [4, 4, 2]
    assert report["platform_differences"] == report["notes"] == []
    assert report["bound"] == ["Every update of the run was executed: nothing was left out."]


def test_the_process_that_audits_imports_no_framework(honest, tmp_path):
    program = """
import sys, zkdv
report = zkdv.audit(sys.argv[1], segments=1, seed=3)
assert report.outcome == "identical", report
assert not {"jax", "torch", "flax", "optax"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-P", "-c", program, str(honest)], check=True, cwd=tmp_path)


def test_a_draw_comes_with_its_bound(honest):
    report = audited(honest, segments=1, seed=0)
    assert (len(report.segments), report.segments_total, report.drawn) == (1, 3, True)
    assert report.miss_probability(1) == pytest.approx(2 / 3)
    assert report.miss_probability(2) == pytest.approx(1 / 3)
    assert report.miss_probability(3) == 0
    assert report.bound()[0] == (
        "If 1 of the 10 updates were wrong, this audit would have missed it with probability 0.667."
    )
    again = audited(honest, segments=1, seed=0)
    assert [one.first for one in again.segments] == [one.first for one in report.segments]


def test_named_updates_are_executed_from_the_checkpoint_before(honest):
    report = audited(honest, segments=None, updates=range(5, 7))
    (segment,) = report.segments
    assert (segment.first, segment.updates, segment.executed, segment.outcome) == (4, 3, 3, "identical")
    assert report.bound() == ("The updates were named, not drawn: nothing follows for the others.",)
    with pytest.raises(ValueError, match="the run has no update 10; it has 10"):
        audited(honest, segments=None, updates=[3, 10])


def test_the_program_is_executed_from_its_text_where_the_blob_is_replaced(copied):
    (blob,) = (copied / "programs").glob("*.jaxexport")
    blob.write_bytes(np.random.default_rng(0).bytes(blob.stat().st_size))
    report = audited(copied)
    assert (report.outcome, report.exit_code) == ("identical", 0)
    assert report.verification.exit_code == 1
    assert any(note.startswith("program-digest: ") for note in report.notes)
    assert any("fails its digest" in note for note in report.notes)
    assert any("was executed from its committed text" in note for note in report.notes)


def test_without_program_and_text_nothing_can_be_audited(copied):
    shutil.rmtree(copied / "programs")
    report = audited(copied)
    assert (report.outcome, report.exit_code) == ("not auditable", 3)
    assert "neither the program of update 0 nor its text is in the folder" in report.segments[0].message


def test_a_program_whose_text_was_changed_is_not_executed(copied):
    (blob,) = (copied / "programs").glob("*.jaxexport")
    (text,) = (copied / "programs").glob("*.txt")
    blob.unlink()
    text.write_text(text.read_text().replace("stablehlo.add", "stablehlo.subtract", 1))
    report = audited(copied)
    assert report.outcome == "not auditable"
    assert any(f"programs/{text.name} fails its digest" in note for note in report.notes)


def test_evidence_that_is_missing_or_another_is_not_auditable_and_counts_as_wrong(copied):
    (copied / "checkpoints" / "4.safetensors").unlink()
    later = copied / "checkpoints" / "8.safetensors"
    later.write_bytes((copied / "checkpoints" / "0.safetensors").read_bytes())
    report = audited(copied)
    assert [one.outcome for one in report.segments] == ["identical", "not auditable", "not auditable"]
    assert "checkpoints/4.safetensors is not in the folder" in report.segments[1].message
    assert "checkpoints/8.safetensors is not the file whose digest was recorded" in report.segments[2].message
    assert report.exit_code == 3
    assert report.bound()[0].startswith("2 of the 3 chosen segments did not come out identical and count as wrong")


def test_a_batch_that_was_swapped_in_the_folder_is_not_used(copied):
    first, second = (record["body"]["batch"].hex() for record in records(copied, "update")[:2])
    shutil.copy(copied / "batches" / f"{first}.safetensors", copied / "batches" / f"{second}.safetensors")
    report = audited(copied, segments=None, updates=[1])
    assert report.outcome == "not auditable"
    assert "holds another batch than the one that its name says" in report.segments[0].message


def test_a_transcript_that_does_not_hold_is_not_audited(copied):
    path = copied / "records.cborl"
    damaged = bytearray(path.read_bytes())
    damaged[records(copied, "update")[3]["offset"] + 60] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(zkdv.ZKDVVerificationError, match=r"the transcript does not hold.*signature-invalid"):
        audited(copied)
    done = subprocess.run([sys.executable, "-m", "zkdv", "audit", str(copied)], capture_output=True, check=False)
    assert done.returncode == 1


# A data set in place of the stored batches.


def supplied(update):
    return list(batches(UPDATES))[update]


@pytest.mark.slow
def test_a_supplied_data_set_stands_in_for_stored_batches(copied, tmp_path):
    shutil.rmtree(copied / "batches")
    assert audited(copied).outcome == "not auditable"
    assert audited(copied, batches=supplied).outcome == "identical"
    names = [leaf.name for leaf in schema_of(copied).batch.leaves]
    folder = tmp_path / "data"
    folder.mkdir()
    for number, batch in enumerate(reversed(list(batches(UPDATES)))):
        import safetensors.numpy

        safetensors.numpy.save_file(dict(zip(names, batch, strict=True)), folder / f"{number}.safetensors")
    assert audited(copied, batches=folder).outcome == "identical"
    done = subprocess.run(
        [sys.executable, "-m", "zkdv", "audit", str(copied), "--batches", str(folder), "--updates", "0:2"], check=False
    )
    assert done.returncode == 0


def test_a_supplied_batch_that_is_another_is_named(copied):
    shutil.rmtree(copied / "batches")
    report = audited(copied, batches=lambda _: supplied(0), segments=None, updates=[1])
    assert report.outcome == "not auditable"
    assert "batches(1) gave another batch than the committed one" in report.segments[0].message
    report = audited(copied, batches=lambda _: {"images": 1}, segments=None, updates=[1])
    assert "lacks the batch leaf" in report.segments[0].message


def test_a_run_over_several_processes_that_asks_for_evidence_is_refused(tmp_path):
    proof = zkdv.jax.ZKDV(tmp_path, zkdv.ZKDVConfig(evidence=KEPT))
    with pytest.raises(zkdv.ZKDVError, match="does not keep in runs over several processes"):
        proof._keep_evidence(types.SimpleNamespace(size=2), None)


@pytest.mark.slow
def test_a_run_on_several_devices_is_audited_on_as_many(tmp_path):
    """Leaves that are cut into shards, and some that are not, on a mesh of two axes."""
    program = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import jax, numpy as np
jax.config.update("jax_num_cpu_devices", 4)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import zkdv, zkdv.jax
from small_run import batches, check_every, make_state, train_step

mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
kept = zkdv.EvidencePolicy(4, batches=True, components=True)
with zkdv.jax.ZKDV(sys.argv[1], check_every(3, evidence=kept), replay_snapshot_interval=4) as proof:
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step), make_state(proof)
    cut = lambda leaf: P(None, "model") if np.ndim(leaf) == 2 and leaf.shape[1] % 2 == 0 else P()
    state = jax.device_put(state, jax.tree.map(lambda leaf: NamedSharding(mesh, cut(leaf)), state))
    for batch in batches(8):
        state, _ = step(state, *(jax.device_put(leaf, NamedSharding(mesh, P("data"))) for leaf in batch))
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "proof")], check=True)
    assert any("sharding" in leaf for leaf in records(tmp_path / "proof", "schema")[0]["body"]["parameters"])
    report = audited(tmp_path / "proof")
    assert (report.outcome, report.executed, report.platform_differences) == ("identical", 8, ())
    (blob,) = (tmp_path / "proof" / "programs").glob("*.jaxexport")
    blob.unlink()
    report = audited(tmp_path / "proof", segments=1)
    assert "executed from their serialized form alone" in report.segments[0].message
