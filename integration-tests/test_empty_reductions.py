"""Reductions over nothing: eager's exception or eager's value, with constant and with dynamic sizes."""

from __future__ import annotations

import pytest
import torch

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
