"""Questions about tensors whose answers are constants of a trace."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def of_arguments_and_results(x, y):
    return x.storage_offset(), y.storage_offset(), (x + 1).storage_offset(), x + y


def of_views(x, y):
    parts = x[1:], x[1:].t(), x.clone()[1:, 1:], y.view(-1)[3:]
    return [part.storage_offset() for part in parts], [part * 2 for part in parts]


def of_strides_set_inside(x, y):
    return x.as_strided((2, 2), (1, 2), 3).storage_offset(), x * y


def behind_a_write(x, y):
    x.add_(1)
    y.t_()
    return x[1].storage_offset(), y.storage_offset(), x + 1


@pytest.mark.parametrize(
    "program",
    (of_arguments_and_results, of_views, of_strides_set_inside, behind_a_write),
    ids=lambda program: program.__name__,
)
def test_storage_offsets(program):
    run, said = compiled(program)
    base = torch.arange(64.0)

    def arguments(first, second):
        memory = base.clone()
        return memory[first : first + 9].view(3, 3), memory[second : second + 9].view(3, 3)

    for offsets in ((0, 0), (0, 20), (20, 0), (5, 5), (0, 0)):
        assert str(run(*arguments(*offsets))) == str(program(*arguments(*offsets)))
    run, said = compiled(program)
    x, y = torch.rand(3, 3), torch.rand(3, 3)
    assert str(run(x.clone(), y.clone())) == str(program(x.clone(), y.clone()))
    assert not said.breaks
