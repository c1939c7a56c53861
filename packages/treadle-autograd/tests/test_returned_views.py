"""Returned views between other results: whoever looks at their gradients sees what eager shows."""

from __future__ import annotations

import random

import pytest
import torch
from gradient_oracle import run_operators
from joint_graphs import with_examples
from torch import fx

from treadle_autograd import aot, training
from treadle_autograd.returned_views import sources_of


def view_of_hidden_result(x, w):
    h = (x @ w).t()
    return h, (h.tanh() * w).sum()


def view_of_input(x, w):
    v = x.t()
    return v, (v @ w).sin()


def view_of_leaf(x, w):
    v = w[1:]
    return v, (v * 2).exp(), x * 3


def chain_of_views(x, w):
    a = (x @ w).unsqueeze(0)
    b = a[0, 1:]
    c = b.t()
    return c, a, b, (c.sin().sum() * x).t(), b.exp()


def views_only(x, w):
    h = x @ w
    v = h.view(9)
    return v[2:7], v, v.view(3, 3)[1]


def views_of_inputs_only(x, w):
    v = x.t()
    return v, v[1], w


def several_at_once(x, w):
    a, b, c = (x * w).unbind(0)
    return a, b, c * a, (b + a).sum()


def view_with_its_base(x, w):
    h = x @ w
    v = h.t()
    return h, v, (v @ v).sum() + h.sum(), (h * 2).cos()


def view_of_written_input(x, w):
    x.mul_(w)
    v = x.view(9)
    return v, v.sin(), x.cos()


def view_older_than_write(x, w):
    v = x.t()
    early = v.exp()
    x.mul_(w)
    return v, early, v.sin()


def view_of_written_result(x, w):
    h = x * w
    v = h[1]
    before = v.exp()
    h[0].mul_(2)
    return v, before, v.cos(), h.sum()


def view_read_twice_after_write(x, w):
    x.mul_(w)
    v = x.t()
    return v, v.unbind(0)[1].unsqueeze(0) + v.sin()


def older_view_of_hidden_result(x, w):
    h = x * w
    v = h.expand(2, 3, 3)[1]
    h.mul_(x)
    return v.exp(), v, h.softmax(-1)


def made_twice(x, w):
    v, u = x.t(), x.t()
    return v, v.sin() + u.cos(), u.exp()


def made_twice_after_write(x, w):
    x.mul_(w)
    v, u = x.t(), x.t()
    return v, v.sin() + u.cos(), u.exp()


def made_twice_and_read_in_parts(x, w):
    x.mul_(w)
    v, u = x.t(), x.t()
    return v, v[0] + u.cos(), u[1].exp()


def other_part_after_write(x, w):
    x.mul_(w)
    v, u = x[1], x[0]
    return v, v.sin() + u.cos(), u.exp()


def same_sizes(x, w):
    h = x @ w
    v = h.view(3, 3)
    return h, v, v.sin(), h.cos()


def whole_input(x, w):
    v = x.view(3, 3)
    return v, v.sin() * w


def expanded(x, w):
    v = (x * w).sum(0).expand(2, 3)
    return v, v.sin(), (v * v).sum()


def detached_beside(x, w):
    v = (x @ w).t()
    d = v.detach()
    return v, d, (v * d).sum(), d * w


def complex_parts(x, w):
    c = torch.complex(x, w)
    v = torch.view_as_real(c)
    return v, c, v.sin(), (v[..., 0] * v[..., 1]).sum()


def numbers_of_pairs(x, w):
    y = torch.stack([x * w, w.cos()], -1)
    z = torch.view_as_complex(y)
    return y, z, z[1:], z.conj(), z.real, (z.conj() * z.imag).abs().sum()


def parts_of_parts(x, w):
    c = torch.complex(x * w, w)[1:]
    r = torch.view_as_real(c)
    return r, r[..., 1], c, r[..., 0].sin() * c.abs()


