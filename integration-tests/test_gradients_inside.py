"""`backward()`, `torch.autograd.grad` and `.grad` inside compiled functions: one graph where possible, else eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import treadle


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@dataclass
class Program:
    """A function of a tensor, and the leaves that it computes gradients of.

    before: called with the argument ahead of each call; after: with the result (its own result is compared, too); source: makes the
    argument.
    """

    run: Callable[[torch.Tensor], Any]
    leaves: list[torch.Tensor] = field(default_factory=list)
    before: Callable[[torch.Tensor], Any] = lambda x: None
    after: Callable[[Any], Any] = lambda result: None
    source: Callable[[torch.Tensor], torch.Tensor] = lambda x: x


PROGRAMS: dict[str, tuple[Callable[[], Program], frozenset[str]]] = {}


def program(*breaks: str) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Register a maker of programs; `breaks` are the codes of the graph breaks that it has."""

    def register(make: Callable[[], Program]) -> Callable[[], Program]:
        PROGRAMS[make.__name__] = make, frozenset(breaks)
        return make

    return register


# ---- accumulation: who owns a gradient, and in which layout


@program()
def two_leaves_of_one_gradient():
    a, b = leaf(3), leaf(3, seed=1)

    def run(x):
        a.grad = b.grad = None
        (a + b).backward(x)
        a.grad.mul_(2)
        return x.clone(), b.grad.clone(), a.grad is b.grad

    return Program(run, [a, b])


@program()
def the_given_gradient_is_not_taken_over():
    a = leaf(3)

    def run(x):
        a.grad = None
        (a * 1.0).backward(x)
        a.grad.add_(1)
        return x

    return Program(run, [a])


@program()
def a_leaf_as_root():
    a = leaf(3)

    def run(x):
        a.backward(x)
        return a.grad

    return Program(run, [a])


@program()
def an_expanded_gradient():
    a = leaf(3)

    def run(x):
        a.grad = None
        a.sum().backward()
        a.grad.add_(x)
        return a.grad

    return Program(run, [a])


@program()
def a_transposed_leaf():
    a = leaf(3, 4).detach().t().requires_grad_()

    def run(x):
        a.grad = None
        (a @ x).sum().backward()
        return a.grad.stride()

    return Program(run, [a])


@program()
def a_leaf_with_gaps():
    a = leaf(4, 6).detach()[:, ::2].requires_grad_()

    def run(x):
        a.grad = None
        (a @ x).pow(2).sum().backward()
        return a.grad.stride()

    return Program(run, [a])


@program()
def a_channels_last_leaf():
    a = leaf(4, 3, 3, 3).detach().contiguous(memory_format=torch.channels_last).requires_grad_()

    def run(x):
        a.grad = None
        F.conv2d(x.expand(1, 3, 3, 3), a).pow(2).sum().backward()
        return a.grad.stride()

    return Program(run, [a])


@program()
def accumulation_keeps_the_layout():
    a = leaf(3, 4)
    a.grad = torch.zeros(4, 3).t()

    def run(x):
        before = a.grad
        (a.sum(1) * x).sum().backward()
        return a.grad.stride(), before is a.grad

    return Program(run, [a])


@program("autograd-call", "tensor-kind")
def a_sparse_gradient():
    layer = nn.Embedding(5, 3, _weight=leaf(5, 3).detach(), sparse=True)

    def run(x):
        layer.weight.grad = None
        layer(torch.tensor([0, 1, 1])).mul(x).sum().backward()
        return layer.weight.grad.to_dense()

    return Program(run, [])


@program()
def some_inputs_only():
    a, b = leaf(3), leaf(3, seed=2)

    def run(x):
        (a * b * x).sum().backward(inputs=[a])
        return b.grad is None

    return Program(run, [a, b])


# ---- hooks


@program("autograd-call")
def a_hook_on_a_leaf():
    a = leaf(3)
    a.register_hook(lambda gradient: gradient * 2)

    def run(x):
        (a * x).sum().backward()
        return a.grad

    return Program(run, [a])


def _with_hook_from_third_call(register: Callable[[torch.Tensor], Any]) -> Program:
    a, calls = leaf(3), []

    def before(x):
        calls.append(x)
        if len(calls) == 3:
            register(a)

    def run(x):
        (a * x).sum().backward()
        return a.grad

    return Program(run, [a], before)


@program("autograd-call")
def a_hook_that_comes_later():
    return _with_hook_from_third_call(lambda a: a.register_hook(lambda gradient: gradient * 2))


