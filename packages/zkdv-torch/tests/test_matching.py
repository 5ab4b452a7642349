"""Files of a real run are found among its updates: state dicts as safetensors and as Torch saves them."""

import copy
import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch_runs import batches, check_every, run

import zkdv
import zkdv.torch
from zkdv import tensor_files
from zkdv.torch import _tensor_files

UPDATES = 3


class Tied(torch.nn.Module):
    """Tied weights, statistics of batch norm, and a scalar."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encode = torch.nn.Linear(5, 5, bias=False)
        self.norm = torch.nn.BatchNorm1d(5)
        self.decode = torch.nn.Linear(5, 5, bias=False)
        self.decode.weight = self.encode.weight
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.head = torch.nn.Linear(5, 3)

    def forward(self, inputs):
        return self.head(self.decode(self.norm(self.encode(inputs))) * self.scale)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run, and the state dicts before every update and after the last."""
    folder = tmp_path_factory.mktemp("matching")
    zkdv.identity.create(folder / "identity.pem")
    states = []
    model, _ = run(
        folder / "proof",
        check_every(2, identity=folder / "identity.pem"),
        model=Tied(),
        data=batches(UPDATES),
        aot=False,
        between=lambda _index, model, _optimizer: states.append(copy.deepcopy(model.state_dict())),
    )
    states.append(copy.deepcopy(model.state_dict()))
    return folder / "proof", states


def untied(state):
    """What safetensors can hold: no two tensors of one memory."""
    return {name: tensor.clone() for name, tensor in state.items()}


@pytest.mark.parametrize("done", range(UPDATES + 1))
def test_a_safetensors_file_of_each_moment_is_found(trained, tmp_path, done):
    proof, states = trained
    save_file(untied(states[done]), tmp_path / "model.safetensors")
    report = zkdv.match(proof, tmp_path / "model.safetensors")
    assert (report.verdict, report.exit_code, report.run.verdict) == ("matches", 0, "passed")
    assert [found.updates for found in report.matches] == [done]


@pytest.mark.parametrize("left", ["encode.weight", "decode.weight"])
def test_a_tied_weight_may_stand_under_one_of_its_names(trained, tmp_path, left):
    proof, states = trained
    save_file({name: tensor for name, tensor in untied(states[2]).items() if name != left}, tmp_path / "m.safetensors")
    assert zkdv.match(proof, tmp_path / "m.safetensors").matches[0].updates == 2


def test_a_tied_weight_that_was_untied_is_named(trained, tmp_path):
    proof, states = trained
    tensors = untied(states[2])
    tensors["decode.weight"][0, 0] += 1
    save_file(tensors, tmp_path / "m.safetensors")
    [difference] = zkdv.match(proof, tmp_path / "m.safetensors").differences
    assert (difference.leaf, difference.problem) == ("encode.weight", "copies")


@pytest.mark.parametrize("zipped", [True, False], ids=["today's format", "the older format"])
def test_files_of_torch_are_found(trained, tmp_path, zipped):
    proof, states = trained
    torch.save(states[1], tmp_path / "model.pt", _use_new_zipfile_serialization=zipped)
    assert zkdv.match(proof, tmp_path / "model.pt").matches[0].updates == 1


def test_a_checkpoint_with_more_in_it_is_found_by_its_names(trained, tmp_path):
    proof, states = trained
    wrapped = {f"module.{name}": tensor for name, tensor in states[1].items()}
    torch.save({"epoch": 3, "note": "text", "model": wrapped, "history": [0.5, None]}, tmp_path / "model.pt")
    report = zkdv.match(proof, tmp_path / "model.pt")
    assert (report.matched, report.matches[0].updates) == (True, 1)
    assert report.renaming == "NAME of the run is model.module.NAME in the file"
    torch.save({"model": wrapped, "ema": {"x": torch.ones(1)}}, tmp_path / "model.pt")
    report = zkdv.match(proof, tmp_path / "model.pt")
    assert (report.verdict, report.exit_code) == ("extra", 1)
    assert zkdv.match(proof, tmp_path / "model.pt", allow_extra=True).matched


def test_a_changed_or_converted_tensor_is_found_in_no_update(trained, tmp_path):
    proof, states = trained
    changed = copy.deepcopy(states[1])
    changed["norm.running_mean"][0] = torch.nextafter(changed["norm.running_mean"][0], torch.tensor(9.0))
    torch.save(changed, tmp_path / "model.pt")
    assert zkdv.match(proof, tmp_path / "model.pt").verdict == "differs"
    torch.save({name: tensor.bfloat16() for name, tensor in states[1].items()}, tmp_path / "model.pt")
    report = zkdv.match(proof, tmp_path / "model.pt")
    assert {difference.problem for difference in report.differences} == {"dtype"}


def test_a_module_that_was_pickled_whole_is_refused_and_runs_nothing(tmp_path):
    torch.save(Tied(), tmp_path / "model.pt")
    with pytest.raises(zkdv.ZKDVError, match=r"holds more than tensors.*save the state dict") as refused:
        tensor_files.read(tmp_path / "model.pt")
    assert "\n" not in str(refused.value)

    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    (tmp_path / "trap.pt").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(zkdv.ZKDVError, match=r"trap\.pt"):
        tensor_files.read(tmp_path / "trap.pt")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": {"b": torch.ones(1)}, "a.b": torch.ones(1)}, "two tensors of the name 'a.b'"),
        ({"a": torch.ones(1).expand(1 << 20)}, "repeats its elements"),
        ({"a": torch.eye(3).to_sparse()}, "a is stored as torch.sparse_coo"),
        ({"a": {1, 2}}, "a is a set"),
    ],
)
def test_files_that_hold_no_plain_tensors_are_refused(tmp_path, value, message):
    torch.save(value, tmp_path / "model.pt")
    with pytest.raises(zkdv.ZKDVError, match=message):
        tensor_files.read(tmp_path / "model.pt")


def test_values_that_hold_each_other_end(tmp_path, monkeypatch):
    # A million values, the product's own bound, take a test too long.
    monkeypatch.setattr(_tensor_files, "MAX_VALUES", 1 << 12)
    loop = []
    loop.append(loop)
    wide = [torch.ones(1)]
    for _ in range(30):
        wide = [wide, wide]
    for name, value in (("loop", loop), ("wide", wide)):
        torch.save(value, tmp_path / f"{name}.pt")
        with pytest.raises(zkdv.ZKDVError, match=rf"{name}\.pt"):
            tensor_files.read(tmp_path / f"{name}.pt")


def test_a_cut_file_is_refused_wherever_it_ends(trained, tmp_path):
    _, states = trained
    torch.save(states[0], tmp_path / "whole.pt")
    data = (tmp_path / "whole.pt").read_bytes()
    for length in range(10, len(data), len(data) // 40):
        (tmp_path / "cut.pt").write_bytes(data[:length])
        with pytest.raises(zkdv.ZKDVError, match=r"cut\.pt"):
            tensor_files.read(tmp_path / "cut.pt")


def test_views_in_any_order_of_memory_are_read_in_c_order(tmp_path):
    base = torch.arange(24, dtype=torch.float64).reshape(4, 6)
    torch.save({"turned": base.T, "part": base[1:3, ::2]}, tmp_path / "model.pt")
    found = tensor_files.read(tmp_path / "model.pt")
    assert found["turned"].elements().tobytes() == base.T.contiguous().numpy().tobytes()
    assert found["part"].elements().tobytes() == base[1:3, ::2].contiguous().numpy().tobytes()
