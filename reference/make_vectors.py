"""Writes the test vectors that the Rust crates and the Python packages are held to.

`python reference/make_vectors.py` writes them to `tests/vectors` anew. Bytes are hexadecimal, numbers that JSON readers
may round are decimal text, and `pattern` stands for so many bytes of which byte `i` is `i mod 251`.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from zkdv_reference.attested import FORMATS, delta_agrees, element_agrees
from zkdv_reference.batches import Batch, rolling_base, rolling_hash
from zkdv_reference.blake3 import digest, xof
from zkdv_reference.challenges import draw
from zkdv_reference.leaves import leaf_digest, locate, open_chunk, shard_elements, shard_ranges, sharded_digest
from zkdv_reference.numbers import ELEMENT_BYTES, is_complex, is_double, is_probed, reals
from zkdv_reference.probes import (
    kept,
    probe,
    probe_bytes,
    real_dimension,
    sharded_probe,
    sharded_probe_digest,
    signs,
)
from zkdv_reference.trees import KINDS, open_leaf, root

FOLDER = Path(__file__).parent.parent / "tests" / "vectors"
Vectors = list[dict[str, Any]]

ROOT_DIGEST = digest(b"root record")


# Shape, extents of shards, bytes of an element; 0 where the leaf is too large to be written down.
SHARDINGS: list[tuple[list[int], list[int], int]] = [
    ([8], [2], 4),
    ([7], [3], 4),
    ([2], [1], 16),
    ([4, 8], [2, 8], 4),
    ([4, 8], [4, 4], 2),
    ([4, 8], [2, 4], 8),
    ([5, 7], [2, 3], 1),
    ([3, 4, 5], [3, 2, 2], 4),
    ([1, 6, 1], [1, 4, 1], 4),
    ([64, 40], [64, 20], 4),
    ([2, 3, 2, 3], [1, 3, 2, 2], 4),
    ([2**40, 2**22], [2**39, 2**22], 0),
    ([3, 2**62], [1, 2**62 - 1], 0),
]


def main() -> None:
    """Write every file."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def files() -> dict[str, str]:
    """The name and text of every file of vectors."""
    makers: list[Callable[[], dict[str, Vectors]]] = [leaves, trees, batches, probes, challenges, attested]
    return {f"{make.__name__}.json": json.dumps(make(), indent=1) + "\n" for make in makers}


def pattern(length: int) -> bytes:
    """Bytes that differ from chunk to chunk."""
    return bytes(i % 251 for i in range(length))


def stream(name: str, length: int) -> bytes:
    """Bytes without a pattern, the same ones for the same name."""
    return xof("zkdv test vectors", name.encode(), length)


