"""Train a classifier of handwritten digits in Torch, with a transcript that anyone can verify."""

import sys

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import zkdv
import zkdv.torch

PROOF = sys.argv[1] if len(sys.argv) > 1 else "proof"
DEVICE = sys.argv[2] if len(sys.argv) > 2 else "cpu"

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)).to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10 * 45)
images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16, dtype=torch.float32, device=DEVICE)
labels = torch.tensor(labels, device=DEVICE)
order = np.random.default_rng(0)
training, test = np.split(order.permutation(len(labels)), [1440])

with zkdv.torch.ZKDV(PROOF, zkdv.ZKDVConfig(name="digits")) as proof:
    proof.start(rolling_window=4)
    model, optimizer = proof.prepare(model, optimizer)

    @proof.attest
    def attested_step(model, optimizer, batch):
        images, labels = batch
        proof.backward(cross_entropy(proof.forward(model, images), labels))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for _epoch in range(10):
        for rows in order.permutation(training).reshape(-1, 32):
            batch = images[rows], labels[rows]
            with proof.transaction(batch=batch):
                loss = cross_entropy(model(batch[0]), batch[1])
                proof.backward(loss)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            scheduler.step()

model.eval()
with torch.no_grad():
    accuracy = (model(images[test]).argmax(-1) == labels[test]).float().mean()
print(f"loss {loss:.3f}, test accuracy {accuracy:.1%}")
print(zkdv.verify(PROOF).verdict)
