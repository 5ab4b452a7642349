"""The shared test vectors are what the reference writes, and the reference is held against other implementations."""

import hashlib
import json
import math
import struct
from typing import Any

import make_vectors
import pytest
from blake3 import blake3
from zkdv_reference import batches, challenges, leaves, numbers, probes, trees
from zkdv_reference.blake3 import derive, digest, xof

LENGTHS = [0, 1, 63, 64, 65, 127, 128, 1023, 1024, 1025, 2048, 2049, 3072, 3073, 5000, 7 * 1024, 16 * 1024 + 1]


def vectors(name: str) -> dict[str, list[dict[str, Any]]]:
    return json.loads((make_vectors.FOLDER / f"{name}.json").read_text())


def test_the_files_are_what_the_reference_writes() -> None:
    for name, text in make_vectors.files().items():
        assert (make_vectors.FOLDER / name).read_text() == text, name


@pytest.mark.parametrize("length", LENGTHS)
def test_the_reference_hash_is_blake3(length: int) -> None:
    data = make_vectors.pattern(length)
    assert digest(data) == blake3(data).digest()
    assert derive("some context", data) == blake3(data, derive_key_context="some context").digest()
    for read in [1, 31, 32, 33, 64, 65, 200]:
        assert xof("some context", data, read) == blake3(data, derive_key_context="some context").digest(length=read)


def test_plain_digests_are_those_of_the_blake3_package() -> None:
    for vector in vectors("leaves")["plain"]:
        assert blake3(make_vectors.pattern(vector["pattern"])).hexdigest() == vector["digest"]


def test_chunk_openings_verify_and_their_forgeries_do_not() -> None:
    for vector in vectors("leaves")["chunks"]:
        length, chunk = vector["pattern"], vector["chunk"]
        expected = bytes.fromhex(vector["digest"])
        data = make_vectors.pattern(length)[chunk * 1024 :][:1024]
        chain = [bytes.fromhex(value) for value in vector["chain"]]
        assert len(data) == vector["bytes"]
        assert leaves.verify_chunk(expected, length, chunk, data, chain)
        # Only the last chunk shows how long the leaf is; for the others the length comes from the schema.
        if chunk == (length - 1) // 1024:
            assert not leaves.verify_chunk(expected, length + 1024, chunk, data, chain)
            assert not leaves.verify_chunk(expected, length + 1, chunk, data, chain)
        assert not leaves.verify_chunk(expected, length, chunk + 1, data, chain)
        assert not leaves.verify_chunk(expected, length, chunk, data, [*chain, bytes(32)])
        assert not leaves.verify_chunk(_flip(expected), length, chunk, data, chain)
        if data:
            assert not leaves.verify_chunk(expected, length, chunk, _flip(data), chain)
        if chain:
            assert not leaves.verify_chunk(expected, length, chunk, data, [*chain[:-1], _flip(chain[-1])])
            assert not leaves.verify_chunk(expected, length, chunk, data, chain[:-1])


def test_sharded_digests_are_one_derivation_over_all_shards() -> None:
    for vector in vectors("leaves")["sharded"]:
        hasher = blake3(
            struct.pack("<2Q", len(vector["shape"]), len(vector["shards"])), derive_key_context="zkdv 1 sharded leaf"
        )
        for shard in vector["shards"]:
            for start, stop in shard["ranges"]:
                hasher.update(struct.pack("<2Q", int(start), int(stop)))
            hasher.update(bytes.fromhex(shard["digest"]))
        assert hasher.hexdigest() == vector["digest"]


def test_shards_partition_the_leaf_in_the_order_of_their_starts() -> None:
    for vector in vectors("leaves")["sharded"]:
        shape, extents = [int(size) for size in vector["shape"]], [int(extent) for extent in vector["extents"]]
        ranges = [tuple((int(start), int(stop)) for start, stop in shard["ranges"]) for shard in vector["shards"]]
        starts = [[start for start, _ in own] for own in ranges]
        assert starts == sorted(starts)
        assert sum(math.prod(stop - start for start, stop in own) for own in ranges) == math.prod(shape)
        sizes = {tuple(stop - start for start, stop in own) for own in ranges}
        assert max(sizes) == tuple(extents)
        for place in vector["elements"]:
            own, inside = ranges[place["shard"]], int(place["inside"])
            position = []
            for start, stop in reversed(own):
                position.insert(0, start + inside % (stop - start))
                inside //= stop - start
            assert leaves.flat_index(shape, position) == int(place["element"])


