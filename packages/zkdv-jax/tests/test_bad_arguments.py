"""Wrong arguments and folders: one error, where they are given, that names them and poisons nothing."""

import gc
import math
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from small_run import batches, check_every, make_state, train_step, verified

import zkdv
import zkdv.jax

WAIT_SECONDS = 120


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"config": {"name": "x"}}, TypeError, r"config is .*; it is a zkdv\.ZKDVConfig, or None"),
        ({"max_in_flight": 0}, ValueError, "max_in_flight is 0; it is an integer from 1 to 1024"),
        ({"max_in_flight": 2.0}, TypeError, r"max_in_flight is 2\.0 \(float\)"),
        ({"max_in_flight": True}, TypeError, r"max_in_flight is True \(bool\)"),
        ({"replay_snapshot_interval": 0}, ValueError, "replay_snapshot_interval is 0; it is an integer from 1 to"),
        ({"replay_snapshot_interval": 1 << 17}, ValueError, "replay_snapshot_interval is 131072; .* 1 to 65536"),
        ({"replay_snapshot_interval": "12"}, TypeError, r"replay_snapshot_interval is '12' \(str\)"),
        ({"resume": True}, zkdv.ZKDVError, "can't resume"),
        (
            {"control": SimpleNamespace(rank=1, size=2)},
            ValueError,
            "the control is of rank 1 of 2, and this is process 0 of 1 in JAX",
        ),
    ],
)
def test_a_wrong_argument_of_a_proof_is_refused_where_it_is_made(tmp_path, arguments, error, message):
    with pytest.raises(error, match=message):
        zkdv.jax.ZKDV(tmp_path / "proof", **arguments)
    assert not (tmp_path / "proof").exists()


def test_a_wrong_argument_of_start_is_refused_at_the_call_and_poisons_nothing(tmp_path):
    wrong = [
        (lambda: proof.start(0), ValueError, "rolling_window is 0; it is an integer from 1 to 4294967295"),
        (lambda: proof.start(2**32), ValueError, "rolling_window is 4294967296"),
        (lambda: proof.start(4.0), TypeError, r"rolling_window is 4\.0 \(float\)"),
        (lambda: proof.start(True), TypeError, r"rolling_window is True \(bool\)"),
        (lambda: proof.start(4, probe_ratio=0), ValueError, "probe_ratio is 0; it is a number above 0 and at most 1"),
        (lambda: proof.start(4, probe_ratio=1.5), ValueError, r"probe_ratio is 1\.5"),
        (lambda: proof.start(4, probe_ratio=math.nan), ValueError, "probe_ratio is nan"),
        (lambda: proof.start(4, probe_ratio="1"), TypeError, r"probe_ratio is '1' \(str\)"),
        (lambda: proof.start(4, 0.5), TypeError, "positional"),
    ]
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        for call, error, message in wrong:
            with pytest.raises(error, match=message):
                call()
        assert not (tmp_path / "proof").exists()
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        for images, labels in batches(2):
            state, _ = step(state, images, labels)
        # Nor does a second start, or a wrong call, poison a run that goes on.
        with pytest.raises(ValueError, match="rolling_window is 0"):
            proof.start(0)
        with pytest.raises(TypeError, match="takes \\*arrays"):
            proof.jit(lambda *arrays: arrays)
        with pytest.raises(TypeError, match="takes \\*\\*arrays"):
            proof.jit(lambda **arrays: arrays)
        with pytest.raises(ValueError, match="train_step has no argument 'imges'; it has state, images, labels"):
            proof.jit(train_step, donate_argnames="imges")
        with pytest.raises(ValueError, match="names argument 3, and train_step has 3 arguments"):
            proof.jit(train_step, static_argnums=3)
        with pytest.raises(TypeError, match="kitchen_sink"):
            proof.jit(train_step, kitchen_sink=True)
        state, _ = step(state, images, labels)
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", 3)


def test_a_run_that_fails_before_its_first_update_does_not_block_its_folder(tmp_path):
    def train(window):
        with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
            proof.start(rolling_window=window)
            step, state = proof.jit(train_step), make_state(proof)
            for images, labels in batches(2):
                state, _ = step(state, images, labels)

    with pytest.raises(ValueError, match="rolling_window is 40 and a row of the batch has 6 words"):
        train(40)
    assert verified(tmp_path / "proof").updates == 0
    with pytest.warns(zkdv.ZKDVWarning, match="ended before its first update; it is kept as .*unused-"):
        train(4)
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("passed", 2)
    # A run with updates stays.
    with pytest.raises(zkdv.ZKDVError, match="holds a transcript already, closed, of 2 updates"):
        train(4)


