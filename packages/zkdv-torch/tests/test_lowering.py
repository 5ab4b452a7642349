"""What real models and loops are made of is lowered to the same bits: every update replays exactly."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch_runs import (
    CLASSES,
    WIDTH,
    assert_all_exact,
    attest_and_compare,
    batches,
    check_every,
    classify,
    make_model,
    records,
    run,
)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Linear(4 * 3 * 3, CLASSES)

    def forward(self, images):
        return self.head(self.body(images).flatten(1))


class Decoder(nn.Module):
    """Embeddings, attention, LayerNorm, a head that is tied to the embedding, and a buffer that is no parameter."""

    def __init__(self, width=16, vocabulary=11, length=6):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width, padding_idx=0)
        self.register_buffer("positions", torch.arange(length), persistent=False)
        self.places = nn.Embedding(length, width)
        self.first, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(self.positions)
        rows, length, width = x.shape
        q, k, v = (part.view(rows, length, 2, -1).transpose(1, 2) for part in self.mix(self.first(x)).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return self.head(self.last(x))


def images(count=6):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        yield torch.randn(4, 1, 8, 8, generator=generator), torch.randint(CLASSES, (4,), generator=generator)


def tokens(count=6):
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        drawn = torch.randint(1, 11, (4, 7), generator=generator)
        yield drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()


def predict(proof, model, optimizer, batch):
    inputs, targets = batch
    logits = proof.forward(model, inputs)
    proof.backward(functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    optimizer.step()
    optimizer.zero_grad()


def test_convolution_and_batch_norm_in_train_mode_with_its_buffers(tmp_path):
    torch.manual_seed(0)
    attest_and_compare(tmp_path / "proof", model=Convolutions, data=images())
    names = [leaf["name"] for leaf in records(tmp_path / "proof", "schema")[0]["body"]["parameters"]]
    assert {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"} <= set(names)


def test_channels_last_keeps_its_layout(tmp_path):
    torch.manual_seed(0)
    data = [(inputs.to(memory_format=torch.channels_last), targets) for inputs, targets in images()]
    attest_and_compare(
        tmp_path / "proof", model=lambda: Convolutions().to(memory_format=torch.channels_last), data=data
    )


def test_embeddings_attention_layer_norm_and_tied_weights(tmp_path):
    torch.manual_seed(0)
    model = attest_and_compare(tmp_path / "proof", model=Decoder, update=predict, data=tokens())
    leaves = {leaf["name"]: leaf for leaf in records(tmp_path / "proof", "schema")[0]["body"]["parameters"]}
    assert leaves["tokens.weight"]["aliases"] == ["head.weight"]
    assert "head.weight" not in leaves
    assert "positions" in leaves
    assert model.head.weight is model.tokens.weight


def test_clipping_between_backward_and_step(tmp_path):
    def update(proof, model, optimizer, batch):
        proof.backward(functional.cross_entropy(proof.forward(model, batch[0]), batch[1]))
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()

    attest_and_compare(tmp_path / "proof", update=update)


def test_gradients_accumulate_over_micro_batches_of_one_transaction(tmp_path):
    def update(proof, model, optimizer, batch):
        for inputs, targets in zip(batch[0].chunk(4), batch[1].chunk(4), strict=True):
            proof.backward(functional.cross_entropy(proof.forward(model, inputs), targets) / 4)
        optimizer.step()
        optimizer.zero_grad()

    attest_and_compare(tmp_path / "proof", update=update)


def test_zero_grad_at_the_start_and_gradients_of_zeros(tmp_path):
    def update(proof, model, optimizer, batch):
        optimizer.zero_grad(set_to_none=False)
        proof.backward(functional.cross_entropy(proof.forward(model, batch[0]), batch[1]))
        optimizer.step()

    attest_and_compare(tmp_path / "proof", update=update)
    # The first update starts without gradients, the others with zeros.
    assert len(records(tmp_path / "proof", "program")) == 2


def test_autocast_to_bfloat16(tmp_path):
    def update(proof, model, optimizer, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = functional.cross_entropy(proof.forward(model, batch[0]), batch[1])
        proof.backward(loss)
        optimizer.step()
        optimizer.zero_grad()

    attest_and_compare(tmp_path / "proof", update=update)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_dtypes(tmp_path, dtype):
    data = [(inputs.to(dtype), targets) for inputs, targets in batches(4)]

    def optimizer(model):
        # Smaller numbers are zeros in float16, and what is divided by them NaN.
        return torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)

    attest_and_compare(tmp_path / "proof", model=lambda: make_model().to(dtype), optimizer=optimizer, data=data)


def test_frozen_and_unused_parameters_and_zero_size_tensors(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.inner = make_model()
            self.inner[0].weight.requires_grad_(False)
            self.unused = nn.Parameter(torch.ones(3))
            self.empty = nn.Parameter(torch.empty(0, 4))
            self.register_buffer("nothing", torch.empty(2, 0))
            self.register_buffer("number", torch.tensor(3, dtype=torch.int8))

        def forward(self, inputs):
            return self.inner(inputs) + self.empty.sum()

    attest_and_compare(tmp_path / "proof", model=Odd)


def test_parameters_and_batches_that_do_not_lie_in_c_order(tmp_path):
    def model():
        made = make_model()
        made[0].weight = nn.Parameter(made[0].weight.detach().t().contiguous().t())
        return made

    data = [(inputs.t().contiguous().t(), targets) for inputs, targets in batches(4)]
    data = [(torch.stack([inputs, inputs], -1)[..., 0], targets) for inputs, targets in data]
    assert not data[0][0].is_contiguous()
    attest_and_compare(tmp_path / "proof", model=model, data=data)


def test_a_scheduler_changes_the_rate_without_another_program(tmp_path):
    folder = tmp_path / "proof"
    model = make_model()
    plain = copy.deepcopy(model)

    def train(model, optimizer, scheduler, step):
        for batch in batches(8):
            step(model, optimizer, batch)
            scheduler.step()

    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
    for inputs, targets in batches(8):
        functional.cross_entropy(plain(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()

    import zkdv

    with zkdv.torch.ZKDV(folder, check_every(1)) as proof:
        proof.start(rolling_window=4)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        model, optimizer, scheduler = proof.prepare(model, optimizer, scheduler)

        @proof.attest
        def attested(model, optimizer, scheduler, batch):
            classify(proof, model, optimizer, batch)
            scheduler.step()

        for batch in batches(8):
            with proof.transaction(batch=batch):
                attested(model, optimizer, scheduler, batch)
    assert_all_exact(folder, 8)
    assert len(records(folder, "program")) == 1
    for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_model_is_lowered_as_the_module_inside(tmp_path):
    attest_and_compare(
        tmp_path / "proof", model=lambda: torch.compile(make_model(), backend="aot_eager"), data=batches(3)
    )
    names = [leaf["name"] for leaf in records(tmp_path / "proof", "schema")[0]["body"]["parameters"]]
    assert names == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_a_skipped_step_of_a_loss_scaler_is_an_identity_update(tmp_path):
    import zkdv

    model = make_model()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    data = list(batches(6))
    data[2] = (data[2][0] * float("inf"), data[2][1])
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model, optimizer = proof.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))

        @proof.attest
        def attested(model, optimizer, batch):
            inputs, targets, scale = batch
            proof.backward(functional.cross_entropy(proof.forward(model, inputs), targets) * scale)
            for parameter in model.parameters():
                parameter.grad = parameter.grad * (1 / scale)
            optimizer.step()

        for inputs, targets in data:
            before = [parameter.detach().clone() for parameter in model.parameters()]
            with proof.transaction(batch=(inputs, targets, scaler.get_scale())):
                proof.backward(scaler.scale(functional.cross_entropy(model(inputs), targets)))
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            same = all(torch.equal(ours, theirs) for ours, theirs in zip(model.parameters(), before, strict=True))
            assert same == (not inputs.isfinite().all())
    assert_all_exact(tmp_path / "proof", 6)
    programs = [record["body"]["program"] for record in records(tmp_path / "proof", "update")]
    assert programs[2] not in programs[:2] + programs[3:]
    assert len(set(programs)) == 2


def test_several_modules_and_optimizers(tmp_path):
    import zkdv

    torch.manual_seed(0)
    first, second = nn.Linear(WIDTH, 4), nn.Linear(4, CLASSES)
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        first, second, one, other = proof.prepare(
            first,
            second,
            torch.optim.AdamW(first.parameters(), lr=1e-2),
            torch.optim.SGD(second.parameters(), lr=1e-1, momentum=0.9),
        )

        @proof.attest
        def attested(first, second, one, other, batch):
            inputs, targets = batch
            proof.backward(functional.cross_entropy(proof.forward(second, proof.forward(first, inputs)), targets))
            for optimizer in (one, other):
                optimizer.step()
                optimizer.zero_grad()

        for batch in batches(5):
            with proof.transaction(batch=batch):
                attested(first, second, one, other, batch)
    assert_all_exact(tmp_path / "proof", 5)
    schema = records(tmp_path / "proof", "schema")[0]["body"]
    assert [leaf["name"] for leaf in schema["parameters"]] == [
        "modules.0.weight",
        "modules.0.bias",
        "modules.1.weight",
        "modules.1.bias",
    ]
    assert schema["optimizer"][0]["name"] == "optimizers.0.state.0.exp_avg"
    assert schema["optimizer"][-1]["name"] == "optimizers.1.state.1.momentum_buffer"


def test_dropout_that_is_switched_off_is_no_randomness(tmp_path):
    def model():
        made = nn.Sequential(make_model(), nn.Dropout(0.0), nn.Dropout(0.5))
        made[2].eval()
        return made

    attest_and_compare(tmp_path / "proof", model=model, data=batches(2))


def test_a_mode_or_a_frozen_parameter_that_changes_is_another_program(tmp_path):
    def between(index, model, optimizer):
        model[2].weight.requires_grad_(index < 3)

    run(tmp_path / "proof", check_every(1), data=batches(6), between=between)
    assert_all_exact(tmp_path / "proof", 6)
    assert [record["body"]["program"] for record in records(tmp_path / "proof", "update")] == [3] * 3 + [
        records(tmp_path / "proof", "program")[1]["seq"]
    ] * 3


def test_a_rate_that_is_set_inside_of_the_block_is_the_one_of_the_step(tmp_path):
    import zkdv

    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model = make_model()
        model, optimizer = proof.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9))

        @proof.attest
        def attested(model, optimizer, batch):
            classify(proof, model, optimizer, batch)

        for index, (inputs, targets) in enumerate(batches(4)):
            with proof.transaction(batch=(inputs, targets)):
                proof.backward(functional.cross_entropy(model(inputs), targets))
                # The batch was copied; what becomes of it now is nobody's concern.
                inputs.fill_(7)
                optimizer.param_groups[0]["lr"] = 0.1 / (index + 1)
                optimizer.step()
                optimizer.zero_grad()
    assert_all_exact(tmp_path / "proof", 4)
    assert len(records(tmp_path / "proof", "program")) == 1


def test_parametrized_modules_and_spectral_norm(tmp_path):
    def model():
        made = make_model()
        nn.utils.parametrizations.weight_norm(made[0])
        nn.utils.parametrizations.spectral_norm(made[2])
        return made

    attest_and_compare(tmp_path / "proof", model=model, data=batches(3))


def test_one_thread_is_enough_for_the_same_bits(tmp_path):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        attest_and_compare(tmp_path / "proof", data=batches(4))
    finally:
        torch.set_num_threads(threads)


def test_recurrent_cells_and_activation_checkpointing(tmp_path):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cell = nn.GRU(WIDTH, 4, batch_first=True)
            self.head = nn.Linear(4, CLASSES)

        def forward(self, inputs):
            out, _ = torch.utils.checkpoint.checkpoint(self.cell, inputs[:, None].repeat(1, 3, 1), use_reentrant=False)
            return self.head(out[:, -1])

    attest_and_compare(tmp_path / "proof", model=Recurrent, data=batches(3))


def test_an_optimizer_that_nobody_knows_is_refused_until_it_is_registered(tmp_path):
    import zkdv
    from zkdv.errors import ZKDVError
    from zkdv.torch.optimizers import FunctionalOptimizer

    class SignDescent(torch.optim.Optimizer):
        def __init__(self, params, lr):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(parameter.grad.sign(), alpha=-group["lr"])

    def step(group, params, grads, states):
        return [param.add(grad.sign(), alpha=-group["lr"]) for param, grad in zip(params, grads, strict=True)], states

    def initial_state(group, param):
        return {}

    form = FunctionalOptimizer(initial_state=initial_state, step=step)
    with zkdv.torch.ZKDV(tmp_path / "proof", check_every(1)) as proof:
        proof.start(rolling_window=4)
        model = make_model()
        optimizer = SignDescent(model.parameters(), lr=1e-2)
        with pytest.raises(ZKDVError, match=r"SignDescent cannot be lowered.*proof\.register_functional_optimizer"):
            proof.prepare(model, optimizer)
        with pytest.raises(TypeError, match=r"no zkdv\.torch\.optimizers\.FunctionalOptimizer"):
            proof.register_functional_optimizer(SignDescent, step)
        with pytest.raises(TypeError, match="no class of optimizers"):
            proof.register_functional_optimizer(dict, form)
        proof.register_functional_optimizer(SignDescent, form)
        model, optimizer = proof.prepare(model, optimizer)

        @proof.attest
        def attested(model, optimizer, batch):
            classify(proof, model, optimizer, batch)

        for batch in batches(3):
            with proof.transaction(batch=batch):
                classify(proof, model, optimizer, batch)
    assert_all_exact(tmp_path / "proof", 3)
