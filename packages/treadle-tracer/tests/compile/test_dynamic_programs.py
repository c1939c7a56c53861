"""Random programs on changing sizes and every layout, against eager: values, strides, aliases; and what they cost in compiles."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from compile_runs import compiled
from sized_layouts import LAYOUTS

STEPS = {
    "relu": lambda x, y: torch.relu(x) * 2 + 1,
    "add": lambda x, y: x + y,
    "softmax": lambda x, y: x.softmax(-1),
    "centre": lambda x, y: x - x.mean(1, keepdim=True),
    "sum": lambda x, y: x + x.sum(0),
    "there and back": lambda x, y: x.transpose(0, 1).transpose(0, 1) + 1,
    "other layout": lambda x, y: x.transpose(1, 2).contiguous().transpose(1, 2),
    "reshape": lambda x, y: x.reshape(x.shape[0], -1).reshape(x.shape),
    "cat": lambda x, y: torch.cat([x, y.expand(x.shape)], 1)[:, : x.size(1)],
    "shift": lambda x, y: F.pad(x[:, 1:], (0, 0, 1, 0)),
    "matmul": lambda x, y: x @ x.transpose(1, 2) @ x,
    "expand": lambda x, y: x.unsqueeze(1).expand(-1, 2, -1, -1).mean(1),
    "norm": lambda x, y: F.layer_norm(x, (x.shape[-1],)),
    "positions": lambda x, y: x + torch.arange(x.shape[1]).unsqueeze(-1),
    "sizes": lambda x, y: x * x.shape[0] // 3 + x.shape[1] % 5 + len(x),
    "zeros": lambda x, y: x + x.new_zeros(x.shape).add(1),
    "where": lambda x, y: torch.where(x > y, x, -x),
    "roll": lambda x, y: x.roll(1, 1).flip(2),
    "last": lambda x, y: x + x[:, -1:],
    "permute": lambda x, y: (x.permute(2, 0, 1) * 2).permute(1, 2, 0),
}
RESULTS = {
    "plain": lambda x, x0: x,
    "view": lambda x, x0: (x, x.transpose(0, 1)),
    "sizes": lambda x, x0: (x, x.shape[0], list(x.shape)),
    "reduced": lambda x, x0: x.sum((0, 2)),
    "part of the input": lambda x, x0: (x, x0[1:]),
}
SECOND = {
    "its own": lambda x: torch.randn(x.shape),
    "the same": lambda x: x,
    "a view": lambda x: x[:],
    "a row": lambda x: torch.randn(1, x.shape[1], 1),
}


def program(rng):
    steps = [STEPS[name] for name in rng.choices(list(STEPS), k=rng.randint(1, 5))]
    result = RESULTS[rng.choice(list(RESULTS))]

    def run(x, y):
        x0 = x
        for step in steps:
            x = step(x, y)
        return result(x, x0)

    return run


def parts(value):
    return [part for item in value for part in parts(item)] if isinstance(value, (tuple, list)) else [value]


def storages(tensors):
    seen = {}
    return [seen.setdefault(t.untyped_storage()._cdata, len(seen)) for t in tensors]


def check_like_eager(found, expected, inputs):
    found, expected = parts(found), parts(expected)
    assert len(found) == len(expected)
    for have, want in zip(found, expected, strict=True):
        assert type(have) is type(want)
        if isinstance(want, torch.Tensor):
            torch.testing.assert_close(have, want, rtol=0, atol=0, equal_nan=True)
            assert have.stride() == want.stride()
        else:
            assert have == want
    tensors = [[p for p in side if isinstance(p, torch.Tensor)] for side in (found, expected)]
    assert storages([*inputs, *tensors[0]]) == storages([*inputs, *tensors[1]])


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("number", range(2))
def test_programs_of_changing_sizes(number, layout, dynamic):
    rng = random.Random(f"{number} {layout}")
    function, second = program(rng), SECOND[rng.choice(list(SECOND))]
    fast, recorder = compiled(function, dynamic=dynamic)

    def call(sizes):
        x = LAYOUTS[layout](*sizes)
        inputs = (x, second(x))
        check_like_eager(fast(*inputs), function(*inputs), inputs)

    large = [(4, 3, 5), (6, 7, 2), *[tuple(rng.choices((2, 3, 4, 5, 8), k=3)) for _ in range(4)]]
    for sizes in large:
        call(sizes)
    assert len(recorder.graphs) <= (1 if dynamic else 2), recorder.recompiles
    small = [tuple(rng.choices((0, 1, 1, 2, 4), k=3)) for _ in range(3)]
    for sizes in small:
        call(sizes)
    compiles = len(recorder.graphs)
    for sizes in [*large, *small]:
        call(sizes)
    assert len(recorder.graphs) == compiles, "what has been compiled once is not compiled again"
    assert recorder.skips == []


def test_sizes_of_a_scalar_and_of_one_dimension():
    fast, recorder = compiled(lambda x: x * 2 + x.numel())
    for sizes in [(), (3,), (), (4,), (1,), (7,), (0,), ()]:
        x = torch.randn(sizes)
        assert torch.equal(fast(x), x * 2 + x.numel())
    assert len(recorder.graphs) <= 4  # a scalar, a static size, all sizes, 0


@pytest.mark.parametrize("position", [0, 1, 2, 3])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_one_and_zero_in_every_position_of_an_image(position, memory_format):
    def stretch(x):
        return torch.relu(x) * 2 - x.amax((2, 3), keepdim=True) if x.numel() else x * 2

    fast, recorder = compiled(stretch)
    for size in (4, 5, 1, 6, 0, 1, 7):
        sizes = [2, 3, 4, 5]
        sizes[position] = size
        x = torch.randn(sizes).to(memory_format=memory_format)
        found, expected = fast(x), stretch(x)
        assert torch.equal(found, expected) and found.stride() == expected.stride()
    assert len(recorder.graphs) <= 4


def test_two_inputs_of_equal_sizes_that_part():
    """Equal sizes at first are not tied to each other."""
    fast, recorder = compiled(lambda x, y: (x * 2, y.sum(0)))
    for a, b in [(4, 4), (5, 5), (5, 6), (1, 3), (7, 7)]:
        x, y = torch.randn(a, 2), torch.randn(b, 2)
        for have, want in zip(fast(x, y), (x * 2, y.sum(0)), strict=True):
            assert torch.equal(have, want)
    assert len(recorder.graphs) == 2


def test_the_same_tensor_twice_and_then_two():
    def both(x, y):
        x.add_(1)
        return x + y

    fast, _ = compiled(both)
    for n in (3, 4, 5):
        x = torch.zeros(n)
        assert torch.equal(fast(x, x), torch.full((n,), 2.0))
        x, y = torch.zeros(n), torch.zeros(n)
        assert torch.equal(fast(x, y), torch.ones(n))
        base = torch.zeros(n + 1)
        assert torch.equal(fast(base[1:], base[:-1]), both(torch.zeros(n + 1)[1:], torch.zeros(n + 1)[:-1]) + _tail(n))


def _tail(n):
    """What the overlap adds: `y` sees the 1 that was added to `x`, but for its first element."""
    return torch.tensor([0.0, *[1.0] * (n - 1)])


class Cache(torch.nn.Module):
    """A buffer that grows, a list of tensors, an int: sizes that change below attributes."""

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, 4))
        self.parts = [torch.zeros(2, 4)]
        self.steps = 0

    def forward(self, x, *, more=None):
        self.seen = torch.cat([self.seen, x])
        self.steps += 1
        return self.seen.sum(0) + self.parts[0].sum() + self.steps + (0 if more is None else more["y"].sum())


def test_sizes_below_attributes_and_keywords():
    ours, theirs = Cache(), Cache()
    fast, recorder = compiled(Cache.forward)
    for step, n in enumerate((2, 3, 1, 5, 4, 7, 2)):
        x, y = torch.randn(n, 4), torch.randn(n + 1)
        ours.parts[0] = theirs.parts[0] = torch.randn(n + 2, 4)
        found, expected = fast(ours, x, more={"y": y}), theirs(x, more={"y": y})
        torch.testing.assert_close(found, expected)
        assert ours.steps == step + 1 and torch.equal(ours.seen, theirs.seen)
    assert len(recorder.graphs) <= 4
    assert recorder.skips == []


def test_two_instances_of_one_class_compile_once_each_for_all_sizes():
    class Layer(torch.nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(width, 3), requires_grad=False)

        def forward(self, x):
            return x @ self.weight

    layers = [Layer(4), Layer(6)]
    fast, recorder = compiled(Layer.forward)
    for n in (2, 3, 5, 1, 7):
        for layer in layers:
            x = torch.randn(n, layer.weight.shape[0])
            torch.testing.assert_close(fast(layer, x), x @ layer.weight)
    assert len(recorder.graphs) == 4


def test_ints_are_symbols_from_the_first_call_on_if_asked_for():
    def scaled(x, n, axis=0):
        return x.sum(axis) * n + x.new_zeros(n).numel()

    fast, recorder = compiled(scaled, dynamic=True)
    for rows, n in [(4, 2), (5, 3), (1, 7), (6, 1), (3, 0)]:
        x = torch.randn(rows, 3)
        assert torch.equal(fast(x, n), scaled(x, n))
    assert len(recorder.graphs) == 1
    assert torch.equal(fast(x, 2, 1), scaled(x, 2, 1))
    assert len(recorder.graphs) == 2