@program("autograd-call")
def a_hook_after_accumulation_that_comes_later():
    def triple(parameter):
        parameter.grad.mul_(3)

    return _with_hook_from_third_call(lambda a: a.register_post_accumulate_grad_hook(triple))


@program()
def a_hook_inside():
    a = leaf(3)

    def run(x):
        y = a * x
        y.register_hook(lambda gradient: gradient * 3)
        y.sum().backward()
        return a.grad

    return Program(run, [a])


# ---- histories of what leaves the graph


def _again(result: torch.Tensor) -> str:
    try:
        result.backward()
    except RuntimeError as error:
        return str(error)
    return "no error"


@program()
def a_freed_loss():
    a = leaf(3)

    def run(x):
        a.grad = None
        loss = (a * x).pow(2).sum()
        loss.backward()
        return loss

    return Program(run, [a], after=_again)


@program()
def a_loss_that_saves_nothing():
    a = leaf(3)

    def run(x):
        a.grad = None
        loss = a.sum()
        loss.backward()
        return loss

    return Program(run, [a], after=_again)


@program()
def a_retained_loss():
    a = leaf(3)

    def run(x):
        a.grad = None
        loss = (a * x).pow(2).sum()
        loss.backward(retain_graph=True)
        return loss

    return Program(run, [a], after=_again)


@program()
def another_output_with_a_live_history():
    a = leaf(3)

    def run(x):
        a.grad = None
        other = (a * a).sum()
        (a * x).sum().backward()
        return other

    return Program(run, [a], after=_again)


@program()
def a_history_freed_in_part():
    a = leaf(3)

    def run(x):
        a.grad = None
        hidden = torch.tanh(a * x)
        hidden.sum().backward()
        return (hidden * 2).sum()

    return Program(run, [a], after=_again)


@program()
def a_history_freed_on_one_of_two_paths():
    a = leaf(3)

    def run(x):
        a.grad = None
        logits = a - a.logsumexp(0)
        (logits * x).sum().backward()
        return logits.exp().sum()

    return Program(run, [a], after=_again)


@program()
def a_history_freed_for_one_of_two_leaves():
    a, b = leaf(3), leaf(3, seed=1)

    def run(x):
        a.grad = b.grad = None
        hidden = torch.tanh(a * x)
        hidden.sum().backward()
        return (hidden + b).sum()

    return Program(run, [a, b], after=lambda result: torch.autograd.grad(result, b))


@program("autograd-call")
def a_history_that_begins_outside():
    a = leaf(3)
    return Program(lambda x: torch.autograd.grad((x * x).sum(), x)[0], [a], source=lambda x: a * x)


@program("torch-call-raises")
def backward_twice():
    a = leaf(3)

    def run(x):
        loss = (a * x).pow(2).sum()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError:
            return "raised"

    return Program(run, [a])


@program("torch-call-raises")
def a_saved_tensor_is_changed():
    a = leaf(3)

    def run(x):
        a.grad = None
        loss = (a * a * x).sum()
        with torch.no_grad():
            a.mul_(0.5)
        try:
            loss.backward()
        except RuntimeError:
            return "raised"

    return Program(run, [a])


@program("torch-call-raises")
def nothing_requires_gradients():
    def run(x):
        try:
            x.sum().backward()
        except RuntimeError as error:
            return str(error)

    return Program(run)


def test_a_saved_tensor_changed_by_a_compiled_step():
    """A graph recorded outside sees that the compiled optimizer has changed a parameter."""
    a = leaf(3)
    optimizer = torch.optim.SGD([a], lr=0.1)
    a.grad = torch.ones(3)
    loss = (a * a).sum()
    version = a._version
    treadle.compile(optimizer.step)()
    assert a._version > version
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- autograd.grad


@program()
def a_gradient_of_an_intermediate():
    a = leaf(3)

    def run(x):
        hidden = a * x
        return torch.autograd.grad((hidden * hidden).sum(), [hidden, a])

    return Program(run, [a])


@program()
def unused_inputs():
    a, b = leaf(3), leaf(3, seed=3)

    def run(x):
        some = torch.autograd.grad((a * x).sum(), [a, b], allow_unused=True)
        return some, torch.autograd.grad((a * x).sum(), [a, b], materialize_grads=True)

    return Program(run, [a, b])


@program("torch-call-raises")
def an_unused_input_that_must_be_used():
    a, b = leaf(3), leaf(3, seed=3)

    def run(x):
        try:
            torch.autograd.grad((a * x).sum(), b)
        except RuntimeError as error:
            return str(error)

    return Program(run, [a, b])


