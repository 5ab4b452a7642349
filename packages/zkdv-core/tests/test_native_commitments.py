"""The native commitments against the `blake3` package and the vectors of the reference."""

import json
import math
import struct
from pathlib import Path

import blake3
import ml_dtypes
import numpy as np
import pytest

from zkdv import _native

VECTORS = Path(__file__).parents[3] / "tests" / "vectors"
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]


def vectors(name, kind):
    return json.loads((VECTORS / f"{name}.json").read_text())[kind]


def pattern(length):
    return bytes(i % 251 for i in range(length))


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def unhex(texts):
    return [bytes.fromhex(text) for text in texts]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("count", [0, 1, 63, 1024, 100_003])
def test_leaf_digests_are_those_of_the_blake3_package(name, count):
    dtype = dtype_of(name)
    data = np.random.default_rng(count).bytes(count * dtype.itemsize)
    array = np.frombuffer(data, dtype)
    expected = blake3.blake3(data).digest()
    assert _native.leaf_digest(array) == expected
    assert _native.leaf_digest(data) == expected
    if count % 3 == 0:
        assert _native.leaf_digest(array.reshape(3, -1)) == expected


@pytest.mark.parametrize("length", [0, 1, 1023, 1024, 1025, 65536, 131071, 131072, 131073, 10_000_019])
def test_buffers_of_every_kind_are_hashed_where_they_lie(length):
    data = bytearray(np.random.default_rng(length).bytes(length))
    expected = blake3.blake3(bytes(data)).digest()
    assert _native.leaf_digest(data) == expected
    assert _native.leaf_digest(memoryview(data)) == expected
    assert _native.leaf_digest(np.frombuffer(data, np.uint8)) == expected


def test_scalars_have_digests():
    assert _native.leaf_digest(np.float32(1.5)) == blake3.blake3(np.float32(1.5).tobytes()).digest()
    scalar = np.array(2.5, ml_dtypes.bfloat16)
    assert _native.leaf_digest(scalar) == blake3.blake3(scalar.tobytes()).digest()


@pytest.mark.parametrize("dtype", ["float32", ml_dtypes.bfloat16])
def test_views_that_are_not_contiguous_are_refused_and_not_hashed_in_another_order(dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype)
    for view in (array.T, array[:, ::2], array[::-1]):
        with pytest.raises(ValueError, match=r"data is not C-contiguous.*pass numpy\.ascontiguousarray"):
            _native.leaf_digest(view)
    assert _native.leaf_digest(np.ascontiguousarray(array.T)) == blake3.blake3(array.T.tobytes()).digest()


def test_elements_in_another_byte_order_are_refused():
    with pytest.raises(ValueError, match="data holds big-endian elements"):
        _native.leaf_digest(np.arange(3, dtype=">f4"))
    assert _native.leaf_digest(np.arange(3, dtype=">u1")) == blake3.blake3(bytes([0, 1, 2])).digest()


def test_objects_are_no_data():
    for value in (np.array([object()]), np.array([{"a": 1}]), "text", 5, None, [1, 2]):
        with pytest.raises((TypeError, ValueError)):
            _native.leaf_digest(value)


def test_plain_digests_and_chunks_follow_the_vectors():
    for vector in vectors("leaves", "plain"):
        assert _native.leaf_digest(pattern(vector["pattern"])).hex() == vector["digest"]
    for vector in vectors("leaves", "chunks"):
        data, digest, chain = pattern(vector["pattern"]), bytes.fromhex(vector["digest"]), unhex(vector["chain"])
        opened, found = _native.chunk_open(data, vector["chunk"])
        assert (len(opened), found) == (vector["bytes"], chain)
        assert opened == data[1024 * vector["chunk"] :][:1024]
        assert _native.chunk_verify(digest, len(data), vector["chunk"], opened, chain)
        assert not _native.chunk_verify(digest, 2 * len(data) + 1024, vector["chunk"], opened, chain)
        assert not _native.chunk_verify(digest, len(data), vector["chunk"], opened + b"x", chain)
        assert not _native.chunk_verify(digest, len(data), vector["chunk"], opened, [*chain, digest])
        assert not _native.chunk_verify(bytes(32), len(data), vector["chunk"], opened, chain)


