"""What each overlap policy promises: how many generations of buffers are live, one program, checks beside training."""

import gc
import threading
from collections import Counter

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
import pytest
from small_run import WIDTH, batches, check_every, records, train_step, verified

import zkdv
import zkdv.jax
from zkdv import overlap
from zkdv.errors import ZKDVPoisonedError, ZKDVVerificationError
from zkdv.jax._pipeline import JAXPipeline

WAIT_SECONDS = 120
UNITS = 37  # No other test has leaves of this width.
MODEL = nn.Sequential([nn.Dense(UNITS), nn.relu, nn.Dense(3)])
POLICIES = list(overlap.Policy)


def make_state(proof, policy):
    params = MODEL.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
    return zkdv.jax.contrib.TrainState.create(
        proof=proof, apply_fn=MODEL.apply, params=params, tx=optax.adam(1e-2), zkdv_overlap=policy
    )


def live_states():
    """How many whole states are live: each has this kernel in parameters and both moments."""
    gc.collect()
    kernels = [leaf for leaf in jax.live_arrays() if leaf.shape == (WIDTH, UNITS) and not leaf.is_deleted()]
    return len(kernels) / 3


class Held:
    """Holds every call of a method of the pipeline until it is let go."""

    def __init__(self, monkeypatch, name):
        self.entered, self.gate = threading.Semaphore(0), threading.Event()
        original = getattr(JAXPipeline, name)

        def held(*args, **kwargs):
            self.entered.release()
            assert self.gate.wait(WAIT_SECONDS)
            return original(*args, **kwargs)

        monkeypatch.setattr(JAXPipeline, name, held)

    def wait(self):
        assert self.entered.acquire(timeout=WAIT_SECONDS)


class Training:
    """A training loop that other threads can watch."""

    def __init__(self, folder, monkeypatch, policy, n, *, donated=True, **options):
        self.proof = zkdv.jax.ZKDV(folder, check_every(n), **options)
        self.proof.start(rolling_window=4)
        self.step = self.proof.jit(train_step, donate_argnums=0 if donated else ())
        self.state = make_state(self.proof, policy)
        self.batches = batches(1_000)
        self.waiting = threading.Event()
        annotate = self.proof.queue.annotate

        def noticed(name):
            if name == "zkdv.flow_control.wait":
                self.waiting.set()
            return annotate(name)

        monkeypatch.setattr(self.proof.queue, "annotate", noticed)

    def run(self, updates=1):
        for _ in range(updates):
            self.state, _ = self.step(self.state, *next(self.batches))
            jax.block_until_ready(self.state)

    @property
    def snapshots(self):
        """How many copies of the state checks have; on CPU one of them is the workspace of a check."""
        return self.proof.jax_pipeline._memory.primed

    @property
    def generations(self):
        """How many generations of training's own buffers are live."""
        return live_states() - self.snapshots

    def settle(self):
        """Wait until every update is on record; checks may go on."""
        pipeline = self.proof.jax_pipeline
        self.proof.queue.wait_until(lambda: pipeline.counts.updates == pipeline.updates)

    def run_behind(self, updates=1):
        """Start updates on a thread of their own and wait until one of them is held up."""
        self.waiting.clear()
        thread = threading.Thread(target=self.run, args=(updates,), daemon=True)
        thread.start()
        assert self.waiting.wait(WAIT_SECONDS)
        return thread


@pytest.fixture
def training(tmp_path, monkeypatch):
    assert live_states() == 0
    yield lambda *args, **options: Training(tmp_path / "proof", monkeypatch, *args, **options)
    assert verified(tmp_path / "proof").verdict == "passed"


@pytest.mark.parametrize("donated", [True, False])
def test_never_keeps_one_generation_and_admits_nothing_before_a_commitment_retired(training, monkeypatch, donated):
    run = training(overlap.NEVER, 100, donated=donated)
    run.run()
    run.proof.join()
    commitment = Held(monkeypatch, "read_evidence")
    run.run()
    commitment.wait()
    thread = run.run_behind()
    assert (run.generations, run.snapshots) == (1, 1)
    assert run.proof.jax_pipeline.updates == 2
    commitment.gate.set()
    thread.join()
    run.proof.close()


@pytest.mark.parametrize("policy", [overlap.NEVER, overlap.UNCHECKED])
@pytest.mark.parametrize("donated", [True, False])
def test_a_check_is_a_fence_with_one_generation_and_one_workspace(training, monkeypatch, policy, donated):
    run = training(policy, 2, donated=donated)
    check = Held(monkeypatch, "replay")
    run.run(2)
    check.wait()
    thread = run.run_behind()
    assert (run.generations, run.snapshots) == (1, 1)
    assert run.proof.jax_pipeline.updates == 2
    check.gate.set()
    thread.join()
    run.proof.close()


@pytest.mark.parametrize("donated", [True, False])
def test_unchecked_pipelines_commitments_up_to_the_ceiling(training, monkeypatch, donated):
    run = training(overlap.UNCHECKED, 100, donated=donated)
    run.run()
    run.proof.join()
    commitment = Held(monkeypatch, "read_evidence")
    run.run(2)
    commitment.wait()
    thread = run.run_behind()
    assert run.proof.jax_pipeline.updates == 3
    assert (run.generations, run.snapshots) == (1 if donated else 2, 1)
    commitment.gate.set()
    thread.join()
    run.proof.close()


