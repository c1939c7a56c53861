"""Gradients, and autocast, of calls with tensors of subclasses with a `__torch_dispatch__`."""

from __future__ import annotations

import contextlib

import pytest
import torch
from compile_runs import compiled
from torch import nn

F = nn.functional
aten = torch.ops.aten
FOUND: list[object] = []


class Rounded(torch.Tensor):
    """Weights of 8 bits. Products round the other factor, too, which has no derivative that one could train with."""

    @staticmethod
    def __new__(cls, numbers, scale, dtype=torch.float32):
        return torch.Tensor._make_wrapper_subclass(cls, numbers.shape, dtype=dtype)

    def __init__(self, numbers, scale, dtype=torch.float32):
        self.numbers, self.scale = numbers, scale

    def weights(self):
        return self.numbers.to(self.dtype) * self.scale.to(self.dtype)

    @classmethod
    def part_by_part(cls, func, args, kwargs):
        (weight,) = args
        if func is aten._to_copy.default:
            return cls(weight.numbers, weight.scale, kwargs.get("dtype", weight.dtype))
        return cls(func(weight.numbers), func(weight.scale), weight.dtype)

    @classmethod
    def product(cls, func, args):
        return func(*[arg.weights() if isinstance(arg, Rounded) else (arg * 8).round() / 8 for arg in args])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func in (aten.t.default, aten.detach.default, aten._to_copy.default):
            return cls.part_by_part(func, args, kwargs or {})
        if func in (aten.mm.default, aten.addmm.default):
            return cls.product(func, args)
        return func(*[arg.weights() if isinstance(arg, Rounded) else arg for arg in args], **(kwargs or {}))


class Asking(Rounded):
    """Asks for the grad mode, which is on where PyTorch records the call."""

    @classmethod
    def product(cls, func, args):
        return super().product(func, args) * (2 if torch.is_grad_enabled() else 3)


class AskingForAutocast(Rounded):
    """Asks for autocast, which has ended where PyTorch has cast the arguments: products of its own are not cast."""

    @classmethod
    def product(cls, func, args):
        wide = args[-1].weights().float() @ torch.ones(args[-1].shape[-1], 2)
        factor = 2 if torch.is_autocast_enabled("cpu") else 3
        return super().product(func, args) * (factor if wide.dtype == torch.float32 else 5)


class Writing(Rounded):
    """Writes down which operators it is asked for, in derivatives, too."""

    @classmethod
    def product(cls, func, args):
        FOUND.append(str(func))
        return super().product(func, args)


def weight(rows=4, columns=4, cls=Rounded):
    numbers, scale = torch.randint(-9, 9, (rows, columns), dtype=torch.int8), torch.rand(rows, 1)
    return nn.Parameter(cls(numbers, scale), requires_grad=False)


class Adapted(nn.Module):
    """A linear layer with rounded weights and a low-rank correction."""

    def __init__(self, cls=Rounded):
        super().__init__()
        self.weight, self.bias = weight(4, 4, cls), nn.Parameter(torch.randn(4))
        self.down, self.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))

    def forward(self, x):
        return F.linear(x, self.weight, self.bias) + F.linear(F.linear(x, self.down), self.up)


def layers(m, x):
    return m(torch.relu(m(x)))


def in_place(m, x):
    y = F.linear(x, m.weight, m.bias)
    y.mul_(2)
    return y


def products(m, x):
    return x @ m.weight + torch.matmul(x, m.weight.t()) + (m.weight * x.mean()).sum(0)


def looked_up(m, x):
    return F.linear(F.embedding(torch.tensor([0, 2, 2]), m.weight), m.down).sum() + x


def without_gradients_inside(m, x):
    with torch.no_grad():
        y = F.linear(x, m.weight)
    return F.linear(x, m.weight).detach() + y * m.bias


PROGRAMS = (layers, in_place, products, looked_up, without_gradients_inside)
SHAPES = ((3, 4), (2, 3, 4), (3, 3, 4), (5, 3, 4), (2, 4))


def outcome(program, m, x, cast, grad_mode=True):
    """The result, gradients and what has been written down."""
    FOUND.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast), torch.set_grad_enabled(grad_mode):
        y = program(m, x)
    found = [y.detach(), y.dtype, y.stride(), y.requires_grad, *FOUND]
    if y.requires_grad:
        leaves = [leaf for leaf in (*m.parameters(), x) if leaf.requires_grad]
        gradients = torch.autograd.grad(y.float().square().sum(), leaves, allow_unused=True)
        found += [None if g is None else (g, g.dtype, g.stride()) for g in gradients]
    return found, list(FOUND)


def assert_same(actual, expected, rtol=0.0):
    if isinstance(expected, torch.Tensor):
        torch.testing.assert_close(actual, expected, rtol=rtol, atol=rtol)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            assert_same(one, other, rtol)
    else:
        assert actual == expected


