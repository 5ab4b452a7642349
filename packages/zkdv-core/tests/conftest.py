"""Transcripts that tests of the command line and of verification read."""

import hashlib
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import zkdv
from zkdv import _native, environment, identity
from zkdv.session import SCHEMES

UPDATES = 3


@dataclass(frozen=True)
class WrittenRun:
    """A transcript on disk."""

    folder: Path
    public_key: bytes
    public_pem: str
    root: bytes
    head: bytes

    @property
    def records(self):
        return self.folder / "records.cborl"


def pretended(text):
    """A digest of nothing in particular: a verifier of transcripts sees no state."""
    return hashlib.sha256(text.encode()).digest()


def write_run(
    folder,
    *,
    name="digits",
    closed=True,
    edited=False,
    updates=UPDATES,
    config=None,
    leaves=None,
    roots=None,
    interval=12,
    batches=None,
):
    """Write a run that verifies, as far as records go: no update is sampled.

    `leaves` are the schema's parameters, and `roots` those of the parameters: the initial ones, then after each update.
    `batches` are matrices of words, shape (4, 5).
    """
    roots = roots or [pretended("p"), *(pretended(f"p{update}") for update in range(updates))]
    config = config or zkdv.ZKDVConfig(name, zkdv.SamplingPolicy(1e-12))
    signer = identity.create(folder.with_name(f"{folder.name}.pem"))
    root = {
        "protocol": 1,
        "prover": "whitebox-jax",
        "run": config.name,
        "time": time.time_ns() // 1_000_000,
        "ranks": 1,
        "challenger": {"name": "transcript"},
        "schemes": SCHEMES,
        "configuration": config.as_record(
            replay_snapshot_interval=interval, max_in_flight=2, rolling_window=4, probe_ratio=0.01
        ),
    }
    transcript = _native.Transcript.create(str(folder), root, signer)
    transcript.append("environment", environment.collect(framework={"jax": "0.10.2"}, devices=["cpu"]))
    leaf = {"name": "w", "dtype": "float32", "shape": [2, 3]}
    words = [{"name": "x", "dtype": "float32", "shape": [4, 5], "place": "joined"}]
    batch = {"rows": 4, "width": 5, "leaves": words}
    transcript.append("schema", {"parameters": leaves or [leaf], "optimizer": [leaf], "batch": batch, "scalars": []})
    program = b"a sealed program"
    digest = _native.leaf_digest(program)
    (folder / "programs").mkdir()
    (folder / "programs" / f"{digest.hex()}.bin").write_bytes(program)
    sealed = {"role": "replay", "format": "jax-export", "digest": digest, "length": len(program), "extension": "bin"}
    described = {"text-digest": pretended("text"), "platforms": ["cpu"], "convention": "flat"}
    seq, _ = transcript.append("program", sealed | described)
    optimizer = {"optimizer": pretended("o"), "optimizer-probes": pretended("op")}
    parameters = {"parameters": roots[0], "parameter-probes": pretended("pp")}
    transcript.append("state", {"updates": 0, "reason": "start", "roots": parameters | optimizer})
    for update in range(updates):
        parameters = {"parameters": roots[update + 1], "parameter-probes": pretended(f"pp{update}")}
        batch = pretended(f"b{update}")
        if batches is not None:
            batch = _native.batch_commit(batches[update], 4, _native.rolling_base(transcript.root_digest)).digest
        body = {"update": update, "batch": batch, "program": seq, "after": parameters, "overlap": 1}
        if edited and update == 1:
            value = bytes(24)
            changed = {"tree": "optimizer", "leaf": 0, "digest": _native.leaf_digest(value), "value": value}
            body["edits"] = [changed]
        transcript.append("update", body)
    if closed:
        transcript.append("state", {"updates": updates, "reason": "close", "roots": parameters | optimizer})
        counts = {"updates": updates, "sampled": 0, "passed": 0, "failed": 0, "edits": int(edited)}
        transcript.append("close", counts | {"reason": "finished"})
    transcript.release()
    return WrittenRun(folder, signer.public_key, signer.public_pem(), transcript.root_digest, transcript.head)


@pytest.fixture
def transcript(tmp_path):
    """A closed run that verifies."""
    return write_run(tmp_path / "proof")


@pytest.fixture
def write(tmp_path):
    """Write runs of other kinds: `write("name", closed=False)`."""
    return lambda folder, **changes: write_run(tmp_path / folder, **changes)
