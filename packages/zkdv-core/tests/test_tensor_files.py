"""Files of tensors: what is read of them, and what is refused."""

import contextlib
import io
import json
import re
import struct
import zipfile
from importlib.metadata import EntryPoint
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

import zkdv
from zkdv import tensor_files
from zkdv.plugins import Registry
from zkdv.tensor_files import _formats

TENSORS = {"a.b": np.arange(6, dtype=np.float32).reshape(2, 3), "c": np.array(7, np.int64), "d": np.zeros((0, 4), bool)}


def read_back(path, *more):
    return {name: tensor.elements() for name, tensor in tensor_files.read(path, *more).items()}


def assert_same(found, tensors=TENSORS):
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


def test_safetensors_are_read_whatever_the_name_of_the_file(tmp_path):
    save_file(TENSORS, tmp_path / "weights.bin", metadata={"by": "nobody"})
    assert_same(read_back(tmp_path / "weights.bin"))
    assert {name: tensor.dtype for name, tensor in tensor_files.read(tmp_path / "weights.bin").items()} == {
        "a.b": "float32",
        "c": "int64",
        "d": "bool",
    }


@pytest.mark.parametrize("save_arrays", [np.savez, np.savez_compressed])
def test_npz_files_are_read(tmp_path, save_arrays):
    save_arrays(tmp_path / "model.npz", **TENSORS)
    assert_same(read_back(tmp_path / "model.npz"))


def test_npy_files_hold_one_tensor(tmp_path):
    np.save(tmp_path / "x.npy", TENSORS["a.b"])
    assert_same(read_back(tmp_path / "x.npy"), {"array": TENSORS["a.b"]})


def test_order_of_elements_and_bytes_in_the_file_do_not_change_the_values(tmp_path):
    array = np.arange(6, dtype=">f4").reshape(2, 3)
    np.savez(tmp_path / "model.npz", big=array, columns=np.asfortranarray(TENSORS["a.b"]))
    found = tensor_files.read(tmp_path / "model.npz")
    assert found["big"].dtype == "float32"
    assert found["big"].elements().tobytes() == array.astype("<f4").tobytes()
    assert found["columns"].elements().tobytes() == TENSORS["a.b"].tobytes()


def sharded(folder, **changes):
    folder.mkdir()
    save_file({"a.b": TENSORS["a.b"]}, folder / "model-1.safetensors")
    save_file({"c": TENSORS["c"], "d": TENSORS["d"]}, folder / "model-2.safetensors")
    places = {"a.b": "model-1.safetensors", "c": "model-2.safetensors", "d": "model-2.safetensors"} | changes
    index = {"metadata": {}, "weight_map": {name: place for name, place in places.items() if place}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_an_index_its_folder_or_the_files_themselves_are_one_model(tmp_path):
    folder = sharded(tmp_path / "model")
    assert_same(read_back(folder))
    assert_same(read_back(folder / "model.safetensors.index.json"))
    assert_same(read_back(folder / "model-1.safetensors", folder / "model-2.safetensors"))
    (folder / "model.safetensors.index.json").unlink()
    assert_same(read_back(folder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"c": "model-1.safetensors"}, "says that model-1.safetensors holds 'c'"),
        ({"e": "model-1.safetensors"}, "says that model-1.safetensors holds 'e'"),
        ({"c": None}, "does not list 'c'"),
        ({"c": "../model-2.safetensors"}, "files of an index stand beside it"),
        ({"c": "/etc/passwd"}, "files of an index stand beside it"),
        ({"c": "model-3.safetensors"}, "model-3.safetensors"),
        ({"c": 3}, "no 'weight_map'"),
    ],
)
def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path, changes, message):
    with pytest.raises(zkdv.ZKDVError, match=message):
        tensor_files.read(sharded(tmp_path / "model", **changes))


def test_two_files_with_one_name_are_refused(tmp_path):
    save_file(TENSORS, tmp_path / "one.safetensors")
    save_file({"c": TENSORS["c"]}, tmp_path / "two.safetensors")
    with pytest.raises(zkdv.ZKDVError, match="both hold a tensor 'c'"):
        tensor_files.read(tmp_path / "one.safetensors", tmp_path / "two.safetensors")