def pairs_of_a_part(x, w):
    y = torch.stack([x * w, w.cos()], -1).reshape(3, 6)
    p = y[:, 2:]
    return p, torch.view_as_complex(p.unflatten(1, (2, 2))), p.exp()


def diamond(x, w):
    a = (x + w).t()
    b = a.sin()
    c = b.t()
    return a, c, (c @ a).sum(), c.exp(), b


PROGRAMS = (
    view_of_hidden_result,
    view_of_input,
    view_of_leaf,
    chain_of_views,
    views_only,
    views_of_inputs_only,
    several_at_once,
    view_with_its_base,
    view_of_written_input,
    view_older_than_write,
    view_of_written_result,
    view_read_twice_after_write,
    older_view_of_hidden_result,
    made_twice,
    made_twice_after_write,
    made_twice_and_read_in_parts,
    other_part_after_write,
    same_sizes,
    whole_input,
    expanded,
    detached_beside,
    complex_parts,
    numbers_of_pairs,
    parts_of_parts,
    pairs_of_a_part,
    diamond,
)


def with_history(values):
    return [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]


def total(values):
    return sum((v.abs() * (k + 1)).sum() for k, v in enumerate(values))


def backward(x, w, outputs):
    total(outputs).backward()
    return [x.grad, w.grad]


def hooks(x, w, outputs):
    seen = []
    for k, v in enumerate(outputs):
        v.register_hook(lambda g, k=k: seen.append((k, g.clone())))
    outputs[-1].abs().sum().backward()
    return [x.grad, w.grad, *[t for _, t in sorted(seen, key=lambda pair: pair[0])]]


def changing_hooks(x, w, outputs):
    for k, v in enumerate(outputs):
        v.register_hook(lambda g, k=k: g * (k + 2))
    total(outputs).backward()
    return [x.grad, w.grad]


