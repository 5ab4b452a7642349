"""Models that `torch.compile` compiles with Inductor, which reorders sums: what the guide says of them."""

import shutil

import pytest
import torch
from torch import nn
from torch_runs import CLASSES, check_every, records, run, verified

from zkdv.errors import ZKDVPoisonedError

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor compiles with g++"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Convolution(nn.Module):
    def __init__(self, *, bias):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3, bias=bias), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(36, CLASSES)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))


def images(count):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(4, 1, 8, 8, generator=generator), torch.randint(CLASSES, (4,), generator=generator)


def test_checks_of_a_compiled_model_pass_within_tolerance(tmp_path):
    run(tmp_path / "proof", check_every(1), model=torch.compile(Convolution(bias=False)), data=images(6))
    assert [check["body"]["verdict"] for check in records(tmp_path / "proof", "check")] == ["passed"] * 6
    assert verified(tmp_path / "proof").verdict == "passed"


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def test_a_bias_before_batch_norm_leaves_the_tolerance_where_an_adaptive_optimizer_steps(tmp_path):
    """Its gradient is zero in exact arithmetic, and AdamW makes whole steps of what rounding leaves of it."""
    with pytest.raises(ZKDVPoisonedError, match="update 0 does not replay to what was committed"):
        run(tmp_path / "proof", check_every(1), model=torch.compile(Convolution(bias=True)), data=images(3))
    assert verified(tmp_path / "proof").verdict == "failed"
    # A step that is in proportion to the gradient does not.
    run(tmp_path / "sgd", check_every(1), model=torch.compile(Convolution(bias=True)), optimizer=sgd, data=images(3))
    assert verified(tmp_path / "sgd").verdict == "passed"
