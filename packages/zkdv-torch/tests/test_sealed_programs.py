"""What is sealed: programs without data of the run, the same bytes every time, and replay in a fresh process."""

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from blake3 import blake3
from torch_runs import batches, bits, check_every, classify, make_model, make_optimizer, records, run

import zkdv.torch
from zkdv import _native
from zkdv.errors import ZKDVError
from zkdv.torch._program_export import load


def programs(folder):
    return sorted((folder / "programs").glob("*.pt2"))


def test_a_fresh_process_re_executes_an_update_bit_for_bit(tmp_path):
    folder, sampled = tmp_path / "proof", 5
    saved = []
    with zkdv.torch.ZKDV(folder, check_every(6, commit="every")) as proof:
        proof.start(rolling_window=4)
        model = make_model()
        model, optimizer = proof.prepare(model, make_optimizer(model))

        @proof.attest
        def attested(model, optimizer, batch):
            classify(proof, model, optimizer, batch)

        for index, batch in enumerate(batches(8)):
            if index == sampled:
                state = optimizer.state_dict()["state"]
                saved = [
                    *model.state_dict().values(),
                    *(state[place][key] for place in sorted(state) for key in sorted(state[place])),
                    *batch,
                    torch.tensor([1e-2, 0.9, 0.999, 1e-2], dtype=torch.float64),
                ]
                saved = [leaf.detach().clone() for leaf in saved]
            with proof.transaction(batch=batch):
                classify(proof, model, optimizer, batch)

    [check] = records(folder, "check")
    assert check["body"]["update"] == sampled
    update = records(folder, "update")[sampled]["body"]
    [record] = [record for record in records(folder, "program") if record["seq"] == update["program"]]
    [program] = programs(folder)
    assert program.stem == record["body"]["digest"].hex() == blake3(program.read_bytes()).hexdigest()

    torch.save(saved, tmp_path / "inputs.pt")
    script = Path(__file__).parent / "replay_elsewhere.py"
    command = [sys.executable, script, program, tmp_path / "inputs.pt", tmp_path / "results.pt"]
    subprocess.run([str(word) for word in command], check=True)

    digests = [blake3(bits(leaf)).digest() for leaf in torch.load(tmp_path / "results.pt", weights_only=True)]
    parameters = len(records(folder, "schema")[0]["body"]["parameters"])
    assert _native.tree_root("parameters", digests[:parameters]) == update["after"]["parameters"]
    assert _native.tree_root("optimizer", digests[parameters:]) == update["after"]["optimizer"]


def test_the_same_training_seals_the_same_bytes_and_other_data_does_too(tmp_path):
    run(tmp_path / "first", check_every(9), data=batches(1))
    other = make_model()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    run(tmp_path / "second", check_every(9), model=other, data=batches(1, seed=7))
    [first], [second] = programs(tmp_path / "first"), programs(tmp_path / "second")
    assert first.name == second.name

    def wider(proof, model, optimizer, batch):
        classify(proof, model, optimizer, (batch[0] * 2, batch[1]))

    run(tmp_path / "third", check_every(9), update=wider, data=batches(1))
    assert programs(tmp_path / "third")[0].name != first.name


def test_a_program_holds_no_data_of_the_run_and_no_path(tmp_path):
    secret = torch.full((8, 5), 1234.5678)
    model = make_model()
    with torch.no_grad():
        model[0].weight.fill_(8765.4321)
    run(tmp_path / "proof", check_every(9), model=model, data=[(secret, next(batches(1))[1])])
    blob = programs(tmp_path / "proof")[0].read_bytes()
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        contents = b"".join(archive.read(name) for name in archive.namelist())
    for value in (1234.5678, 8765.4321):
        assert np.float32(value).tobytes() not in contents
        assert str(value).encode() not in contents
    for text in (str(tmp_path), str(Path(__file__).parent), "torch_runs", "stack_trace", "nn_module_stack"):
        assert text.encode() not in contents
    assert len(blob) < 200_000


def test_a_program_leaves_its_inputs_as_they_are(tmp_path):
    run(tmp_path / "proof", check_every(9), data=batches(1))
    program = load(programs(tmp_path / "proof")[0].read_bytes())
    schema = records(tmp_path / "proof", "schema")[0]["body"]
    leaves = [torch.ones(leaf["shape"]) for leaf in (*schema["parameters"], *schema["optimizer"])]
    inputs = [*leaves, *next(batches(1)), torch.tensor([1e-2, 0.9, 0.999, 1e-2], dtype=torch.float64)]
    before = [bits(leaf) for leaf in inputs]
    program(*inputs)
    assert [bits(leaf) for leaf in inputs] == before


@pytest.mark.parametrize("blob", [b"", b"no archive", b"PK\x03\x04" + bytes(40)])
def test_bytes_that_are_no_program_are_refused_in_one_message(blob):
    with pytest.raises(ZKDVError, match=f"{len(blob)} bytes are no exported program that torch"):
        load(blob)
