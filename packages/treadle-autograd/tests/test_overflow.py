"""Numbers that a dtype cannot hold raise as in eager."""

from __future__ import annotations

import functools
import math
import re

import pytest
import torch
from aten_runner import compile_traced, error_of
from torch.nn import functional as F

from treadle_autograd import aot
from treadle_autograd.overflow import fits_dtype, overflow_message
from treadle_shapes.expr import evaluate, symbol
from treadle_shapes.floats import float_symbol

CONVERTED = {
    "fill": lambda x, v: x.clone().fill_(v),
    "full_like": lambda x, v: torch.full_like(x, v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
}
FLOATS = {
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "elu": lambda x, v: F.elu(x, v),
    "threshold": lambda x, v: F.threshold(x, v, 0.0),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "hardtanh": lambda x, v: F.hardtanh(x, -1.0, v),
}
VALUES = [
    1e300,
    -1e300,
    math.inf,
    math.nan,
    65504.0,
    65519.0,
    3.39e38,
    3.4e38,
    300,
    -300,
    200,
    -200,
    127.5,
    2**40,
    1.5,
    3,
]


def _of_tensor(called):
    return lambda x: called(x)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32]
)
def test_numbers_that_a_dtype_cannot_hold_raise(dtype):
    x = torch.tensor([0, 1, 2], dtype=dtype)
    for function in (*CONVERTED.values(), *(FLOATS.values() if dtype.is_floating_point else ())):
        for value in VALUES:
            called = functools.partial(function, v=value)
            expected = error_of(called, x)
            if expected is not None and "overflow" not in expected[1]:
                continue  # an alpha must not be a float for integers, and so on
            compiled = compile_traced(_of_tensor(called), [x])
            assert error_of(compiled, x) == expected


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
)
def test_conditions_on_unknown_numbers_say_what_eager_does(dtype):
    unknown = {float: float_symbol("f"), int: symbol("n", None)}
    for value in VALUES:
        error = error_of(lambda value=value: torch.zeros(2, dtype=dtype).fill_(value))
        assert error in (None, (RuntimeError, overflow_message(dtype)))
        name = unknown[type(value)]
        condition = fits_dtype(name, dtype)
        assert (condition if isinstance(condition, bool) else bool(evaluate(condition, {name: value}))) == (
            error is None
        ), value
        assert fits_dtype(value, dtype) == (error is None), value


def test_numbers_that_eager_rounds_are_rounded():
    """`torch.tensor(number)`, and the other branch of `where` beside a low float."""
    for function, dtype in (
        (lambda x: torch.tensor(1e300) * x, torch.float32),
        (lambda x: torch.where(x > 0, x, 1e300), torch.float16),
        (lambda x: torch.where(x > 0, x, 1e300), torch.bfloat16),
        (lambda x: x + 1e300, torch.float32),
        (lambda x: x > 1e300, torch.float32),
        (lambda x: x + 1000, torch.int8),
    ):
        x = torch.tensor([0, 1, 2], dtype=dtype)
        compiled = compile_traced(function, [x])
        assert compiled.why_eager is None
        torch.testing.assert_close(compiled(x)[0], function(x), equal_nan=True)


@pytest.mark.parametrize("name", ["add", "sub", "rsub"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool, torch.complex64])
@pytest.mark.parametrize("alpha", [True, 2, 1.5, 2j])
def test_alpha_of_another_kind_than_the_result(name: str, dtype: torch.dtype, alpha: object) -> None:
    x = torch.ones(2, dtype=dtype)
    function = getattr(torch, name)
    gm = torch.fx.symbolic_trace(lambda x: (function(x, x, alpha=alpha),))
    try:
        expected = function(x, x, alpha=alpha)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=re.escape(str(error).splitlines()[0])):
            aot(gm, [x], forward=lambda made, examples: made.forward)(x)
    else:
        (found,) = aot(gm, [x], forward=lambda made, examples: made.forward)(x)
        assert found.dtype == expected.dtype and torch.equal(found, expected)