@pytest.mark.parametrize("grad_mode", (True, False))
@pytest.mark.parametrize("cast", (False, True))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_programs(program, cast, grad_mode):
    torch.manual_seed(0)
    m = Adapted()
    run, said = compiled(program)
    for shape in SHAPES:
        # Eager casts a leaf once for all its uses under autocast, and adds up their gradients before it casts these back.
        rtol = 0.02 if cast and grad_mode else 0.0
        x = torch.randn(shape, requires_grad=True)
        assert_same(outcome(run, m, x, cast, grad_mode), outcome(program, m, x, cast, grad_mode), rtol)
    assert not (said.breaks or said.skips), said.codes()


OPERATORS = {
    "max": lambda m, x: (m.weight * x).max(1),
    "topk": lambda m, x: torch.topk(m.weight + x, 2, 1),
    "split": lambda m, x: list((m.weight * x).split([1, 3], 1)),
    "softmax": lambda m, x: F.softmax(torch.addmm(m.bias, x, m.weight), -1),
    "attention": lambda m, x: F.scaled_dot_product_attention(x[None], m.weight[None], m.weight[None]),
    "bilinear": lambda m, x: F.bilinear(x, x, m.weight[None].expand(2, 4, 4)),
    "layer_norm": lambda m, x: F.layer_norm(x, (4,), m.weight[0], m.bias),
    "batch_norm": lambda m, x: F.batch_norm(x, None, None, m.weight[0], m.bias, True),
    "conv1d": lambda m, x: F.conv1d(x[None], m.weight[:, :, None], m.bias),
    "linear": lambda m, x: F.linear(m.weight, x, m.bias),
    "cross_entropy": lambda m, x: F.cross_entropy(x @ m.weight, torch.tensor([0, 1, 2, 3])),
    "dropout": lambda m, x: F.dropout(x @ m.weight, 0.5) * F.dropout(x * m.weight, 0.5),
    "einsum": lambda m, x: torch.einsum("ij,kj->ik", x, m.weight),
    "cumsum": lambda m, x: (m.weight * x).cumsum(0),
    "sort": lambda m, x: torch.sort(x + m.weight, 1),
    "vector_norm": lambda m, x: torch.linalg.vector_norm(x * m.weight),
    "double": lambda m, x: x.double() @ m.weight.double(),
    "twice": lambda m, x: (x @ m.weight) @ (x @ m.weight).t(),
    "broadcast": lambda m, x: m.weight * x[0] + x[:, :1] * m.weight,
    "chunk": lambda m, x: torch.chunk(F.linear(x, m.weight), 2, -1)[0].mul(3),
    "grad": lambda m, x: torch.autograd.grad(F.linear(x, m.weight).square().sum(), x)[0],
    "checkpoint": lambda m, x: torch.utils.checkpoint.checkpoint(
        lambda y: F.linear(y, m.weight).tanh(), x, use_reentrant=False
    ),
}
MAY_BREAK = {
    "view_as": lambda m, x: x.view_as(m.weight) * 2,
    "in place of a leaf's copy": lambda m, x: (x * 1).mul_(m.weight),
    "where": lambda m, x: torch.where(m.weight > 0, x, m.weight),
    "power": lambda m, x: x.abs() ** m.weight,
    "grad_fn": lambda m, x: F.linear(x, m.weight).grad_fn is not None,
}


def _tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for item in value for t in _tensors(item)] if isinstance(value, (tuple, list)) else []


def _all_of(program, m, x):
    torch.manual_seed(3)
    results = _tensors(program(m, x))
    found = [(t.detach(), t.dtype, t.stride(), t.requires_grad) for t in results]
    asked = [t.float().square().sum() for t in results if t.requires_grad]
    if asked:
        leaves = [leaf for leaf in (*m.parameters(), x) if leaf.requires_grad]
        found += torch.autograd.grad(sum(asked), leaves, allow_unused=True)
    return found, torch.rand(1)


@pytest.mark.parametrize("name", (*OPERATORS, *MAY_BREAK))
def test_operators(name):
    program = (OPERATORS | MAY_BREAK)[name]
    torch.manual_seed(0)
    m = Adapted()
    run, said = compiled(program)
    for _ in range(2):
        x = torch.randn(4, 4, requires_grad=True)
        assert_same(_all_of(run, m, x), _all_of(program, m, x))
    if name in OPERATORS:
        assert not said.skips, said.skips
        assert not said.breaks, said.codes()


@pytest.mark.parametrize("cast", (False, True))
@pytest.mark.parametrize("cls", (Asking, Writing))
def test_what_is_left_to_python(cls, cast):
    torch.manual_seed(0)
    m = Adapted(cls)
    run, _ = compiled(layers)
    for _ in range(3):
        x = torch.randn(3, 4)
        assert_same(outcome(run, m, x, cast), outcome(layers, m, x, cast))


