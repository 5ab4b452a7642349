"""The XLA custom call `zkdv_commit` under the real jax on CPU."""

import itertools
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from typing import Any

import blake3
import numpy as np
import pytest

from zkdv import _native

jax = pytest.importorskip("jax", reason="the custom call runs inside XLA, which comes with jax")
jnp = jax.numpy

ROOT = bytes(range(32))
RATIO = 0.05
INTEGERS = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
FLOATS = ["float16", "bfloat16", "float32", "float64", "complex64", "complex128"]
SMALL_FLOATS = [
    "float8_e3m4",
    "float8_e4m3",
    "float8_e4m3fn",
    "float8_e4m3b11fnuz",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]
PARAMETERS, OPTIMIZER = 1, 2
BOTH = PARAMETERS | OPTIMIZER


@pytest.fixture(scope="module", autouse=True)
def _target() -> None:
    jax.ffi.register_ffi_target("zkdv_commit", _native.xla_ffi_handler(), platform="cpu")


@pytest.fixture(autouse=True)
def _wide_types() -> Any:
    with jax.enable_x64(True):
        yield


def plain_digest(array: Any) -> bytes:
    return blake3.blake3(np.asarray(array).tobytes()).digest()


def dimension_of(shape: Sequence[int], dtype: str) -> int:
    return shape[-1] * (2 if dtype.startswith("complex") else 1)


def signs_of(shape: Sequence[int], dtype: str, tree: int, leaf: int) -> np.ndarray:
    if _native.probe_sign_words(shape, dtype) == 0:
        return np.zeros(0, np.uint32)
    return _native.probe_signs(ROOT, tree, leaf, dimension_of(shape, dtype))


def sign_values(words: np.ndarray, count: int) -> np.ndarray:
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:count]
    return 1.0 - 2.0 * bits


def exact_probe(array: np.ndarray, signs: np.ndarray, ratio: float) -> np.ndarray:
    """The probe as the protocol's page defines it, in binary64 and column by column."""
    is_scalar = array.ndim == 0
    if array.dtype.kind == "c":
        array = np.atleast_1d(array).view(array.real.dtype)
    values = array.astype(np.float64)
    if is_scalar:
        return values.reshape(-1)
    width = values.shape[-1]
    kept = max(1, int(np.ceil(ratio * width)))
    signed = values.reshape(-1, width) * sign_values(signs, width)
    edges = [j * width // kept for j in range(kept + 1)]
    return np.stack([signed[:, a:b].sum(-1) for a, b in itertools.pairwise(edges)], -1).reshape(-1)


class Call:
    """One layout of leaves, ready to be committed inside a jitted function."""

    def __init__(self, parameters: Sequence[Any], optimizer: Sequence[Any], ratio: float = RATIO) -> None:
        self.leaves = [*parameters, *optimizer]
        self.parameters = len(parameters)
        self.ratio = ratio
        self.names = [str(leaf.dtype) for leaf in self.leaves]
        self.places = [(0, i) for i in range(len(parameters))] + [(1, i) for i in range(len(optimizer))]
        self.leaf_signs = [
            signs_of(leaf.shape, name, *place)
            for leaf, name, place in zip(self.leaves, self.names, self.places, strict=True)
        ]
        self.signs = np.concatenate([np.zeros(0, np.uint32), *self.leaf_signs])
        self.lengths = [
            _native.probe_length(leaf.shape, name, ratio) for leaf, name in zip(self.leaves, self.names, strict=True)
        ]
        self.is_wide = [name in ("float64", "complex128") for name in self.names]
        self.length64 = sum(n for n, wide in zip(self.lengths, self.is_wide, strict=True) if wide)
        self.length32 = sum(self.lengths) - self.length64

    def __call__(self, due: Any, leaves: Sequence[Any], **changes: Any) -> Any:
        shapes = changes.get(
            "shapes", [((2 * len(leaves), 8), "uint32"), ((self.length32,), "float32"), ((self.length64,), "float64")]
        )
        attributes = {"parameters": np.int64(self.parameters), "probe_ratio": np.float64(self.ratio)}
        attributes = changes.get("attributes", attributes)
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]
        call = jax.ffi.ffi_call("zkdv_commit", results)
        return call(due, *leaves, changes.get("signs", self.signs), **attributes)

    def run(self, due: int = BOTH, **changes: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        results = jax.jit(lambda flags, leaves: self(flags, leaves, **changes))(np.array([due], np.uint32), self.leaves)
        digests, probes32, probes64 = (np.asarray(result) for result in results)
        return digests.view(np.uint8), probes32, probes64

    def split(self, probes32: np.ndarray, probes64: np.ndarray) -> list[np.ndarray]:
        at = {False: 0, True: 0}
        probes = []
        for length, wide in zip(self.lengths, self.is_wide, strict=True):
            probes.append((probes64 if wide else probes32)[at[wide] : at[wide] + length])
            at[wide] += length
        return probes

    def check(self, due: int = BOTH) -> None:
        """Runs the call and compares everything with independent implementations and with the host's."""
        digests, probes32, probes64 = self.run(due)
        count = len(self.leaves)
        assert digests.shape == (2 * count, 32)
        for index, probe in enumerate(self.split(probes32, probes64)):
            is_due = bool(due & (PARAMETERS if index < self.parameters else OPTIMIZER))
            if not is_due:
                assert not digests[index].any()
                assert not digests[count + index].any()
                assert not probe.any()
                continue
            array, name, signs = np.asarray(self.leaves[index]), self.names[index], self.leaf_signs[index]
            assert digests[index].tobytes() == plain_digest(array)
            assert digests[count + index].tobytes() == plain_digest(probe)
            host_digest, host_probe = _native.commit_leaf(array, name, array.shape, self.ratio, signs)
            assert digests[index].tobytes() == host_digest
            if host_probe is None:
                assert probe.size == 0
                assert name in INTEGERS or array.size == 0
                continue
            assert host_probe.dtype == probe.dtype
            assert host_probe.tobytes() == probe.tobytes()
            exact = exact_probe(array, signs, self.ratio)
            scale = np.abs(array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)).max()
            accuracy = 1e-13 if self.is_wide[index] else 1e-5
            np.testing.assert_allclose(probe, exact, rtol=accuracy, atol=accuracy * scale * array.size)


