"""Digests of sharded leaves from whole arrays."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from zkdv_reference import leaves

from zkdv import _native
from zkdv.sharding import leaf_digest, shard_arrays, shard_digests

VECTOR_FOLDER = Path(__file__).parents[3] / "tests" / "vectors"
VECTORS = json.loads((VECTOR_FOLDER / "leaves.json").read_text())["sharded"]
PATTERN = bytes(index % 251 for index in range(20_000))


def test_whole_arrays_give_the_digests_of_the_vectors():
    written = [vector for vector in VECTORS if "pattern" in vector]
    assert len(written) > 5
    for vector in written:
        shape, extents = ([int(size) for size in vector[name]] for name in ("shape", "extents"))
        array = np.frombuffer(PATTERN[: vector["pattern"]], f"V{vector['element_bytes']}").reshape(shape)
        assert [digest.hex() for digest in shard_digests(array, extents)] == [
            shard["digest"] for shard in vector["shards"]
        ]
        assert leaf_digest(array, extents).hex() == vector["digest"]


@settings(deadline=None)
@given(data=st.data())
def test_shards_are_those_of_the_reference_for_any_grid(data):
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda shape: max(shape) > 1))
    extents = data.draw(st.tuples(*(st.integers(1, size) for size in shape)).filter(lambda own: list(own) != shape))
    array = np.arange(np.prod(shape), dtype=np.uint16).reshape(shape)
    ranges = leaves.shard_ranges(shape, extents)
    parts = [leaves.shard_elements(array.tobytes(), 2, shape, own) for own in ranges]
    assert [shard.tobytes() for shard in shard_arrays(array, extents)] == parts
    digests = [blake3(part).digest() for part in parts]
    assert leaf_digest(array, extents) == leaves.sharded_digest(shape, extents, digests)


def test_arrays_that_are_not_contiguous_are_read_in_c_order():
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    assert leaf_digest(np.asfortranarray(array), (2, 3)) == leaf_digest(array, (2, 3))
    assert leaf_digest(np.asfortranarray(array)) == blake3(array.tobytes()).digest()


def test_a_leaf_in_one_piece_has_its_plain_digest():
    for array in (np.float32(3), np.zeros((0, 4)), np.arange(5)):
        assert leaf_digest(np.asarray(array)) == blake3(np.asarray(array).tobytes()).digest()


@pytest.mark.parametrize(
    ("extents", "reason"),
    [((4, 6), "stays whole"), ((5, 6), "between 1"), ((0, 6), "between 1"), ((2,), "one extent for each dimension")],
)
def test_extents_that_do_not_cut_the_array_are_refused(extents, reason):
    with pytest.raises(ValueError, match=reason):
        leaf_digest(np.zeros((4, 6)), extents)


def test_probes_of_shards_are_those_of_the_vectors():
    found = json.loads((VECTOR_FOLDER / "probes.json").read_text())["sharded"]
    assert len(found) > 5
    root = blake3(b"root record").digest()
    for vector in found:
        name, shape, extents = vector["dtype"], vector["shape"], vector["extents"]
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        array = np.frombuffer(bytes.fromhex(vector["elements"]), dtype).reshape(shape)
        digests = []
        for shard, expected in zip(shard_arrays(array, extents), vector["probes"], strict=True):
            words = _native.probe_sign_words(shard.shape, name)
            signs = _native.probe_signs(root, 0, 0, 32 * words)
            _, probe = _native.commit_leaf(np.ascontiguousarray(shard), name, shard.shape, vector["ratio"], signs)
            data = b"" if probe is None else probe.tobytes()
            assert data.hex() == expected
            digests.append(_native.leaf_digest(data))
        assert _native.sharded_leaf_digest(shape, extents, digests).hex() == vector["digest"]
