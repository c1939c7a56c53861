"""Training through `treadle.compile`: gradients, statistics, dropout masks and optimizers as in eager, for whole training steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treadle


class Transformer(nn.Module):
    """Embedding, encoder layer with dropout, batch norm over features, head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.embedding(ids))
        hidden = self.norm(hidden.transpose(1, 2)).transpose(1, 2)
        return self.head(hidden.mean(1))


class Convolutions(nn.Module):
    """Convolution, batch norm, a residual in place, channel dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.drop = nn.Dropout2d(0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.norm(self.first(x)), inplace=True)
        hidden = self.second(hidden).add_(hidden)
        return self.head(self.drop(hidden).mean((2, 3)))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = x.new_zeros(x.shape[0], 8)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "transformer": (Transformer, lambda n: torch.randint(0, 50, (n, 7))),
    "convolutions": (Convolutions, lambda n: torch.randn(n, 3, 8, 8)),
    "channels last": (Convolutions, lambda n: torch.randn(n, 3, 8, 8).contiguous(memory_format=torch.channels_last)),
    "recurrent": (Recurrent, lambda n: torch.randn(n, 4, 6)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01),
}


def build(name: str) -> tuple[nn.Module, nn.Module, list[torch.Tensor]]:
    """Two equal models in training mode, and inputs of two sizes."""
    torch.manual_seed(0)
    make, inputs = MODELS[name]
    model = make().train()
    return model, copy.deepcopy(model), [inputs(n) for n in (4, 4, 6, 3, 6)]


def assert_compiled(graphs: int | None = None) -> None:
    stats = treadle.stats()
    assert not stats.eager_graphs and not stats.breaks, stats
    assert graphs is None or stats.graphs == graphs


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", MODELS)
def test_steps_follow_eager(name: str, optimizer: str) -> None:
    eager, model, inputs = build(name)
    fast = treadle.compile(model)
    runs = []
    for forward, owner in ((eager, eager), (fast, model)):
        steps = OPTIMIZERS[optimizer](owner.parameters())
        torch.manual_seed(1)
        losses = []
        for x in inputs:
            steps.zero_grad()
            loss = forward(x).square().mean()
            loss.backward()
            nn.utils.clip_grad_norm_(owner.parameters(), 1.0)
            steps.step()
            losses.append(loss.item())
        runs.append((losses, list(owner.state_dict().values()), torch.rand(1)))
    assert_compiled(graphs=None if name == "recurrent" else 2)  # gru_cell decides on its batch size
    (losses, state, drawn), (mine, my_state, my_drawn) = runs
    assert mine == pytest.approx(losses, rel=1e-4)
    for one, other in zip(my_state, state, strict=True) if optimizer == "sgd" else ():
        # Not AdamW, which divides by the size of a gradient: for the bias of attention's keys, say, that is rounding alone.
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert torch.equal(drawn, my_drawn)  # the generator is where eager leaves it


@pytest.mark.parametrize("name", MODELS)
def test_gradients_against_float64(name: str) -> None:
    eager, model, (x, *_) = build(name)
    reference = copy.deepcopy(eager).double()
    found = []
    for forward, owner, value in (
        (eager, eager, x),
        (treadle.compile(model), model, x),
        (reference, reference, x.double() if x.is_floating_point() else x),
    ):
        for module in owner.modules():  # masks differ between dtypes
            if isinstance(module, (nn.Dropout, nn.Dropout2d)):
                module.p = 0.0
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0
        forward(value).square().sum().backward()
        found.append([p.grad.double() for p in owner.parameters()])
    for theirs, mine, exact in zip(*found, strict=True):
        own = max((theirs - exact).abs().max().item(), 1e-6 * exact.abs().max().item(), 1e-9)
        assert (mine - exact).abs().max().item() <= 10 * own


def test_accumulation_freezing_and_hooks() -> None:
    eager, model, (x, y, *_) = build("convolutions")
    fast = treadle.compile(model)
    fired: list[list[str]] = [[], []]
    for log, forward, owner in ((fired[0], eager, eager), (fired[1], fast, model)):
        owner.drop.p = 0.0
        for parameter_name, parameter in owner.named_parameters():
            parameter.register_hook(lambda grad, n=parameter_name, log=log: log.append(n))
            parameter.register_post_accumulate_grad_hook(lambda p, n=parameter_name, log=log: log.append(n + " done"))
        forward(x).sum().backward()
        forward(y).sum().backward()  # accumulates
        owner.first.weight.requires_grad_(False)
        forward(x).sum().backward()
    assert sorted(fired[0]) == sorted(fired[1])
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_outputs_without_gradient_and_unused_outputs() -> None:
    weight = torch.randn(4, 4, requires_grad=True)
    bias = torch.randn(4, requires_grad=True)

    @treadle.compile
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = x @ weight
        return hidden, hidden + bias, hidden.argmax(-1), hidden.detach() * 2

    hidden, _, places, detached = program(torch.randn(3, 4))
    assert not places.requires_grad and not detached.requires_grad
    hidden.sum().backward()  # what only the second output depends on gets no gradient, not zeros
    assert weight.grad is not None and bias.grad is None
    assert_compiled()


def test_retain_graph_and_second_backward() -> None:
    w = torch.randn(3, 3, requires_grad=True)
    fast = treadle.compile(lambda x: torch.tanh(x @ w))
    out = fast(torch.ones(2, 3)).sum()
    out.backward(retain_graph=True)
    first = w.grad.clone()
    out.backward()
    torch.testing.assert_close(w.grad, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        out.backward()


def test_a_backward_pass_for_each_of_two_losses() -> None:
    """What eager computes the losses from has nothing in common but the parameters and the inputs."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(4, 6), nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def losses(real: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = generator(noise)
        of_critic = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        return of_critic, F.softplus(-critic(made)).mean()

    fast = treadle.compile(losses)
    parameters = [*generator.parameters(), *critic.parameters()]
    for size in (5, 5, 7, 3, 6):
        real, noise = torch.randn(size, 6), torch.randn(size, 4)
        found = []
        for function in (losses, fast):
            of_critic, of_generator = function(real, noise)
            of_critic.backward()
            found.append([None if p.grad is None else p.grad.clone() for p in parameters])
            of_generator.backward(retain_graph=True)
            of_generator.backward()
            found[-1] += [None if p.grad is None else p.grad.clone() for p in parameters]
            with pytest.raises(RuntimeError, match="second time"):
                of_critic.backward()
            for parameter in parameters:
                parameter.grad = None
        for theirs, ours in zip(*found, strict=True):
            assert (theirs is None) == (ours is None)
            if theirs is not None:
                torch.testing.assert_close(ours, theirs)