def random_leaf(name: str, shape: tuple[int, ...], seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    dtype = jnp.dtype(name)
    if name == "bool":
        return jnp.asarray(generator.integers(0, 2, shape).astype(bool))
    if name in INTEGERS:
        information = np.iinfo(dtype)
        return jnp.asarray(generator.integers(information.min, information.max, shape, dtype=dtype, endpoint=True))
    if name.startswith("complex"):
        return jnp.asarray((generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(dtype))
    if name == "float8_e8m0fnu":
        return jnp.asarray((2.0 ** generator.integers(-5, 5, shape)).astype(dtype))
    return jnp.asarray(generator.normal(size=shape).astype(dtype))


@pytest.mark.parametrize("name", [*INTEGERS, *FLOATS, *SMALL_FLOATS])
@pytest.mark.parametrize("shape", [(), (1,), (3, 70), (5, 1), (2, 3, 129), (0, 4), (4, 0), (300, 500)])
def test_digests_and_probes_of_every_dtype_agree_with_independent_implementations(
    name: str, shape: tuple[int, ...]
) -> None:
    Call([random_leaf(name, shape)], [random_leaf(name, shape, seed=1)]).check()


def test_every_dtype_of_the_transcript_is_covered_by_these_tests() -> None:
    known = set(_native.xla_ffi_element_types())
    packed = {"int1", "int2", "int4", "uint1", "uint2", "uint4", "float4_e2m1fn", "token"}
    assert known - packed == {*INTEGERS, *FLOATS, *SMALL_FLOATS}


@pytest.mark.parametrize("due", [0, PARAMETERS, OPTIMIZER, BOTH])
def test_leaves_that_are_not_due_give_zeros(due: int) -> None:
    parameters = [random_leaf("float32", (64, 100)), random_leaf("float64", (9,)), random_leaf("int32", ())]
    optimizer = [
        random_leaf("float32", (64, 100), 1),
        random_leaf("complex64", (5, 7), 2),
        random_leaf("float64", (), 3),
    ]
    Call(parameters, optimizer).check(due)


def test_leaves_that_are_not_due_are_not_read() -> None:
    leaf = jnp.ones((64 << 20,), jnp.uint8)
    call = Call([leaf], [])
    compiled = jax.jit(call).lower(np.zeros(1, np.uint32), [leaf]).compile()

    def processor_seconds(due: int) -> float:
        flags = np.array([due], np.uint32)
        jax.block_until_ready(compiled(flags, [leaf]))
        start = os.times()
        for _ in range(3):
            jax.block_until_ready(compiled(flags, [leaf]))
        end = os.times()
        return end.user + end.system - start.user - start.system

    # Hashing 192 MiB takes tens of milliseconds of processor time at least; skipping it takes none of them.
    assert processor_seconds(0) * 3 < processor_seconds(PARAMETERS)


def test_no_leaves_at_all() -> None:
    call = Call([], [])
    digests, probes32, probes64 = call.run()
    assert digests.size == probes32.size == probes64.size == 0


def test_five_hundred_leaves_of_all_kinds_in_one_call() -> None:
    names = [*INTEGERS, *FLOATS, *SMALL_FLOATS]
    shapes = [(), (3,), (4, 5), (17, 33), (0,), (2, 0, 3), (64, 64), (1, 2000)]
    leaves = [random_leaf(names[i % len(names)], shapes[i % len(shapes)], i) for i in range(500)]
    Call(leaves[:200], leaves[200:]).check()


def test_large_leaves_are_committed_block_by_block() -> None:
    # Rows that cross the blocks of the hash at every offset, and one row longer than many blocks.
    Call(
        [random_leaf("float32", (1023, 1025)), random_leaf("bfloat16", (3, 400_001))],
        [random_leaf("float64", (300_007,))],
    ).check()


@pytest.mark.parametrize("ratio", [1e-9, 0.01, 0.3333333333333333, 0.5, 1.0])
def test_probe_ratios(ratio: float) -> None:
    leaves = [random_leaf("float32", (3, 100)), random_leaf("complex64", (7,)), random_leaf("float64", (1, 3))]
    Call(leaves, [random_leaf("float32", ())], ratio).check()


def test_special_values_are_bytes_like_any_other() -> None:
    bits = np.array([0x80000000, 0x7FC00001, 0xFF800000, 0x00000001, 0x7F800000, 0xFFC12345], np.uint32)
    leaf = jax.lax.bitcast_convert_type(jnp.asarray(bits), jnp.float32)
    digests, _, _ = Call([leaf], []).run()
    assert digests[0].tobytes() == blake3.blake3(bits.tobytes()).digest()


def test_subnormal_numbers_count_although_the_threads_of_xla_flush_them() -> None:
    bits = np.arange(1, 40_001, dtype=np.uint32).reshape(8, 5000)
    for leaf in (jnp.asarray(bits[:, :10].view(np.float32)), jnp.asarray(bits.view(np.float32))):
        call = Call([leaf], [], ratio=0.001)
        _, probes, _ = call.run()
        exact = exact_probe(np.asarray(leaf), call.leaf_signs[0], 0.001)
        # Sums of subnormals are exact in binary32 as long as they stay below 2^-103.
        assert np.array_equal(probes.astype(np.float64), exact)
        assert probes.any()


def test_fused_in_a_step_with_donation_the_parameters_stay_in_place() -> None:
    parameters = {"w": jnp.ones((256, 512), jnp.float32), "b": jnp.zeros((512,), jnp.float32)}
    call = Call(jax.tree.leaves(parameters), [])

    def step(due: Any, parameters: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.tanh(batch @ p["w"] + p["b"]).mean())(parameters)
        after = jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradient)
        return after, call(due, jax.tree.leaves(after))

    compiled = jax.jit(step, donate_argnums=1)
    due = np.array([PARAMETERS], np.uint32)
    batch = jnp.asarray(np.random.default_rng(0).normal(size=(32, 256)).astype(np.float32))
    parameters, _ = compiled(due, parameters, batch)
    for _ in range(3):
        before = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(parameters)}
        parameters, (digests, probes, _) = compiled(due, parameters, batch)
        leaves = jax.tree.leaves(parameters)
        assert {leaf.unsafe_buffer_pointer() for leaf in leaves} == before
        rows = np.asarray(digests).view(np.uint8)
        # A copy, since a view that is held would turn donation off.
        assert [rows[i].tobytes() for i in range(2)] == [plain_digest(jnp.copy(leaf)) for leaf in leaves]
        assert probes.shape == (call.length32,)