@program()
def a_gradient_with_a_graph_that_leaves():
    a = leaf(3)

    def run(x):
        a.grad = None
        (gradient,) = torch.autograd.grad((a**3 * x).sum(), a, create_graph=True)
        return gradient.pow(2).sum()

    return Program(run, [a], after=_again)


@program("autograd-call")
def accumulation_with_a_graph():
    a = leaf(3)

    def run(x):
        a.grad = None
        (a**3 * x).sum().backward(create_graph=True)
        return a.grad.detach() * 1

    def after(result):
        a.grad = None

    return Program(run, [a], after=after)


@program()
def gradients_off_outside():
    a = leaf(3)

    def compute(x):
        with torch.enable_grad():
            loss = (a * x).pow(2).sum()
        return torch.autograd.grad(loss, a)[0], torch.is_grad_enabled()

    return Program(torch.no_grad()(compute), [a])


# ---- what requires gradients


@program()
def an_argument_begins_to_require_gradients():
    def run(x):
        x.requires_grad_(True)
        (gradient,) = torch.autograd.grad((x**3).sum(), x)
        return gradient, x.requires_grad

    return Program(run)


@program()
def an_argument_begins_to_require_gradients_by_its_attribute():
    def run(x):
        x.requires_grad = True
        (x**3).sum().backward()
        return x.grad

    return Program(run)


@program()
def a_leaf_made_inside_leaves():
    def run(x):
        y = x.clone().requires_grad_()
        z = x.detach().requires_grad_()
        ((y + z) ** 3).sum().backward()
        return y, y.grad, z.is_leaf

    return Program(run)


@program()
def frozen_for_a_while():
    a = leaf(3)

    def run(x):
        a.requires_grad_(False)
        y = a * x
        a.requires_grad_(True)
        return y.requires_grad, y

    return Program(run, [a])


# ---- `.grad`


@program()
def a_gradient_written_by_hand():
    a = leaf(3)

    def run(x):
        a.grad = x
        a.grad.add_(1)
        return x

    return Program(run, [a])


@program("tensor-attribute")
def a_gradient_of_another_shape():
    a = leaf(3)

    def run(x):
        try:
            a.grad = x[:2]
        except RuntimeError as error:
            return str(error)

    return Program(run, [a])


@program()
def masks_of_dropout():
    a = leaf(3)

    def run(x):
        a.grad = None
        F.dropout(a * x, 0.5).sum().backward()
        return a.grad, torch.rand(2)

    return Program(run, [a])


@program()
def recomputation():
    a = leaf(3, 3)

    def run(x):
        a.grad = None
        hidden = torch.utils.checkpoint.checkpoint(lambda h: torch.tanh(h @ a), x @ a, use_reentrant=False)
        hidden.sum().backward()
        return a.grad

    return Program(run, [a])


# ---- the test


def seen(value: Any) -> Any:
    """All that a caller can see of a value, as numbers and flags; a tensor last as a tensor of float64."""
    if isinstance(value, torch.Tensor):
        flags = (value.dtype, value.stride(), value.requires_grad, value.is_leaf, value.grad_fn is None)
        return (*flags, value.detach().double())
    return [seen(item) for item in value] if isinstance(value, (tuple, list)) else value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-5, atol=1e-6)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return a == b


def observe(make: Callable[[], Program], compiled: bool) -> list[Any]:
    """What five calls show: results, arguments, leaves with gradients, grad mode, the random generator."""
    made = make()
    run = treadle.compile(made.run) if compiled else made.run
    found = []
    for step in range(5):
        torch.manual_seed(step)
        x = made.source(torch.randn(3))
        made.before(x)
        result = run(x)
        state = [seen(x), [(seen(a), seen(a.grad)) for a in made.leaves], torch.is_grad_enabled()]
        found.append(
            [seen(result), *state, made.after(result), [seen(a.grad) for a in made.leaves], torch.rand(1).item()]
        )
    return found


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name):
    make, breaks = PROGRAMS[name]
    expected, found = observe(make, False), observe(make, True)
    for step, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert same(mine, theirs), f"call {step}: {mine}, eager: {theirs}"
    assert {b.code for b in treadle.stats().breaks} == breaks


