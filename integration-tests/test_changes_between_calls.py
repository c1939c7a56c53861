"""Programs that change something between two calls, on the whole stack: a compiled function gives what Python gives."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
import torch
from mutate_runs import run

import treadle

TABLES = Path(__file__).parents[1] / "packages" / "treadle-tracer" / "tests" / "changes"
ROUNDED = {"tensor_method_replaced_before"}
"""Programs whose kernels may round otherwise than PyTorch's."""
OTHER_STRIDES = {"tensor_property"}
"""Programs whose results have another stride where the size is 1."""


def _programs():
    for path in sorted(TABLES.glob("test_*.py")):
        module = importlib.import_module(f"changes.{path.stem}")
        for name, program in vars(module).items():
            if inspect.isgeneratorfunction(program) and program.__module__ == module.__name__:
                if name not in ROUNDED | OTHER_STRIDES and not inspect.signature(program).parameters:
                    yield pytest.param(program, id=f"{path.stem.removeprefix('test_')}-{name}")


@pytest.mark.parametrize("program", list(_programs()))
def test_a_change_is_seen(program):
    expected = run(program, lambda function: function)
    got = run(program, treadle.compile)
    for number, (want, have) in enumerate(zip(expected, got, strict=True)):
        assert repr(have) == repr(want), f"call {number}"


def test_uninitialised_tensors_are_filled_where_deterministic_algorithms_fill_them():
    @treadle.compile
    def f(x):
        return torch.empty(3) + x, torch.empty_like(x), x.new_empty(3)

    x = torch.ones(3)
    try:
        torch.use_deterministic_algorithms(True)
        assert all(torch.isnan(result).all() for result in f(x))
        torch.utils.deterministic.fill_uninitialized_memory = False
        f(x)
        torch.utils.deterministic.fill_uninitialized_memory = True
        assert all(torch.isnan(result).all() for result in f(x))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(False)