def with_header(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


BAD = {
    "empty": b"",
    "text": b"hello, this is no file of tensors",
    "a length alone": struct.pack("<Q", 2),
    "a header that is cut": struct.pack("<Q", 1000) + b"{",
    "a header of 2^63 bytes": struct.pack("<Q", 1 << 63) + b"{}",
    "no JSON": with_header(b"{nonsense}"),
    "data that is cut": save(TENSORS)[:-1],
    "data that goes on": save(TENSORS) + b"x",
    "data that overlaps": with_header(
        {name: {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} for name in "ab"}, bytes(4)
    ),
    "an enormous shape": with_header({"a": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 0]}}),
    "a dtype that there is not": with_header({"a": {"dtype": "X9", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
    "a name twice": with_header(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}',
        b"x",
    ),
    "an archive that is cut": b"PK\x03\x04" + bytes(30),
    "an .npy that is cut": b"\x93NUMPY",
    "an .npy of version 9": b"\x93NUMPY\x09\x00" + bytes(100),
}


@pytest.mark.parametrize("kind", BAD)
def test_files_that_are_none_are_refused_in_one_line_that_names_them(tmp_path, kind):
    (tmp_path / "model.x").write_bytes(BAD[kind])
    with pytest.raises(zkdv.ZKDVError) as refused:
        read_back(tmp_path / "model.x")
    assert "model.x" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_folders_that_hold_no_model_are_refused(tmp_path):
    with pytest.raises(zkdv.ZKDVError, match="neither safetensors files nor an Orbax checkpoint"):
        tensor_files.read(tmp_path)
    for name in ("one", "two"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    with pytest.raises(zkdv.ZKDVError, match="several models"):
        tensor_files.read(tmp_path)
    with pytest.raises(zkdv.ZKDVError, match="no-such-file"):
        tensor_files.read(tmp_path / "no-such-file")


def npz(**members):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as written:
        for name, data in members.items():
            written.writestr(name, data)
    return archive.getvalue()


def npy(header, data=b""):
    text = repr(header).encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def test_arrays_of_objects_are_refused_without_unpickling(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("it was unpickled",))

    np.save(tmp_path / "x.npy", np.array([Trap()], object), allow_pickle=True)
    np.savez(tmp_path / "x.npz", x=np.array([Trap()], object))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(zkdv.ZKDVError, match="holds Python objects"):
            read_back(tmp_path / name)


def test_an_array_that_only_says_that_it_is_large_takes_no_memory(tmp_path):
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40, 1 << 10)}
    for name, data in (("x.npy", npy(header, b"1234")), ("x.npz", npz(**{"x.npy": npy(header, b"1234")}))):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(zkdv.ZKDVError, match="ends after 4 of"):
            read_back(tmp_path / name)


def test_other_things_in_an_archive_are_refused(tmp_path):
    for members in ({"x.txt": b"text"}, {"x.npy": b"\x93NUMPY\x01\x00\x05\x00{[}]\n"}, {"x.npy": npy({"descr": "f4"})}):
        (tmp_path / "x.npz").write_bytes(npz(**members))
        with pytest.raises(zkdv.ZKDVError, match=r"x\.npz"):
            read_back(tmp_path / "x.npz")


@pytest.fixture(scope="module")
def sound_files():
    archive = io.BytesIO()
    np.savez_compressed(archive, **TENSORS)
    single = io.BytesIO()
    np.save(single, TENSORS["a.b"])
    return [save(TENSORS), archive.getvalue(), single.getvalue()]


@settings(max_examples=300, deadline=None)
@given(which=st.integers(0, 2), place=st.integers(0), change=st.integers(0, 255))
def test_any_change_of_a_file_is_refused_or_read(tmp_path_factory, sound_files, which, place, change):
    data = bytearray(sound_files[which])
    place %= len(data)
    data[place] ^= change
    path = tmp_path_factory.getbasetemp() / "changed"
    # Where nothing is changed, the file is cut.
    path.write_bytes(data if change else data[:place])
    with contextlib.suppress(zkdv.ZKDVError):
        read_back(path)


def test_a_file_that_shrinks_after_it_was_opened_is_noticed(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    opened = tensor_files.read(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(zkdv.ZKDVError, match="was changed while it was read"):
        opened["a.b"].elements()


@pytest.mark.parametrize(("start", "format_name", "addition"), [(b"\x80\x02", "torch", "zkdv-torch")])
def test_a_format_without_its_plugin_says_what_to_add(tmp_path, monkeypatch, start, format_name, addition):
    monkeypatch.setattr(_formats, "registry", lambda: Registry(()))
    (tmp_path / "model.pt").write_bytes(start + bytes(20))
    with pytest.raises(zkdv.ZKDVError, match=f"format '{format_name}'.*uv add {addition}"):
        tensor_files.read(tmp_path / "model.pt")


GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "plugins.md"


def test_the_reader_that_the_guide_shows_reads_by_its_name(tmp_path, monkeypatch):
    block = re.compile(r"^```python title=\"zkdv-reader-raw/src/(\S+)\"\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    shown = block.findall(GUIDE.read_text(encoding="utf-8"))
    assert [name for name, _ in shown] == ["zkdv_reader_raw/__init__.py", "zkdv_reader_raw/reading.py"]
    (tmp_path / "zkdv_reader_raw").mkdir()
    for name, text in shown:
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    installed = Registry.load([EntryPoint("raw", "zkdv_reader_raw", "zkdv")])
    monkeypatch.setattr(_formats, "registry", lambda: installed)
    (tmp_path / "raw").mkdir()
    TENSORS["a.b"].tofile(tmp_path / "raw" / "a.b-2x3.f32")
    found = tensor_files.read(tmp_path / "raw", reader="raw")
    assert found["a.b"].dtype == "float32"
    assert_same({"a.b": found["a.b"].elements()}, {"a.b": TENSORS["a.b"]})
    (tmp_path / "raw" / "c-2.f32").write_bytes(b"123")
    with pytest.raises(zkdv.ZKDVError, match=r"cannot be read as 'raw'.*its name says 8"):
        tensor_files.read(tmp_path / "raw", reader="raw")
    with pytest.raises(zkdv.ZKDVError, match="no plugin declares 'cooked'"):
        tensor_files.read(tmp_path / "raw", reader="cooked")