@pytest.mark.filterwarnings("error:treadle")
@pytest.mark.parametrize("backend", ["aot_eager", "codegen"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_through_time_in_pieces(kind, backend):
    """oneDNN's LSTM gives what its backward pass needs in grad mode only."""
    torch.manual_seed(0)
    model = kind(4, 5, batch_first=True)

    def steps(x):
        state, losses = None, []
        for piece in x.split(3, dim=1):
            out, state = model(piece, state)
            state = tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()
            loss = out.square().mean()
            loss.backward()
            losses.append(loss.detach())
        return losses

    run = treadle.compile(steps, backend=backend)
    for without_gradients in (False, True):
        x = torch.randn(2, 9, 4)
        found = []
        for function in (steps, run):
            model.zero_grad()
            with torch.set_grad_enabled(not without_gradients), torch.enable_grad():
                losses = function(x)
            found.append([*losses, *(p.grad for p in model.parameters())])
        torch.testing.assert_close(found[1], found[0])
        assert not any(value.grad_fn is not None for value in found[1])


def test_gradients_turned_on_inside_a_function_without_them():
    """A teacher without gradients and a student with them, under a decorator that turns gradients off."""

    class Distillation(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.teacher, self.student = (
                nn.Linear(4, 3),
                nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.3)),
            )
            self.register_buffer("seen", torch.zeros(()))

        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            taught = self.teacher(x)
            self.seen += 1
            with torch.enable_grad():
                said = self.student(x)
                loss = nn.functional.mse_loss(said, taught)
            return loss, taught, said * 2

    models = [Distillation() for _ in range(2)]
    calls = [models[0], treadle.compile(models[1])]
    for seed in range(3):
        results = []
        for model, call in zip(models, calls, strict=True):
            torch.manual_seed(seed)
            model.zero_grad()
            loss, taught, doubled = call(torch.randn(5, 4))
            assert torch.is_grad_enabled()
            assert (loss.requires_grad, taught.requires_grad, doubled.requires_grad) == (True, False, False)
            loss.backward()
            grads = [p.grad for p in model.parameters()]
            results.append(
                [loss, taught, doubled, *[g for g in grads if g is not None], *model.buffers(), torch.rand(1)]
            )
        torch.testing.assert_close(*results)
    assert not treadle.stats().eager_graphs
    assert not treadle.stats().breaks


def test_leaves_of_sizes_that_vary():
    """Forces of molecules of any size, that a loss is computed from: `backward` gives the positions a gradient, too."""
    torch.manual_seed(0)
    models = [nn.Linear(3, 4) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def step(model, positions):
        positions = positions.detach().requires_grad_(True)
        (forces,) = torch.autograd.grad(model(positions).tanh().sum(), positions, create_graph=True)
        model.zero_grad()
        forces.square().sum().backward()
        return positions.grad * 2, [p.grad for p in model.parameters()]

    compiled = treadle.compile(step)
    for size in (4, 5, 6, 3):
        positions = torch.randn(size, 3)
        torch.testing.assert_close(compiled(models[1], positions), step(models[0], positions))
    assert treadle.stats().graphs == 2 and not treadle.stats().breaks and not treadle.stats().eager_graphs


@pytest.mark.parametrize(
    "gather", [lambda x, t: torch.cat([x, t], 1), lambda x, t: (x.mT @ t.sigmoid()).mT], ids=["cat", "product"]
)
def test_gradients_of_sizes_that_vary_take_the_layout_of_their_leaf(gather):
    """A gradient is a part of another, or runs along other dimensions than its leaf: it is copied into the leaf's layout."""

    def step(x, t):
        x.requires_grad_(True)
        t.requires_grad_(True)
        gather(x, t).square().sum().backward()
        return x.grad, t.grad

    treadle.reset()
    compiled = treadle.compile(step)
    for size in (4, 5, 6, 3):
        given = torch.randn(size, 2), torch.randn(size, 3)
        expected = step(*(t.clone() for t in given))
        found = compiled(*(t.clone() for t in given))
        torch.testing.assert_close(found, expected)
        assert [t.stride() for t in found] == [t.stride() for t in expected]
    assert treadle.stats().graphs == 2 and not treadle.stats().breaks and not treadle.stats().eager_graphs


def test_a_training_step_that_resamples_serves_all_sizes():
    treadle.reset()
    layer = torch.nn.Conv2d(3, 3, 3, padding=1)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)

    def step(x):
        loss = F.interpolate(layer(x), scale_factor=2.0, mode="nearest").square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    compiled = treadle.compile(step, options={"leave_unprofitable": False})
    for rows in (2, 3, 4, 5):
        x, before = torch.randn(rows, 3, 4, 4), copy.deepcopy(layer.state_dict())
        got, after = compiled(x), copy.deepcopy(layer.state_dict())
        layer.load_state_dict(before)
        torch.testing.assert_close((got, after), (step(x), layer.state_dict()))
    assert treadle.stats().graphs <= 2


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda h: torch.complex(h.relu(), h.sin()).abs().square().mean(),
        lambda h: F.pad(h.softmax(-1), (1, 0), value=0).cumsum(-1).square().mean(),
        lambda h: (
            torch.linalg.solve_triangular(
                torch.diag_embed(h.exp()).unsqueeze(1), torch.stack([h, h * 2], 1).unsqueeze(-1), upper=False
            )
            .square()
            .mean()
        ),
    ],
    ids=["complex", "pad", "solve_triangular"],
)
def test_a_training_step_whose_kernels_read_sizes_as_numbers_serves_all_sizes(loss_of):
    """The strides of results are asked of kernels of C++ first. Those of these operators, or of their derivatives, take no symbols."""
    treadle.reset()
    steps, states = [], []
    for _ in range(2):
        torch.manual_seed(0)
        layer = nn.Linear(3, 4)
        optimizer = torch.optim.Adam(layer.parameters(), 0.01)

        def step(x, layer=layer, optimizer=optimizer):
            loss = loss_of(layer(x))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        steps.append(step)
        states.append(layer.state_dict())
    compiled = treadle.compile(steps[1], options={"leave_unprofitable": False})
    for rows in (2, 3, 4, 5, 6):
        x = torch.randn(rows, 3)
        torch.testing.assert_close((compiled(x), states[1]), (steps[0](x), states[0]))
    assert treadle.stats().graphs <= 3 and not treadle.stats().breaks and not treadle.stats().eager_graphs


