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


# ---- numbers of buffers


class Padded(torch.nn.Module):
    """As EnCodec's convolutions: how much to pad is computed from buffers and the length."""

    def __init__(self):
        super().__init__()
        self.register_buffer("stride", torch.tensor(2))
        self.register_buffer("kernel", torch.tensor(5))
        self.conv = torch.nn.Conv1d(1, 1, 5, 2)

    def forward(self, x):
        length = x.shape[-1]
        total = self.kernel - self.stride
        frames = torch.ceil((length - self.kernel + total) / self.stride + 1).to(torch.int64) - 1
        extra = frames * self.stride + self.kernel - total - length
        return self.conv(torch.nn.functional.pad(x, (max(total, extra), extra)))


class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([Padded(), Padded()])

    def forward(self, x):
        for part in self.parts:
            x = part(x).relu()
        return x


def test_sizes_that_follow_from_buffers_are_one_graph():
    module = Twice()
    run, recorder = compiled(module.forward, decide_on_inputs=True)
    for length in (20, 20, 20):
        x = torch.randn(1, 1, length)
        torch.testing.assert_close(run(x), module(x))
    assert len(recorder.graphs) == 1 and not recorder.breaks


def test_buffers_that_change():
    module = Padded()
    run, recorder = compiled(module.forward, decide_on_inputs=True)
    for kernel in (5, 6, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15):
        module.kernel.fill_(kernel)
        x = torch.randn(1, 1, 20)
        torch.testing.assert_close(run(x), module(x))
    assert len(recorder.graphs) <= 6


def test_a_buffer_that_the_program_writes_to():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x):
            self.count += 1
            return torch.nn.functional.pad(x, (self.count, 0)).cumsum(0), x.narrow(0, self.count - 1, 2)

    mine, theirs = Counting(), Counting()
    run, recorder = compiled(mine.forward, decide_on_inputs=True)
    for _ in range(9):
        x = torch.randn(12)
        for found, expected in zip(run(x), theirs(x), strict=True):
            torch.testing.assert_close(found, expected)
    assert mine.count == theirs.count == 9 and len(recorder.graphs) <= 6
    with pytest.raises(IndexError):
        for _ in range(4):
            run(torch.randn(3))


def test_another_module_with_other_buffers():
    one, other = Padded(), Padded()
    other.kernel.fill_(9)
    run, _ = compiled(lambda module, x: module(x), decide_on_inputs=True)
    for module in (one, other, one, other, Padded(), other):
        x = torch.randn(1, 1, 20)
        torch.testing.assert_close(run(module, x), module(x))
