"""Compiled code dies with what it was compiled for: parameters are not kept by caches of ours or of PyTorch."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lifetime_programs import PROGRAMS, make
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


def _references(objects: list[Any]) -> list[weakref.ref[Any]]:
    return [weakref.ref(obj) for obj in objects if type(obj).__weakrefoffset__]


def _tensor_of(result: Any) -> torch.Tensor:
    tensor = result[0] if isinstance(result, tuple) else result
    return tensor.as_subclass(torch.Tensor)  # `assert_close` knows no other


@pytest.mark.parametrize("backend", ["eager", "codegen"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_objects_die_although_the_compiled_function_lives(name: str, backend: str) -> None:
    treadle.reset()
    torch.manual_seed(0)
    function, args, objects = make(name)
    compiled = treadle.compile(function, backend=backend)
    x = torch.arange(4.0)
    results = [_tensor_of(compiled(x, *args)) for _ in range(3)]
    torch.manual_seed(0)
    eager, eager_args, _ = make(name)
    for result in results:
        torch.testing.assert_close(result, _tensor_of(eager(x, *eager_args)))
    references = _references([*objects, *results, x])
    del function, args, objects, x, results, result, eager, eager_args
    for _ in range(4):
        gc.collect()
    assert [ref() for ref in references if ref() is not None] == []
    assert callable(compiled)


def test_the_end_of_a_process_is_quiet() -> None:
    """Classes, functions and modules die then, when the modules that entries need may be empty."""
    program = """
import torch, treadle
class C:
    def __init__(self): self.k = 2.0
    def scaled(self, x): return x * self.k
model, c = torch.nn.Linear(4, 4), C()
compiled = [treadle.compile(model), treadle.compile(c.scaled), treadle.compile(lambda x: c.scaled(x) + model(x))]
cycle = [compiled, model, c, lambda x: cycle]
for f in compiled: f(torch.ones(2, 4)); f(torch.ones(2, 4))
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")
