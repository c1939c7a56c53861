"""Compiled functions that run where autograd sees no operator: in kernels of custom operators, in a `__torch_dispatch__`."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
import torch

import treadle

BELOW = torch._C._AutoDispatchBelowAutograd
BELOW_VIEWS = torch._C._AutoDispatchBelowADInplaceOrView


def _inside_out():
    return torch.inference_mode(False)


PLACES = {
    "above": (),
    "no_grad": (torch.no_grad,),
    "inference": (torch.inference_mode,),
    "below": (BELOW,),
    "below_no_grad": (torch.no_grad, BELOW),
    "below_in_inference": (torch.inference_mode, BELOW),
    "below_views": (BELOW_VIEWS,),
    "below_views_in_inference": (torch.inference_mode, BELOW_VIEWS),
    "out_of_inference": (BELOW, torch.inference_mode, _inside_out),
}


def computes(x, w):
    y = torch.nn.functional.linear(x, w).relu()
    return y, y.sum(), x.detach(), x[0]


def writes(x, w):
    x.mul_(w).add_(1)
    return x, w.sum()


def writes_to_a_view(x, w):
    x[1:].copy_(w[1:])
    v = x.view(-1)
    v[0] = 3.0
    return v.clone(), x * 2


def writes_to_its_own(x, w):
    y = x * 2
    y[0] += w[0]
    y.view(-1)[3].zero_()
    return y, y.t()


def makes_leaves(x, w):
    y = torch.ones(4, 4, requires_grad=True)
    z = (x * 1).requires_grad_()
    return y, z, y * z, (y + w).requires_grad


def differentiates(x, w):
    with torch.enable_grad():
        a = w.detach().clone().requires_grad_()
        loss = (x * a).sum()
        if not loss.requires_grad:
            return loss, None
        return torch.autograd.grad(loss, a)


def asks(x, w):
    y = x * 2
    facts = (y.requires_grad, y.is_leaf, y.grad_fn is None, x[0]._is_view(), torch.is_grad_enabled(), y.is_inference())
    return y, facts, torch.is_inference_mode_enabled()


PROGRAMS = (computes, writes, writes_to_a_view, writes_to_its_own, makes_leaves, differentiates, asks)


def _facts(value):
    if not isinstance(value, torch.Tensor):
        return tuple(map(_facts, value)) if isinstance(value, tuple) else value
    facts = value.requires_grad, value._is_view(), value.is_inference(), value.tolist()
    try:
        return value.is_leaf, value.grad_fn is not None, facts
    except RuntimeError as error:  # a view that has been written to where nothing was recorded
        return str(error), facts


def _outcome(function, place, needs_grad):
    torch.manual_seed(0)
    x, w = torch.randint(-4, 5, (4, 4)).float(), torch.randint(-4, 5, (4, 4)).float()  # sums of them are exact
    base = x * 1
    if needs_grad:
        w.requires_grad_()
        base = x.requires_grad_() * 1
    with ExitStack() as stack:
        for enter in PLACES[place]:
            stack.enter_context(enter())
        try:
            result = function(base, w)
        except RuntimeError as error:
            return str(error), _facts((base, w))
        versions = [None if value.is_inference() else value._version for value in (base, w)]
        return _facts((result, base, w)), versions


@pytest.mark.parametrize("order", (1, -1), ids=("above first", "above last"))
@pytest.mark.parametrize("needs_grad", (False, True), ids=("plain", "gradients"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_places(program, needs_grad, order):
    compiled = treadle.compile(program)
    places = list(PLACES)[::order]
    with treadle.config.patch(recompile_limit=len(places)):
        for place in (*places, *reversed(places)):
            assert _outcome(compiled, place, needs_grad) == _outcome(program, place, needs_grad), place


@torch.library.custom_op("treadle_test_below::scaled", mutates_args=())
def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return SCALE(x, w)


scaled.register_autograd(lambda ctx, grad: (grad * 2, None))


def scale(x, w):
    return (x * 2 + w.sum()).clone()


SCALE = scale


@pytest.mark.parametrize("order", (1, -1), ids=("above first", "above last"))
def test_one_function_in_a_kernel_and_above(order, monkeypatch):
    monkeypatch.setitem(globals(), "SCALE", treadle.compile(scale))
    x, w = torch.ones(4, requires_grad=True), torch.ones(4)
    for function in (scaled, SCALE)[::order] * 2:
        x.grad = None
        result = function(x, w)
        result.sum().backward()
        assert result.tolist() == [6.0] * 4
        assert x.grad.tolist() == [2.0] * 4
    assert not SCALE(w, w).requires_grad


class Doubles(torch.Tensor):
    """Hands every operator to a compiled function, below autograd."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        plain = [arg.inner if isinstance(arg, Doubles) else arg for arg in args]
        return DOUBLED(func, plain)


def doubled(func, plain):
    return func(*plain) * 2


DOUBLED = doubled


@pytest.mark.parametrize("order", (1, -1), ids=("above first", "above last"))
def test_one_function_in_a_torch_dispatch_and_above(order, monkeypatch):
    monkeypatch.setitem(globals(), "DOUBLED", treadle.compile(doubled))
    inner = torch.ones(4, requires_grad=True)
    asking = torch.Tensor._make_wrapper_subclass(Doubles, (4,))
    asking.inner = inner
    above, below = (lambda: DOUBLED(torch.add, [inner, inner])), (lambda: torch.ops.aten.add(asking, asking))
    for run in (above, below)[::order] * 2:
        result = run()
        assert result.tolist() == [4.0] * 4
        assert result.requires_grad == (run is above)
