"""The runs that are attacked once more, trained in Torch: the same plans, batches and edits."""

from pathlib import Path

import numpy as np
import torch
from torch import nn
from trained import WIDTH, WINDOW, Plan, batches

import zkdv
import zkdv.torch

RATE, BETAS, DECAY = 1e-2, (0.9, 0.999), 1e-2


def extra_rows(width: int) -> np.ndarray:
    """Return the rows of the batch that hold the hyperparameters."""
    words = np.array([RATE, *BETAS, DECAY]).view(np.uint32)
    rows = np.zeros((-(-words.size // width), width), np.uint32)
    rows.reshape(-1)[: words.size] = words
    return rows


def train(folder: Path, plan: Plan, identity: Path) -> None:
    """Train, and save the state after each update beside the folder."""
    saved: dict[str, np.ndarray] = {}
    config = zkdv.ZKDVConfig("attacked", plan.policy, commit=plan.commit, identity=identity)
    options = {"replay_snapshot_interval": plan.interval, "max_in_flight": plan.in_flight}
    torch.manual_seed(0)
    # The first kernel has two BLAKE3 chunks, so that openings have a chain.
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, 3))
    with zkdv.torch.ZKDV(folder, config, **options) as proof:
        proof.start(rolling_window=WINDOW, probe_ratio=0.1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=BETAS, weight_decay=DECAY)
        model, optimizer = proof.prepare(model, optimizer)

        @proof.attest
        def step(model, optimizer, batch):
            images, labels = batch
            proof.backward(nn.functional.cross_entropy(proof.forward(model, images), labels.long()))
            optimizer.step()
            optimizer.zero_grad()

        save(saved, 0, model, optimizer)
        for update, (images, labels) in enumerate(batches(plan.updates)):
            if update in plan.edits:
                edit(model, optimizer, update)
            batch = torch.from_numpy(images), torch.from_numpy(labels)
            with proof.transaction(batch=batch):
                step(model, optimizer, batch)
            save(saved, update + 1, model, optimizer)
    np.savez(folder.with_suffix(".npz"), **saved)


def edit(model, optimizer, update: int) -> None:
    """Change the state by hand: every other time a large leaf, else a small one."""
    with torch.no_grad():
        if update % 4 == 0:
            optimizer.state[model[0].weight]["step"] += 10
        else:
            model[0].weight *= 2


def save(saved: dict[str, np.ndarray], updates: int, model, optimizer) -> None:
    optimizer_leaves = []
    for parameter in model.parameters():
        state = optimizer.state.get(parameter) or {
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
            "step": torch.tensor(0.0),
        }
        optimizer_leaves += [state[key] for key in sorted(state)]
    trees = {"parameters": list(model.state_dict().values()), "optimizer": optimizer_leaves}
    for tree, leaves in trees.items():
        for number, leaf in enumerate(leaves):
            saved[f"{updates}/{tree}/{number}"] = leaf.detach().numpy().copy()
