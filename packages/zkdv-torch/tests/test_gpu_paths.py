"""What only happens on a GPU, as far as it can be seen without one: on tensors that stand for ones on a GPU."""

import io

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch_runs import batches, check_every, classify, make_model, make_optimizer

import zkdv.torch
from zkdv.schema import Due
from zkdv.torch import _leaves, _pipeline
from zkdv.torch._leaves import HeldLeaf, tensor_like
from zkdv.torch._lowering import Lowering
from zkdv.torch._program_export import seal
from zkdv.torch._proof import _TorchBackend
from zkdv.torch._state import vector_of
from zkdv.torch._trees import flatten


@pytest.fixture
def waited(monkeypatch):
    """The devices that were waited for."""
    devices = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: devices.append(str(device)))
    return devices


@pytest.fixture
def pipeline(tmp_path):
    """A pipeline whose run has made one update."""
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model = make_model()
        model, optimizer = proof.prepare(model, make_optimizer(model))

        @proof.attest
        def attested(model, optimizer, batch):
            classify(proof, model, optimizer, batch)

        for batch in batches(1):
            with proof.transaction(batch=batch):
                attested(model, optimizer, batch)
        # No stage is at work any more.
        proof.join()
        yield proof.torch_pipeline


@pytest.fixture
def unpinned(monkeypatch):
    """Host memory is not pinned, for which there would have to be a driver."""
    empty = torch.empty

    def unpinned_empty(*args, **options):
        options.pop("pin_memory", None)
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", unpinned_empty)


def on_gpus(pipeline):
    """State leaves like the run's: the first on the second GPU, the others on the first, the last on the CPU."""
    leaves = pipeline._handed_over[-1].after
    devices = ["cuda:1", *["cuda:0"] * (len(leaves) - 2), "cpu"]
    return [
        torch.empty(leaf.tensor.shape, dtype=leaf.tensor.dtype, device=device)
        for leaf, device in zip(leaves, devices, strict=True)
    ]


def held(tensor):
    leaf = HeldLeaf.__new__(HeldLeaf)
    leaf.tensor, leaf._memory = tensor, None
    return leaf


def test_host_copies_are_pinned_for_leaves_on_a_gpu_alone(monkeypatch):
    asked, empty = [], torch.empty

    def noted(*args, pin_memory, **options):
        asked.append((pin_memory, options["device"]))
        return empty(*args, **options)

    monkeypatch.setattr(torch, "empty", noted)
    with FakeTensorMode():
        leaves = [empty(3, device="cuda:1"), empty(2, 2, dtype=torch.bfloat16)]
        copies = _pipeline._host_buffers(leaves)
    assert asked == [(True, "cpu"), (False, "cpu")]
    assert [(copy.shape, copy.dtype) for copy in copies] == [(leaf.shape, leaf.dtype) for leaf in leaves]


@pytest.mark.usefixtures("unpinned")
def test_a_snapshot_is_launched_without_waiting_and_waited_for_on_every_gpu_of_the_state(pipeline, waited):
    with FakeTensorMode():
        leaves = on_gpus(pipeline)
        pipeline.devices = [leaf.device for leaf in leaves]
        copies = pipeline.launch_snapshot([held(leaf) for leaf in leaves], None)
    assert waited == []
    assert {copy.device.type for copy in copies} == {"cpu"}
    pipeline.await_snapshot(copies)
    assert waited == ["cuda:0", "cuda:1"]


def test_on_the_cpu_nothing_waits_for_a_gpu(pipeline, waited):
    pipeline.await_snapshot([])
    pipeline._host_data(pipeline._handed_over[-1].after, Due())
    assert waited == []


@pytest.mark.usefixtures("unpinned")
def test_leaves_on_gpus_are_copied_to_the_host_together_and_waited_for_once(pipeline, waited, monkeypatch):
    read = []

    def host_data(tensor):
        assert waited == ["cuda:0", "cuda:1"], "bytes are read before they are there"
        read.append(tensor)

    with monkeypatch.context() as patch, FakeTensorMode():
        for module in (_pipeline, _leaves):
            patch.setattr(module, "host_data", host_data)
        leaves = on_gpus(pipeline)
        pipeline._host_data([held(leaf) for leaf in leaves], Due(optimizer=True))
    assert {tensor.device.type for tensor in read} == {"cpu"}
    assert len(read) == len(leaves)


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adafactor, torch.optim.RAdam])
def test_a_step_on_a_gpu_is_lowered_and_exported_for_it(make):
    """Tracing computes nothing, so that it needs no GPU; Torch's engine for backward passes does, so there is none."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True), torch.device("cuda"):
        model = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
        batch = flatten((torch.empty(8, 5), 2.5))
    proof = zkdv.torch.ZKDV("never-started")
    proof.prepare(model, make(model.parameters(), lr=0.1))
    run = proof._run
    tensors, given = run.prepared.tensors(), run.prepared.hyperparameters()
    assert {str(named.tensor.device) for named in tensors.parameters} == {"cuda:0"}

    def attested(model, optimizer, batch):
        scale = proof.forward(model, batch[0]).mean() * batch[1]
        for parameter in model.parameters():
            parameter.grad = parameter.detach() * scale
        optimizer.step()

    arguments = [
        *(named.tensor.detach() for named in tensors.all()),
        *map(tensor_like, batch.leaves),
        torch.from_numpy(vector_of(given)),
    ]
    lowering = Lowering(
        run.prepared,
        attested,
        variant=run.variant(tensors, batch),
        tensors=tensors,
        batch=batch,
        hyperparameters=given,
    )
    run.lowering = lowering
    sealed = seal(lowering.trace(arguments), arguments, "words")
    assert sealed.platforms == ("cpu", "cuda")
    nodes = torch.export.load(io.BytesIO(sealed.blob)).graph.nodes
    inputs = [str(node.meta["val"].device) for node in nodes if node.op == "placeholder"]
    assert inputs[-len(arguments) :] == [str(argument.device) for argument in arguments]
    text = sealed.text.decode()
    # Where nobody says otherwise, Torch steps over lists of tensors on CUDA. RAdam's form has operators of its own.
    assert ("_foreach_" in text) == (make in {torch.optim.AdamW, torch.optim.SGD})


def test_the_environment_names_every_gpu(monkeypatch):
    assert list(_TorchBackend().devices) == ["cpu"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    assert list(_TorchBackend().devices) == ["GPU 0", "GPU 1"]
