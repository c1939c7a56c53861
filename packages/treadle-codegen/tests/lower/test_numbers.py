"""Arithmetic on numbers of the graph: every function that graphs compute them with gives the expression it came from."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

from treadle_codegen.lower.numbers import compute
from treadle_shapes.expr import Ge, evaluate, symbol
from treadle_shapes.floats import FLOAT_OPS, float_fn, float_symbol
from treadle_shapes.torch import NUMBER_FUNCTIONS

N, M, F, G = symbol("n"), symbol("m"), float_symbol("f"), float_symbol("g")
VALUES: dict[Any, Any] = {N: 7, M: 3, F: 0.625, G: 1.75}


def value(e: Any) -> Any:
    return evaluate(e, VALUES) if hasattr(e, "free_symbols") else e


UNARY = sorted(op for op in FLOAT_OPS if op.startswith("math_") and op not in ("math_pow", "math_atan2", "math_hypot",
                                                                              "math_fmod", "math_acosh"))  # fmt: skip


@pytest.mark.parametrize("op", UNARY)
def test_functions_of_a_float(op: str) -> None:
    assert compute(NUMBER_FUNCTIONS[op], (F,)) is float_fn(op, F)


@pytest.mark.parametrize(
    ("function", "args"),
    [
        *[(fn, (F, G)) for fn in (operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv)],
        *[(fn, (F, 2)) for fn in (operator.mod, operator.pow, operator.lt, operator.ge, operator.eq)],
        *[(fn, (F, 2.0)) for fn in (min, max)],
        *[(fn, (N, F)) for fn in (operator.add, operator.mul, operator.truediv, operator.gt, math.copysign)],
        *[(fn, (N, M)) for fn in (operator.add, operator.floordiv, operator.mod, operator.truediv, operator.le)],
        *[(fn, (F,)) for fn in (operator.neg, operator.abs, math.floor, math.ceil, math.trunc, round)],
        *[(fn, (N,)) for fn in (operator.neg, operator.abs)],
        (round, (F, 1)),
    ],
)
def test_operators_mean_what_python_means(function: Any, args: tuple[Any, ...]) -> None:
    result = value(compute(function, args))
    wanted = function(*map(value, args))
    assert result == wanted and type(result) is type(wanted)


def test_choices() -> None:
    for condition in (Ge(N, 7), Ge(N, 8), True, False):
        for a, b in ((N, M), (F, 2.0), (F, 1), (Ge(M, 4), Ge(M, 2))):
            assert value(compute(torch.sym_ite, (condition, a, b))) == (value(a) if value(condition) else value(b))


def test_what_is_not_known_is_named() -> None:
    with pytest.raises(TypeError, match="getitem.*is not known"):
        compute(operator.getitem, (N, 0))