@pytest.mark.parametrize("donated", [True, False])
def test_always_trains_beside_a_check_with_two_generations_and_one_workspace(training, monkeypatch, donated):
    run = training(overlap.ALWAYS, 20, donated=donated, replay_snapshot_interval=4)
    run.run(19)
    check = Held(monkeypatch, "replay")
    run.run()
    check.wait()
    for _ in range(6):
        run.run()
        run.settle()
        assert 1 <= run.generations <= 2
        assert run.snapshots == 2
    assert run.proof.jax_pipeline.counts.passed == 0
    check.gate.set()
    run.proof.join()
    assert run.generations == 1
    run.proof.close()


@pytest.mark.parametrize("donated", [True, False])
def test_always_holds_training_up_where_a_second_check_waits(training, monkeypatch, donated):
    run = training(overlap.ALWAYS, 1, donated=donated, max_in_flight=3)
    check = Held(monkeypatch, "replay")
    run.run()
    check.wait()
    run.run()
    run.settle()
    thread = run.run_behind()
    assert run.proof.jax_pipeline.updates == 2
    # That of the second update, on which training is.
    assert (run.generations, run.snapshots) == (1, 2)
    check.gate.set()
    thread.join()
    run.proof.close()


def test_the_policy_changes_at_every_call_and_one_program_is_compiled(tmp_path):
    compiled, thread = [], threading.current_thread()

    def note(event, _seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration" and threading.current_thread() is thread:
            compiled.append(about["fun_name"])

    proof = zkdv.jax.ZKDV(tmp_path / "proof", check_every(100), replay_snapshot_interval=100)
    proof.start(rolling_window=4)
    step, state = proof.jit(train_step, donate_argnums=0), make_state(proof, overlap.ALWAYS)
    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        texts = set()
        for number, (images, labels) in enumerate(batches(9)):
            if number == 1:
                assert Counter(compiled)["jit(_step)"] == 1
                compiled.clear()
            state = state.replace(zkdv_overlap=POLICIES[(number + 2) % 3])
            state, _ = step(state, images, labels)
            texts.add(step.lower(state, images, labels).as_text())
    finally:
        jax.monitoring.unregister_event_duration_listener(note)
    proof.close()
    assert compiled == []
    [text] = texts
    assert not any(branch in text for branch in ("stablehlo.case", "stablehlo.if", "stablehlo.while"))
    assert [update["body"]["overlap"] for update in records(tmp_path / "proof", "update")] == [2, 0, 1] * 3


def test_no_branch_of_a_program_depends_on_a_policy_that_is_an_argument(tmp_path):
    optimizer = optax.sgd(1e-2)

    def explicit(params, opt_state, images, labels, policy):
        tx = zkdv.jax.Transaction(batch=(images, labels), params=params, opt_state=opt_state, overlap=policy)
        grads = jax.grad(lambda p: ((MODEL.apply({"params": p}, images).sum(1) - labels) ** 2).mean())(params)
        deltas, opt_state = optimizer.update(grads, opt_state, params)
        return tx.update(deltas=deltas, params=optax.apply_updates(params, deltas), opt_state=opt_state)

    with zkdv.jax.ZKDV(tmp_path / "proof", check_every(100)) as proof:
        proof.start(rolling_window=4)
        [(images, labels)] = batches(1)
        params = MODEL.init(jax.random.key(0), images)["params"]
        traced = proof.jit(explicit).trace(params, optimizer.init(params), images, labels, jnp.int32(1))
    names = list(primitives(traced.jaxpr.jaxpr))
    assert "dot_general" in names
    assert not {"cond", "while", "select_n"} & set(names) - {"select_n"}
    # The policy's input is read by nothing.
    policy = traced.jaxpr.jaxpr.invars[-1]
    assert not any(policy is operand for equation in traced.jaxpr.jaxpr.eqns for operand in equation.invars)


def primitives(jaxpr):
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda value: hasattr(value, "eqns")):
            inner = getattr(inner, "jaxpr", inner)  # noqa: PLW2901
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def spans(folder, name):
    """Start and end, in nanoseconds, of every annotation of a name in a profile."""
    [file] = folder.glob("**/*.xplane.pb")
    profile = jax.profiler.ProfileData.from_file(str(file))
    events = [event for plane in profile.planes for line in plane.lines for event in line.events]
    return [(event.start_ns, event.start_ns + event.duration_ns) for event in events if event.name == name]


def test_with_always_a_check_spans_training_steps_and_its_late_failure_poisons(tmp_path, monkeypatch):
    honest = JAXPipeline.replay

    def off(self, update, state):
        after = list(honest(self, update, state))
        return [after[0].at[0].add(1), *after[1:]]

    run = Training(tmp_path / "proof", monkeypatch, overlap.ALWAYS, 4)
    run.run(3)
    run.proof.join()
    monkeypatch.setattr(JAXPipeline, "replay", off)
    check = Held(monkeypatch, "replay")
    with jax.profiler.trace(tmp_path / "profile"):
        run.run()
        check.wait()
        run.run(3)
        run.settle()
        check.gate.set()
        with pytest.raises(ZKDVPoisonedError, match="update 3 does not replay"):
            run.proof.join()
    [(start, end)] = spans(tmp_path / "profile", "zkdv.check")
    inside = [span for span in spans(tmp_path / "profile", "zkdv.run") if start < span[0] and span[1] < end]
    assert len(inside) == 3
    with pytest.raises(ZKDVPoisonedError, match="update 3 does not replay"):
        run.run()
    with pytest.raises(ZKDVPoisonedError, match="update 3 does not replay") as raised:
        run.proof.close()
    assert isinstance(raised.value.__cause__, ZKDVVerificationError)
    report = verified(tmp_path / "proof")
    assert (report.verdict, report.updates) == ("failed", 7)
    assert {violation.code for violation in report.violations} == {"check-failed"}
