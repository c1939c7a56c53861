"""`torch.tensor` of tensors without dimensions, which eager reads as numbers: one graph, eager's dtypes, warnings and exceptions."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

INPUTS = (
    torch.arange(6).view(2, 3),
    torch.randn(2, 3),
    torch.randn(4, 5).double(),
    torch.ones(3, 3, dtype=torch.int32),
)
STACKED = {
    "a list": lambda x: torch.tensor([x.max(), x.min() + 1]) * 2,
    "nested": lambda x: torch.tensor([[x[0, 0], x[0, 1]], [x[1, 1], x[1, 0]]]),
    "a tuple": lambda x: torch.tensor((x.max(),), device=x.device).unsqueeze(1),
    "made in a loop": lambda x: torch.tensor([row.max() + 1 - len(row) for row in x]),
    "as_tensor": lambda x: torch.as_tensor([x.sum(), x.max()]),
    "new_tensor": lambda x: torch.ones(1, dtype=torch.float16).new_tensor([x[0, 0], x[1, 1]]),
    "with numbers": lambda x: (
        torch.tensor([x.sum(), 1, True]),
        torch.tensor([x.sum(), 2.5]),
        torch.tensor([True, x.max()]),
    ),
    "with a size": lambda x: torch.tensor([x.sum(), x.shape[0], x.shape[1] * 2]),
    "of several dtypes": lambda x: torch.tensor([x.sum(), x.float().mean(), (x > 1).any(), x.to(torch.uint8)[0, 0]]),
    "of a wider dtype": lambda x: torch.tensor([x.max(), x.min()], dtype=torch.float64),
    "of a narrower float": lambda x: torch.tensor([x.max(), x.min()], dtype=torch.float16),
    "of a parameter's copy": lambda x: torch.tensor([torch.nn.Parameter(x.float().max()).detach(), x.min()]),
    "with a float, of integers": lambda x: torch.tensor([(x > 1).sum(), 2.9, -2.9], dtype=torch.int64),
    "written": lambda x: torch.tensor([x.max(), x.min()]).add_(1).index_fill_(0, torch.tensor([0]), 3),
}
LARGE = 2**53 + 2**29 + 1
READ = {
    "integers into floats are rounded twice": lambda: torch.tensor([torch.tensor(LARGE) * 1, torch.tensor(1.0) + 1]),
    "floats into integers": lambda: torch.tensor([torch.ones(()) * 2.5], dtype=torch.int64),
    "too large": lambda: torch.tensor([torch.ones((), dtype=torch.int64) * 300], dtype=torch.uint8),
    "a number too large": lambda: torch.tensor([torch.ones((), dtype=torch.uint8), 300], dtype=torch.uint8),
    "with dimensions": lambda: torch.tensor([torch.ones(2) + 1]),
    "of one element": lambda: torch.tensor([torch.ones(1) + 1]),
    "of other lengths": lambda: torch.tensor([[torch.ones(()) + 1], []]),
    "complex": lambda: torch.tensor([torch.ones((), dtype=torch.complex64) * 2, 1.0]),
    "under vmap": lambda: torch.func.vmap(lambda t: torch.tensor([t.sum()]))(torch.ones(2, 2)),
    "mutated afterwards": lambda: [(t := torch.ones(()) + 1), torch.tensor([t, t]), t.add_(1)],
}


# Made before any test runs: once a test has replaced `Tensor.__getitem__`, tensors are sequences for C, and eager's constructors raise.
EXPECTED = {name: [function(x) for x in INPUTS] for name, function in STACKED.items()}


@pytest.fixture
def _eager_reads_scalars():
    try:
        torch.tensor([torch.tensor(1)])
    except TypeError:
        pytest.skip("a test before this one has replaced Tensor.__getitem__")


def outcome(function, *args):
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def check(found, expected):
    if isinstance(expected, (tuple, list)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
    elif isinstance(expected, torch.Tensor):
        assert found.requires_grad == expected.requires_grad and found._is_view() == expected._is_view()
        torch.testing.assert_close(found, expected, rtol=0, atol=0, check_stride=True, equal_nan=True)
    else:
        assert found == expected


@pytest.mark.parametrize("name", STACKED)
def test_one_graph(name):
    fast, _ = compiled(STACKED[name], fullgraph=True)
    for x, expected in zip(INPUTS, EXPECTED[name], strict=True):
        check(fast(x), expected)


@pytest.mark.usefixtures("_eager_reads_scalars")
@pytest.mark.parametrize("name", READ)
def test_eager_s_results_and_exceptions(name):
    fast, _ = compiled(READ[name])
    expected = outcome(READ[name])
    for _ in range(2):
        check(outcome(fast), expected)


@pytest.mark.usefixtures("_eager_reads_scalars")
def test_tensors_that_require_gradients():
    """Eager warns that it reads them."""

    def f(x):
        return torch.tensor([x.sum(), x.max()]) * 2

    x = torch.randn(3, requires_grad=True)
    fast, _ = compiled(f)
    for _ in range(2):
        check(fast(x), f(x))