def test_a_folder_that_cannot_be_written_is_named_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(zkdv.ZKDVError, match=r"no transcript can be written in .*file/proof: Not a directory"):
        zkdv.jax.ZKDV(tmp_path / "file" / "proof").start()
    script = """
import os, tempfile
from pathlib import Path
import zkdv.jax
from zkdv import _native
folder, own = Path(tempfile.mkdtemp()), Path(tempfile.mkdtemp())
# Loads everything that a start needs, while it can be read.
with zkdv.jax.ZKDV(own / "first") as proof:
    proof.start()
own.chmod(0o777)
folder.chmod(0o555)
if os.geteuid() == 0:
    # A superuser may write anywhere: go on as nobody.
    os.setgid(65534)
    os.setuid(65534)
os.environ["ZKDV_IDENTITY"] = str(own / "key.pem")
_native.Identity.generate(os.environ["ZKDV_IDENTITY"])
for path in (folder, folder / "proof"):
    proof = zkdv.jax.ZKDV(path)
    try:
        proof.start()
    except zkdv.ZKDVError as error:
        print(str(error).replace(str(path), "PATH"))
proof = zkdv.jax.ZKDV(own / "proof")
proof.start()
proof.close()
print("started elsewhere")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=WAIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    locked, made, elsewhere = done.stdout.splitlines()
    assert locked.startswith("PATH")
    assert "PATH" in made
    assert "Permission denied" in locked
    assert "Permission denied" in made
    assert elsewhere == "started elsewhere"


def test_a_proof_cannot_be_sent_to_another_process_and_says_why(tmp_path):
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        with pytest.raises(TypeError, match=r"the proof in .* can't be sent to another process"):
            pickle.dumps(proof)


def test_processes_that_are_spawned_while_a_run_goes_on_leave_it_alone(tmp_path):
    """Data loaders spawn workers: these import the script again, and must neither write nor close anything."""
    script = """
import multiprocessing, sys
from pathlib import Path
from small_run import batches, check_every, make_state, train_step
import zkdv.jax

def load(number):
    return list(batches(number + 1))[number]

if __name__ == "__main__":
    with zkdv.jax.ZKDV(Path(sys.argv[1]), check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            for images, labels in pool.imap(load, range(3)):
                state, _ = step(state, images, labels)
"""
    (tmp_path / "train.py").write_text(script)
    done = subprocess.run(
        [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "proof")],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates, report.checks_passed) == ("passed", 3, 3)


def test_a_state_of_another_proof_is_refused_by_both_folders(tmp_path):
    images, labels = next(iter(batches(1)))
    with (
        zkdv.jax.ZKDV(tmp_path / "first", check_every(1)) as first,
        zkdv.jax.ZKDV(tmp_path / "second", check_every(1)) as second,
    ):
        first.start(rolling_window=4)
        second.start(rolling_window=4)
        state, step = make_state(first), second.jit(train_step)
        with pytest.raises(zkdv.ZKDVError, match=r"created for the proof in .*first and is trained under .*second"):
            step(state, images, labels)
        with pytest.raises(zkdv.ZKDVError, match=r"replace\(zkdv_proof=proof\)"):
            second.jit(lambda states: (states[0].apply_gradients(grads=states[0].params),))((state,))
        first_state, _ = first.jit(train_step)(state, images, labels)
        # One run may go on from another where somebody says so, and a state of no proof may go anywhere.
        moved, _ = step(first_state.replace(zkdv_proof=second), images, labels)
        assert moved.zkdv_proof == str(tmp_path / "second")
    assert verified(tmp_path / "second").verdict == "passed"
    assert make_state().zkdv_proof is None


def test_lowering_tracing_and_shapes_under_a_transformation_are_refused_like_a_call(tmp_path):
    images, labels = next(iter(batches(1)))
    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        step, state = proof.jit(train_step), make_state(proof)
        for use in (step, step.lower, step.trace, step.eval_shape):
            with pytest.raises(zkdv.ZKDVError, match="train_step was called inside of a function that JAX traces"):
                jax.eval_shape(lambda images, use=use: use(state, images, labels) and jnp.float32(0), images)
        step(state, images, labels)
        assert proof.jax_pipeline.updates == 1


def test_the_warning_of_a_proof_that_was_never_closed_quotes_the_line_that_started_it(tmp_path):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        proof = zkdv.jax.ZKDV(tmp_path / "proof")
        proof.start()
        line = sys._getframe().f_lineno - 1
        del proof
        gc.collect()
    [warning] = [warning for warning in caught if "was never closed" in str(warning.message)]
    assert (warning.filename, warning.lineno) == (__file__, line)
