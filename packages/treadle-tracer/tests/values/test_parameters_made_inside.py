"""Parameters, and modules with parameters, that the program makes: as in eager, drawn numbers, gradients and classes included."""

# ruff: noqa: E702

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch import nn


def a_parameter(x):
    return x * nn.Parameter(torch.ones(3))


def a_parameter_that_leaves(x):
    w = nn.Parameter(x + 1)
    return w


def a_parameter_with_a_gradient(x):
    w = nn.Parameter(x.clone())
    y = (w * x).sum()
    y.backward()
    return w.grad, w


def a_parameter_by_its_constructor_in_c(x):
    w = torch.Tensor._make_subclass(nn.Parameter, x.detach() * 2, True)
    (w * x).sum().backward()
    return w, w.grad, torch.Tensor._make_subclass(nn.Parameter, x).requires_grad


def a_layer(x):
    l = nn.Linear(3, 2)
    return l(x)


def layers(x):
    m = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return m(x), len(list(m.parameters())), [n for n, _ in m.named_parameters()], isinstance(m[0].weight, nn.Parameter)


def layers_without_gradients(x):
    with torch.no_grad():
        m = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.LayerNorm(4), nn.Dropout(0.5), nn.Identity())
        return m(x.expand(5, 3))


def a_module_that_leaves(x):
    m = nn.Linear(3, 2)
    return m, x + 1


def a_module_that_leaves_beside_its_result(x):
    m = nn.Linear(3, 2)
    return m, m(x)


def a_factory_with_requires_grad(x):
    w = torch.ones(3, requires_grad=True)
    return torch.autograd.grad((x * w).sum(), w)[0]


def a_backward_pass(x):
    w = torch.ones(3, requires_grad=True)
    (x * w).sum().backward()
    return w.grad


def an_optimizer(x):
    w = nn.Parameter(torch.ones(3))
    o = torch.optim.SGD([w], lr=0.1)
    (x * w).sum().backward()
    o.step()
    return w.detach()


def a_training_loop(x):
    m = nn.Linear(3, 1)
    o = torch.optim.AdamW(m.parameters(), lr=0.1)
    for _ in range(2):
        o.zero_grad()
        m(x).sum().backward()
        o.step()
    return m(x).detach()


def a_parameter_shares_memory(x):
    d = torch.zeros(3)
    w = nn.Parameter(d, requires_grad=False)
    d.add_(5)
    return w * x, w, d, type(w).__name__, w.requires_grad


def lists_of_parameters(x):
    ws = nn.ParameterList([nn.Parameter(torch.ones(3))])
    nm = nn.ParameterDict({"a": nn.Parameter(torch.ones(3))})
    return x * ws[0] + nm["a"], len(ws)


def registered_by_hand(x):
    m = nn.Module()
    m.register_buffer("b", x * 2)
    m.register_parameter("p", nn.Parameter(x * 3))
    return m.b + 1, list(dict(m.named_buffers()))


def param_of_param(x):
    w = nn.Parameter(x)
    v = nn.Parameter(w)
    return (v * 2).sum()


def of_integers(x):
    try:
        nn.Parameter(torch.arange(3))
    except RuntimeError as error:
        return x + 1, str(error)[:30]


def an_embedding(x):
    e = nn.Embedding(4, 2)
    return e(torch.tensor([1, 2])).detach() + x.sum()


def buffers(x):
    m = nn.Module()
    m.mean, m.scale = nn.Buffer(torch.ones(3)), nn.Buffer(torch.ones(3) * 2, persistent=False)
    kinds = isinstance(m.mean, nn.Buffer), isinstance(x, nn.Buffer), isinstance(m.mean, nn.Parameter)
    return x * m.scale - m.mean, kinds, [n for n, _ in m.named_buffers()], list(m.state_dict())


def a_buffer_that_leaves(x):
    b = nn.Buffer((x * 2).detach(), persistent=False)
    return b, isinstance(b, nn.Buffer), b.persistent


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__ and hasattr(f, "__code__")]
BREAKING = (of_integers, a_module_that_leaves_beside_its_result)


def _portrait(value):
    if isinstance(value, (tuple, list)):
        return [_portrait(item) for item in value]
    if isinstance(value, torch.Tensor):
        grad = value.grad.tolist() if value.is_leaf and value.grad is not None else None
        attributes = sorted(vars(value).items())  # of a buffer, what it is
        return type(value), value.tolist(), value.requires_grad, value.is_leaf, grad, attributes
    if isinstance(value, nn.Module):
        return type(value), [(name, _portrait(parameter)) for name, parameter in value.named_parameters()]
    return value


def _outcome(function, number, wants_grad):
    torch.manual_seed(number)
    x = (torch.ones(3) * number).requires_grad_(wants_grad)
    result = function(x)
    shown = _portrait(result)
    first = result[0] if isinstance(result, tuple) else result
    if isinstance(first, torch.Tensor) and first.grad_fn is not None:
        first.sum().backward()
    return shown, None if x.grad is None else x.grad.tolist(), torch.get_rng_state().tolist()


@pytest.mark.parametrize("wants_grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program, wants_grad):
    run, recorder = compiled(program, fullgraph=program not in BREAKING)
    for number in (1, 2):
        expected = _outcome(
            program, number, wants_grad
        )  # first: an optimizer's class patches itself when it is first used
        assert _outcome(run, number, wants_grad) == expected
    assert len(recorder.graphs) == 1 or program in BREAKING


def test_a_parameter_is_another_one_at_every_call():
    run, _ = compiled(a_parameter_that_leaves, fullgraph=True)
    first, second = run(torch.ones(2)), run(torch.ones(2))
    assert first is not second and first.data_ptr() != second.data_ptr()
    first.sum().backward()
    assert first.grad.tolist() == [1, 1] and second.grad is None