def leaves() -> dict[str, Vectors]:
    """Plain digests, openings of chunks, sharded leaves."""
    lengths = [0, 1, 63, 64, 65, 1023, 1024, 1025, 2047, 2048, 2049, 3071, 3072, 3073, 4096, 5120, 7169, 16384, 31744]
    # Either side of the sizes at which an implementation may begin to spread a leaf over threads.
    large = [65535, 65536, 65537, 98304, 131072, 131073, 196609]
    plain = [{"pattern": length, "digest": leaf_digest(pattern(length)).hex()} for length in lengths + large]
    chunks = []
    for length in [0, 1, 1024, 1025, 2048, 2049, 3072, 5120, 7169, 17 * 1024]:
        for chunk in range(max(1, -(-length // 1024))):
            data, chain = open_chunk(pattern(length), chunk)
            chunks.append(
                {
                    "pattern": length,
                    "digest": leaf_digest(pattern(length)).hex(),
                    "chunk": chunk,
                    "bytes": len(data),
                    "chain": [value.hex() for value in chain],
                }
            )
    return {"plain": plain, "chunks": chunks, "sharded": [_sharded(*layout) for layout in SHARDINGS]}


def trees() -> dict[str, Vectors]:
    """Roots of trees of 0 to 17 leaves, and the opening of each leaf; roots of every kind of tree."""
    roots = []
    openings = []
    for count in range(18):
        data = [digest(bytes([index])) for index in range(count)]
        roots.append(
            {"kind": "parameters", "leaves": [leaf.hex() for leaf in data], "root": root("parameters", data).hex()}
        )
        openings += [
            {
                "kind": "parameters",
                "root": root("parameters", data).hex(),
                "count": count,
                "index": index,
                "leaf": data[index].hex(),
                "path": [node.hex() for node in open_leaf("parameters", data, index)],
            }
            for index in range(count)
        ]
    for kind in KINDS:
        for lengths in [[], [0], [32, 32, 32], [0, 1, 63, 64, 65, 1023, 1024, 1025]]:
            data = [pattern(length) for length in lengths]
            roots.append({"kind": kind, "leaves": [leaf.hex() for leaf in data], "root": root(kind, data).hex()})
    return {"roots": roots, "openings": openings}


def batches() -> dict[str, Vectors]:
    """Bases, hashes of windows, and batches with openings."""
    digests = [bytes(32), b"\xff" * 32, ROOT_DIGEST, *(digest(f"root {index}".encode()) for index in range(5))]
    bases = [{"root": own.hex(), "base": str(rolling_base(own))} for own in digests]
    windows = [[], [0], [1], [2**32 - 1], [0, 0, 1], [2**32 - 1] * 33, _words("window", 32), _words("long", 100)]
    hashes = [
        {"base": str(base), "window": window, "hash": str(rolling_hash(window, base))}
        for base in [2**32, 2**61 - 2, rolling_base(ROOT_DIGEST)]
        for window in windows
    ]
    cases: list[tuple[list[list[int]], int, int]] = [
        ([], 0, 4),
        ([[]], 0, 1),
        ([[], []], 0, 4),
        ([[7]], 1, 1),
        ([[1, 2, 3]], 3, 4),
        ([[1, 2, 3, 4]], 4, 4),
        ([[0] * 40] * 3, 40, 4),
        ([[1, 2, 3, 1, 2, 3, 1, 2]], 8, 3),
        ([[5, 6, 7], [6, 7, 5], [5, 6, 7]], 3, 2),
        (_matrix("sentinels alone in the last block", 1, 127), 127, 1),
        (_matrix("one block exactly", 2, 63), 63, 1),
        (_matrix("two numbers in the last block", 8, 16), 16, 1),
        (_matrix("two blocks and a part", 5, 60), 60, 8),
        (_matrix("rows of more than a chunk", 3, 300), 300, 32),
        (_matrix("many rows", 17, 20), 20, 16),
    ]
    base = rolling_base(ROOT_DIGEST)
    found = []
    for rows, width, rolling_window in cases:
        batch = Batch(rows, width, rolling_window, base)
        absent = _words("absent", rolling_window)
        opened = sorted({0, len(rows) // 2, len(rows) - 1} & set(range(len(rows))))
        found.append(
            {
                "rows": len(rows),
                "width": width,
                "words": [word for row in rows for word in row],
                "rolling_window": rolling_window,
                "base": str(base),
                "matrix": batch.matrix().hex(),
                "row_root": root("batch-rows", batch.row_leaves()).hex(),
                "window_root": root("batch-windows", batch.window_leaves()).hex(),
                "window_count": batch.window_count(),
                "digest": batch.digest().hex(),
                "row_openings": [{"row": row, "path": [node.hex() for node in batch.open_row(row)]} for row in opened],
                "absent": {
                    "window": absent,
                    "blocks": [
                        {"block": block, "bytes": data.hex(), "path": [node.hex() for node in path]}
                        for block, data, path in batch.open_absent(absent)
                    ],
                },
            }
        )
    return {"bases": bases, "hashes": hashes, "batches": found}


def probes() -> dict[str, Vectors]:
    """Counts, sign streams, and probes of every dtype."""
    dimensions = [1, 2, 3, 10, 99, 100, 101, 768, 1000, 4096, 2**31 + 1, 2**53]
    ratios = [5e-324, 1e-9, 0.001, 0.01, 0.1, 1 / 3, 0.5, 0.99, 1.0]
    counts = [
        {"dimension": str(dimension), "ratio": ratio, "kept": str(kept(dimension, ratio))}
        for dimension in dimensions
        for ratio in ratios
    ]
    streams = [
        {"root": own.hex(), "tree": tree, "leaf": leaf, "dimension": d, "signs": signs(own, tree, leaf, d).hex()}
        for own, tree, leaf, d in [
            (ROOT_DIGEST, 0, 0, 1),
            (ROOT_DIGEST, 1, 0, 31),
            (ROOT_DIGEST, 0, 1, 32),
            (ROOT_DIGEST, 0, 65535, 33),
            (bytes(32), 1, 2**32 + 5, 1000),
        ]
    ]
    return {
        "kept": counts,
        "signs": streams,
        "probes": [_probe(*case) for case in _probe_cases()],
        "sharded": [_sharded_probe(*case) for case in SHARDED_PROBES],
    }


# Dtype, shape, extents of shards, ratio.
SHARDED_PROBES: list[tuple[str, list[int], list[int], float]] = [
    ("float32", [4, 10], [2, 10], 0.3),
    ("float32", [4, 10], [4, 5], 0.3),
    ("float32", [5, 7], [2, 3], 0.5),
    ("bfloat16", [70], [32], 0.1),
    ("float64", [3, 2, 40], [3, 1, 20], 0.05),
    ("complex64", [4, 9], [2, 4], 0.4),
    ("float8_e4m3fn", [8], [1], 0.01),
    ("int32", [8, 4], [4, 4], 0.5),
]


# A probe to take: dtype, shape, ratio, the elements' bytes (over and over, as far as the shape goes), tolerance.
ProbeCase = tuple[str, Sequence[int], float, bytes, float]


def _probe_cases() -> Iterator[ProbeCase]:
    for dtype, size in ELEMENT_BYTES.items():
        # Every value of the types of one byte, and those of two bytes at which something changes.
        if is_probed(dtype) and size == 1:
            yield dtype, [256], 1.0, bytes(range(256)), 0.0
        elif dtype in {"float16", "bfloat16"}:
            edges = [0, 1, 2, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7F7F, 0x7F80, 0x7FC0]
            both = [bits | sign for bits in edges for sign in (0, 0x8000)]
            yield dtype, [len(both)], 1.0, struct.pack(f"<{len(both)}H", *both), 0.0
        for shape in [[], [1], [0], [3, 0, 5], [7], [4, 10]]:
            yield dtype, shape, 0.3, _elements(dtype), 0.0
    # Slices of even and uneven length, short and long, within and across rows.
    for dtype in ["float32", "float64", "bfloat16", "float16", "complex64", "complex128", "float8_e4m3fn"]:
        for shape, ratio in [
            ([100], 0.01),
            ([101], 0.01),
            ([199], 0.01),
            ([3, 100], 0.02),
            ([2, 3, 65], 0.05),
            ([5, 31], 0.2),
            ([1000], 0.01),
            ([2, 257], 1e-9),
            ([33], 0.5),
            ([4, 9], 1.0),
            ([2, 96], 1 / 3),
        ]:
            yield dtype, shape, ratio, _elements(dtype), 0.0
    # Either side of the lengths at which an implementation may begin to cut a leaf into blocks.
    for dtype, shape in [
        ("float32", [16385]),
        ("float32", [3, 11000]),
        ("float64", [5, 26, 131]),
        ("bfloat16", [66000]),
        ("complex64", [9, 2000]),
        ("float8_e4m3fn", [2, 66000]),
    ]:
        yield dtype, shape, 0.01, _elements(dtype), 0.0
    # Numbers whose sums are rounded, so that the order of additions shows: 100 numbers below 1 in each slice.
    words = struct.unpack("<900i", stream("irregular", 3600))
    yield "float32", [3, 300], 0.01, struct.pack("<900f", *(word / 2**31 for word in words)), 1e-4


def challenges() -> dict[str, Vectors]:
    """What challenges draw."""
    samplings: list[dict[str, float]] = [
        {"probability": 0.0},
        {"probability": 5e-324},
        {"probability": 0.1},
        {"probability": 0.5},
        {"probability": 1.0},
        {"every": 1},
        {"every": 3},
    ]
    sizes = [(0, 0), (1, 0), (0, 1), (10, 7), (2**32 + 1, 2**63 + 1), (2**64 - 1, 2**63)]
    found = []
    for update, sampling in enumerate(samplings):
        for parameters, optimizer in sizes:
            record = digest(f"update {update} {parameters} {optimizer}".encode())
            randomness = b"" if optimizer % 2 else digest(b"receipt")
            sampled, parameter, other = draw(
                record, randomness, sampling, update=update, parameters=parameters, optimizer=optimizer
            )
            found.append(
                {
                    "record": record.hex(),
                    "randomness": randomness.hex(),
                    "sampling": sampling,
                    "update": update,
                    "parameters": str(parameters),
                    "optimizer": str(optimizer),
                    "sampled": sampled,
                    "parameter": None if parameter is None else str(parameter),
                    "optimizer_coordinate": None if other is None else str(other),
                }
            )
    return {"draws": found}


def _sharded(shape: list[int], extents: list[int], element_bytes: int) -> dict[str, Any]:
    ranges = shard_ranges(shape, extents)
    count = math.prod(shape)
    elements = pattern(count * element_bytes)
    digests = [
        digest(shard_elements(elements, element_bytes, shape, own) if element_bytes else f"shard {index}".encode())
        for index, own in enumerate(ranges)
    ]
    places = sorted({0, 1, count // 3, count // 2, count - 1})
    vector: dict[str, Any] = {
        "shape": [str(size) for size in shape],
        "extents": [str(extent) for extent in extents],
        "shards": [
            {"ranges": [[str(start), str(stop)] for start, stop in own], "digest": own_digest.hex()}
            for own, own_digest in zip(ranges, digests, strict=True)
        ],
        "digest": sharded_digest(shape, extents, digests).hex(),
        "elements": [
            {"element": str(place), "shard": shard, "inside": str(inside)}
            for place in places
            for shard, inside in [locate(shape, extents, place)]
        ],
    }
    return vector | ({"pattern": len(elements), "element_bytes": element_bytes} if element_bytes else {})


def attested() -> dict[str, Vectors]:
    """Values of an attest program beside what they stand for: as stored, next to it, far from it, and no numbers."""
    found: Vectors = []
    for dtype in sorted(ELEMENT_BYTES):
        size = ELEMENT_BYTES[dtype]
        noise = stream(f"attested {dtype}", 4 * size)
        elements = [noise[start : start + size] for start in range(0, len(noise), size)]
        # All bits set or but one, zero, the smallest: NaN, infinities and largest numbers are among them.
        elements += [
            bytes(size),
            b"\xff" * size,
            (1).to_bytes(size, "little"),
            (1 << 8 * size - 2).to_bytes(size, "little"),
        ]
        elements += [_parts(dtype, exponent) for exponent in ("largest", "infinite")] if dtype in FORMATS else []
        if dtype == "bool":
            elements = [bytes([byte & 1 for byte in element]) for element in elements]
        for before, after in zip(elements, elements[1:] + elements[:1], strict=True):
            found += [_attested(dtype, (before, after), *case) for case in _cases(dtype, before, after)]
    return {"values": found}


def _cases(dtype: str, before: bytes, after: bytes) -> Iterator[tuple[tuple[float, float], tuple[float, float]]]:
    """Attested deltas and elements, each with a tolerance."""
    old, new = (_real(dtype, element) for element in (before, after))
    exact, tolerant = (0.0, 0.0), (1e-5, 1e-4)
    for factor, tolerance in (
        (1.0, exact),
        (1 + 2**-30, exact),
        (1 + 2**-9, exact),
        (1 + 2**-9, tolerant),
        (1.5, tolerant),
    ):
        yield ((new - old) * factor, new * factor), tolerance
    for special in (math.nan, math.inf, -math.inf, 1e300):
        yield (special, special), tolerant


def _real(dtype: str, element: bytes) -> float:
    if dtype in FORMATS:
        return reals(dtype, element)[0]
    return float(int.from_bytes(element, "little", signed=dtype.startswith("int")))


def _parts(dtype: str, which: str) -> bytes:
    """The largest number of a dtype and the pattern after it, twice for complex ones."""
    patterns = {
        "float16": 0x7BFF,
        "bfloat16": 0x7F7F,
        "float32": 0x7F7FFFFF,
        "float64": 0x7FEFFFFFFFFFFFFF,
        "float8_e3m4": 0x6F,
        "float8_e4m3": 0x77,
        "float8_e4m3fn": 0x7E,
        "float8_e5m2": 0x7B,
        "float8_e8m0fnu": 0xFE,
    }
    single = {"complex64": "float32", "complex128": "float64"}.get(dtype, dtype)
    pattern = patterns.get(single, 0x7F) + (which == "infinite")
    return pattern.to_bytes(ELEMENT_BYTES[single], "little") * (2 if is_complex(dtype) else 1)


def _attested(
    dtype: str, elements: tuple[bytes, bytes], attested: tuple[float, float], tolerance: tuple[float, float]
) -> dict[str, Any]:
    (before, after), (delta, value) = elements, attested
    return {
        "dtype": dtype,
        "before": before.hex(),
        "after": after.hex(),
        "delta": _bits(delta),
        "element": _bits(value),
        "tolerance": list(tolerance),
        "delta_agrees": delta_agrees(dtype, before, after, delta, tolerance),
        "element_agrees": element_agrees(dtype, after, value, tolerance),
    }


def _bits(number: float) -> str:
    """The binary64 bits, which JSON readers leave alone."""
    return struct.pack(">d", math.nan if math.isnan(number) else number).hex()


def _probe(dtype: str, shape: Sequence[int], ratio: float, period: bytes, tolerance: float) -> dict[str, Any]:
    size = ELEMENT_BYTES[dtype] * math.prod(shape)
    elements = (period * (size // len(period) + 1))[:size]
    dimension = real_dimension(dtype, shape)
    sign_stream = signs(ROOT_DIGEST, 0, 0, dimension) if dimension else b""
    values = probe(dtype, shape, ratio, elements, sign_stream)
    return {
        "dtype": dtype,
        "shape": list(shape),
        "ratio": ratio,
        "period": period.hex(),
        "digest": digest(elements).hex(),
        "sign_words": len(sign_stream) // 4,
        "kind": ("float64" if is_double(dtype) else "float32") if is_probed(dtype) and elements else None,
        "probe": probe_bytes(dtype, values).hex(),
        # How far another order of additions may lead away: nowhere, where every partial sum is exact.
        "tolerance": tolerance,
    }


def _sharded_probe(dtype: str, shape: list[int], extents: list[int], ratio: float) -> dict[str, Any]:
    size = ELEMENT_BYTES[dtype] * math.prod(shape)
    elements = (_elements(dtype) * (size // 97 + 1))[:size]
    dimension = real_dimension(dtype, shape)
    sign_stream = signs(ROOT_DIGEST, 0, 0, dimension) if dimension else b""
    shard_probes = sharded_probe(dtype, shape, extents, elements, ratio=ratio, sign_stream=sign_stream)
    return {
        "dtype": dtype,
        "shape": shape,
        "extents": extents,
        "ratio": ratio,
        "elements": elements.hex(),
        "probes": [probe_bytes(dtype, values).hex() for values in shard_probes],
        "digest": sharded_probe_digest(dtype, shape, extents, shard_probes).hex(),
    }


def _elements(dtype: str) -> bytes:
    """97 elements whose sums are exact in any order: small multiples of a power of two. Integers are any bytes."""
    noise = stream(f"elements {dtype}", 97 * ELEMENT_BYTES[dtype])
    if dtype == "bool":
        return bytes(byte & 1 for byte in noise)
    if not is_probed(dtype):
        return noise
    formats = {"float32": "f", "complex64": "f", "float64": "d", "complex128": "d", "float16": "e"}
    small = [(byte - 128) / 16 for byte in noise[: 97 * 2 if is_complex(dtype) else 97]]
    if dtype in formats:
        return struct.pack(f"<{len(small)}{formats[dtype]}", *small)
    if dtype == "bfloat16":
        return b"".join(struct.pack("<f", value)[2:] for value in small)
    # Neighbouring patterns around one, of either sign where the type has signs.
    middle = {"float8_e8m0fnu": 124, "float8_e3m4": 0x20, "float8_e5m2": 0x38, "float8_e5m2fnuz": 0x38}.get(dtype, 0x30)
    sign = 0 if dtype == "float8_e8m0fnu" else 0x80
    return bytes((middle + byte % 8) | (byte & sign) for byte in noise)


def _words(name: str, count: int) -> list[int]:
    return list(struct.unpack(f"<{count}I", stream(name, 4 * count)))


def _matrix(name: str, rows: int, width: int) -> list[list[int]]:
    return [_words(f"{name} {row}", width) for row in range(rows)]


if __name__ == "__main__":
    main()
