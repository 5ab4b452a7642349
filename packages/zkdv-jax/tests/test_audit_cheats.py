"""Cheats that only an audit finds: each run is signed and chained with valid keys, and passes `zkdv verify`."""

import ctypes

import jax
import numpy as np
import optax
import pytest
from small_run import batches, check_every, make_state, train_step, verified

import zkdv
import zkdv.jax
from zkdv.auditing.frontend import SealedFiles
from zkdv.batch import BatchLayout
from zkdv.evidence_files import write_state
from zkdv.jax import _function, _sealing
from zkdv.jax._audit import JAXAudit
from zkdv.schema import LeafSpec, Schema

pytestmark = pytest.mark.slow

KEPT = zkdv.EvidencePolicy(checkpoint_interval=4, batches=True, components=True)
UPDATES = 10


def leave(index, state):
    """Change nothing."""


def train(folder, *, before=leave, tx=None, commit="every", kept=KEPT):
    """Train without checks of the prover's own; `before(index, state)` may meddle."""
    config = check_every(1000, evidence=kept, commit=commit)
    with zkdv.jax.ZKDV(folder, config, replay_snapshot_interval=4) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof, tx)
        for index, (images, labels) in enumerate(batches(UPDATES)):
            before(index, state)
            state, _ = step(state, images, labels)
    assert verified(folder).verdict == "passed"


def differs(folder, update, *, outcomes=("identical", "differs", "identical")):
    """The audit's difference, which is at `update`."""
    report = zkdv.audit(folder, segments="all")
    assert tuple(one.outcome for one in report.segments) == outcomes, report.segments
    assert (report.outcome, report.exit_code) == ("differs", 1)
    found = next(one for one in report.segments if one.outcome == "differs")
    assert found.difference.update == update
    return found


def write_through(leaf, element, value):
    """Change one float32 element in the memory of an array, which JAX does not see."""
    jax.block_until_ready(leaf)
    address = leaf.unsafe_buffer_pointer() + 4 * element
    ctypes.memmove(address, np.float32(value).tobytes(), 4)


def test_one_element_of_one_moment_changed_in_memory_is_found_and_named(tmp_path):
    def meddle(index, state):
        if index == 6:
            write_through(state.opt_state[0].mu["layers_2"]["kernel"], 5, 1.0)

    train(tmp_path / "proof", before=meddle)
    found = differs(tmp_path / "proof", 6)
    assert found.difference.trees == ("parameters", "optimizer")
    parameter, moment = found.difference.leaves
    assert parameter == "parameters/layers_2.kernel"
    assert moment.startswith("optimizer/")
    assert "mu" in moment
    assert "layers_2.kernel" in moment
    assert moment in found.message


def test_without_components_the_update_is_named_and_what_would_name_the_leaf(tmp_path):
    def meddle(index, state):
        if index == 5:
            write_through(state.params["layers_0"]["kernel"], 0, 5.0)

    train(
        tmp_path / "proof",
        before=meddle,
        commit="parameters",
        kept=zkdv.EvidencePolicy(checkpoint_interval=4, batches=True),
    )
    found = differs(tmp_path / "proof", 5)
    assert found.difference.leaves == ()
    assert found.difference.distance > 1


def test_a_state_changed_at_a_checkpoint_contradicts_what_was_committed(tmp_path):
    def meddle(index, state):
        if index == 4:
            write_through(state.params["layers_0"]["kernel"], 0, 5.0)

    train(tmp_path / "proof", before=meddle)
    found = differs(tmp_path / "proof", 4)
    assert found.executed == 0
    assert found.difference.leaves == ("parameters/layers_0.kernel",)
    assert "which the run signed, holds another state than the one that it committed to" in found.message


def test_another_learning_rate_than_that_of_the_sealed_program_is_found(tmp_path, monkeypatch):
    honest, sealed = _sealing.seal, []

    def seal(*arguments):
        sealed.append(honest(*arguments))
        return sealed[0]

    monkeypatch.setattr(_sealing, "seal", seal)
    train(tmp_path / "shown", tx=optax.adam(1e-3))
    train(tmp_path / "proof", tx=optax.adam(1e-2))
    assert len(sealed) == 2
    differs(tmp_path / "proof", 0, outcomes=("differs",) * 3)