def test_a_parameter_changed_before_backward() -> None:
    w = torch.randn(3, 3, requires_grad=True)
    fast = treadle.compile(lambda x: torch.tanh(x @ w) @ w)
    out = fast(torch.ones(2, 3)).sum()
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.backward()


def test_gradient_penalty() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(5, 16), nn.Softplus(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    model = copy.deepcopy(eager)
    fast = treadle.compile(model)
    x = torch.randn(6, 5)
    for forward, owner in ((eager, eager), (fast, model)):
        given = x.clone().requires_grad_()
        score = forward(given)
        (gradient,) = torch.autograd.grad(score.sum(), given, create_graph=True)
        (score.mean() + (gradient.norm(dim=1) - 1).square().mean()).backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert_compiled()


def test_gradient_penalty_through_batch_norm() -> None:
    """The running statistics that the forward pass has written do not stand in the way of running it again."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Softplus(), nn.Linear(8, 1))
    model = copy.deepcopy(eager)
    x = torch.randn(6, 5)
    for forward, owner in ((eager, eager), (treadle.compile(model), model)):
        given = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(forward(given).sum(), given, create_graph=True)
        (gradient.norm(dim=1) - 1).square().mean().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    for one, other in zip(model.buffers(), eager.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_gradients_of_gradients_read_inputs_as_they_were_before_the_graph_changed_them() -> None:
    w = torch.randn(3, requires_grad=True)

    @treadle.compile
    def program(state: torch.Tensor) -> torch.Tensor:
        out = (w * state.exp()).square().sum()
        state.add_(1)
        return out

    (gradient,) = torch.autograd.grad(program(torch.ones(3)), w)
    torch.testing.assert_close(gradient, 2 * w.detach() * torch.e**2)
    (gradient,) = torch.autograd.grad(program(torch.ones(3)), w, create_graph=True)
    torch.testing.assert_close(gradient.detach(), 2 * w.detach() * torch.e**2)
    torch.testing.assert_close(torch.autograd.grad(gradient.sum(), w)[0], torch.full((3,), 2 * torch.e**2))


def test_force_field() -> None:
    """Energy, forces as its gradient, a loss on the forces."""

    class Energy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(1, 8), nn.SiLU(), nn.Linear(8, 1))

        def forward(self, positions: torch.Tensor) -> torch.Tensor:
            distance = (positions[:, None] - positions[None]).square().sum(-1, keepdim=True) + 0.1
            return self.net(distance.rsqrt()).sum()

    torch.manual_seed(0)
    eager = Energy()
    model = copy.deepcopy(eager)
    positions = torch.randn(5, 3)
    for forward, owner in ((eager, eager), (treadle.compile(model), model)):
        given = positions.clone().requires_grad_()
        forces = -torch.autograd.grad(forward(given), given, create_graph=True)[0]
        (forces - 1).square().sum().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)


def test_autocast() -> None:
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    model = copy.deepcopy(eager)
    x = torch.randn(5, 8)
    for forward, owner in ((eager, eager), (treadle.compile(model), model)):
        with torch.autocast("cpu", torch.bfloat16):
            out = forward(x)
        assert out.dtype is torch.bfloat16
        out.float().square().sum().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        assert one.grad.dtype is torch.float32
        torch.testing.assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)
    assert_compiled()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("whole_step", [False, True])
def test_steps_under_autocast_use_the_new_weights(backend: str, whole_step: bool) -> None:
    losses = []
    for compiled in (False, True):
        model = nn.Linear(4, 2)
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = torch.optim.SGD(model.parameters(), 0.125)

        def loss_of(x: torch.Tensor, model: nn.Module = model) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return model(x).sum()

        forward = treadle.compile(loss_of, backend=backend) if compiled and not whole_step else loss_of

        def step(x: torch.Tensor, forward: Any = forward, optimizer: Any = optimizer) -> torch.Tensor:
            loss = forward(x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        run = treadle.compile(step, backend=backend) if compiled and whole_step else step
        losses.append([run(torch.ones(n, 4)).item() for n in (3, 4, 5, 3)])
    assert losses[0] == losses[1]


def test_autocast_in_a_branch_of_cond_uses_the_new_weights() -> None:
    """Graphs with control flow that is decided as they run are run in eager."""
    weight = torch.ones(4, 4, requires_grad=True)

    def cast(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (x @ weight).float()

    def program(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, cast, lambda x: x @ weight, (x,))

    compiled = treadle.compile(program)
    for scale in (1.0, 2.0, 3.0):
        with torch.no_grad():
            weight.fill_(scale)
        assert torch.equal(compiled(torch.ones(2, 4)), torch.full((2, 4), 4 * scale))


def test_tied_weights_and_a_frozen_backbone() -> None:
    torch.manual_seed(0)

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(20, 8)
            self.mix = nn.Linear(8, 8)
            self.head = nn.Linear(8, 20, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.mix(self.embedding(ids))))

    eager = Tied()
    model = copy.deepcopy(eager)
    ids = torch.randint(0, 20, (3, 5))
    fast = treadle.compile(model)
    for frozen in (False, True):
        for forward, owner in ((eager, eager), (fast, model)):
            owner.zero_grad()
            owner.mix.requires_grad_(not frozen)
            F.cross_entropy(forward(ids).flatten(0, 1), ids.flatten()).backward()
        for one, other in zip(model.parameters(), eager.parameters(), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if other.grad is not None:
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert_compiled(graphs=2)


def test_checkpointed_blocks() -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Dropout(0.5), nn.Linear(32, 8))
    other = copy.deepcopy(block)

    def run(module: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False).sum()

    x = torch.randn(4, 8)
    for forward in (run(block), treadle.compile(run(other))):
        torch.manual_seed(3)
        forward(x.clone().requires_grad_()).backward()
    for one, two in zip(other.parameters(), block.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6)


def test_memory_is_freed() -> None:
    import gc
    import weakref

    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1))
    fast = treadle.compile(model)
    x = torch.randn(4, 8)
    out = fast(x)
    seen = [weakref.ref(x), weakref.ref(out)]
    out.sum().backward()
    del x, out
    gc.collect()
    assert [found() for found in seen] == [None, None]


def test_scatter_into_a_tensor_that_does_not_begin_its_storage() -> None:
    """Temporaries of a compiled graph share one block of memory."""

    def program(a: torch.Tensor, b: torch.Tensor, src: torch.Tensor) -> tuple[torch.Tensor, ...]:
        product = a @ b
        flat = torch.exp(product).view(-1) * 2
        scattered = torch.as_strided_scatter(flat, src, (3,), (2,), 1)
        return scattered + 1, flat.sum() + product.sum(0)

    inputs = [torch.randn(4, 5), torch.randn(5, 4), torch.randn(3)]
    for one, other in zip(treadle.compile(program)(*inputs), program(*inputs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert_compiled()


@pytest.mark.parametrize("batch", [1, 2])
def test_gradients_behind_a_pooled_norm(batch: int) -> None:
    """Backward of a mean over two dimensions writes its tangent into zeros through a view."""

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(3, 8, 3)
            self.norm = nn.LayerNorm(8)
            self.head = nn.Linear(8, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            pooled = F.adaptive_avg_pool2d(F.gelu(self.convolution(x)), 1)
            return self.head(self.norm(pooled.permute(0, 2, 3, 1)).permute(0, 3, 1, 2).flatten(1))

    eager = Head()
    model = copy.deepcopy(eager)
    x = torch.randn(batch, 3, 9, 9)
    for forward, owner in ((eager, eager), (treadle.compile(model), model)):
        forward(x).square().mean().backward()
    for one, other in zip(model.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert_compiled()


@pytest.mark.parametrize("number", [1j, 2 - 3j])
def test_complex_numbers_beside_parameters(number: complex) -> None:
    """The derivative conjugates the number, which PyTorch hands to the trace as it is; kernels take tensors only."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (number * x.exp() + y * number).real.sum() + (y / (number * x)).imag.sum()

    gradients = []
    for run in (function, treadle.compile(function)):
        leaves = [torch.linspace(0.5, 2, 6).requires_grad_(), torch.full((6,), 1 + 2j).requires_grad_()]
        run(*leaves).backward()
        gradients.append([leaf.grad for leaf in leaves])
    torch.testing.assert_close(gradients[1], gradients[0])
    assert_compiled()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"batch_first": True}], ids=str)