def test_the_call_fused_in_a_step_changes_no_result_of_it() -> None:
    weights = random_leaf("float32", (128, 128))
    call = Call([weights], [])

    def step(weights: Any) -> Any:
        return weights - 0.1 * jax.grad(lambda w: jnp.sin(w @ w).sum())(weights)

    def step_and_commit(due: Any, weights: Any) -> Any:
        after = step(weights)
        return after, call(due, [after])

    plain = jax.jit(step)(weights)
    committed, _ = jax.jit(step_and_commit)(np.array([PARAMETERS], np.uint32), weights)
    assert np.asarray(plain).tobytes() == np.asarray(committed).tobytes()


def test_inside_shard_map_each_shard_is_committed_in_place() -> None:
    script = """
        import functools, sys
        import jax, numpy as np, blake3
        from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
        from zkdv import _native
        jax.config.update("jax_num_cpu_devices", 4)
        jax.ffi.register_ffi_target("zkdv_commit", _native.xla_ffi_handler(), platform="cpu")
        mesh = Mesh(np.array(jax.devices()), ("d",))
        whole = np.random.default_rng(0).normal(size=(64, 300)).astype(np.float32)
        array = jax.device_put(whole, NamedSharding(mesh, P("d")))
        signs = _native.probe_signs(bytes(32), 0, 0, 300)
        kept = _native.probe_length((16, 300), "float32", 0.1)

        @jax.jit
        @functools.partial(
            jax.shard_map, mesh=mesh, in_specs=(P(), P("d"), P()), out_specs=(P("d"), P("d"), P("d")), check_vma=False
        )
        def commit(due, shard, signs):
            call = jax.ffi.ffi_call("zkdv_commit", [
                jax.ShapeDtypeStruct((2, 8), "uint32"),
                jax.ShapeDtypeStruct((kept,), "float32"),
                jax.ShapeDtypeStruct((0,), "float64"),
            ])
            return tuple(call(due, shard, signs, parameters=np.int64(1), probe_ratio=np.float64(0.1)))

        for _ in range(20):
            digests, probes, _ = commit(np.array([1], np.uint32), array, signs)
        assert "all-gather" not in commit.lower(np.array([1], np.uint32), array, signs).compile().as_text()
        rows = np.asarray(digests).view(np.uint8).reshape(4, 2, 32)
        for shard in range(4):
            part = whole[16 * shard : 16 * shard + 16]
            digest, probe = _native.commit_leaf(part, "float32", part.shape, 0.1, signs)
            assert rows[shard, 0].tobytes() == digest == blake3.blake3(part.tobytes()).digest()
            assert np.asarray(probes).reshape(4, kept)[shard].tobytes() == probe.tobytes()
        print("agreed")
    """
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert done.stdout.strip() == "agreed", done.stderr