def test_another_batch_than_the_committed_one_is_found(tmp_path, monkeypatch):
    honest, packed = _function.JitFunction._pack, []

    def pack(self, pipeline, batch, variant):
        words = honest(self, pipeline, batch, variant)
        packed.append(words)
        # The batch of update 5 is said to have been that of update 4.
        return packed[4] if len(packed) == 6 else words

    monkeypatch.setattr(_function.JitFunction, "_pack", pack)
    train(tmp_path / "proof")
    differs(tmp_path / "proof", 5)


def test_an_update_that_was_not_made_is_found(tmp_path, monkeypatch):
    honest = _function.JitFunction._run

    def run(self, pipeline, submission, variant, values):
        result, hidden, evidence = honest(self, pipeline, submission, variant, values)
        if pipeline.updates == 6:
            leaves = jax.tree.leaves([values[position] for position in self._dynamic])
            unchanged = [leaves[position] for position in variant.staged.state_inputs]
            result = (values[0], result[1])
            evidence = pipeline.start_evidence(unchanged, submission.due)
        return result, hidden, evidence

    monkeypatch.setattr(_function.JitFunction, "_run", run)
    train(tmp_path / "proof")
    differs(tmp_path / "proof", 6)


def test_a_checkpoint_that_was_forged_before_it_was_signed_is_found(tmp_path, monkeypatch):
    def write_forged(path, schema, leaves):
        leaves = [np.array(leaf) for leaf in leaves]
        if path.name == "8.safetensors":
            leaves[0].reshape(-1)[0] += 1
        write_state(path, schema, leaves)

    monkeypatch.setattr("zkdv.evidence.write_state", write_forged)
    train(tmp_path / "proof")
    found = differs(tmp_path / "proof", 8, outcomes=("identical", "identical", "differs"))
    assert found.difference.leaves[0].startswith("parameters/")


def test_small_differences_are_within_tolerance_and_carry_no_probability(tmp_path):
    def meddle(index, state):
        if index == 6:
            leaf = state.params["layers_2"]["kernel"]
            write_through(leaf, 5, np.nextafter(np.asarray(leaf).reshape(-1)[5], np.float32(9)))

    train(tmp_path / "proof", before=meddle)
    report = zkdv.audit(tmp_path / "proof", segments="all")
    assert [one.outcome for one in report.segments] == ["identical", "within tolerance", "identical"]
    assert report.exit_code == 0
    assert "carries no probability" in report.bound()[0]


def test_another_platform_class_is_said_and_nothing_else(tmp_path, monkeypatch):
    def meddle(index, state):
        if index == 6:
            write_through(state.params["layers_2"]["kernel"], 5, 3.0)

    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    train(tmp_path / "proof", before=meddle)
    monkeypatch.delenv("OMP_NUM_THREADS")
    report = zkdv.audit(tmp_path / "proof", segments="all")
    assert [one.outcome for one in report.segments] == ["identical", "different platform class", "identical"]
    assert report.platform_differences == ("OMP_NUM_THREADS: the run had 7, here is nothing",)
    assert report.exit_code == 3


def test_a_program_that_ends_the_process_is_not_auditable(tmp_path, monkeypatch):
    """A process that dies in the framework's native code, here by a signal, is an outcome like another."""
    train(tmp_path / "proof")
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import sys\n"
        "if 'zkdv.auditing._worker' in sys.orig_argv:\n"
        "    import os, jax.export\n"
        "    jax.export.deserialize = lambda blob: os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site))
    report = zkdv.audit(tmp_path / "proof", segments=2, seed=0)
    assert [one.outcome for one in report.segments] == ["not auditable"] * 2
    assert all("was ended by SIGABRT" in one.message for one in report.segments)
    assert report.exit_code == 3


@pytest.mark.parametrize("form", ["program", "text"])
def test_a_program_that_calls_something_unknown_is_refused(form):
    def calling(leaf):
        return [leaf, jax.ffi.ffi_call("run_what_i_like", jax.ShapeDtypeStruct(leaf.shape, leaf.dtype))(leaf)]

    unchecked = [jax.export.DisabledSafetyCheck.custom_call("run_what_i_like")]
    exported = jax.export.export(jax.jit(calling), disabled_checks=unchecked)(jax.ShapeDtypeStruct((3,), "float32"))
    blob = bytes(exported.serialize()) if form == "program" else None
    files = SealedFiles(blob, exported.mlir_module().encode(), "jax-export", ("cpu",))
    schema = Schema((LeafSpec("w", "float32", (3,)),), (), BatchLayout.of([], [], []))
    with pytest.raises(zkdv.ZKDVError, match="makes the custom call 'run_what_i_like'"):
        JAXAudit().load(files, schema)
