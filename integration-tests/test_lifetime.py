"""Compiled code dies with what it was compiled for: parameters are not kept by caches of ours or of PyTorch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import treadle


def _module(model: nn.Sequential) -> Callable[..., torch.Tensor]:
    return treadle.compile(model)


def _function(model: nn.Sequential) -> Callable[..., torch.Tensor]:
    return treadle.compile(lambda x: model(x))


def _method(model: nn.Sequential) -> Callable[..., torch.Tensor]:
    model.forward = treadle.compile(model.forward)
    return model


def _broken(model: nn.Sequential) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = model[0](x)
        return model[2](y) * float(y.sum())

    return treadle.compile(run)


def _use(compile_it: Callable[[nn.Sequential], Callable[..., torch.Tensor]]) -> weakref.ref[torch.Tensor]:
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)).eval()
    compiled = compile_it(model)
    with torch.no_grad():
        for batch in (2, 2, 3, 4):  # the third call compiles a graph with a dynamic size
            compiled(torch.randn(batch, 8))
    return weakref.ref(model[0].weight)


@pytest.mark.parametrize("compile_it", [_module, _function, _method, _broken])
def test_parameters_are_freed_with_the_compiled_callable(
    compile_it: Callable[[nn.Sequential], Callable[..., torch.Tensor]],
) -> None:
    alive = [_use(compile_it) for _ in range(3)]
    for _ in range(
        4
    ):  # a tensor whose sizes are symbolic keeps Python objects from C++, which takes a pass for each layer
        gc.collect()
    assert [ref() is None for ref in alive] == [True] * 3