def test_sharded_leaves_follow_the_vectors():
    for vector in vectors("leaves", "sharded"):
        shape, extents = [int(size) for size in vector["shape"]], [int(extent) for extent in vector["extents"]]
        shards = unhex(shard["digest"] for shard in vector["shards"])
        assert _native.sharded_leaf_digest(shape, extents, shards).hex() == vector["digest"]
        ranges = [[(int(start), int(stop)) for start, stop in shard["ranges"]] for shard in vector["shards"]]
        assert _native.sharding_ranges(shape, extents) == ranges
        for place in vector["elements"]:
            found = _native.sharding_locate(shape, extents, int(place["element"]))
            assert found == (place["shard"], int(place["inside"]))
        with pytest.raises(ValueError, match=f"{len(shards)} shards, {len(shards) - 1} digests"):
            _native.sharded_leaf_digest(shape, extents, shards[1:])
        with pytest.raises(ValueError, match="no element"):
            _native.sharding_locate(shape, extents, math.prod(shape))
    with pytest.raises(ValueError, match=r"shape \[4\] cannot lie in shards of \[5\]"):
        _native.sharded_leaf_digest([4], [5], [bytes(32)])


def test_trees_follow_the_vectors():
    for vector in vectors("trees", "roots"):
        assert _native.tree_root(vector["kind"], unhex(vector["leaves"])).hex() == vector["root"]
    for vector in vectors("trees", "openings"):
        count, index, path = vector["count"], vector["index"], unhex(vector["path"])
        leaf, root = bytes.fromhex(vector["leaf"]), bytes.fromhex(vector["root"])
        assert _native.tree_verify("parameters", root, count, index, leaf, path)
        assert not _native.tree_verify("optimizer", root, count, index, leaf, path)
        assert not _native.tree_verify("parameters", root, count + 1, index, leaf, path)
        assert not _native.tree_verify("parameters", root, count, index, leaf + b"x", path)
        assert not _native.tree_verify("parameters", root, count, index, leaf, [*path, root])


def test_openings_of_wide_trees_verify():
    leaves = [index.to_bytes(32, "little") for index in range(1000)]
    root = _native.tree_root("attached", leaves)
    for index in (0, 1, 511, 512, 998, 999):
        path = _native.tree_open("attached", leaves, index)
        assert _native.tree_verify("attached", root, 1000, index, leaves[index], path)
        assert not _native.tree_verify("attached", root, 1000, (index + 1) % 1000, leaves[index], path)
    with pytest.raises(ValueError, match="1000"):
        _native.tree_open("attached", leaves, 1000)
    with pytest.raises(ValueError, match="there is no tree kind `leaves`; kinds are parameters, optimizer"):
        _native.tree_root("leaves", leaves)


def test_batches_follow_the_vectors():
    for vector in vectors("batches", "bases"):
        assert _native.rolling_base(bytes.fromhex(vector["root"])) == int(vector["base"])
    for vector in vectors("batches", "batches"):
        words = np.array(vector["words"], np.uint32).reshape(vector["rows"], vector["width"])
        batch = _native.batch_commit(words, vector["rolling_window"], int(vector["base"]))
        for name in ("matrix", "row_root", "window_root", "digest"):
            assert getattr(batch, name).hex() == vector[name], name
        assert (batch.rows, batch.width, batch.window_count) == (words.shape[0], words.shape[1], vector["window_count"])
        rebuilt = _native.BatchCommitment(
            rows=batch.rows,
            width=batch.width,
            matrix=batch.matrix,
            row_root=batch.row_root,
            window_root=batch.window_root,
            window_count=batch.window_count,
            rolling_window=batch.rolling_window,
            base=batch.base,
        )
        assert rebuilt.digest == batch.digest
        for opening in vector["row_openings"]:
            data, path = batch.open_row(words, opening["row"])
            assert data == words[opening["row"]].tobytes()
            assert path == unhex(opening["path"])
            assert rebuilt.verify_row(opening["row"], data, path)
            assert not rebuilt.verify_row(opening["row"] + words.shape[0], data, path)
            assert not rebuilt.verify_row(opening["row"], data + bytes(4), path)
        absent = np.array(vector["absent"]["window"], np.uint32)
        blocks = [
            (block["block"], bytes.fromhex(block["bytes"]), unhex(block["path"]))
            for block in vector["absent"]["blocks"]
        ]
        assert batch.open_absence(words, absent) == blocks
        assert rebuilt.verify_absence(absent, blocks)
        number, data, path = blocks[0]
        assert not rebuilt.verify_absence(absent, [(number, data[:-1] + bytes([data[-1] ^ 1]), path)])


