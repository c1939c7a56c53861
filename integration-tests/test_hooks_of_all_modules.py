"""Hooks that the program registers for all modules see its own modules, and not the graphs of a compile.

`torch.cond` and `while_loop` are left out: PyTorch's own run graph modules of PyTorch's compiler, which such hooks see in eager, too.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules import module as machinery
from torch.utils.checkpoint import checkpoint

import treadle


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.sin() * 2

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.saved_tensors[0].cos() * 2


def plain(x):
    return x.sin() + 1


def batched(x):
    return torch.func.vmap(lambda row: row.sin() * 2)(x)


def gradient(x):
    return torch.func.grad(lambda y: y.pow(3).sum())(x)


def hessian(x):
    return torch.func.hessian(lambda y: y.pow(3).sum())(x)


def pushed_forward(x):
    return torch.func.jvp(torch.sin, (x,), (torch.ones_like(x),))


def custom(x):
    return Doubled.apply(x).sum()


def computed_again(x):
    return checkpoint(lambda y: (y.sin() * 2).exp(), x, use_reentrant=False)


def inner_gradient(x):
    y = x.detach().requires_grad_()
    (y.sin() ** 2).sum().backward()
    return y.grad


PROGRAMS = (
    plain,
    batched,
    gradient,
    hessian,
    pushed_forward,
    custom,
    computed_again,
    inner_gradient,
)


def _observed(function, x, calls):
    calls.clear()
    result = function(x)
    parts = result if isinstance(result, tuple) else (result,)
    if x.requires_grad and parts[0].requires_grad:
        parts[0].sum().backward()
    return [part.detach() for part in parts], x.grad, list(calls)


@pytest.mark.filterwarnings("error:treadle")
@pytest.mark.parametrize("backend", ("eager", "aot_eager", "codegen"))
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("requires_grad", (False, True), ids=("plain", "gradients"))
def test_programs_without_modules(program, backend, requires_grad):
    calls = []

    def changing(module, args, result):
        calls.append(type(module).__name__)
        return tuple(part * 0.5 for part in result) if isinstance(result, tuple) else result * 0.5

    run = treadle.compile(program, backend=backend)
    handles = [
        machinery.register_module_forward_hook(changing),
        machinery.register_module_forward_pre_hook(
            lambda module, args: calls.append(("before", type(module).__name__))
        ),
    ]
    try:
        for start in (1.0, 2.0):
            found = []
            for function in (program, run):
                x = torch.arange(start, start + 4).view(2, 2).requires_grad_(requires_grad)
                found.append(_observed(function, x, calls))
            torch.testing.assert_close(found[1][:2], found[0][:2])
            assert found[1][2] == found[0][2]
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("backend", ("aot_eager", "codegen"))
@pytest.mark.parametrize("training", (False, True))
def test_a_module_of_the_program(backend, training):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).train(training)
    run = treadle.compile(model, backend=backend)
    seen = []
    handle = machinery.register_module_forward_hook(lambda module, args, result: seen.append(type(module).__name__))
    try:
        for _ in range(2):
            x, found = torch.randn(1, 3, 8, 8), []
            for function in (model, run):
                seen.clear()
                with torch.set_grad_enabled(training):
                    function(x)
                found.append(list(seen))
            assert found[1] == found[0]
    finally:
        handle.remove()
