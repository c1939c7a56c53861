"""Tensors from constants in the place of numbers: the graph gets the numbers."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def narrow(x):
    start, length = torch.tensor(1), torch.tensor(2)
    return x.narrow(0, start, length), torch.narrow(x, torch.tensor(1), 0, 2), x.narrow(dim=0, start=start, length=2)


def shapes(x):
    two = torch.tensor([2, 6]).min()
    flat = x.reshape(-1)
    return flat.view(two, 6), flat.view((two, 6)), flat.reshape(3, two * 2), x[:1].expand(two, -1), x.repeat(two, 1)


def split(x):
    size = torch.tensor(2)
    return (*x.split(size), *torch.split(x, [1, torch.tensor(2)]), *x.chunk(torch.tensor(3)))


def ranges(x):
    end = torch.tensor([3, 5]).max()
    return x.sum() + torch.arange(end), torch.arange(0, end, torch.tensor(2)), torch.arange(torch.tensor(2.0))


def repeated(x):
    return x.repeat_interleave(torch.tensor(2), 0), torch.repeat_interleave(x, repeats=torch.tensor(2), dim=0)


def indices(x):
    return (
        x.select(0, torch.tensor(1)),
        x.roll(torch.tensor(1), 0),
        x.unsqueeze(torch.tensor(0)),
        x.sum(torch.tensor(1)),
    )


def factories(x):
    size = torch.tensor(2)
    return x.new_zeros(size, 3), torch.zeros(size, 3), torch.ones((size, 3)), torch.full((size,), torch.tensor(3.5))


def in_place_of_a_tensor(x):
    return torch.add(x, torch.tensor(2)), x.clamp(torch.tensor(0.5)), torch.pow(x, torch.tensor(2)), *x.tensor_split(2)


PROGRAMS = [narrow, shapes, split, ranges, repeated, indices, factories, in_place_of_a_tensor]


def numbers_and_tensors(gm, example_inputs):
    """The backend: the graph, in which no call but the last ones takes a tensor in place of a number."""
    for node in gm.graph.nodes:
        name = getattr(node.target, "__name__", node.target)
        if name in (
            "narrow",
            "view",
            "reshape",
            "expand",
            "repeat",
            "split",
            "arange",
            "repeat_interleave",
            "select",
            "roll",
        ):
            assert len(node.all_input_nodes) <= 1, node.format_node()
    return gm.forward


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_eagers_results_in_one_graph(program):
    x = torch.arange(12.0).reshape(3, 4)
    try:
        expected = program(x)
    except (TypeError, RuntimeError) as error:  # this release of PyTorch takes no tensor there
        pytest.skip(str(error))
    run, recorder = compiled(program, numbers_and_tensors)
    found = run(x)
    assert not recorder.breaks and len(recorder.graphs) == 1
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other)


def test_what_eager_refuses():
    def refused(x):
        return x.narrow(0, torch.tensor([1, 2]), 1)

    run, _ = compiled(refused)
    with pytest.raises((TypeError, RuntimeError)):
        refused(torch.ones(3))
    with pytest.raises((TypeError, RuntimeError)):
        run(torch.ones(3))