def retained(x, w, outputs):
    for v in outputs:
        v.retain_grad()
    total(outputs[len(outputs) // 2 :]).backward()
    return [x.grad, w.grad, *[v.grad for v in outputs]]


def every_pair(x, w, outputs):
    found = []
    for v in outputs:
        found += torch.autograd.grad(v.abs().sum(), [*outputs, x, w], retain_graph=True, allow_unused=True)
    return found


def by_edges(x, w, outputs):
    edges = [torch.autograd.graph.get_gradient_edge(v) for v in outputs]
    return torch.autograd.grad(total(outputs), edges, allow_unused=True)


def twice(x, w, outputs):
    found = torch.autograd.grad(total(outputs[1:]), [outputs[0], x], create_graph=True, allow_unused=True)
    rest = with_history(found)
    if not rest:
        return found
    return [*found, *torch.autograd.grad(total(rest), [outputs[0], x, w], allow_unused=True)]


def one_after_another(x, w, outputs):
    found = []
    for k, v in enumerate(outputs):
        last = k == len(outputs) - 1
        found += torch.autograd.grad(v.sin().abs().sum(), [outputs[0], x, w], retain_graph=not last, allow_unused=True)
    return found


def writing_to_the_first(x, w, outputs):
    try:
        outputs[0].mul_(2)
        return torch.autograd.grad(outputs[0].abs().sum(), [x, w], allow_unused=True)
    except RuntimeError as refused:
        return ["modified" if "modified by" in str(refused) else "refused"]


LOOKS = (
    backward,
    hooks,
    changing_hooks,
    retained,
    every_pair,
    by_edges,
    twice,
    one_after_another,
    writing_to_the_first,
)


def inputs():
    x = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
    w = torch.linspace(0.5, 2, 9).view(3, 3).requires_grad_()
    return x, w


def seen_by(look, function):
    x, w = inputs()
    outputs = with_history(function(x * 1, w))
    return list(look(x, w, outputs))


def compiled(function):
    x, w = inputs()
    gm = with_examples(fx.symbolic_trace(function, {}), [x * 1, w])
    return aot(gm, [x * 1, w], inference=False, forward=run_operators)


def assert_same(found, expected):
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if not isinstance(b, torch.Tensor):
            assert a == b
        else:
            torch.testing.assert_close(a, b)
            assert a.requires_grad == b.requires_grad


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("function", PROGRAMS)
def test_looks(function, look):
    fast = compiled(function)
    expected = seen_by(look, function)
    for _ in range(2):
        if expected != ["modified"]:  # a compiled graph may have gradients all the same
            assert_same(seen_by(look, fast), expected)


COMPILED = set(PROGRAMS) - {views_of_inputs_only, pairs_of_a_part, view_older_than_write, made_twice_and_read_in_parts}


@pytest.mark.parametrize("function", PROGRAMS)
def test_which_run_compiled(function):
    assert (compiled(function).why_eager is None) == (function in COMPILED)


def test_nobody_looks(monkeypatch):
    def fail(*_):
        raise AssertionError("ran in eager")

    fast = compiled(chain_of_views)
    monkeypatch.setattr(training.Call, "rerun_cut", fail)
    monkeypatch.setattr(training.Call, "rerun", fail)
    assert_same(seen_by(backward, fast), seen_by(backward, chain_of_views))


def test_views_are_made_from_each_other():
    x, w = inputs()
    c, a, b, *_ = compiled(chain_of_views)(x, w)
    assert c._base is a._base is b._base
    assert c.grad_fn.next_functions[0][0] is b.grad_fn
    assert b.grad_fn.next_functions[0][0] is a.grad_fn


def test_dynamic_sizes():
    def program(x, w):
        v = (x * w).unsqueeze(0)
        u = v[:, 1:]
        return u, v, u.sin(), v.cos()

    x = torch.linspace(-1, 1, 8).view(4, 2)
    gm = with_examples(fx.symbolic_trace(program), [x, x], dynamic=True)
    leaf = x.clone().requires_grad_()
    fast = aot(gm, [leaf * 1, leaf], inference=False, forward=run_operators)
    assert fast.why_eager is None
    for n in (4, 7):
        found = []
        for function in (fast, program):
            leaf = torch.linspace(-1, 1, 2 * n).view(n, 2).requires_grad_()
            outputs = list(function(leaf * 1, leaf))
            found.append([t.detach() for t in outputs] + every_pair(leaf, leaf, outputs))
        assert_same(*found)


def test_sources_of():
    x = torch.ones(2, requires_grad=True)
    h = x.sin()
    v, other = h[1:], x.cos()
    y = v * other[1:]
    edges = {(t.grad_fn, t.output_nr): k for k, t in enumerate((h, v, y, other))}
    assert sources_of(edges) == {0: (), 1: (0,), 2: (0, 1, 3), 3: ()}


def random_program(seed):
    """A program of a few operators and views, some of whose results it returns."""
    rng = random.Random(seed)
    makers = [
        lambda a, b: a.t(),
        lambda a, b: a.reshape(9).view(3, 3),
        lambda a, b: a[torch.tensor([0, 1, 2])],
        lambda a, b: a.unsqueeze(0)[0],
        lambda a, b: a.expand(2, 3, 3)[1],
        lambda a, b: a.sin(),
        lambda a, b: a * b,
        lambda a, b: a @ b,
        lambda a, b: a.transpose(0, 1).exp().t(),
        lambda a, b: a.detach() * b,
    ]
    steps = [(rng.choice(makers), rng.randrange(8), rng.randrange(8)) for _ in range(7)]
    returned = rng.sample(range(2, 9), 4)

    def program(x, w):
        values = [x, w]
        for make, i, j in steps:
            values.append(make(values[i % len(values)], values[j % len(values)]))
        return tuple(values[k] for k in returned)

    return program


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed):
    function = random_program(seed)
    x, w = inputs()
    if not with_history(function(x * 1, w)):
        return
    fast = compiled(function)
    for look in LOOKS:
        expected = seen_by(look, function)
        if expected != ["modified"]:  # a compiled graph may have gradients all the same
            assert_same(seen_by(look, fast), expected)
