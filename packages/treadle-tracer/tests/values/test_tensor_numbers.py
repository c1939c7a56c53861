"""Numbers that the program reads from tensors: what it catches where a tensor has several elements, or none."""

from __future__ import annotations

import math
import operator

import pytest
import torch
from compile_runs import compiled

READINGS = {
    "int": int,
    "float": float,
    "complex": complex,
    "bool": bool,
    "item": torch.Tensor.item,
    "is_nonzero": torch.is_nonzero,
    "index": operator.index,
    "floor": math.floor,
    "not": lambda x: not x,
    "format": lambda x: f"{x:.2f}",
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_what_reading_raises_is_caught(reading, dtype):
    read = READINGS[reading]

    def program(x):
        y = x * 1
        try:
            return read(y)
        except Exception as error:
            return type(error), str(error)

    fn, _ = compiled(program)
    for shape in ((2,), (3,), (4,), (0,), (1, 1), (1,)):
        x = torch.ones(shape, dtype=dtype)
        assert fn(x) == program(x)
