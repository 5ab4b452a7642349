"""An interrupt at any point of an update leaves a proof that goes on, and a killed run loses no committed update."""

import gc
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from interrupts import InterruptAt
from torch_runs import CLASSES, WIDTH, batches, check_every, classify, records, run, verified

import zkdv
import zkdv.torch
from zkdv import overlap
from zkdv.errors import ZKDVError, ZKDVWarning

HERE = Path(__file__).parent
WAIT_SECONDS = 300
STEPS = ("Run.opened", "Transaction.__enter__", "Pipeline.begin", "Pipeline.submit")
"""What every update goes through."""


def started(folder, update=classify):
    proof = zkdv.torch.ZKDV(folder, check_every(7), replay_snapshot_interval=3)
    proof.start(rolling_window=4)
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, CLASSES)
    model, optimizer = proof.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))

    @proof.attest
    def attested(model, optimizer, batch):
        update(proof, model, optimizer, batch)

    def step(batch, policy=overlap.UNCHECKED):
        optimizer.zero_grad()
        with proof.transaction(batch=batch, overlap=policy):
            update(proof, model, optimizer, batch)

    return proof, step


def interrupt_everywhere(step, given, stride=1, function=None):
    """Interrupt one update after the other, each a little later, with a whole one after each; return where."""
    number, places = 0, set()
    with warnings.catch_warnings():
        # What an interrupted update did all the same is an edit, and says so; other constants are other programs.
        warnings.simplefilter("ignore", ZKDVWarning)
        while True:
            with InterruptAt(number, zkdv, zkdv.torch, function=function) as interrupt:
                try:
                    step(next(given))
                except KeyboardInterrupt:
                    places.add(interrupt.place[0])
            if interrupt.place is None:
                return number, places
            step(next(given))
            number += stride


# Where a generator ends, Python swallows the interrupt, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("policy", "stride"),
    [
        (overlap.UNCHECKED, 13),
        pytest.param(overlap.UNCHECKED, 1, marks=pytest.mark.slow),
        pytest.param(overlap.NEVER, 1, marks=pytest.mark.slow),
        pytest.param(overlap.ALWAYS, 1, marks=pytest.mark.slow),
    ],
)
def test_an_update_may_be_interrupted_anywhere_and_training_goes_on(tmp_path, policy, stride):
    proof, step = started(tmp_path / "proof")
    given = batches(1_000_000)
    step(next(given))
    with proof:
        number, places = interrupt_everywhere(lambda batch: step(batch, policy), given, stride)
        proof.join()
        updates = proof.torch_pipeline.updates
    if stride == 1:
        # Which points there are depends on what happened before, so that some are passed over.
        assert len(places.intersection(STEPS)) >= 2
    assert updates * stride > number > 100
    report = verified(tmp_path / "proof", allow_edits=True)
    assert (report.verdict, report.updates) == ("passed", updates), report.violations
    assert report.checks_passed == report.sampled > 0


# Where a generator ends, Python swallows the interrupt, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("function", STEPS)
def test_an_update_may_be_interrupted_anywhere_within_its_steps(tmp_path, function):
    proof, step = started(tmp_path / "proof")
    given = batches(1_000_000)
    step(next(given))
    with proof:
        number, places = interrupt_everywhere(lambda batch: step(batch, overlap.ALWAYS), given, function=function)
        proof.join()
        updates = proof.torch_pipeline.updates
    assert function in places
    # Its start, and behind something that it calls.
    assert number > 1
    report = verified(tmp_path / "proof", allow_edits=True)
    assert (report.verdict, report.updates) == ("passed", updates), report.violations


@pytest.mark.slow
# Where a weak reference of Torch ends, Python swallows the interrupt, and says so.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_lowering_may_be_interrupted_and_leaves_the_model_to_train_on(tmp_path):
    def update(proof, model, optimizer, batch):
        classify(proof, model, optimizer, batch[:2])

    proof, step = started(tmp_path / "proof", update)
    # Another constant, and so another program, in every update.
    given = ((*batch, number) for number, batch in enumerate(batches(1_000_000)))
    step(next(given))
    with proof:
        _, places = interrupt_everywhere(step, given, 131)
        updates = proof.torch_pipeline.updates
    assert {place.split(".")[0] for place in places} & {"Lowering", "BoundOptimizer", "left_alone", "_containers_in"}
    report = verified(tmp_path / "proof", allow_edits=True)
    assert (report.verdict, report.updates) == ("passed", updates), report.violations


def test_a_transaction_whose_end_was_never_reached_ends_when_it_is_gone(tmp_path):
    proof, step = started(tmp_path / "proof")
    with proof:
        step(next(batches(1)))
        left = proof.transaction(batch=next(batches(1)))
        left.__enter__()
        with pytest.raises(ZKDVError, match="another transaction of this proof is open"):
            step(next(batches(1)))
        del left
        gc.collect()
        step(next(batches(1)))
    assert verified(tmp_path / "proof").updates == 2


TRAINING = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)
from test_interrupted_updates import started
from torch_runs import batches
proof, step = started(Path(sys.argv[1]))
with proof:
    for number, batch in enumerate(batches(1_000_000), start=1):
        step(batch)
        if number % 10 == 0:
            proof.join()
            print(number, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT], ids=["killed", "interrupted"])
def test_a_run_that_is_stopped_from_outside_verifies_as_open_and_loses_no_committed_update(tmp_path, sent):
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, str(tmp_path / "proof")],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        promised = int(process.stdout.readline() or -1)
        process.send_signal(sent)
        output, errors = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert promised >= 10, errors
    promised = max([promised, *map(int, output.split())])
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.closed, report.violations) == ("incomplete", False, ())
    assert report.updates >= promised
    assert ("KeyboardInterrupt" in errors) == (sent is signal.SIGINT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
# Of JAX, where another test has imported it in this process.
@pytest.mark.filterwarnings(r"ignore:os\.fork\(\) was called:RuntimeWarning")
def test_loaders_with_processes_of_their_own_work_beside_a_proof(tmp_path):
    data = [(inputs, targets) for inputs, targets in batches(6)]
    loader = torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    run(tmp_path / "proof", check_every(2), data=(tuple(batch) for batch in loader))
    assert verified(tmp_path / "proof").verdict == "passed"
    assert len(records(tmp_path / "proof", "update")) == 6
