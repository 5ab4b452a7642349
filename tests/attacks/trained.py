"""The runs that are attacked: a small classifier trained under a proof, once for each form of commitments."""

import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from forge import Record, digest, read, split

import zkdv
import zkdv.jax
from zkdv.errors import ZKDVWarning
from zkdv.identity import create as create_identity

ROWS, WIDTH, WINDOW = 8, 5, 4
# The first kernel has two BLAKE3 chunks, so that openings have a chain.
MODEL = nn.Sequential([nn.Dense(64), nn.relu, nn.Dense(3)])


@dataclass(frozen=True)
class Plan:
    """How a run is configured, and before which updates its state is changed by hand."""

    policy: zkdv.SamplingPolicy
    updates: int
    interval: int
    in_flight: int = 1
    commit: str = "parameters"
    edits: tuple[int, ...] = ()
    attested: bool = False


PLANS = {
    "checked": Plan(zkdv.SamplingPolicy.DEBUGCheckEvery(1), updates=12, interval=2),
    "third": Plan(zkdv.SamplingPolicy.DEBUGCheckEvery(3), updates=6, interval=3),
    "sampled": Plan(zkdv.SamplingPolicy(1.0), updates=6, interval=3, commit="every"),
    "edited": Plan(zkdv.SamplingPolicy.DEBUGCheckEvery(1), updates=6, interval=4, edits=(2, 4)),
    "attested": Plan(zkdv.SamplingPolicy.DEBUGCheckEvery(1), updates=4, interval=2, attested=True),
}


@dataclass(frozen=True)
class Trained:
    """A run on disk, its owner's key, and what its state was after each number of updates."""

    name: str
    folder: Path
    identity: Ed25519PrivateKey

    @property
    def plan(self) -> Plan:
        return PLANS[self.name]

    @cached_property
    def data(self) -> bytes:
        return (self.folder / "records.cborl").read_bytes()

    @cached_property
    def raw(self) -> list[bytes]:
        return split(self.data)

    @cached_property
    def records(self) -> list[Record]:
        return [read(record) for record in self.raw]

    @property
    def head(self) -> bytes:
        return digest(self.raw[-1])

    def bodies(self, kind: str) -> list[dict[str, Any]]:
        return [record.body for record in self.records if record.kind == kind]

    def index(self, kind: str, nth: int = 0) -> int:
        """Number of the record of this kind, counted from 0."""
        return [number for number, record in enumerate(self.records) if record.kind == kind][nth]

    @cached_property
    def states(self) -> list[dict[str, list[np.ndarray]]]:
        """After each number of updates, the leaves of each tree in the order of the schema."""
        with np.load(self.folder.with_suffix(".npz")) as saved:
            names = [name.split("/") for name in saved.files]
            states = [{"parameters": [], "optimizer": []} for _ in range(self.plan.updates + 1)]
            for updates, tree, _ in names:
                leaves = states[int(updates)][tree]
                leaves.append(saved[f"{updates}/{tree}/{len(leaves)}"])
        return states


def batches(count: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    for _ in range(count):
        yield generator.normal(size=(ROWS, WIDTH)).astype(np.float32), generator.integers(0, 3, ROWS).astype(np.int32)


def train_step(state, images, labels):
    def loss(params):
        logits = state.apply_fn({"params": params}, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, grads = jax.value_and_grad(loss)(state.params)
    return state.apply_gradients(grads=grads), value


def attest(params_before, opt_state_before, batch, parameter_index, optimizer_state_index):
    def loss(params):
        logits = MODEL.apply({"params": params}, batch["images"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

    deltas, opt_state = optax.adam(1e-2).update(jax.grad(loss)(params_before), opt_state_before["opt_state"])
    after = {"opt_state": opt_state, "step": opt_state_before["step"] + 1}
    return zkdv.jax.index(deltas, parameter_index), zkdv.jax.index(after, optimizer_state_index)


def train(folder: Path, plan: Plan, identity: Path) -> None:
    """Train, and save the state after each update beside the folder."""
    saved: dict[str, np.ndarray] = {}
    config = zkdv.ZKDVConfig("attacked", plan.policy, commit=plan.commit, identity=identity)
    options = {"replay_snapshot_interval": plan.interval, "max_in_flight": plan.in_flight}
    with zkdv.jax.ZKDV(folder, config, **options) as proof:
        proof.start(rolling_window=WINDOW, probe_ratio=0.1)
        step = proof.jit(train_step, donate_argnums=(0,))
        if plan.attested:
            proof.attest(attest)
        params = MODEL.init(jax.random.key(0), jnp.zeros((1, WIDTH)))["params"]
        state = zkdv.jax.contrib.TrainState.create(
            proof=proof, apply_fn=MODEL.apply, params=params, tx=optax.adam(1e-2)
        )
        save(saved, 0, state)
        for update, (images, labels) in enumerate(batches(plan.updates)):
            if update in plan.edits:
                state = edit(state, update)
            state, _ = step(state, images, labels)
            save(saved, update + 1, state)
    np.savez(folder.with_suffix(".npz"), **saved)


def edit(state, update: int):
    """Change the state by hand: every other time a large leaf, else a small one."""
    if update % 4 == 0:
        return state.replace(step=state.step + 10)
    params = jax.tree.map(jnp.copy, state.params)
    params["layers_0"]["kernel"] = params["layers_0"]["kernel"] * 2
    return state.replace(params=params)


def save(saved: dict[str, np.ndarray], updates: int, state) -> None:
    trees = {"parameters": state.params, "optimizer": (state.opt_state, state.step)}
    for tree, values in trees.items():
        for number, leaf in enumerate(jax.tree.leaves(values)):
            saved[f"{updates}/{tree}/{number}"] = np.array(leaf)


def train_all(folder: Path, train: Callable[[Path, Plan, Path], None] = train) -> None:
    """Train every plan, in JAX or as `train` does; each run has a folder, and all one identity key."""
    identity = folder / "identity.pem"
    create_identity(identity)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ZKDVWarning)
        for name, plan in PLANS.items():
            train(folder / name, plan, identity)


def load_all(folder: Path) -> dict[str, Trained]:
    private = load_pem_private_key((folder / "identity.pem").read_bytes(), password=None)
    assert isinstance(private, Ed25519PrivateKey)
    return {name: Trained(name, folder / name, private) for name in PLANS}


if __name__ == "__main__":
    train_all(Path(sys.argv[1]))
