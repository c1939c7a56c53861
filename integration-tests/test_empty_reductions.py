"""Reductions over nothing: eager's exception or eager's value, with constant and with dynamic sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import treadle

REDUCTIONS = {
    "max": lambda x: x.max(),
    "min": lambda x: (x * 2).min() + 1,
    "amax": lambda x: x.amax(),
    "amin of a dimension": lambda x: x.amin((0,)),
    "max of a dimension": lambda x: x.max(0),
    "values of min": lambda x: x.min(-1).values,
    "argmax": lambda x: x.argmax(),
    "aminmax": lambda x: x.aminmax(),
    "max of a slice": lambda x: x[1:].max(),
    "max of a selection": lambda x: x[x > 0].max(),
    "largest norm": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "logsumexp": lambda x: x.logsumexp(0),
    "sum": lambda x: x.sum(),
    "max of other dimensions": lambda x: x.new_ones(3, x.shape[0]).amax(0),
}


def _outcome(function, x):
    try:
        result = function(x)
    except (RuntimeError, IndexError) as error:
        return type(error), str(error).splitlines()[0]
    return tuple(result) if isinstance(result, tuple) else result


@pytest.mark.filterwarnings("ignore:treadle")
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("sizes", [(0,), (3, 5, 0), (2, 1, 0, 4)], ids=str)
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_nothing(name, sizes, dynamic):
    function = REDUCTIONS[name]
    compiled = treadle.compile(function, dynamic=dynamic)
    for size in sizes:
        x = torch.arange(float(size)) - 1
        got, want = _outcome(compiled, x), _outcome(function, x)
        if isinstance(want, tuple) and isinstance(want[0], type):
            assert got == want
        else:
            torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool, torch.int64])
def test_any_and_all_over_no_dimensions_are_the_truth_of_each_element(dtype, dynamic):
    def function(x):
        return x.all(()), (x + x).any((), keepdim=True)

    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        compiled = treadle.compile(function, dynamic=dynamic)
        for size in (3, 4, 5):
            x = torch.arange(2 * size).view(2, size).remainder(3).to(dtype)
            for got, want in zip(compiled(x), function(x), strict=True):
                torch.testing.assert_close(got, want)


@pytest.mark.parametrize("reduce", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, lambda x, y: (x - y).mean()])
def test_gradients_of_means_over_nothing(reduce):
    def function(x, y):
        loss = reduce(x, y)
        loss.backward()
        return loss

    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        compiled = treadle.compile(function, dynamic=True)
        for size in (3, 0, 5, 0):
            x, y = torch.randn(size, 4, requires_grad=True), torch.randn(size, 4)
            other = x.detach().clone().requires_grad_()
            torch.testing.assert_close(compiled(other, y), function(x, y), equal_nan=True)
            torch.testing.assert_close(other.grad, x.grad)


def test_divisions_by_a_size_that_the_program_has_found_to_be_zero():
    def function(x):
        y = x.sum()
        if x.numel() == 0:
            y = y + 1
        try:
            factor = 2.0 / x.numel()
        except ZeroDivisionError:
            factor = 7.0
        return y * factor + x.numel() / 2.0

    with treadle.config.patch(leave_unprofitable=False, raise_internal_errors=True):
        compiled = treadle.compile(function, dynamic=True)
        for size in (3, 0, 5, 0):
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), function(x))