def test_openings_in_shards_verify_and_their_forgeries_do_not() -> None:
    for vector in vectors("leaves")["sharded"]:
        if "pattern" not in vector:
            continue
        shape, extents = [int(size) for size in vector["shape"]], [int(extent) for extent in vector["extents"]]
        elements, size = make_vectors.pattern(vector["pattern"]), vector["element_bytes"]
        for place in vector["elements"]:
            ranges = leaves.shard_ranges(shape, extents)
            own = leaves.shard_elements(elements, size, shape, ranges[place["shard"]])
            other = [start for start, _ in ranges[place["shard"] - 1]]
            data, chain = leaves.open_chunk(own, int(place["inside"]) * size // 1024)
            honest: dict[str, Any] = {
                "expected": bytes.fromhex(vector["digest"]),
                "shape": shape,
                "extents": extents,
                "element_bytes": size,
                "element": int(place["element"]),
                "shards": [bytes.fromhex(shard["digest"]) for shard in vector["shards"]],
                "data": data,
                "chain": chain,
            }
            assert leaves.verify_shard_chunk(**honest)
            shards = honest["shards"]
            forgeries: list[dict[str, Any]] = [
                {"expected": _flip(honest["expected"])},
                {"shards": shards[::-1]},
                {"shards": shards[1:]},
                {"shards": [*shards, bytes(32)]},
                {"shards": [*shards[:-1], _flip(shards[-1])]},
                {"extents": shape},
                {"data": _flip(data)},
                {"chain": [*chain, bytes(32)]},
                {"element": leaves.flat_index(shape, other)},
            ]
            for forgery in forgeries:
                assert not leaves.verify_shard_chunk(**{**honest, **forgery}), forgery


def test_roots_are_those_of_a_tree_split_at_the_largest_power_of_two() -> None:
    for vector in vectors("trees")["roots"]:
        data = [bytes.fromhex(leaf) for leaf in vector["leaves"]]
        assert _root_from_the_top(vector["kind"], data).hex() == vector["root"]


def test_tree_openings_verify_and_their_forgeries_do_not() -> None:
    for vector in vectors("trees")["openings"]:
        opening = {
            "count": vector["count"],
            "index": vector["index"],
            "data": bytes.fromhex(vector["leaf"]),
            "path": [bytes.fromhex(node) for node in vector["path"]],
        }
        root, path = bytes.fromhex(vector["root"]), opening["path"]
        assert trees.verify_leaf("parameters", root, **opening)
        assert not trees.verify_leaf("optimizer", root, **opening)
        assert not trees.verify_leaf("parameters", _flip(root), **opening)
        forgeries = [
            {"count": vector["count"] + 1},
            {"index": vector["index"] + 1},
            {"data": _flip(opening["data"])},
            {"path": [*path, bytes(32)]},
        ]
        forgeries += [{"path": path[:-1]}, {"path": [*path[:-1], _flip(path[-1])]}] if path else []
        for forgery in forgeries:
            assert not trees.verify_leaf("parameters", root, **{**opening, **forgery}), forgery


def test_rolling_hashes_are_the_polynomial() -> None:
    for vector in vectors("batches")["hashes"]:
        base, window = int(vector["base"]), vector["window"]
        value = sum(word * base**power for power, word in enumerate(reversed(window)))
        assert value % (2**61 - 1) == int(vector["hash"])


def test_rolling_bases_are_the_first_that_fit() -> None:
    for vector in vectors("batches")["bases"]:
        stream = blake3(bytes.fromhex(vector["root"]), derive_key_context="zkdv 1 rolling base").digest(length=160)
        candidates = [int.from_bytes(stream[i : i + 8], "little") & (1 << 61) - 1 for i in range(0, 160, 8)]
        assert next(base for base in candidates if 2**32 <= base < 2**61 - 1) == int(vector["base"])


def test_absent_windows_stand_between_neighbours() -> None:
    for vector in vectors("batches")["batches"]:
        absent = vector["absent"]
        numbers_shown = []
        for block in absent["blocks"]:
            data = bytes.fromhex(block["bytes"])
            assert trees.verify_leaf(
                "batch-windows",
                bytes.fromhex(vector["window_root"]),
                count=-(-(vector["window_count"] + 2) // 128),
                index=block["block"],
                data=data,
                path=[bytes.fromhex(node) for node in block["path"]],
            )
            numbers_shown += [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
        number = batches.rolling_hash(absent["window"], int(vector["base"])) + 1
        assert numbers_shown == sorted(set(numbers_shown))
        assert number not in numbers_shown
        assert numbers_shown[0] < number < numbers_shown[-1]


def test_small_floats_are_those_of_other_implementations() -> None:
    for bits in range(65536):
        data = bits.to_bytes(2, "little")
        assert _same(numbers.reals("float16", data)[0], struct.unpack("<e", data)[0])
        assert _same(numbers.reals("bfloat16", data)[0], struct.unpack("<f", bytes(2) + data)[0])
    # Written from the types that JAX uses.
    for dtype, values in json.loads((make_vectors.FOLDER / "float8.json").read_text()).items():
        expected = [math.nan if value == "nan" else struct.unpack(">d", bytes.fromhex(value))[0] for value in values]
        assert all(map(_same, numbers.reals(dtype, bytes(range(256))), expected)), dtype


def test_sign_streams_are_derived_from_root_tree_and_leaf() -> None:
    for vector in vectors("probes")["signs"]:
        data = bytes.fromhex(vector["root"]) + bytes([vector["tree"]]) + vector["leaf"].to_bytes(8, "little")
        hasher = blake3(data, derive_key_context="zkdv 1 probe signs")
        assert hasher.digest(length=len(vector["signs"]) // 2).hex() == vector["signs"]
        assert vector["dimension"] <= 4 * len(vector["signs"]) < vector["dimension"] + 32


def test_slices_partition_the_last_dimension() -> None:
    for dimension in [1, 2, 7, 100, 101, 768]:
        for ratio in [1e-9, 0.01, 0.3, 1.0]:
            ones = struct.pack(f"<{dimension}f", *[1.0] * dimension)
            counts = probes.probe("float32", [dimension], ratio, ones, bytes(dimension))
            assert len(counts) == probes.kept(dimension, ratio)
            assert sum(counts) == dimension
            assert max(counts) - min(counts) <= 1


def test_a_probe_follows_its_signs() -> None:
    elements = struct.pack("<4f", 1.0, 2.0, 4.0, 8.0)
    assert probes.probe("float32", [4], 0.5, elements, bytes([0b0110, 0, 0, 0])) == [-1.0, 4.0]
    assert probes.probe("float32", [2, 2], 0.5, elements, bytes([0b10, 0, 0, 0])) == [-1.0, -4.0]


def test_a_shard_is_probed_with_the_signs_from_the_start_of_the_leafs_stream() -> None:
    elements = struct.pack("<8f", 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
    found = probes.sharded_probe("float32", [2, 4], [1, 3], elements, ratio=0.5, sign_stream=bytes([0b0001, 0, 0, 0]))
    # Three columns in two slices of one and two; the one that is left over is a slice of its own.
    assert found == [[-1.0, 6.0], [-8.0], [-16.0, 96.0], [-128.0]]


def test_sharded_probes_together_are_one_probe_of_the_rows() -> None:
    by_rows = [vector for vector in vectors("probes")["sharded"] if vector["extents"][-1] == vector["shape"][-1]]
    assert by_rows
    for vector in by_rows:
        shape = vector["shape"]
        dimension = probes.real_dimension(vector["dtype"], shape)
        stream = probes.signs(make_vectors.ROOT_DIGEST, 0, 0, dimension)
        whole = probes.probe(vector["dtype"], shape, vector["ratio"], bytes.fromhex(vector["elements"]), stream)
        # Cut between rows alone, a leaf has the numbers of its own probe.
        assert "".join(vector["probes"]) == probes.probe_bytes(vector["dtype"], whole).hex()


def test_draws_keep_to_their_bounds() -> None:
    for vector in vectors("challenges")["draws"]:
        for name, coordinate in [("parameters", "parameter"), ("optimizer", "optimizer_coordinate")]:
            bound = int(vector[name])
            assert (vector[coordinate] is None) == (bound == 0)
            assert vector[coordinate] is None or int(vector[coordinate]) < bound
        if "every" in vector["sampling"]:
            assert vector["sampled"] == ((vector["update"] + 1) % vector["sampling"]["every"] == 0)
        elif vector["sampling"]["probability"] in {0.0, 1.0}:
            assert vector["sampled"] == (vector["sampling"]["probability"] == 1.0)


def test_draws_are_read_from_the_stream_in_order() -> None:
    record = hashlib.sha256(b"record").digest()
    words = struct.unpack("<3Q", blake3(record, derive_key_context="zkdv 1 challenge").digest(length=24))
    sampled, parameter, optimizer = challenges.draw(
        record, b"", {"probability": 0.5}, update=0, parameters=1000, optimizer=7
    )
    assert sampled == (words[0] < 2**63)
    assert (parameter, optimizer) == (words[1] % 1000, words[2] % 7)


def _root_from_the_top(kind: str, data: list[bytes]) -> bytes:
    def derived(part: str, material: bytes) -> bytes:
        return blake3(material, derive_key_context=f"zkdv 1 tree {kind} {part}").digest()

    def top(below: list[bytes]) -> bytes:
        if len(below) == 1:
            return derived("leaf", below[0])
        middle = max(power for power in (1, 2, 4, 8, 16) if power < len(below))
        return derived("node", top(below[:middle]) + top(below[middle:]))

    return derived("root", struct.pack("<Q", len(data)) + (top(data) if data else b""))


def _flip(data: bytes) -> bytes:
    return bytes([data[0] ^ 1, *data[1:]])


def _same(a: float, b: float) -> bool:
    return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
