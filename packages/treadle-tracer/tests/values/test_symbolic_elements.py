import pytest
import torch
from compile_runs import compiled
from torch.nn import functional as F


class Padding(torch.nn.Module):
    """How much to pad follows from the length and from buffers, as in the convolutions of audio codecs."""

    def __init__(self, kernel=8, stride=4, mode="reflect"):
        super().__init__()
        self.mode = mode
        self.register_buffer("kernel", torch.tensor(kernel))
        self.register_buffer("stride", torch.tensor(stride))
        self.register_buffer("total", torch.tensor(kernel - stride))
        self.conv = torch.nn.Conv1d(1, 1, kernel, stride)

    def extra(self, length):
        frames = torch.ceil((length - self.kernel + self.total) / self.stride + 1).to(torch.int64) - 1
        return frames * self.stride + self.kernel - self.total - length

    def forward(self, x):
        length, extra = x.shape[-1], self.extra(x.shape[-1])
        most = max(self.total, extra)
        more = 0
        if length <= most:
            more = most - length + 1
            x = F.pad(x, (0, more))
        x = F.pad(x, (self.total, extra), mode=self.mode)
        return self.conv(x[..., : x.shape[-1] - more])


@pytest.mark.parametrize("mode", ["reflect", "constant"])
def test_layers_at_any_length_are_one_graph(mode):
    module = torch.nn.Sequential(Padding(8, 4, mode), torch.nn.ELU(), Padding(5, 1, mode), Padding(4, 2, mode))
    run, recorder = compiled(lambda x: module(x), decide_on_inputs=True)
    for length in (100, 101, 117, 333, 64, 1000):
        x = torch.randn(2, 1, length)
        torch.testing.assert_close(run(x), module(x))
    assert len(recorder.graphs) == 2 and not recorder.breaks  # one for the first length, one for all


def test_lengths_that_take_the_other_branch():
    module = Padding(16, 4)
    run, recorder = compiled(lambda x: module(x), decide_on_inputs=True)
    for length in (40, 41, 12, 9, 11, 50, 10):
        x = torch.randn(1, 1, length)
        torch.testing.assert_close(run(x), module(x))
    assert not recorder.breaks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("divisor", [2, 3, 7, 320, 4093])
def test_rounding_of_quotients_is_that_of_floats(divisor, dtype):
    """Also beyond what a float tells apart: the tensors have no memory of their own, so that they can be long."""
    by = torch.tensor(divisor)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("by", by)

        def forward(self, x):
            quotient = (torch.tensor(x.shape[0]) - 3) / self.by + 2
            up, down = torch.ceil(quotient - 1).long(), torch.floor(1 + quotient).to(torch.int32)
            return x[: up - 1], x[-down:], x[: quotient.to(torch.int64)], x[: (x.shape[0] - self.by % 5) // self.by]

    module = Module()
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        for about in (40_000, 2**20, 2**22, 2**24, 2**26 + 1):
            start = about - about % divisor + 3
            run, _ = compiled(lambda x: module(x), decide_on_inputs=True)
            for length in range(start - 2, start + 3):
                x = torch.zeros(1).expand(length)
                assert [y.shape for y in run(x)] == [y.shape for y in module(x)], length
    finally:
        torch.set_default_dtype(default)


def test_a_buffer_that_changes_is_read_again():
    module = Padding()
    run, _ = compiled(lambda x: module(x), decide_on_inputs=True)
    for total, length in ((4, 30), (4, 31), (5, 31), (6, 32), (7, 33), (8, 34), (9, 35), (4, 36)):
        module.total.fill_(total)
        x = torch.randn(1, 1, length)
        torch.testing.assert_close(run(x), module(x))


def test_a_buffer_that_the_program_writes_to_is_read_behind_the_write():
    class Growing(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(1))

        def forward(self, x):
            first = x[: x.shape[0] - self.count]
            self.count += 1
            return first, x[: x.shape[0] - self.count], F.pad(x, (0, x.shape[0] - self.count))

    mine, theirs = Growing(), Growing()
    run, _ = compiled(lambda x: mine(x), decide_on_inputs=True)
    for length in (20, 21, 22, 23, 24, 25, 26):
        x = torch.randn(length)
        for got, expected in zip(run(x), theirs(x), strict=True):
            torch.testing.assert_close(got, expected)
    assert mine.count == theirs.count


def test_a_truth_that_a_buffer_alone_tells_is_decided_by_its_outcome():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.tensor(0))

        def forward(self, x):
            y = x * 2 if self.count > 5 else x + 1
            self.count += 1
            return y

    mine, theirs = Counting(), Counting()
    run, recorder = compiled(lambda x: mine(x), decide_on_inputs=True)
    for length in range(3, 14):
        x = torch.randn(length)
        torch.testing.assert_close(run(x), theirs(x))
    assert len(recorder.graphs) <= 4


def test_arguments_by_name_and_large_integers_beside_floats():
    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("one", torch.tensor(1))

        def forward(self, x):
            half = torch.neg(input=self.one - x.shape[0]) // 2
            whole = torch.floor((self.one + x.shape[0]) / 1)
            is_same = 1 if whole == torch.tensor(x.shape[0]) * 2 - x.shape[0] else 0
            return x[:half], x[is_same:]

    module = Module()
    run, _ = compiled(lambda x: module(x), decide_on_inputs=True)
    for length in (10, 11, 12, 2**22, 2**24, 2**24 + 2):  # 2**24 + 1 is no float32
        x = torch.zeros(1).expand(length)
        assert [y.shape for y in run(x)] == [y.shape for y in module(x)], length


COUNTS = {
    "clamped": lambda n: torch.clamp(torch.as_tensor([n], dtype=torch.float) / 1, min=1).item(),
    "between": lambda n: torch.tensor(n).clamp(4, 7).item(),
    "at most": lambda n: torch.tensor([n * 2]).clamp_max(9).double().item(),
    "a negative": lambda n: (-torch.tensor([n], dtype=torch.float32)).item(),
    "a quotient that is no integer": lambda n: (torch.tensor([n]) / 2).item(),
    "clamped in between": lambda n: (torch.tensor(float(n)) + 0.5).clamp(min=2.5).item(),
}


@pytest.mark.parametrize("name", COUNTS)
def test_items_of_tensors_of_sizes(name):
    def function(xs):
        return (sum(x.sum() for x in xs) + 100) / COUNTS[name](sum(len(x) for x in xs))

    run, recorder = compiled(function)
    for sizes in ((3, 2), (4, 5), (2, 2), (6, 3), (5, 6), (1, 2), (0, 0), (4, 1)):
        xs = [torch.randn(n, 3) for n in sizes]
        got, want = run(xs), function(xs)
        torch.testing.assert_close(torch.as_tensor(got), torch.as_tensor(want), equal_nan=True)
    assert not recorder.breaks
    if name in ("clamped", "between", "at most"):
        assert len(recorder.graphs) <= 3  # the sizes of the first call, others, and those of 0
