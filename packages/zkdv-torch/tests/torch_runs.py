"""Small trainings under a proof, for the tests of this package."""

import copy

import torch

import zkdv
import zkdv.torch
from zkdv import _native

ROWS, WIDTH, CLASSES = 8, 5, 3


def make_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(WIDTH, 16), torch.nn.ReLU(), torch.nn.Linear(16, CLASSES))


class Recurrent(torch.nn.Module):
    """LSTM cells, of which backward needs what forward kept."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cells = torch.nn.LSTM(WIDTH, 4, num_layers=2, bidirectional=True, batch_first=True)
        self.head = torch.nn.Linear(8, CLASSES)

    def forward(self, inputs):
        out, _ = self.cells(inputs[:, None].repeat(1, 3, 1))
        return self.head(out[:, -1])


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def batches(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield (
            torch.randn(ROWS, WIDTH, generator=generator),
            torch.randint(CLASSES, (ROWS,), generator=generator),
        )


FIRST = next(batches(1))


def check_every(n, **options):
    return zkdv.ZKDVConfig(name="test", sampling_policy=zkdv.SamplingPolicy.DEBUGCheckEvery(n), **options)


def classify(proof, model, optimizer, batch):
    """One update: what attested functions and loops of these tests do, unless they say otherwise."""
    inputs, targets = batch
    loss = torch.nn.functional.cross_entropy(proof.forward(model, inputs), targets)
    proof.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


class Plain:
    """Stands for a proof where the same update is made without one."""

    @staticmethod
    def forward(model, *args, **kwargs):
        return model(*args, **kwargs)

    @staticmethod
    def backward(loss):
        loss.backward()


def prepared(proof, update=classify, model=None):
    """Prepare a model and its optimizer, with `update` as the attested function."""
    model = make_model() if model is None else model
    model, optimizer = proof.prepare(model, make_optimizer(model))

    @proof.attest
    def attested(model, optimizer, batch):
        update(proof, model, optimizer, batch)

    return model, optimizer


def train(proof, model, optimizer, data, update=classify):
    """Make one update after the other."""
    for batch in data:
        with proof.transaction(batch=batch):
            update(proof, model, optimizer, batch)


def run(folder, config, *, model=None, optimizer=None, update=classify, data=None, between=None, aot=None, **options):
    """Train under a proof; `update(proof, model, optimizer, batch)` is the attested function and the loop's body."""
    model = make_model() if model is None else model
    optimizer = (make_optimizer if optimizer is None else optimizer)(model)
    with zkdv.torch.ZKDV(folder, config, **options) as proof:
        proof.start(rolling_window=4)
        model, optimizer = proof.prepare(model, optimizer)

        @proof.attest(aot=aot)
        def attested(model, optimizer, batch):
            update(proof, model, optimizer, batch)

        for index, batch in enumerate(batches(10) if data is None else data):
            if between is not None:
                between(index, model, optimizer)
            with proof.transaction(batch=batch):
                update(proof, model, optimizer, batch)
    return model, optimizer


def train_plainly(*, model=None, optimizer=None, update=classify, data=None, between=None):
    """The same training without a proof."""
    model = make_model() if model is None else model
    optimizer = (make_optimizer if optimizer is None else optimizer)(model)
    for index, batch in enumerate(batches(10) if data is None else data):
        if between is not None:
            between(index, model, optimizer)
        update(Plain, model, optimizer, batch)
    return model, optimizer


def attest_and_compare(folder, *, model=make_model, optimizer=make_optimizer, update=classify, data=None, **options):
    """Train with and without a proof: the same bits, every update checked, every check exact; return the model."""
    first = model()
    second = copy.deepcopy(first)
    data = list(batches(6)) if data is None else list(data)
    model, optimizer_after = run(
        folder, check_every(1), model=first, optimizer=optimizer, update=update, data=data, **options
    )
    plain, plain_optimizer = train_plainly(
        model=second, optimizer=optimizer, update=update, data=data, between=options.get("between")
    )
    assert_same_bits(model.state_dict(), plain.state_dict())
    assert_same_bits(flat_state(optimizer_after), flat_state(plain_optimizer))
    assert_all_exact(folder, len(data))
    return model


def flat_state(optimizer):
    return {
        f"{position}.{key}": value
        for position, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if value is not None
    }


def assert_same_bits(ours, theirs):
    assert list(ours) == list(theirs)
    for name in ours:
        assert bits(ours[name]) == bits(theirs[name]), name


def bits(tensor):
    plain = tensor.detach().cpu().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy()) if plain.numel() else b""


def assert_all_exact(folder, updates):
    checks = records(folder, "check")
    assert [check["body"]["exact"] for check in checks] == [True] * updates
    report = verified(folder)
    assert report.verdict == "passed", report
    assert (report.updates, report.sampled, list(report.edits)) == (updates, updates, [])


def verified(folder, **options):
    [report] = zkdv.verify(folder, **options).runs
    return report


def records(folder, kind=None):
    found = list(_native.RecordReader(str(folder / "records.cborl")))
    return [record for record in found if kind is None or record["type"] == kind]
