"""Elements at positions that are bools as numbers: compilers must not take the vector of bools for one of integers."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph

TABLE = torch.arange(8.0)

POSITIONS = {
    "of a comparison": lambda x: (x > 0.5).long(),
    "times two": lambda x: (x > 0.5).long() * 2,
    "plus one": lambda x: (x > 0.5).long() + 1,
    "twice the sum": lambda x: ((x > 0.5).long() + 1) * 2,
    "of an and": lambda x: ((x > 0.2) & (x < 0.7)).long(),
    "in a narrow type": lambda x: (x > 0.5).to(torch.uint8).long() * 3,
    "one of two": lambda x: torch.where(x > 0.5, 1, 0),
    "one of two powers": lambda x: torch.where(x > 0.5, 4, 0),
    "counted down": lambda x: 7 - (x > 0.5).long(),
}


@pytest.mark.parametrize("length", [3, 4, 8, 17, 100])
@pytest.mark.parametrize("name", POSITIONS)
def test_elements_are_read(name, length):
    x = torch.rand(length, generator=torch.Generator().manual_seed(length))
    for read in (lambda t, x: t[POSITIONS[name](x)], lambda t, x: t.index_select(0, POSITIONS[name](x))):
        function = compile_graph(capture(read, (TABLE, x)), (TABLE, x))
        assert torch.equal(function(TABLE, x)[0], read(TABLE, x))


@pytest.mark.parametrize("length", [4, 17, 100])
def test_elements_are_written(length):
    x = torch.rand(length, generator=torch.Generator().manual_seed(length))

    def write(t, x):
        return t.index_put([(x > 0.5).long()], torch.ones_like(x), accumulate=True)

    function = compile_graph(capture(write, (TABLE, x)), (TABLE, x))
    assert torch.equal(function(TABLE, x)[0], write(TABLE, x))