def test_gradients_of_a_weight_whose_sizes_a_mask_selects():
    """The gradient of the weight has as many columns as the mask selects. That it fits the weight is a check of the graph."""
    treadle.reset()
    layer = nn.Linear(2, 4)
    masks = [torch.tensor([True, False, True, False]), torch.tensor([True, False, True, True])]

    def step(x, mask):
        layer.zero_grad()
        layer(x[..., mask]).square().sum().backward()
        return [p.grad for p in layer.parameters()]

    compiled = treadle.compile(step, options={"leave_unprofitable": False})
    for rows in (2, 3, 4, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, masks[0]), [g.clone() for g in step(x, masks[0])])
    assert treadle.stats().graphs <= 3 and not treadle.stats().breaks
    messages = []
    for function in (step, compiled):
        with pytest.raises(RuntimeError) as caught:
            function(x, masks[1])
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_gradients_of_sizes_that_broadcast():
    """The gradient takes its first size from the other operand. That both are equal is guarded."""
    treadle.reset()

    def step(a, b):
        a = a.detach().requires_grad_()
        torch.linalg.solve_triangular(a.tril() + 3 * torch.eye(3), b, upper=False).sum().backward()
        return a.grad

    compiled = treadle.compile(step, options={"leave_unprofitable": False})
    for rows in ((4, 4), (5, 5), (6, 6), (1, 4), (3, 1)):
        a, b = torch.randn(rows[0], 1, 3, 3), torch.randn(rows[1], 2, 3, 1)
        torch.testing.assert_close(compiled(a, b), step(a, b))
    assert not treadle.stats().breaks


def test_results_whose_history_is_freed_on_one_of_two_paths_are_compiled():
    treadle.reset()
    expected, found = (observe(a_history_freed_on_one_of_two_paths, is_compiled) for is_compiled in (False, True))
    assert all(map(same, found, expected))
    assert not treadle.stats().eager_graphs


def test_saved_sizes_of_a_history_that_data_tells():
    """What leaves the graph may have a history that is freed; the sizes that its nodes have saved stay symbols."""
    treadle.reset()
    weight = torch.ones(2, requires_grad=True)

    def step(x, index):
        count = int(index.max()) + 1
        y = torch.zeros(count, 3, requires_grad=True)
        energy = (x - y[index]).square().mean() + (weight * y.square().sum(-1).mean()).sum()
        (gradient,) = torch.autograd.grad(energy, y, create_graph=True)
        loss = (y - 0.1 * gradient).square().mean()
        torch.set_printoptions()  # breaks the graph
        loss.backward()
        return loss.detach(), x.grad

    compiled = treadle.compile(step, options={"raise_internal_errors": True, "leave_unprofitable": False})
    for rows in (5, 6, 8):
        x, index = torch.randn(rows, 3), torch.randint(0, 4, (rows,))
        torch.testing.assert_close(compiled(x.clone().requires_grad_(), index), step(x.clone().requires_grad_(), index))
    assert treadle.stats().breaks