def test_windows_are_shown_where_they_stand_and_nowhere_else():
    words = np.random.default_rng(0).integers(0, 2**32, (12, 64), np.uint32)
    batch = _native.batch_commit(words, 8, _native.rolling_base(bytes(32)))
    window = words[7, 20:28].copy()
    row, position, data, path = batch.open_window(words, window)
    assert (row, position) == (7, 20)
    assert batch.verify_window(window, row, position, data, path)
    assert not batch.verify_window(window, row, position + 1, data, path)
    assert not batch.verify_window(window[::-1].copy(), row, position, data, path)
    assert not batch.verify_window(window, row + 1, position, data, path)
    with pytest.raises(ValueError, match="its absence cannot be opened"):
        batch.open_absence(words, window)
    elsewhere = window ^ 1
    with pytest.raises(ValueError, match="the window is in no row of the batch"):
        batch.open_window(words, elsewhere)
    assert batch.verify_absence(elsewhere, batch.open_absence(words, elsewhere))
    assert not batch.verify_absence(window, batch.open_absence(words, elsewhere))


def test_batches_of_other_kinds_are_refused():
    base = _native.rolling_base(bytes(32))
    words = np.zeros((3, 4), np.uint32)
    batch = _native.batch_commit(words, 2, base)
    with pytest.raises(TypeError, match="words must be an array of uint32"):
        _native.batch_commit(words.astype(np.int32), 2, base)
    with pytest.raises(TypeError, match="words must be an array of uint32"):
        _native.batch_commit(words.astype(np.float32), 2, base)
    with pytest.raises(ValueError, match=r"words must have shape \(rows, width\), they have 1 dimensions"):
        _native.batch_commit(words.reshape(-1), 2, base)
    with pytest.raises(ValueError, match="not C-contiguous"):
        _native.batch_commit(words.T, 2, base)
    with pytest.raises(ValueError, match="at least one word"):
        _native.batch_commit(words, 0, base)
    for wrong in (0, 2**32 - 1, 2**61 - 1, 2**64, -1):
        with pytest.raises(ValueError, match="base"):
            _native.batch_commit(words, 2, wrong)
    with pytest.raises(ValueError, match=r"words have shape \(4, 3\), the committed batch has \(3, 4\)"):
        batch.open_row(np.zeros((4, 3), np.uint32), 0)
    with pytest.raises(ValueError, match="windows of this batch have 2 words, this one has 3"):
        batch.verify_absence(np.zeros(3, np.uint32), [(0, b"", [])])


