"""What a user declares about sizes is kept, or raised."""

from __future__ import annotations

import pytest
import torch

from treadle_shapes import ConstraintError, Eq, ShapeEnv
from treadle_tracer import Mark, set_mark
from treadle_tracer.constraints import check_given, check_still_dynamic, declared_in
from treadle_tracer.output.guards import TensorGuard
from treadle_tracer.source import LocalSource

X, Y = LocalSource("x"), LocalSource("y")


def declared(marks, before=None):
    x = torch.ones(4, 5)
    for dim, mark in marks.items():
        set_mark(x, dim, mark)
    return declared_in([(TensorGuard.of(X, x, (), False), x)], before or {})


def test_a_name_outlives_its_tensor():
    first = declared({0: Mark("dynamic", 2, 8, "batch"), 1: Mark("static")})
    assert first == {X: {0: Mark("dynamic", 2, 8, "batch"), 1: Mark("static")}}
    assert declared({}, first) == {X: {0: Mark("maybe", name="batch")}}
    assert declared({}) == {} == declared({7: Mark("static")})


def test_a_size_outside_its_range_is_raised():
    marks = {X: {0: Mark("dynamic", 2, 8)}}
    check_given(marks, {X: (4, 5)})
    with pytest.raises(ConstraintError, match=r"x.size\(\)\[0\] is 9, outside the range \[2, 8\]"):
        check_given(marks, {X: (9, 5)})


def test_dimensions_of_one_name_are_equal():
    marks = {X: {0: Mark("maybe", name="n")}, Y: {1: Mark("maybe", name="n")}}
    check_given(marks, {X: (4, 5), Y: (1, 4)})
    with pytest.raises(ConstraintError, match=r"named 'n' is 4 at x.size\(\)\[0\] but 6 at y.size\(\)\[1\]"):
        check_given(marks, {X: (4, 5), Y: (1, 6)})


def test_a_dimension_that_became_a_constant_is_raised_with_the_decision():
    env = ShapeEnv()
    symbol = env.create_symbol(4, "x.size()[0]")
    check_still_dynamic({X: {0: Mark("dynamic")}}, env, {X: X.text})
    env.decide(Eq(symbol, 4))
    with pytest.raises(
        ConstraintError, match=r"x.size\(\)\[0\] is marked dynamic, but the program makes it the constant 4"
    ):
        check_still_dynamic({X: {0: Mark("dynamic")}}, env, {X: X.text})
    for harmless in (Mark("maybe"), Mark("dynamic", 4, 4)):
        check_still_dynamic({X: {0: harmless}}, env, {X: X.text})
    check_still_dynamic({X: {0: Mark("dynamic")}}, None, {})