@pytest.mark.parametrize(
    "function",
    [
        lambda h, x, number: torch.add(x, h, alpha=number) + h.add(x, alpha=number),
        lambda h, x, number: torch.sub(x, h, alpha=number),
        lambda h, x, number: torch.lerp(h, x, number),
    ],
    ids=["add", "sub", "lerp"],
)
def test_gradients_beside_a_number_that_the_graph_reads(function):
    """Derivatives ask for the number: whether `alpha` is 1."""
    treadle.reset()
    layer = nn.Linear(3, 3)

    def step(x):
        layer.zero_grad()
        h = layer(x)
        loss = function(h, x, h.detach().abs().max().item()).square().sum()
        loss.backward()
        return loss.detach(), [p.grad for p in layer.parameters()]

    compiled = treadle.compile(step, options={"leave_unprofitable": False})
    for rows in (2, 3, 4, 5):
        x = torch.randn(rows, 3)
        loss, gradients = step(x)
        torch.testing.assert_close(compiled(x), (loss, [g.clone() for g in gradients]))
    assert not treadle.stats().breaks and not treadle.stats().eager_graphs


def _of_outputs(x):
    leaf = x.detach().requires_grad_()
    rows, width = x.shape
    with torch.enable_grad():
        y = leaf.sin() * leaf.sum(-1, keepdim=True)
        basis = torch.eye(width).unsqueeze(1).expand(width, rows, width)
        (jacobian,) = torch.autograd.grad(y, leaf, basis, is_grads_batched=True, create_graph=True)
    return y.detach(), torch.einsum("i...i", jacobian).detach(), jacobian.detach()


def _of_two_leaves(x):
    y = (x * 1.5).tanh() @ torch.ones(3, 3)
    unused = torch.ones(2, requires_grad=True)
    basis = torch.stack([torch.ones_like(y), y.detach()])
    with torch.enable_grad():
        found, missing = torch.autograd.grad(
            y, (x, unused), basis, is_grads_batched=True, allow_unused=True, create_graph=True
        )
    return found.square().sum(0), missing


def _by_an_embedding(x):
    y = F.embedding(torch.tensor([0, 1, 1]), x) * 2
    basis = torch.stack([torch.ones_like(y), y.detach()])
    return torch.autograd.grad(y, x, basis, is_grads_batched=True)[0]


def _jacobian(x):
    return torch.autograd.functional.jacobian(lambda a: (a.sin() * a.sum(-1, keepdim=True)).sum(0), x, vectorize=True)


@pytest.mark.parametrize(
    "function", [_of_outputs, _of_two_leaves, _by_an_embedding, _jacobian], ids=lambda f: f.__name__
)
def test_batches_of_gradients_serve_all_sizes(function):
    torch.manual_seed(0)
    with treadle.config.patch(leave_unprofitable=False):
        run = treadle.compile(function)
        for rows in (4, 4, 5, 7, 6):
            x = torch.randn(rows, 3)
            results = []
            for call in (function, run):
                leaf = x.clone().requires_grad_()
                found = call(leaf)
                found = [part for part in (found if isinstance(found, tuple) else [found]) if part is not None]
                if found[0].requires_grad:
                    found.append(torch.autograd.grad(found[0].sum(), leaf)[0])
                results.append(found)
            for expected, found in zip(*results, strict=True):
                torch.testing.assert_close(found, expected)
                assert (found.stride(), found.requires_grad) == (expected.stride(), expected.requires_grad)
    assert (treadle.stats().graphs, treadle.stats().breaks) == (2, ())


def _written_under_a_mask(x, mask, values):
    made = x.clone()
    made[mask] = values
    loss = (made * made).sum()
    loss.backward()
    return loss.detach(), x.grad, values.grad


def test_gradients_of_what_is_written_under_a_mask():
    """The mask tells how many they are."""
    run = treadle.compile(_written_under_a_mask)
    for mask in ([True, False, True], [False, True, True], [False, False, True]):
        results = []
        for call in (_written_under_a_mask, run):
            results.append(call(leaf(3), torch.tensor(mask), leaf(sum(mask), seed=1)))
        torch.testing.assert_close(*results)
    assert treadle.stats().breaks == ()