def test_calls_from_many_threads_at_once_neither_block_nor_mix() -> None:
    calls = [Call([random_leaf("float32", (200 + i, 1000), i)], []) for i in range(6)]
    expected = [plain_digest(call.leaves[0]) for call in calls]
    host = np.random.default_rng(0).bytes(3 << 20)
    host_expected = blake3.blake3(host).digest()
    wrong: list[int] = []

    def work(index: int) -> None:
        with jax.enable_x64(True):
            compiled = jax.jit(calls[index])
            for _ in range(10):
                digests, _, _ = compiled(np.array([PARAMETERS], np.uint32), calls[index].leaves)
                if np.asarray(digests).view(np.uint8)[0].tobytes() != expected[index]:
                    wrong.append(index)
                if _native.leaf_digest(host) != host_expected:
                    wrong.append(-1)

    threads = [threading.Thread(target=work, args=(index,), daemon=True) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


LEAF = np.arange(600, dtype=np.float32).reshape(3, 200)


def shapes(digests: Any = ((2, 8), "uint32"), narrow: Any = ((30,), "float32"), wide: Any = ((0,), "float64")) -> Any:
    return [digests, narrow, wide]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"due": np.array([4], np.uint32)}, "due is 4, but only bits 0 and 1 have a meaning"),
        ({"due": np.array([1, 1], np.uint32)}, "due must have shape [1], not [2]"),
        ({"due": np.uint32(1)}, "due must be a vector of uint32, not uint32 of shape []"),
        ({"due": np.array([1], np.int32)}, "due must be a vector of uint32, not int32 of shape [1]"),
        ({"signs": np.zeros(6, np.uint32)}, "the leaves call for 7 sign words, 6 were given"),
        ({"signs": np.zeros(8, np.uint32)}, "the leaves call for 7 sign words, 8 were given"),
        ({"signs": np.zeros(7, np.int32)}, "signs must be a vector of uint32, not int32 of shape [7]"),
        ({"signs": np.zeros((7, 1), np.uint32)}, "signs must be a vector of uint32, not uint32 of shape [7, 1]"),
        (
            {"attributes": {"parameters": np.int64(1)}},
            "attribute probe_ratio is missing; it takes parameters, probe_ratio",
        ),
        ({"attributes": {"probe_ratio": np.float64(0.05)}}, "attribute parameters is missing"),
        (
            {"attributes": {"parameters": np.int32(1), "probe_ratio": np.float64(0.05)}},
            "attribute parameters must be int64, not int32; pass numpy.int64",
        ),
        (
            {"attributes": {"parameters": np.int64(1), "probe_ratio": np.float32(0.05)}},
            "attribute probe_ratio must be float64, not float32; pass numpy.float64",
        ),
        (
            {"attributes": {"parameters": np.int64(1), "probe_ratio": "0.05"}},
            "attribute probe_ratio must be a scalar",
        ),
        (
            {"attributes": {"parameters": np.int64(1), "probe_ratio": np.float64(0.05), "seed": np.int64(1)}},
            'unknown attribute "seed"; it takes parameters, probe_ratio',
        ),
        (
            {"attributes": {"parameters": np.int64(2), "probe_ratio": np.float64(0.05)}},
            "attribute parameters is 2, but there are 1 leaves",
        ),
        (
            {"attributes": {"parameters": np.int64(-1), "probe_ratio": np.float64(0.05)}},
            "attribute parameters is -1, but there are 1 leaves",
        ),
        (
            {"attributes": {"parameters": np.int64(1), "probe_ratio": np.float64(0.0)}},
            "the probe ratio must be above 0 and at most 1",
        ),
        (
            {"attributes": {"parameters": np.int64(1), "probe_ratio": np.float64("nan")}},
            "the probe ratio must be above 0 and at most 1",
        ),
        ({"shapes": shapes()[:2]}, "gives digests, probes32 and probes64; 2 results were asked for"),
        ({"shapes": [*shapes(), ((1,), "uint32")]}, "gives digests, probes32 and probes64; 4 results were asked for"),
        ({"shapes": shapes(((1, 8), "uint32"))}, "result digests must have shape [2, 8] for 1 leaves, not [1, 8]"),
        ({"shapes": shapes(((2, 4), "uint64"))}, "result digests must have shape [2, 8] for 1 leaves, not [2, 4]"),
        ({"shapes": shapes(((2, 8), "int32"))}, "result digests must be uint32, not int32"),
        (
            {"shapes": shapes(narrow=((29,), "float32"))},
            "the joined binary32 probes takes 30 elements, there is room for 29",
        ),
        ({"shapes": shapes(narrow=((30,), "float64"))}, "result probes32 must be float32, not float64"),
        (
            {"shapes": shapes(narrow=((3, 10), "float32"))},
            "result probes32 must be a vector, not an array of shape [3, 10]",
        ),
        (
            {"shapes": shapes(wide=((1,), "float64"))},
            "the joined binary64 probes takes 0 elements, there is room for 1",
        ),
        (
            {"leaves": [LEAF.astype("int8").astype(jnp.int4)]},
            "operand 1 is int4, a type that packs several elements into a byte",
        ),
        (
            {"leaves": [LEAF.astype(jnp.float4_e2m1fn)]},
            "operand 1 is float4_e2m1fn, a type that packs several elements into a byte",
        ),
    ],
)
def test_a_wrong_call_is_an_error_that_names_what_was_wrong(change: dict[str, Any], message: str) -> None:
    call = Call([LEAF], [])
    due = change.pop("due", np.array([1], np.uint32))
    leaves = change.pop("leaves", [LEAF])
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError)) as caught:
        jax.block_until_ready(jax.jit(lambda due, leaves: call(due, leaves, **change))(due, leaves))
    assert f"zkdv_commit: {message}" in str(caught.value)