def test_probes_follow_the_vectors():
    for vector in vectors("probes", "kept"):
        assert _native.probe_kept(int(vector["dimension"]), vector["ratio"]) == int(vector["kept"])
    for vector in vectors("probes", "signs"):
        signs = _native.probe_signs(bytes.fromhex(vector["root"]), vector["tree"], vector["leaf"], vector["dimension"])
        assert signs.dtype == np.uint32
        assert signs.tobytes().hex() == vector["signs"]
    root = blake3.blake3(b"root record").digest()
    for vector in vectors("probes", "probes"):
        dtype, shape, ratio = vector["dtype"], vector["shape"], vector["ratio"]
        size = dtype_of(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
        period = bytes.fromhex(vector["period"])
        data = (period * (size // len(period) + 1))[:size]
        words = _native.probe_sign_words(shape, dtype)
        assert words == vector["sign_words"]
        columns = shape[-1] * (2 if dtype.startswith("complex") else 1) if words else 0
        signs = _native.probe_signs(root, 0, 0, columns)
        expected = bytes.fromhex(vector["probe"])
        for given in (data, np.frombuffer(data, dtype_of(dtype)).reshape(shape)):
            digest, probe = _native.commit_leaf(given, dtype, shape, ratio, signs)
            assert digest.hex() == vector["digest"]
            if vector["kind"] is None:
                assert probe is None
                continue
            assert probe.dtype == vector["kind"]
            assert probe.shape == (_native.probe_length(shape, dtype, ratio),)
            exact = np.frombuffer(expected, vector["kind"])
            if vector["tolerance"] == 0:
                # NaNs have no prescribed payload.
                np.testing.assert_array_equal(probe, exact)
                assert np.array_equal(np.signbit(probe), np.signbit(exact)) or np.isnan(exact).any()
            else:
                np.testing.assert_allclose(probe, exact, rtol=0, atol=vector["tolerance"])


def test_many_leaves_are_committed_to_as_each_by_itself():
    generator = np.random.default_rng(0)
    leaves = [
        (generator.normal(size=(700, 90)).astype(np.float32), "float32"),
        (np.arange(12, dtype=np.int32).reshape(3, 4), "int32"),
        (generator.normal(size=(3, 5, 7)), "float64"),
        (np.zeros((0, 4), np.float32), "float32"),
        (np.array(2.5, np.float32), "float32"),
        (generator.normal(size=(64,)).astype(ml_dtypes.bfloat16), "bfloat16"),
    ]
    words = [
        generator.integers(0, 2**32, _native.probe_sign_words(leaf.shape, name), np.uint32) for leaf, name in leaves
    ]
    given = [(leaf, name, leaf.shape) for leaf, name in leaves]
    for count in range(len(leaves) + 1):
        signs = np.concatenate([np.zeros(0, np.uint32), *words[:count]])
        digests, probe_digests, probes = _native.commit_leaves(given[:count], 0.1, signs)
        assert len(digests) == len(probe_digests) == len(probes) == count
        for (leaf, name), own, digest, probe_digest, probe in zip(
            leaves, words, digests, probe_digests, probes, strict=False
        ):
            alone, expected = _native.commit_leaf(leaf, name, leaf.shape, 0.1, own)
            assert digest == alone == blake3.blake3(leaf.tobytes()).digest()
            assert (probe is None) == (expected is None)
            assert probe is None or (probe.dtype, probe.tobytes()) == (expected.dtype, expected.tobytes())
            assert probe_digest == blake3.blake3(b"" if probe is None else probe.tobytes()).digest()
    with pytest.raises(ValueError, match="sign words"):
        _native.commit_leaves(given, 0.1, words[0])
    with pytest.raises(ValueError, match=r"has 252000 bytes, leaves\[0\] has 48"):
        _native.commit_leaves([(leaves[1][0], "float32", (700, 90))], 0.1, words[0])
    with pytest.raises(ValueError, match="more bytes than can be addressed"):
        _native.commit_leaves([(leaves[1][0], "float32", (2**40, 2**40))], 0.1, words[0])


def test_draws_follow_the_vectors():
    for vector in vectors("challenges", "draws"):
        drawn = _native.draw(
            bytes.fromhex(vector["record"]),
            bytes.fromhex(vector["randomness"]),
            vector["sampling"],
            vector["update"],
            int(vector["parameters"]),
            int(vector["optimizer"]),
        )
        coordinates = (vector["parameter"], vector["optimizer_coordinate"])
        assert drawn == (vector["sampled"], *(None if text is None else int(text) for text in coordinates))


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        ({}, "sampling must be"),
        ({"probability": 0.5, "every": 2}, "sampling must be"),
        ({"probability": 1.5}, "the update check probability must be between 0 and 1, it is 1.5"),
        ({"probability": float("nan")}, "the update check probability must be between 0 and 1"),
        ({"every": 0}, "every 0 updates"),
        ({"every": -1}, r'sampling\["every"\] must be an integer from 0 to 2\^64-1'),
    ],
)
def test_samplings_that_there_are_not_are_refused(sampling, message):
    with pytest.raises(ValueError, match=message):
        _native.draw(bytes(32), b"", sampling, 0, 1, 1)


def test_subnormal_numbers_count_in_probes():
    values = np.arange(1, 1001, dtype=np.uint32).view(np.float32)
    signs = np.zeros(32, np.uint32)
    _, probe = _native.commit_leaf(values, "float32", (1000,), 0.001, signs)
    assert probe.view(np.uint32).tolist() == [500500]


def test_arrays_of_words_may_be_empty_anywhere_but_not_unaligned():
    memory = np.zeros(64, np.uint8)
    for start in range(4):
        empty = memory[start:start].view(np.uint32)
        digest, probe = _native.commit_leaf(memory, "uint8", (64,), 0.1, empty)
        assert (digest, probe) == (blake3.blake3(memory).digest(), None)
        assert _native.batch_commit(empty.reshape(0, 3), 2, 2**40 + 1).rows == 0
    with pytest.raises(ValueError, match="words is not aligned to 4 bytes; pass a copy of it"):
        _native.batch_commit(memory[1:13].view(np.uint32).reshape(1, 3), 2, 2**40 + 1)


def test_leaves_are_refused_with_what_is_wrong():
    leaf, signs = np.zeros((2, 40), np.float32), np.zeros(2, np.uint32)
    with pytest.raises(ValueError, match="dtype `int4` cannot be committed to: several of its elements share a byte"):
        _native.commit_leaf(leaf, "int4", (2, 40), 0.1, signs)
    with pytest.raises(ValueError, match=r"shape \[2, 41\] and dtype float32 has 328 bytes, data has 320"):
        _native.commit_leaf(leaf, "float32", (2, 41), 0.1, signs)
    with pytest.raises(ValueError, match="the leaves call for 2 sign words, 3 were given"):
        _native.commit_leaf(leaf, "float32", (2, 40), 0.1, np.zeros(3, np.uint32))
    with pytest.raises(TypeError, match="signs must be an array of uint32"):
        _native.commit_leaf(leaf, "float32", (2, 40), 0.1, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="the probe ratio must be above 0 and at most 1"):
        _native.commit_leaf(leaf, "float32", (2, 40), 0.0, signs)
    with pytest.raises(ValueError, match="more bytes than can be addressed"):
        _native.commit_leaf(leaf, "float32", (2**40, 2**40), 0.1, signs)
    with pytest.raises(ValueError, match=r"dimension must be at most 34359738368"):
        _native.probe_signs(bytes(32), 0, 0, 2**60)
    with pytest.raises(ValueError, match=r"tree must be 0 \(parameters\) or 1 \(optimizer\), not 256"):
        _native.probe_signs(bytes(32), 256, 0, 5)


def test_attested_values_agree_where_the_reference_says_so():
    for vector in vectors("attested", "values"):
        before, after = bytes.fromhex(vector["before"]), bytes.fromhex(vector["after"])
        delta, element = (struct.unpack(">d", bytes.fromhex(vector[name]))[0] for name in ("delta", "element"))
        tolerance = vector["tolerance"]
        agreed, _, _ = _native.attested_delta(vector["dtype"], before, after, delta, *tolerance)
        assert agreed == vector["delta_agrees"], vector
        agreed, _, _ = _native.attested_element(vector["dtype"], after, element, *tolerance)
        assert agreed == vector["element_agrees"], vector


def test_an_attested_value_is_compared_with_elements_of_the_dtypes_length():
    with pytest.raises(ValueError, match="an element of dtype float32 has 4 bytes"):
        _native.attested_delta("float32", bytes(4), bytes(3), 0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="an element of dtype bfloat16 has 2 bytes"):
        _native.attested_element("bfloat16", bytes(4), 0.0, 0.0, 0.0)
