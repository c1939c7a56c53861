"""Generators of the program's own and the state of the default one in compiled functions, against eager: numbers, gradients, and where
every generator is left."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
import torch._dynamo

import treadle

GENERATOR = torch.Generator()
HOLDER = types.SimpleNamespace(generator=torch.Generator())


def rand(x, g, h):
    return x + torch.rand(3, 4, generator=g), torch.randn(5, generator=g)


def all_kinds(x, g, h):
    p = torch.full((3, 4), 0.3)
    made = [
        torch.randint(0, 9, (40,), generator=g),
        torch.randint(7, (4,), generator=g),
        torch.randperm(11, generator=g),
    ]
    made += [torch.bernoulli(p, generator=g), torch.multinomial(p, 2, generator=g), torch.poisson(p * 9, generator=g)]
    made += [
        torch.normal(0.0, 2.0, (17,), generator=g),
        torch.normal(p, 0.5, generator=g),
        torch.normal(p, p, generator=g),
    ]
    made += [torch.rand(3, dtype=torch.float64, generator=g), p.bernoulli(0.5, generator=g)]
    return made, x * 2


def in_place(x, g, h):
    y = torch.empty(3, 4)
    found = [
        y.normal_(generator=g).clone(),
        y.uniform_(-1, 1, generator=g).clone(),
        y.bernoulli_(0.4, generator=g).clone(),
    ]
    found += [
        y.exponential_(generator=g).clone(),
        y.random_(0, 10, generator=g).clone(),
        y.geometric_(0.3, generator=g).clone(),
    ]
    found += [y.cauchy_(generator=g).clone(), y.log_normal_(generator=g).clone()]
    strided = torch.zeros(8, 8).t()
    strided[::2, 1::3].normal_(generator=g)
    return found, strided, x.mul(2).uniform_(generator=g)


def argument_filled(x, g, h):
    y = x.detach()
    y.normal_(generator=g)
    return y * 2


def in_order(x, g, h):
    a = torch.rand(3, generator=g)
    b = torch.rand(3, generator=h)
    c = torch.rand(3)
    d = torch.rand(3, generator=g)
    return a + x.sum(), b, c, d, torch.rand(3, generator=h)


def unused_numbers(x, g, h):
    torch.rand(3, generator=g)
    return x * torch.rand(3, 4, generator=g)


def seeded(x, g, h):
    same = g.manual_seed(5) is g
    return x * torch.rand(3, 4, generator=g), g.initial_seed(), same


def state_restored(x, g, h):
    state = g.get_state()
    a = torch.rand(3, generator=g)
    g.set_state(state)
    return a, torch.rand(3, generator=g), x + 1, state


def state_handed_over(x, g, h):
    torch.rand(3, generator=g)
    h.set_state(g.get_state())
    return torch.rand(3, generator=h), torch.rand(3, generator=g), x + 1


def made_inside(x, g, h):
    own = torch.Generator().manual_seed(4)
    other = torch.Generator(device="cpu")
    return x + torch.rand(3, 4, generator=own), torch.rand(3, generator=other), other.initial_seed(), own.device


def returned(x, g, h):
    own = torch.Generator().manual_seed(4)
    return x + torch.rand(3, 4, generator=own), own


def of_globals(x, g, h):
    return x + torch.rand(3, 4, generator=GENERATOR) + torch.rand(3, 4, generator=HOLDER.generator)


def initialised(x, g, h):
    layer = torch.nn.Linear(4, 2)
    torch.nn.init.normal_(layer.weight, generator=g)
    torch.nn.init.kaiming_uniform_(layer.weight, generator=g)
    torch.nn.init.zeros_(layer.bias)
    return layer(x).detach()


def noise_in_a_loop(x, g, h):
    sample = x
    for step in range(4):
        noise = torch.randn(sample.shape, generator=g, device=sample.device, dtype=sample.dtype)
        sample = sample * (1 - 0.1 * step) + 0.2 * noise * sample
    return sample


def noise_like(x, g, h):
    return x * torch.randn(x.size(), generator=g) + torch.empty_like(x).normal_(generator=g)


def dropout_by_hand(x, g, h):
    mask = torch.empty_like(x).bernoulli_(0.5, generator=g)
    return (x * mask / 0.5).exp(), torch.nn.functional.dropout(x, 0.5)


def manual_seed(x, g, h):
    before = torch.rand(2)
    torch.manual_seed(3)
    return x * torch.rand(3, 4), before, torch.initial_seed(), torch.rand(2)


def rng_state(x, g, h):
    state = torch.get_rng_state()
    first = torch.rand(3, 4)
    torch.set_rng_state(state)
    return x * first, torch.rand(3, 4), torch.get_rng_state()


def forked(x, g, h):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        y = torch.rand(3, 4)
    return x * y, torch.rand(3)


def module_made_inside(x, g, h):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 1))(x).detach()


def seeded_dropout(x, g, h):
    torch.manual_seed(7)
    return torch.nn.functional.dropout(x.exp(), 0.3)


def default_as_argument(x, g, h):
    return x + torch.rand(3, 4, generator=torch.default_generator), torch.rand(2)


def broken_between(x, g, h):
    a = torch.rand(3, generator=g)
    torch._dynamo.graph_break()
    b = torch.rand(3, generator=g)
    return a, b, x + 1


def raises_behind(x, g, h):
    y = x + torch.rand(3, 4, generator=g)
    if torch.rand(1, generator=g).item() < 2:
        raise ValueError("always")
    return y


def checkpointed(x, g, h):
    def part(x):
        return x.exp() * torch.rand(3, 4, generator=g)

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)


def vmapped(x, g, h):
    return torch.vmap(lambda row: row + torch.rand(4, generator=g), randomness="different")(x)


def normal_of_parameters(x, g, h):
    return torch.normal(x, 1.0, generator=g)


CAPTURED = [
    *(rand, all_kinds, in_place, argument_filled, in_order, unused_numbers, seeded, state_restored, state_handed_over),
    *(made_inside, returned, of_globals, initialised, noise_in_a_loop, noise_like, dropout_by_hand),
    *(manual_seed, rng_state, forked, module_made_inside, seeded_dropout, default_as_argument),
]
OTHERS = [broken_between, raises_behind, checkpointed, vmapped, normal_of_parameters]


def described(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [described(item) for item in value]
    if isinstance(value, torch.Generator):
        return torch.rand(2, generator=value).tolist(), value.initial_seed()
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.dtype, value.stride(), value.requires_grad
    return value


def outcome(function, requires_grad, grad=True, same=False, calls=1):
    """Everything that calls leave: results, gradients, exceptions, and where the generators are."""
    torch.manual_seed(11)
    own = torch.Generator().manual_seed(1)
    generators = [own, own if same else torch.Generator().manual_seed(2), GENERATOR.manual_seed(3)]
    generators += [HOLDER.generator.manual_seed(4), torch.default_generator]
    found: list[Any] = []
    for _ in range(calls):
        x = torch.arange(12.0).view(3, 4).div(10).requires_grad_(requires_grad)
        with torch.set_grad_enabled(grad):
            try:
                result = function(x, generators[0], generators[1])
                found.append(described(result))
                results = result if isinstance(result, tuple) else (result,)
                losses = [y.sum() for y in results if isinstance(y, torch.Tensor) and y.requires_grad]
                if losses:
                    gradients = torch.autograd.grad(sum(losses), x, allow_unused=True)
                    found.append([None if gradient is None else gradient.tolist() for gradient in gradients])
            except (RuntimeError, ValueError) as error:
                found.append((type(error), str(error)[:50]))
        found.append(x.tolist())
    return found + [torch.rand(3, generator=generator).tolist() for generator in generators]


def assert_alike(found: Any, expected: Any) -> None:
    if isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            assert_alike(a, b)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6, nan_ok=True)
    else:
        assert found == expected


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "codegen"])
@pytest.mark.parametrize("function", [*CAPTURED, *OTHERS], ids=lambda function: function.__name__)
def test_numbers_and_generators_are_eagers(function, backend):
    for requires_grad, grad in ((False, True), (True, True), (True, False)):
        if function is argument_filled and requires_grad and grad:
            continue
        expected = outcome(function, requires_grad, grad, calls=2)
        compiled = treadle.compile(function, backend=backend, fullgraph=function in CAPTURED)
        assert_alike(outcome(compiled, requires_grad, grad, calls=2), expected)


@pytest.mark.parametrize("function", [in_order, state_handed_over, rand], ids=lambda function: function.__name__)
def test_two_arguments_that_are_one_generator_at_times(function):
    compiled = treadle.compile(function, fullgraph=True)
    for same in (False, True, False, True):
        expected = outcome(function, False, same=same)
        assert_alike(outcome(compiled, False, same=same), expected)


def test_another_generator_at_every_call_needs_no_other_graph():
    def function(x, g):
        return x + torch.rand(3, generator=g)

    compiled = treadle.compile(function, fullgraph=True)
    x = torch.ones(3)
    compiled(x, torch.Generator())
    with treadle.set_stance("fail_on_recompile") if hasattr(treadle, "set_stance") else torch.no_grad():
        for seed in range(20):
            expected = function(x, torch.Generator().manual_seed(seed))
            assert torch.equal(compiled(x, torch.Generator().manual_seed(seed)), expected)
    torch.manual_seed(0)
    found = compiled(x, torch.default_generator)
    torch.manual_seed(0)
    assert torch.equal(found, function(x, torch.default_generator))


def test_no_generator_and_a_generator():
    def function(x, g=None):
        return x + torch.rand(3, generator=g)

    compiled = treadle.compile(function, fullgraph=True)
    x = torch.ones(3)
    for g in (None, torch.Generator(), None, torch.Generator()):
        torch.manual_seed(0)
        copy = None if g is None else torch.Generator().set_state(g.get_state())
        expected = function(x, copy)
        torch.manual_seed(0)
        assert torch.equal(compiled(x, g), expected)


def test_dynamic_sizes_and_seeds():
    def function(x, g, seed):
        g.manual_seed(seed)
        return x + torch.randn(x.shape, generator=g), torch.randperm(x.shape[0], generator=g)

    compiled = treadle.compile(function, fullgraph=True)
    for size in (3, 4, 6, 9, 20):
        x, g, h = torch.ones(size, 2), torch.Generator(), torch.Generator()
        for found, expected in zip(compiled(x, g, size * 7), function(x, h, size * 7), strict=True):
            assert torch.equal(found, expected)
        assert torch.equal(g.get_state(), h.get_state())


def test_gradients_of_gradients():
    def function(x, g):
        return (x.sin() * torch.rand(3, generator=g)).sum()

    def second(run):
        x, g = torch.ones(3, requires_grad=True), torch.Generator().manual_seed(2)
        (first,) = torch.autograd.grad(run(x, g), x, create_graph=True)
        return first, *torch.autograd.grad(first.sum(), x), g.get_state()

    for found, expected in zip(second(treadle.compile(function)), second(function), strict=True):
        torch.testing.assert_close(found, expected)


def test_large_random_numbers_are_drawn_once():
    """Backward reads the numbers that forward has drawn, whichever way it gets them."""

    def function(x, g):
        torch.manual_seed(5)
        return ((x * torch.rand(200, 200, generator=g)).exp() * torch.rand(200, 200)).sin().sum()

    def run(call):
        x, g = torch.ones(200, 200, requires_grad=True), torch.Generator().manual_seed(2)
        call(x, g).backward()
        return x.grad, g.get_state(), torch.get_rng_state()

    for found, expected in zip(run(treadle.compile(function)), run(function), strict=True):
        torch.testing.assert_close(found, expected)