@pytest.mark.parametrize("grad_mode", (True, False))
def test_autocast_has_ended_below(grad_mode):
    torch.manual_seed(0)
    m = Adapted(AskingForAutocast)
    run, said = compiled(in_place)
    for shape in SHAPES:
        x = torch.randn(shape)
        assert_same(outcome(run, m, x, True, grad_mode), outcome(in_place, m, x, True, grad_mode))
    assert not (said.breaks or said.skips), said.codes()


def test_hooks_of_saved_tensors():
    torch.manual_seed(0)
    m, x = Adapted(), torch.randn(3, 4, requires_grad=True)

    def packed(program):
        found = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: found.append(tuple(t.shape)) or t, lambda t: t):
            y = program(m, x)
        return found, torch.autograd.grad(y.sum(), x)[0]

    run, _ = compiled(in_place)
    assert_same(packed(run), packed(in_place))


# ---- between the call and the derivative


def _derivative(program, change, **options):
    torch.manual_seed(0)
    m, x = Adapted(), torch.randn(3, 4)
    leaf = x.clone().requires_grad_()
    given = leaf * 1
    y = program(m, given)
    with torch.no_grad():
        change(m, given)
    try:
        return torch.autograd.grad(y.sum(), leaf, **options)[0].detach()
    except RuntimeError as error:
        return str(error)[:60]


def squared(m, x):
    return F.linear(x, m.weight).square() * m.bias


CHANGES = {
    "weights": lambda m, x: m.weight.numbers.add_(1),
    "scale": lambda m, x: m.weight.scale.mul_(2),
    "another scale": lambda m, x: setattr(m.weight, "scale", m.weight.scale * 2),
    "argument": lambda m, x: x.mul_(2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("program", (in_place, squared))
def test_changes_before_the_derivative(program, change):
    run, _ = compiled(program)
    for _ in range(2):
        assert_same(_derivative(run, CHANGES[change]), _derivative(program, CHANGES[change]))


def _second(program, m, x):
    """Second derivatives of a loss, or what the attempt raises; by the input as well as by the parameters."""
    torch.manual_seed(3)
    losses = [t.float().sin().sum() for t in _tensors(program(m, x)) if t.requires_grad]
    if not losses:
        return None
    leaves = [leaf for leaf in (*m.parameters(), x) if leaf.requires_grad]
    try:
        first = torch.autograd.grad(sum(losses), leaves, create_graph=True, allow_unused=True)
        loss = sum(g.square().sum() for g in first if g is not None)
        return first, torch.autograd.grad(loss, leaves, allow_unused=True)
    except RuntimeError as error:
        return str(error)[:60]


@pytest.mark.parametrize("name", (*OPERATORS, *MAY_BREAK))
def test_derivatives_of_derivatives(name):
    program = (OPERATORS | MAY_BREAK)[name]
    torch.manual_seed(0)
    m = Adapted()
    run, _ = compiled(program)
    for _ in range(2):
        x = torch.randn(4, 4, requires_grad=True)
        # Eager adds up some derivatives in another order.
        assert_same(_second(run, m, x), _second(program, m, x), 1e-5)


@pytest.mark.parametrize("change", CHANGES)
def test_changes_before_the_derivative_of_a_derivative(change):
    def twice(program):
        torch.manual_seed(0)
        m, x = Adapted(), torch.randn(3, 4, requires_grad=True)
        given = x * 1
        (first,) = torch.autograd.grad(program(m, given).sum(), x, create_graph=True)
        with torch.no_grad():
            CHANGES[change](m, given)
        try:
            return torch.autograd.grad(first.square().sum(), x)[0]
        except RuntimeError as error:
            return str(error)[:60]

    run, _ = compiled(squared)
    assert_same(twice(run), twice(squared), 1e-5)


def test_no_second_derivative_where_eager_has_none():
    def first(program):
        m, x = Adapted(), torch.randn(3, 4, requires_grad=True)
        return torch.autograd.grad(program(m, x).sum(), x, create_graph=True)[0].requires_grad

    run, _ = compiled(lambda m, x: F.linear(x, m.weight))
    assert first(run) is first(lambda m, x: F.linear(x, m.weight)) is False


def test_third_derivatives_are_refused():
    def thrice(program):
        m, x = Adapted(), torch.randn(3, 4, requires_grad=True)
        g = program(m, x).sum()
        for _ in range(3):
            g = torch.autograd.grad(g, x, create_graph=True)[0].square().sum()
        return g

    run, _ = compiled(squared)
    with pytest.raises(RuntimeError, match="no third derivatives through"):
        thrice(run)


def test_derivatives_with_a_graph_of_their_own():
    run, _ = compiled(in_place)
    nothing = contextlib.nullcontext
    assert_same(
        _derivative(run, lambda m, x: nothing(), create_graph=True),
        _derivative(in_place, lambda m, x: nothing(), create_graph=True),
    )
