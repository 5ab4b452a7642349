"""No input makes the native module panic, abort, hang or hold the GIL while it computes."""

import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from zkdv import _native

KINDS = ["parameters", "optimizer", "batch-rows", "attached"]
FUNCTIONS = [
    name
    for name, value in sorted(vars(_native).items())
    if callable(value) and not isinstance(value, type) and not name.startswith(("_", "xla_"))
]
METHODS = ["open_row", "verify_row", "open_window", "verify_window", "open_absence", "verify_absence"]

integers = st.one_of(st.integers(), st.sampled_from([0, 1, -1, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 2**64, 2**127]))
digests = st.one_of(st.just(bytes(32)), st.binary(max_size=40))
arrays = st.sampled_from(
    [
        np.zeros((2, 3), np.uint32),
        np.zeros((0, 3), np.uint32),
        np.zeros((3, 0), np.uint32),
        np.zeros(4, np.uint32),
        np.zeros(3, np.float32),
        np.zeros((2, 2), np.float64).T,
        np.float32(1),
        np.zeros(3, object),
        np.zeros(2, [("a", "i4"), ("b", "O")]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, "U3"),
        np.frombuffer(bytes(9), np.uint8)[1:].view(np.uint32),
        np.ma.masked_array([1, 2], mask=[0, 1]),
    ]
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    integers,
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["\ud800", *KINDS, "float32", "complex128", "int4", "bool"]),
    digests,
    arrays,
    st.builds(object),
    st.builds(bytearray, st.binary(max_size=8)),
)
keys = st.one_of(
    integers, st.text(max_size=4), st.sampled_from(["probability", "every", "identity", "head", "require"])
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
everything = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def call(function, arguments):
    """Calls with anything. A panic would arrive as a `PanicException`, which is no `Exception`."""
    message = "nothing was raised"
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it raises must be an `Exception` with a message
        message = str(error)
    assert message
    assert "internal error" not in message


@pytest.mark.parametrize("name", FUNCTIONS)
@everything
@given(arguments=st.lists(values, max_size=6))
def test_functions_raise_exceptions_whatever_they_are_given(name, arguments):
    call(getattr(_native, name), arguments)


@pytest.mark.parametrize("name", METHODS)
@everything
@given(arguments=st.lists(values, min_size=1, max_size=5))
def test_methods_of_batches_raise_exceptions_whatever_they_are_given(name, arguments):
    batch = _native.batch_commit(np.zeros((2, 3), np.uint32), 2, 2**40 + 1)
    call(getattr(batch, name), arguments)


@everything
@given(data=st.data())
def test_functions_raise_exceptions_for_arguments_of_the_right_types(data):
    draw = data.draw
    kind, count, index = draw(st.sampled_from(KINDS)), draw(integers), draw(integers)
    leaves, path = draw(st.lists(digests, max_size=20)), draw(st.lists(st.just(bytes(32)), max_size=70))
    root, length, chunk = draw(digests), draw(integers), draw(integers)
    words, shape = draw(arrays), draw(st.lists(integers, max_size=4))
    dtype = draw(st.sampled_from(["float32", "float64", "complex64", "int8", "bfloat16", "float8_e5m2", "int4"]))
    ratio = draw(st.floats())
    call(_native.tree_root, (kind, leaves))
    call(_native.tree_open, (kind, leaves, index))
    call(_native.tree_verify, (kind, root, count, index, root, path))
    call(_native.chunk_open, (root, chunk))
    call(_native.chunk_verify, (root, length, chunk, root, path))
    extents = draw(st.lists(integers, max_size=4))
    call(_native.sharded_leaf_digest, (shape, extents, path))
    call(_native.sharding_ranges, (shape, extents))
    call(_native.sharding_locate, (shape, extents, index))
    call(_native.batch_commit, (words, index, draw(integers)))
    call(_native.probe_kept, (count, ratio))
    call(_native.probe_length, (shape, dtype, ratio))
    call(_native.probe_sign_words, (shape, dtype))
    call(_native.probe_signs, (root, draw(st.sampled_from([0, 1, 2, 256])), index, min(count, 10**6)))
    call(_native.commit_leaf, (words, dtype, shape, ratio, draw(arrays)))
    call(_native.commit_leaves, ([(words, dtype, shape)] * draw(st.integers(0, 3)), ratio, draw(arrays)))
    call(_native.attested_delta, (dtype, root, root, ratio, ratio, ratio))
    call(_native.attested_element, (dtype, root, ratio, ratio, ratio))
    call(_native.draw, (root, root, {"probability": ratio}, index, count, length))
    call(_native.draw, (root, root, {"every": count}, index, count, length))


@pytest.fixture(scope="module")
def transcript(tmp_path_factory):
    folder = tmp_path_factory.mktemp("robustness")
    configuration = {
        "sampling": {"every": 1},
        "tolerance": {"absolute": 0.0, "relative": 0.0},
        "commit": "every",
        "durability": "close",
        "replay-snapshot-interval": 1,
        "max-in-flight": 1,
        "max-check-lag": 3,
        "rolling-window": 1,
        "probe-ratio": 1.0,
        "evidence": {"batches": False, "components": False, "sampled": False},
    }
    schemes = {"leaf": "blake3-256", "sharded-leaf": "zkdv-sharded-leaf-1"}
    schemes |= {kind: f"zkdv-{kind}-1" for kind in ("tree", "batch", "probe", "challenge")}
    root = {
        "protocol": 1,
        "prover": "whitebox-jax",
        "run": "robust",
        "time": 0,
        "ranks": 1,
        "challenger": {"name": "transcript"},
        "schemes": schemes,
        "configuration": configuration,
    }
    return _native.Transcript.create(folder / "run", root, _native.Identity.generate(folder / "key.pem"))


@everything
@given(
    kind=st.sampled_from(
        ["environment", "schema", "program", "state", "update", "check", "close", "root", "resume", ""]
    ),
    body=values,
)
def test_appending_raises_exceptions_whatever_it_is_given(transcript, kind, body):
    call(transcript.append, (kind, body))


@everything
@given(contents=st.binary(max_size=300), options=values)
def test_reading_and_verifying_raise_exceptions_whatever_they_are_given(tmp_path_factory, contents, options):
    path = tmp_path_factory.mktemp("bytes") / "records.cborl"
    path.write_bytes(contents)
    call(lambda: list(_native.RecordReader(path)), ())
    call(_native.verify, (path, {}))
    call(_native.verify, (path, options))


@everything
@given(path=st.one_of(st.text(max_size=20), st.sampled_from(["\0", "/", "/dev/null", "/dev/zero", "."])))
def test_paths_of_every_kind_raise_exceptions(path):
    for use in (_native.RecordReader, _native.Identity.load, lambda path: _native.verify(path, {})):
        call(lambda use=use: [use(path)], ())


def is_released_during(work):
    """Whether another thread can run Python while `work` runs."""
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    work()
    end = time.perf_counter()
    stop.set()
    thread.join()
    return sum(start < moment < end for moment in ticks) >= 2


@pytest.mark.parametrize(
    "work",
    [
        lambda: _native.leaf_digest(np.zeros(400 << 20, np.uint8)),
        lambda: _native.batch_commit(np.arange(1 << 20, dtype=np.uint32).reshape(64, -1), 32, 2**40 + 1),
        lambda: _native.chunk_open(np.zeros(400 << 20, np.uint8), 5),
        lambda: _native.tree_root("attached", [bytes(32)] * 300_000),
        lambda: _native.probe_signs(bytes(32), 0, 0, 1 << 31),
    ],
    ids=["leaf_digest", "batch_commit", "chunk_open", "tree_root", "probe_signs"],
)
def test_long_calls_release_the_gil(work):
    assert is_released_during(work)


def test_the_pool_works_in_a_process_forked_while_it_is_busy():
    script = """
        import os, threading
        from zkdv import _native
        data = bytes(32 << 20)
        expected = _native.leaf_digest(data)
        stop = threading.Event()
        def keep_busy():
            while not stop.is_set():
                _native.leaf_digest(data)
        threads = [threading.Thread(target=keep_busy) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(0 if _native.leaf_digest(data) == expected else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        for thread in threads:
            thread.join()
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "done\n", done.stderr
