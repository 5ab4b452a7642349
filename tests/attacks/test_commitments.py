"""What a run commits to is what was trained, whichever form of commitments it was trained with.

The state after every update was copied out of the training loop; the roots in the transcript are computed again from
it by the reference.
"""

import numpy as np
import pytest
from forge import digest
from trained import PLANS, WINDOW, batches
from zkdv_reference import batches as reference
from zkdv_reference import probes, trees

from zkdv import _native

TREES = ("parameters", "optimizer")
PROBES = {"parameters": "parameter-probes", "optimizer": "optimizer-probes"}
# Both sums are of at most ten float32 numbers, added in another order.
TOLERANCE = 1e-5


def committed(run):
    """Each tree with its state, as often as it was committed to: leaves, roots, place of the tree."""
    for body in run.bodies("update"):
        for number, tree in enumerate(TREES):
            if tree in body["after"]:
                yield number, tree, run.states[body["update"] + 1][tree], body["after"]
    for body in run.bodies("state"):
        if body["reason"] != "edit":
            for number, tree in enumerate(TREES):
                yield number, tree, run.states[body["updates"]][tree], body["roots"]


@pytest.mark.parametrize("name", PLANS)
def test_roots_are_those_of_the_trained_state(runs, name):
    count = 0
    for _, tree, leaves, roots in committed(runs[name]):
        assert trees.root(tree, [digest(leaf.tobytes()) for leaf in leaves]) == roots[tree]
        count += 1
    assert count > runs[name].plan.updates


@pytest.mark.parametrize("name", ["checked", "sampled"])
def test_probe_roots_are_those_of_sums_that_are_near_the_references(runs, name):
    run = runs[name]
    root, schema = digest(run.raw[0]), run.bodies("schema")[0]
    ratio = run.records[0].body["configuration"]["probe-ratio"]
    for number, tree, leaves, roots in committed(run):
        ours, theirs, from_zero = [], [], []
        for place, (leaf, layout) in enumerate(zip(leaves, schema[tree], strict=True)):
            dtype, shape = layout["dtype"], tuple(layout["shape"])
            assert (str(leaf.dtype), leaf.shape) == (dtype, shape)
            stream = probes.signs(root, number, place, probes.real_dimension(dtype, shape))
            expected = probes.probe(dtype, shape, ratio, leaf.tobytes(), stream)
            _, summed = _native.commit_leaf(leaf, dtype, shape, ratio, np.frombuffer(stream, np.uint32))
            np.testing.assert_allclose([] if summed is None else summed, expected, rtol=TOLERANCE, atol=TOLERANCE)
            ours.append(digest(b"" if summed is None else summed.tobytes()))
            theirs.append(digest(probes.probe_bytes(dtype, expected)))
            from_zero.append(digest(probes.probe_bytes(dtype, [value + 0.0 for value in expected])))
        # Additions have the host's order here, and in the portable form go from left to right, starting at +0.
        orders = (ours, theirs, from_zero)
        assert roots[PROBES[tree]] in {trees.root(PROBES[tree], leaves) for leaves in orders}


@pytest.mark.parametrize("name", PLANS)
def test_batch_digests_are_those_of_the_batches(runs, name):
    run = runs[name]
    base = reference.rolling_base(digest(run.raw[0]))
    for body, (images, labels) in zip(run.bodies("update"), batches(run.plan.updates), strict=True):
        words = np.concatenate([images.view(np.uint32), labels.view(np.uint32)[:, None]], axis=1)
        if run.records[0].body["prover"] == "whitebox-torch":
            from trained_torch import extra_rows

            words = np.concatenate([words, extra_rows(words.shape[1])])
        batch = reference.Batch(words.tolist(), words.shape[1], WINDOW, base)
        assert batch.digest() == body["batch"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_both_forms_commit_to_the_same_state(cpu_runs, portable_runs, name):
    ours, theirs = list(committed(cpu_runs[name])), list(committed(portable_runs[name]))
    assert len(ours) == len(theirs)
    for (_, tree, _, roots), (_, _, _, others) in zip(ours, theirs, strict=True):
        assert roots[tree] == others[tree]
