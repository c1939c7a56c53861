"""Tensors of numbers that differ from call to call: made by the graph, and read back as the numbers."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

TABLE = torch.arange(40.0).view(20, 2)
CALLS = (0, 1, 2, 3, 7, 2)


def written(n):
    pair = torch.tensor([n, 3])
    pair[1] = n * 2
    return pair[1].item(), TABLE[: pair[0]]


def unpacked(n):
    first, second = torch.tensor([n, n + 1]).tolist()
    return TABLE[first : second + 2]


def write_at(n):
    table = torch.tensor([n, 10, 20, 30])
    table[torch.tensor(n)] = 7
    return table.tolist(), table[3].item()


def nested(n):
    sizes = torch.tensor([[n, 2], [3, 4]])
    return sizes, sizes[0, 0].item(), [int(size) for size in sizes.flatten()], torch.cat([sizes, sizes])[2, 0].item()


GENERAL = {
    "a number": lambda n: torch.tensor(n) + 1,
    "a list": lambda n: torch.tensor([n]) + 1,
    "as_tensor": lambda n: torch.as_tensor([n, 2]) * 2,
    "of one number": lambda n: torch.tensor([n] * 9),
    "of one number, nested": lambda n: torch.tensor([[[n, n]] * 2] * 3),
    "with constants": lambda n: torch.tensor([[n, 2], [3, n * 2]]),
    "with a float": lambda n: torch.tensor([n, 1.5]),
    "with a truth value": lambda n: torch.tensor([n, True]),
    "of a dtype": lambda n: (torch.tensor([n], dtype=torch.float64), torch.tensor(n, dtype=torch.bfloat16)),
    "of a device": lambda n: torch.tensor([n], device="cpu"),
    "tuples": lambda n: torch.tensor(((n, n + 1),)),
    "a row of a table": lambda n: TABLE[torch.tensor([n, n + 1])],
    "new_tensor": lambda n: (TABLE.new_tensor([n, 1]), torch.tensor([2]).new_tensor(n, dtype=None)),
    "LongTensor": lambda n: (torch.LongTensor([n, 2]), torch.FloatTensor([n, 1.5]), torch.DoubleTensor([[n]])),
    "read": lambda n: (torch.tensor([n]).item(), int(torch.tensor(n)), float(torch.tensor(n))),
    "a slice": lambda n: TABLE[: torch.tensor(n)],
    "a size": lambda n: TABLE.narrow(0, torch.tensor(n), 2),
    "unpacked": unpacked,
    "nested": nested,
    "written": written,
    "beside large constants": lambda n: [torch.tensor([n, 2**62, 2**32, 0])[k].item() for k in range(4)],
}
FIXED = {  # what is read makes the number a constant that is guarded
    "computed": lambda n: torch.tensor([n, 3]).prod().item(),
    "a branch": lambda n: TABLE + 1 if torch.tensor(n) > 2 else TABLE,
    "a dtype that may be too small": lambda n: (
        torch.tensor([n], dtype=torch.int32),
        torch.tensor(n, dtype=torch.float16),
    ),
    "its float": lambda n: torch.tensor(n, dtype=torch.float32).item(),
    "changed": lambda n: (torch.tensor([n]).add_(1)).item(),
    "a place": lambda n: torch.tensor([n, 10, 20, 30, 40])[n].item(),
    "a place in a tensor": lambda n: torch.tensor([5, 6, 7, 8])[torch.tensor(n)].item() + n,
    "written at a place": write_at,
    "places of elements": lambda n: torch.tensor([n, 0, 1]).nonzero(),
}


def parts_of(result):
    return [part for item in result for part in parts_of(item)] if isinstance(result, (tuple, list)) else [result]


def compare(function, fast, numbers):
    for n in numbers:
        found, expected = parts_of(fast(n)), parts_of(function(n))
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert type(one) is type(other)
            if isinstance(other, torch.Tensor):
                assert one.dtype == other.dtype and one._is_view() == other._is_view()
                torch.testing.assert_close(one, other, rtol=0, atol=0)
            else:
                assert one == other


@pytest.mark.parametrize("name", GENERAL)
def test_one_graph_serves_all_numbers(name):
    fast, said = compiled(GENERAL[name], fullgraph=True)
    compare(GENERAL[name], fast, CALLS)
    assert len(said.graphs) <= 2, "one for the first number, one for all others"


@pytest.mark.parametrize("name", FIXED)
def test_numbers_that_are_read_are_fixed(name):
    fast, _ = compiled(FIXED[name], fullgraph=True)
    compare(FIXED[name], fast, (0, 3, 1, 3))


def test_sizes():
    def f(x):
        return x / torch.tensor(x.shape), torch.tensor(list(x.shape) + [1])

    fast, said = compiled(f, fullgraph=True)
    for n in (3, 4, 5, 6):
        for one, other in zip(fast(torch.ones(n, 2)), f(torch.ones(n, 2)), strict=True):
            torch.testing.assert_close(one, other)
    assert len(said.graphs) <= 2


def test_lengths_that_tell_how_often_rows_are_repeated():
    """As batches of graphs are made: the lengths stay symbols."""

    def f(parts):
        lengths = torch.tensor([len(part) for part in parts])
        first = torch.tensor([0] + [len(part) for part in parts]).cumsum(0)
        return torch.repeat_interleave(torch.arange(len(parts)), lengths), first, torch.cat(parts) / len(parts[0])

    fast, said = compiled(f, fullgraph=True)
    for sizes in ((3, 5), (4, 2), (6, 6), (5, 3)):
        parts = [torch.ones(size) for size in sizes]
        for one, other in zip(fast(parts), f(parts), strict=True):
            torch.testing.assert_close(one, other)
    assert len(said.graphs) <= 2


def test_many_numbers():
    def f(n):
        return torch.tensor([n + i for i in range(100)])

    fast, _ = compiled(f, fullgraph=True)
    compare(f, fast, (0, 3, 5))


@pytest.mark.parametrize(
    "program",
    [lambda n: torch.tensor([[n], [n, 2]]), lambda n: torch.tensor([n, "a"])],
)
def test_errors_are_eagers(program):
    fast, _ = compiled(program)
    for n in (1, 2, 3):
        with pytest.raises(Exception) as expected:
            program(n)
        with pytest.raises(type(expected.value)) as found:
            fast(n)
        assert str(found.value) == str(expected.value)
