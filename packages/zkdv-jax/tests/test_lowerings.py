"""Both forms of the commit call against independent oracles, and against one another."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import blake3
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from zkdv import _native
from zkdv.errors import ZKDVError
from zkdv.jax import _lowering_cpu, _lowering_portable
from zkdv.jax._commitment_plan import CommitmentPlan, leaf_digests, probe_digests, probe_vectors, sign_words
from zkdv.jax._lowerings import Commit, commit_lowering

ROOT = bytes(range(32))
EMPTY_DIGEST = blake3.blake3(b"").digest()
FORMS = {"cpu": _lowering_cpu.commit, "portable": _lowering_portable.commit}
FLOAT8 = [
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz"),
]

pytestmark = pytest.mark.skipif(
    jax.default_backend() != "cpu", reason="the native form and the exact oracles are those of CPU"
)


@pytest.fixture(params=list(FORMS))
def commit(request: pytest.FixtureRequest) -> Commit:
    return FORMS[request.param]


def normal(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape)
    if dtype.startswith("complex"):
        values = values + 1j * random.standard_normal(shape)
    return np.asarray(values).astype(getattr(ml_dtypes, dtype, dtype))


def mixed_state() -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Every kind of leaf: scalars, empty ones, even and uneven slices, large and small, several of one shape."""
    parameters = [
        normal((300, 517), "float32"),
        normal((7,), "float32"),
        normal((), "float32"),
        normal((0, 4), "float32"),
        normal((300, 517), "float32", 1),
        normal((128, 400), "bfloat16"),
        normal((33, 65), "complex64"),
        normal((), "complex64"),
        np.arange(15, dtype=np.int32).reshape(3, 5),
    ]
    optimizer = [
        np.int32(3),
        np.array([True, False, True]),
        normal((1000, 300), "float32"),
        normal((5, 1001), "float16"),
        *(normal((3, 205), dtype) for dtype in FLOAT8),
        np.array([1.0, 0.5, 2.0], ml_dtypes.float8_e8m0fnu),
        normal((70, 250), "complex128"),
        normal((50, 333), "float64"),
        normal((), "float64"),
        normal((), "complex128"),
        np.arange(1 << 12, dtype=np.int64),
    ]
    return parameters, optimizer


def plan_of(parameters: Sequence[np.ndarray], optimizer: Sequence[np.ndarray], ratio: float = 0.01) -> CommitmentPlan:
    return CommitmentPlan.build(
        [(f"p{index}", leaf) for index, leaf in enumerate(parameters)],
        [(f"o{index}", leaf) for index, leaf in enumerate(optimizer)],
        ratio,
    )