def test_a_call_without_operands_is_an_error() -> None:
    results = [
        jax.ShapeDtypeStruct((2, 8), "uint32"),
        jax.ShapeDtypeStruct((0,), "float32"),
        jax.ShapeDtypeStruct((0,), "float64"),
    ]
    call = jax.ffi.ffi_call("zkdv_commit", results)
    with pytest.raises(
        (ValueError, jax.errors.JaxRuntimeError), match="takes due, the leaves and signs; got 1 operands"
    ):
        jax.block_until_ready(
            jax.jit(lambda due: call(due, parameters=np.int64(0), probe_ratio=np.float64(0.1)))(np.zeros(1, np.uint32))
        )


def test_results_that_would_overwrite_an_operand_are_refused() -> None:
    leaf = jnp.zeros((30,), jnp.float32)
    results = [
        jax.ShapeDtypeStruct((2, 8), "uint32"),
        jax.ShapeDtypeStruct((30,), "float32"),
        jax.ShapeDtypeStruct((0,), "float64"),
    ]
    call = jax.ffi.ffi_call("zkdv_commit", results, input_output_aliases={1: 1})
    signs = _native.probe_signs(ROOT, 0, 0, 30)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="result 1 shares memory with operand 1"):
        jax.block_until_ready(
            jax.jit(lambda due, leaf: call(due, leaf, signs, parameters=np.int64(1), probe_ratio=np.float64(1.0)))(
                np.ones(1, np.uint32), leaf
            )
        )
