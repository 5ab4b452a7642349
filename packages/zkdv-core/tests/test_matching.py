"""Which update a file's parameters are from: files that match, that are named otherwise, and that do not match."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import TensorSpec, serialize_file
from safetensors.numpy import save_file

import zkdv
from zkdv import _native, matching
from zkdv.leaf_names import MappingError
from zkdv.matching import MatchedState
from zkdv.sharding import leaf_digest
from zkdv.verified import UnverifiedRunError, VerifiedRun

LEAVES = [
    {"name": "dense.bias", "dtype": "float32", "shape": [3]},
    {"name": "dense.kernel", "dtype": "float32", "shape": [4, 3], "aliases": ["head.kernel"]},
    {"name": "norm.count", "dtype": "int64", "shape": []},
    {"name": "norm.empty", "dtype": "float64", "shape": [0, 2]},
    {"name": "norm.scale", "dtype": "float16", "shape": [5]},
]
STATES = 4


def state(update):
    """The parameters after so many updates."""
    generator = np.random.default_rng(update)
    return {
        leaf["name"]: np.asarray(generator.normal(size=leaf["shape"]) * 50).astype(leaf["dtype"]) for leaf in LEAVES
    }


def root_of(parameters, leaves=LEAVES):
    return _native.tree_root(
        "parameters", [leaf_digest(parameters[leaf["name"]], leaf.get("sharding")) for leaf in leaves]
    )


@pytest.fixture
def proof(write):
    """A run of three updates with the states above."""
    return write("proof", leaves=LEAVES, roots=[root_of(state(update)) for update in range(STATES)]).folder


@pytest.fixture
def matched(proof, tmp_path):
    """Match tensors from a safetensors file against the run."""

    def match(tensors, **options):
        save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "np", "anything": "else"})
        return zkdv.match(proof, tmp_path / "model.safetensors", **options)

    return match


@pytest.mark.parametrize("updates", range(STATES))
def test_each_state_is_found_and_no_other(matched, updates):
    report = matched(state(updates))
    assert (report.verdict, report.exit_code, report.matched) == ("matches", 0, True)
    [found] = report.matches
    assert (found.updates, found.edited, found.abandoned) == (updates, False, False)
    assert (report.states, report.matches_total, report.renamed, report.extra) == (STATES, 1, {}, ())


def test_one_bit_in_any_tensor_is_another_state(matched):
    for name, array in state(2).items():
        for byte in {0, array.nbytes // 2, array.nbytes - 1} if array.size else ():
            changed = state(2)
            changed[name] = array.copy()
            changed[name].reshape(-1).view(np.uint8)[byte] ^= 1
            report = matched(changed)
            assert (report.verdict, report.exit_code, report.matches) == ("differs", 1, ()), (name, byte)
            assert (report.differences, report.closest) == ((), None)


def test_a_value_that_compares_equal_is_not_the_same(matched):
    parameters = state(1)
    parameters["dense.bias"][0] = 0.0
    other = dict(parameters, **{"dense.bias": parameters["dense.bias"].copy()})
    other["dense.bias"][0] = -0.0
    assert np.array_equal(parameters["dense.bias"], other["dense.bias"])
    assert not matched(parameters).matched
    assert not matched(other).matched


RENAMED = {
    "slashes": (lambda name: name.replace(".", "/"), ""),
    "a prefix": (lambda name: f"params.{name}", "NAME of the run is params.NAME in the file"),
    "a prefix and slashes": (lambda name: f"a/b/{name.replace('.', '/')}", "NAME of the run is a.b.NAME in the file"),
    "a wrapper's prefix": (lambda name: f"module.{name}", "NAME of the run is module.NAME in the file"),
    "a wrapper inside": (lambda name: name.replace(".", "._orig_mod."), ""),
    "an end": (lambda name: f"{name}.value", "NAME of the run is NAME.value in the file"),
    "both": (lambda name: f"state.{name}.value", "NAME of the run is state.NAME.value in the file"),
}


@pytest.mark.parametrize("rename", RENAMED)
def test_names_that_differ_by_a_rule_are_found(matched, rename):
    change, words = RENAMED[rename]
    report = matched({change(name): array for name, array in state(3).items()})
    assert report.matched
    assert report.renaming == words
    assert report.renamed == {change(leaf["name"]): leaf["name"] for leaf in LEAVES}


def test_names_that_the_run_has_more_of_are_found(write, tmp_path):
    leaves = [{**leaf, "name": f"params.{leaf['name']}"} for leaf in LEAVES]
    parameters = {f"params.{name}": array for name, array in state(1).items()}
    run = write("nested", leaves=leaves, roots=[root_of(parameters, leaves)] * STATES)
    save_file(state(1), tmp_path / "model.safetensors")
    report = zkdv.match(run.folder, tmp_path / "model.safetensors")
    assert report.matched
    assert report.renaming == "params.NAME of the run is NAME in the file"


def test_of_several_copies_the_one_with_the_committed_values_counts(matched):
    """A moving average has the same names below another one; what is committed decides, not the shorter name."""
    average = {f"a.{name}": array for name, array in state(7).items()}
    current = {f"current.{name}": array for name, array in state(2).items()}
    report = matched(average | current, allow_extra=True)
    assert (report.matched, report.matches[0].updates) == (True, 2)
    assert report.renaming == "NAME of the run is current.NAME in the file"
    assert report.extra == tuple(sorted(average))


def test_tensors_beside_the_parameters_must_be_allowed(matched):
    tensors = state(1) | {"lora.down": np.zeros(3, np.float32)}
    report = matched(tensors)
    assert (report.verdict, report.exit_code, report.extra) == ("extra", 1, ("lora.down",))
    assert report.matches[0].updates == 1
    assert matched(tensors, allow_extra=True).matched
    assert matched(tensors, mapping={"lora.down": None}).matched


def test_a_tied_parameter_stands_under_either_name_or_both(matched):
    tensors = state(1)
    kernel = tensors.pop("dense.kernel")
    assert matched(tensors | {"head.kernel": kernel}).matched
    assert matched(tensors | {"head.kernel": kernel, "dense.kernel": kernel.copy()}).matched


def test_tied_parameters_with_different_values_do_not_match(matched):
    """What a program loads for the second name would be something else than what was trained."""
    tensors = state(1)
    report = matched(tensors | {"head.kernel": tensors["dense.kernel"] + 1})
    assert report.exit_code == 1
    [difference] = report.differences
    assert (difference.leaf, difference.problem) == ("dense.kernel", "copies")
    assert "dense.kernel and head.kernel" in difference.message


def test_one_array_twice_under_names_that_are_read_alike_must_be_equal(matched):
    tensors = state(1)
    assert matched(tensors | {"dense/bias": tensors["dense.bias"]}).matched
    [difference] = matched(tensors | {"dense/bias": tensors["dense.bias"] + 1}).differences
    assert difference.problem == "copies"


def test_a_mapping_names_what_no_rule_finds(matched):
    tensors = state(2)
    tensors["b"] = tensors.pop("dense.bias")
    tensors["s"] = tensors.pop("norm.scale")
    unmapped = matched(tensors)
    assert [difference.problem for difference in unmapped.differences] == ["missing", "missing"]
    report = matched(tensors, mapping={"b": "dense.bias", "s": "norm.scale"})
    assert report.matched
    assert report.renamed == {"b": "dense.bias", "s": "norm.scale"}
    assert not matched(tensors | {"dense.bias": tensors["b"] + 1}, mapping={"b": "dense.bias"}).matched


def test_a_mapping_that_swaps_equal_shapes_is_held_to_the_values(matched):
    tensors = {"x": state(1)["dense.bias"], **{name: value for name, value in state(1).items() if name != "dense.bias"}}
    assert matched(tensors, mapping={"x": "dense.bias"}).matched
    assert not matched(tensors | {"x": state(2)["dense.bias"]}, mapping={"x": "dense.bias"}).matched


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"dense.bia": "dense.bias"}, "'dense.bia', which the file does not hold; near it: dense.bias"),
        ({"dense.bias": "dense.bjas"}, "'dense.bjas', which is no parameter of the run; near it: dense.bias"),
    ],
)
def test_a_mapping_of_names_that_are_not_there_is_refused(matched, mapping, message):
    with pytest.raises(MappingError, match=message):
        matched(state(1), mapping=mapping)


def test_what_differs_is_named_with_both_values(matched):
    tensors = state(1)
    del tensors["dense.bias"]
    tensors["dense.kernel"] = np.ascontiguousarray(tensors["dense.kernel"].T)
    tensors["norm.scale"] = tensors["norm.scale"].astype(np.float32)
    tensors["norm.count"] = tensors["norm.count"].reshape(1)
    report = matched(tensors)
    assert report.exit_code == 1
    found = {difference.leaf: (difference.problem, difference.message) for difference in report.differences}
    assert found["dense.bias"] == ("missing", "dense.bias: the file holds no such tensor")
    assert found["dense.kernel"][0] == "shape"
    assert "shape [3, 4] in the file, [4, 3] in the run; it may be transposed" in found["dense.kernel"][1]
    assert found["norm.scale"][0] == "dtype"
    assert "float32 in the file, float16 in the run" in found["norm.scale"][1]
    assert "shape [1] in the file, [] in the run" in found["norm.count"][1]
    assert report.differences_total == 4


@pytest.mark.parametrize(
    ("code", "dtype", "size"), [("bfloat16", "bfloat16", 2), ("float8_e4m3fn", "float8_e4m3fn", 1)]
)
def test_dtypes_that_numpy_lacks_are_matched_by_their_bytes(write, tmp_path, code, dtype, size):
    data = np.arange(12 * size, dtype=np.uint8)
    leaves = [{"name": "w", "dtype": dtype, "shape": [4, 3]}]
    run = write("proof", leaves=leaves, roots=[_native.tree_root("parameters", [_native.leaf_digest(data)])] * STATES)
    spec = TensorSpec(dtype=code, shape=[4, 3], data_ptr=data.ctypes.data, data_len=data.nbytes)
    serialize_file({"w": spec}, tmp_path / "model.safetensors")
    assert zkdv.match(run.folder, tmp_path / "model.safetensors").matched
    save_file({"w": np.zeros((4, 3), np.float32)}, tmp_path / "model.safetensors")
    [difference] = zkdv.match(run.folder, tmp_path / "model.safetensors").differences
    assert difference.message.startswith(f"w: float32 in the file, {dtype} in the run")


def test_shards_are_digested_anew_from_the_whole_tensor(write, tmp_path):
    leaves = [dict(leaf) for leaf in LEAVES]
    leaves[1]["sharding"] = [2, 2]
    leaves[4]["sharding"] = [2]
    run = write("proof", leaves=leaves, roots=[root_of(state(update), leaves) for update in range(STATES)])
    assert root_of(state(2), leaves) != root_of(state(2))
    save_file(state(2), tmp_path / "model.safetensors")
    assert zkdv.match(run.folder, tmp_path / "model.safetensors").matches[0].updates == 2
    changed = state(2)
    changed["dense.kernel"][3, 2] += 1
    save_file(changed, tmp_path / "model.safetensors")
    assert not zkdv.match(run.folder, tmp_path / "model.safetensors").matched


def test_a_state_that_stands_several_times_is_listed_as_often_but_not_beyond_a_bound(write, tmp_path):
    count = matching.MAX_LISTED + 20
    run = write("proof", leaves=LEAVES, roots=[root_of(state(0))] * (count + 1), updates=count, interval=1000)
    save_file(state(0), tmp_path / "model.safetensors")
    report = zkdv.match(run.folder, tmp_path / "model.safetensors")
    assert [found.updates for found in report.matches] == list(range(matching.MAX_LISTED))
    assert report.matches_total == count + 1


def test_a_transcript_that_fails_gives_no_match(proof, matched):
    records = proof / "records.cborl"
    damaged = bytearray(records.read_bytes())
    damaged[-10] ^= 1
    records.write_bytes(damaged)
    with pytest.raises(UnverifiedRunError, match="does not verify, so nothing follows from it: signature-invalid"):
        matched(state(1))


def test_an_open_transcript_gives_an_incomplete_match(write, tmp_path):
    run = write("open", leaves=LEAVES, roots=[root_of(state(update)) for update in range(STATES)], closed=False)
    save_file(state(1), tmp_path / "model.safetensors")
    report = zkdv.match(run.folder, tmp_path / "model.safetensors")
    assert (report.verdict, report.exit_code) == ("matches", 3)


def test_a_pinned_identity_or_head_that_is_another_gives_no_match(proof, matched):
    for pinned in ({"identity": bytes(31) + b"\x01"}, {"head": bytes(32)}):
        with pytest.raises(UnverifiedRunError):
            matched(state(1), **pinned)


def test_edits_are_accepted_where_they_are_allowed_only(write, tmp_path):
    leaves = [{"name": "w", "dtype": "float32", "shape": [2, 3]}]
    parameters = {"w": np.ones((2, 3), np.float32)}
    run = write("edited", leaves=leaves, roots=[root_of(parameters, leaves)] * STATES, edited=True)
    save_file(parameters, tmp_path / "model.safetensors")
    with pytest.raises(UnverifiedRunError, match="edit-not-allowed"):
        zkdv.match(run.folder, tmp_path / "model.safetensors")
    assert zkdv.match(run.folder, tmp_path / "model.safetensors", allow_edits=True).matched


def test_only_the_records_that_were_verified_are_read(write):
    run = write("proof")
    other = write("other")
    verified = VerifiedRun.open(run.folder)
    honest = run.records.read_bytes()
    count = len(list(verified.records()))
    run.records.write_bytes(honest + other.records.read_bytes())
    assert len(list(verified.records())) == count, "what was appended since is not read"
    for changed in (other.records.read_bytes(), honest[:-100], b""):
        run.records.write_bytes(changed)
        with pytest.raises(zkdv.ZKDVError, match="was changed while it was read"):
            list(verified.records())


def test_a_run_without_a_schema_is_refused(write, tmp_path):
    run = write("proof")
    first = next(iter(_native.RecordReader(run.records)))
    run.records.write_bytes(run.records.read_bytes()[: first["length"]])
    save_file(state(1), tmp_path / "model.safetensors")
    with pytest.raises(zkdv.ZKDVError, match="no schema record"):
        zkdv.match(run.folder, tmp_path / "model.safetensors")


class Records:
    """Feeds records to the search as the verifier would let them through, where no writer makes such runs yet."""

    def __init__(self, tensors, leaves=LEAVES):
        self.number = 0
        stored = {
            name: zkdv.tensor_files.StoredTensor(str(array.dtype), array.shape, "file", lambda array=array: array)
            for name, array in tensors.items()
        }
        self.search = matching._Search(stored, None, Path("no-such-folder"))
        self.add("schema", parameters=leaves)

    def add(self, kind, **body):
        self.search.take({"number": self.number, "type": kind, "body": body})
        self.number += 1

    def update(self, update, parameters, **more):
        self.add("update", update=update, after={"parameters": root_of(parameters)}, **more)

    def report(self, run):
        return self.search.report(run, ("file",), allow_extra=False)


@pytest.fixture
def report_of_run(proof):
    [report] = zkdv.verify(proof).runs
    return report


def test_states_that_a_rewind_abandoned_are_said_to_be(report_of_run):
    records = Records(state(2))
    records.add("state", reason="start", updates=0, roots={"parameters": root_of(state(0))})
    records.update(0, state(1))
    records.update(1, state(2))
    records.add("resume", record=2, updates=1)
    records.add("state", reason="resume", updates=1, roots={"parameters": root_of(state(1))})
    records.update(1, state(2))
    assert records.report(report_of_run).matches == (
        MatchedState(2, 3, abandoned=True),
        MatchedState(2, 6),
    )


def test_a_state_that_was_edited_is_found_as_such(report_of_run):
    records = Records(state(2))
    records.update(0, state(1))
    records.add("state", reason="edit", updates=1, roots={"parameters": root_of(state(2))})
    assert records.report(report_of_run).matches == (MatchedState(1, 2, edited=True),)


def test_digests_of_single_leaves_say_what_is_closest(report_of_run):
    tensors = state(2) | {"norm.scale": state(9)["norm.scale"]}
    records = Records(tensors)

    def opened(parameters, leaf):
        places = {"dense.bias": 1, "dense.kernel": 5, "norm.scale": 17}
        return {"index": places[leaf], "opening": {"digest": leaf_digest(parameters[leaf])}}

    records.update(0, state(1))
    records.update(
        1, state(2), edits=[{"tree": "parameters", "leaf": 0, "digest": leaf_digest(state(1)["dense.bias"])}]
    )
    records.add("check", update=0, parameter=opened(state(1), "dense.kernel"))
    records.add("check", update=1, parameter=opened(state(2), "dense.kernel"))
    records.add("check", update=1, parameter=opened(state(2), "norm.scale"))
    records.add("check", update=1)
    report = records.report(report_of_run)
    assert (report.verdict, report.closest, report.traces_total) == ("differs", 2, 4)
    equal = [(trace.leaf, trace.updates) for trace in report.traces if trace.equal]
    unequal = {(trace.leaf, trace.updates) for trace in report.traces if not trace.equal}
    assert equal == [("dense.kernel", 2)]
    assert unequal == {("dense.bias", 1), ("dense.kernel", 1), ("norm.scale", 2)}


def test_a_layout_that_changes_is_followed(report_of_run):
    records = Records(state(2))
    records.update(0, state(1))
    sharded = [dict(leaf) for leaf in LEAVES]
    sharded[1]["sharding"] = [2, 3]
    records.add("resume", record=1, updates=1)
    records.add("schema", parameters=sharded)
    records.add("update", update=1, after={"parameters": root_of(state(2), sharded)})
    assert records.report(report_of_run).matches == (MatchedState(2, 4),)


def test_the_report_is_json(matched):
    assert json.loads(json.dumps(matched(state(1)).as_json()))["matches"][0]["updates"] == 1


def keep_components(folder, update, parameters):
    (folder / "evidence").mkdir(exist_ok=True)
    digests = np.frombuffer(b"".join(leaf_digest(parameters[leaf["name"]]) for leaf in LEAVES), np.uint8)
    save_file({"parameters/digests": digests.reshape(-1, 32)}, folder / "evidence" / f"{update}.safetensors")


def test_components_that_the_run_keeps_say_which_leaves_are_equal(matched, proof):
    keep_components(proof, 0, state(1))
    keep_components(proof, 1, state(2))
    report = matched(state(2) | {"norm.scale": state(9)["norm.scale"]})
    assert (report.verdict, report.closest) == ("differs", 2)
    assert {trace.leaf for trace in report.traces if trace.updates == 2 and not trace.equal} == {"norm.scale"}
    assert len([trace for trace in report.traces if trace.updates == 2 and trace.equal]) == len(LEAVES) - 1
    assert matched(state(2)).traces == ()


def test_components_that_do_not_lead_to_the_recorded_root_are_not_believed(matched, proof):
    keep_components(proof, 0, state(7))
    (proof / "evidence" / "1.safetensors").write_bytes(b"no tensors")
    (proof / "evidence" / "2.safetensors").mkdir()
    report = matched(state(7))
    assert (report.verdict, report.traces, report.closest) == ("differs", (), None)