def run(
    commit: Commit, plan: CommitmentPlan, leaves: Sequence[np.ndarray], due: int = 3
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return run_each(commit, plan, leaves, [due])[0]


def run_each(
    commit: Commit, plan: CommitmentPlan, leaves: Sequence[np.ndarray], dues: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Compile once, run for each value of `due`."""
    program = jax.jit(lambda due, leaves, signs: commit(plan, due, leaves, signs))
    operands = [jnp.asarray(leaf) for leaf in leaves], jnp.asarray(sign_words(plan, ROOT))
    results = []
    for due in dues:
        digests, probes32, probes64 = map(np.asarray, program(jnp.array([due], jnp.uint32), *operands))
        results.append((digests, probes32, probes64))
    return results


def exact_probe(plan: CommitmentPlan, index: int, array: np.ndarray) -> np.ndarray | None:
    """The probe as commitments.md defines it, summed in float64, with the scale of the errors that float32 may make."""
    leaf = plan.leaves[index]
    if leaf.dtype in ("bool", "int32", "int64") or array.size == 0:
        return None
    wide = array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
    reals = np.stack([wide.real, wide.imag], -1) if np.iscomplexobj(array) else wide
    if array.ndim == 0:
        return reals.reshape(-1)
    dimension = array.shape[-1] * (2 if np.iscomplexobj(array) else 1)
    rows = reals.reshape(-1, dimension)
    kept = max(1, int(np.ceil(plan.probe_ratio * dimension)))
    seed = ROOT + bytes([leaf.tree == "optimizer"]) + leaf.index.to_bytes(8, "little")
    stream = blake3.blake3(seed, derive_key_context="zkdv 1 probe signs").digest(-(-dimension // 8))
    negative = np.unpackbits(np.frombuffer(stream, np.uint8), bitorder="little")[:dimension]
    signed = rows * np.where(negative, -1.0, 1.0)
    bounds = [j * dimension // kept for j in range(kept + 1)]
    sums = [signed[:, start:stop].sum(1) for start, stop in itertools.pairwise(bounds)]
    return np.stack(sums, axis=1).reshape(-1)


def test_digests_and_probes_are_those_of_independent_oracles(commit: Commit) -> None:
    with jax.enable_x64(new_val=True):
        parameters, optimizer = mixed_state()
        leaves = [np.asarray(leaf) for leaf in (*parameters, *optimizer)]
        plan = plan_of(parameters, optimizer)
        digests, probes32, probes64 = run(commit, plan, leaves)
    assert leaf_digests(plan, digests) == [blake3.blake3(leaf.tobytes()).digest() for leaf in leaves]
    vectors = probe_vectors(plan, probes32, probes64)
    assert probe_digests(plan, digests) == [
        EMPTY_DIGEST if vector is None else blake3.blake3(vector.tobytes()).digest() for vector in vectors
    ]
    for index, (leaf, vector) in enumerate(zip(leaves, vectors, strict=True)):
        expected = exact_probe(plan, index, leaf)
        if expected is None:
            assert vector is None
        else:
            assert vector is not None
            tolerance = 1e-12 if vector.dtype == np.float64 else 1e-4
            np.testing.assert_allclose(vector, expected, rtol=0, atol=tolerance, err_msg=plan.leaves[index].name)


def test_digests_and_probes_agree_with_those_of_a_leaf_on_the_host(commit: Commit) -> None:
    with jax.enable_x64(new_val=True):
        parameters, optimizer = mixed_state()
        leaves = [np.asarray(leaf) for leaf in (*parameters, *optimizer)]
        plan = plan_of(parameters, optimizer, ratio=0.3)
        digests, probes32, probes64 = run(commit, plan, leaves)
    signs = sign_words(plan, ROOT)
    found = zip(plan.leaves, leaves, leaf_digests(plan, digests), probe_vectors(plan, probes32, probes64), strict=True)
    for leaf, array, digest, vector in found:
        words = signs[:0]
        if leaf.probe is not None:
            words = signs[leaf.probe.sign_offset : leaf.probe.sign_offset + leaf.probe.sign_words]
        host_digest, host_probe = _native.commit_leaf(array, leaf.dtype, leaf.shape, 0.3, words)
        assert digest == host_digest
        if vector is None or host_probe is None:
            assert (vector, host_probe) == (None, None)
        elif commit is _lowering_cpu.commit:
            assert vector.tobytes() == host_probe.tobytes()
        else:
            np.testing.assert_allclose(vector, host_probe, rtol=0, atol=1e-4)


@pytest.mark.parametrize("x64", [False, True])
def test_both_forms_give_equal_digests_and_results_of_equal_type(x64: bool) -> None:
    with jax.enable_x64(new_val=x64):
        parameters, optimizer = mixed_state()
        leaves = [np.asarray(leaf) for leaf in (*parameters, *optimizer)]
        if not x64:
            leaves = [leaf for leaf in leaves if str(leaf.dtype) not in ("int64", "float64", "complex128")]
        plan = plan_of(leaves[:9], leaves[9:])
        native = run(_lowering_cpu.commit, plan, leaves)
        portable = run(_lowering_portable.commit, plan, leaves)
    count = len(leaves)
    assert np.array_equal(native[0][:count], portable[0][:count])
    for one, other in zip(native, portable, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
    for one, other in zip(native[1:], portable[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


def test_trees_that_are_not_due_are_zeros_and_the_others_do_not_change(commit: Commit) -> None:
    parameters = [normal((300, 517), "float32"), np.arange(5, dtype=np.int32)]
    optimizer = [normal((9,), "bfloat16"), normal((200, 300), "float32"), normal((), "float32")]
    plan = plan_of(parameters, optimizer)
    results = run_each(commit, plan, [*parameters, *optimizer], [0, 1, 2, 3])
    whole = results[3]
    of_parameters = [leaf.tree == "parameters" for leaf in plan.leaves]
    rows = np.array([*of_parameters, *of_parameters])
    values = sum(leaf.probe.size for leaf in plan.leaves if leaf.probe and leaf.tree == "parameters")
    for due, (digests, probes32, _) in enumerate(results):
        is_due = np.where(rows, due & 1, due >> 1).astype(bool)
        assert np.array_equal(digests, np.where(is_due[:, None], whole[0], 0))
        mask = np.where(np.arange(probes32.size) < values, due & 1, due >> 1)
        assert np.array_equal(probes32, np.where(mask, whole[1], 0))
    assert whole[0].any(axis=1).all()


def test_infinities_and_nans_show_in_their_own_slice_only(commit: Commit) -> None:
    leaf = normal((4, 517), "float32")
    plan = plan_of([leaf], [])
    probe = plan.leaves[0].probe
    assert probe is not None
    bounds = probe.slice_bounds()
    leaf[1, bounds[2]] = np.inf
    leaf[3, bounds[6] - 1] = np.nan
    _, probes32, _ = run(commit, plan, [leaf])
    found = probes32.reshape(probe.rows, probe.kept)
    assert np.isinf(found[1, 2])
    assert np.isnan(found[3, 5])
    assert np.isfinite(found).sum() == found.size - 2


def test_the_digest_follows_the_leaf_and_not_its_place(commit: Commit) -> None:
    first, second = normal((40, 50), "float32", 1), normal((40, 50), "float32", 2)
    plan = plan_of([first], [second])
    digests, probes32, _ = run(commit, plan, [first, second])
    swapped, swapped_probes, _ = run(commit, plan, [second, first])
    assert np.array_equal(swapped[:2], digests[1::-1])
    # Signs depend on the place, so that probes do too.
    assert not np.array_equal(swapped_probes[40:], probes32[:40])


def test_an_empty_plan_gives_empty_results(commit: Commit) -> None:
    digests, probes32, probes64 = run(commit, plan_of([], []), [])
    assert (digests.shape, probes32.shape, probes64.shape) == ((0, 8), (0,), (0,))


def test_arrays_that_are_not_the_planned_ones_are_refused_while_tracing(commit: Commit) -> None:
    plan = plan_of([normal((3,), "float32")], [])
    with pytest.raises(ValueError, match=r"parameters leaf p0 is planned as float32\[3\] and came as float32\[4\]"):
        run(commit, plan, [normal((4,), "float32")])


def train_step(commit: Callable[..., Any], plan: CommitmentPlan) -> Callable[..., Any]:
    def step(state: Any, gradient: jax.Array, due: jax.Array, signs: jax.Array) -> Any:
        parameters, momentum = state
        momentum = jax.tree.map(lambda m: 0.9 * m + gradient, momentum)
        parameters = jax.tree.map(lambda p, m: p - 0.1 * m, parameters, momentum)
        evidence = commit(plan, due, [*jax.tree.leaves(parameters), *jax.tree.leaves(momentum)], signs)
        return (parameters, momentum), evidence

    return jax.jit(step, donate_argnums=0)


def test_donated_buffers_are_reused_in_a_step_that_commits(commit: Commit) -> None:
    parameters = [normal((256, 300), "float32", seed) for seed in range(3)]
    momentum = [np.zeros_like(leaf) for leaf in parameters]
    plan = plan_of(parameters, momentum)
    signs = jnp.asarray(sign_words(plan, ROOT))
    step = train_step(commit, plan)
    # Copies that XLA owns: a view of numpy's memory is never donated.
    state = jax.tree.map(lambda leaf: jnp.array(leaf, copy=True) + 0, (parameters, momentum))
    for _ in range(3):
        before = state
        pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(before)}
        state, (digests, _, _) = step(before, jnp.float32(0.5), jnp.array([3], jnp.uint32), signs)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before))
        assert {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)} == pointers
        expected = [
            blake3.blake3(np.asarray(jnp.array(leaf, copy=True)).tobytes()).digest() for leaf in jax.tree.leaves(state)
        ]
        assert leaf_digests(plan, np.asarray(digests)) == expected


def test_committing_does_not_change_what_a_step_computes(commit: Commit) -> None:
    parameters = [normal((64, 300), "float32", seed) for seed in range(2)]
    momentum = [np.zeros_like(leaf) for leaf in parameters]
    plan = plan_of(parameters, momentum)
    signs = jnp.asarray(sign_words(plan, ROOT))
    committing = train_step(commit, plan)
    plain = train_step(lambda *_: (), plan)
    states = [jax.tree.map(jnp.array, (parameters, momentum)) for _ in range(2)]
    for index in range(5):
        operands = (jnp.float32(index), jnp.array([3], jnp.uint32), signs)
        states = [committing(states[0], *operands)[0], plain(states[1], *operands)[0]]
    for one, other in zip(*map(jax.tree.leaves, states), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_the_form_follows_the_platform() -> None:
    assert commit_lowering("cpu", environment={}) is _lowering_cpu.commit
    assert commit_lowering("cuda", environment={}) is _lowering_portable.commit
    assert commit_lowering("a-new-accelerator", environment={}) is _lowering_portable.commit


def test_the_environment_can_name_the_form() -> None:
    assert commit_lowering("cpu", environment={"ZKDV_LOWERING": "portable"}) is _lowering_portable.commit
    assert commit_lowering("cpu", environment={"ZKDV_LOWERING": ""}) is _lowering_cpu.commit


def test_an_unknown_form_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ZKDVError, match=r"ZKDV_LOWERING='fast' names no form .* there are: cpu, portable\."):
        commit_lowering("cpu", environment={"ZKDV_LOWERING": "fast"})


HUGE = 2**31 + 1


@pytest.mark.parametrize("dtype", ["bool", "float8_e5m2", "float16", "float32", "complex64"])
def test_leaves_of_every_width_past_two_to_the_31_elements_lower(dtype: str) -> None:
    """Without their gigabytes: the native call takes shapes of any size."""
    leaf = jax.ShapeDtypeStruct((HUGE,), getattr(ml_dtypes, dtype, dtype))
    plan = CommitmentPlan.build([("huge", leaf)], [], 0.01)
    signs = jax.ShapeDtypeStruct((plan.sign_words,), jnp.uint32)
    due = jax.ShapeDtypeStruct((1,), jnp.uint32)
    program = jax.jit(lambda due, leaves, signs: FORMS["cpu"](plan, due, leaves, signs))
    [call] = [line for line in program.lower(due, [leaf], signs).as_text().splitlines() if "custom_call" in line]
    assert f"tensor<{HUGE}x" in call


@pytest.mark.slow
def test_one_bool_leaf_of_more_than_two_to_the_31_elements() -> None:
    bits = np.zeros(HUGE, np.bool_)
    bits[-1] = True
    plan = plan_of([bits], [])
    digests, _, _ = run(FORMS["cpu"], plan, [bits])
    assert leaf_digests(plan, digests) == [blake3.blake3(bits.view(np.uint8)).digest()]