def test_dropout_between_recurrent_layers_under_changing_sizes(kind, options):
    """PyTorch's decompositions for symbolic sizes leave it out."""
    torch.manual_seed(0)
    model = kind(4, 5, 2, dropout=0.5, **options)
    fast = treadle.compile(model, options={"leave_unprofitable": False})
    for seed, shape in enumerate([(3, 4, 4), (3, 5, 4), (4, 6, 4), (3, 4, 4)]):
        x = torch.randn(shape)
        found = []
        for function in (model, fast):
            torch.manual_seed(seed)
            model.zero_grad()
            function(x)[0].square().sum().backward()
            found.append([torch.get_rng_state(), *(p.grad for p in model.parameters())])
        assert torch.equal(found[0][0], found[1][0])
        for expected, gradient in zip(*found, strict=True):
            torch.testing.assert_close(gradient, expected)


def test_an_embedding_written_under_a_mask() -> None:
    """How many places the mask holds at depends on data; the gradients have sizes that do not."""

    def f(hidden, embedding, mask):
        hidden = hidden * 2
        hidden[mask] = embedding
        return hidden.sin()

    torch.manual_seed(0)
    hidden, embedding = torch.randn(2, 8, 16, requires_grad=True), torch.randn(16, requires_grad=True)
    before = len(treadle.stats().eager_graphs)
    compiled = treadle.compile(f)
    for mask in (torch.rand(2, 8) > 0.5, torch.zeros(2, 8, dtype=torch.bool), torch.ones(2, 8, dtype=torch.bool)):
        want, have = (
            torch.autograd.grad(run(hidden, embedding, mask).square().sum(), (hidden, embedding))
            for run in (f, compiled)
        )
        torch.testing.assert_close(have, want)
    assert len(treadle.stats().eager_graphs) == before
