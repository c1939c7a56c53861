"""Symbolic numbers are evaluated from the inputs and outputs of a call."""

from __future__ import annotations

import pytest
import torch

from treadle_autograd import UnsupportedGraph
from treadle_autograd.size_reader import SizeReader
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import expr_of, fake_mode, fake_shape_env, fake_tensor, sym_float, sym_int


@pytest.fixture
def env():
    return ShapeEnv()


def test_sizes_strides_and_numbers_of_inputs(env):
    mode = fake_mode(shape_env=fake_shape_env(env))
    x = fake_tensor(mode, torch.empty(6, 4), [env.create_symbol(6, "rows"), None])
    count = sym_int(env, env.create_symbol(3, "count", size=False))
    factor = sym_float(env, env.create_float(0.5, "factor"))
    reader = SizeReader([x, count, factor, 7], {})
    inputs = [torch.empty(5, 4), 2, 0.25, 7]
    assert reader.reader(x.shape[0] * 4 + count)(inputs, []) == 22
    assert reader.reader(factor * 2)(inputs, []) == 0.5
    assert reader.reader(3)(inputs, []) == 3
    assert reader.knows(x.shape[0] + count)


def test_symbols_that_the_graph_returns(env):
    number = sym_int(env, env.create_symbol(9, "u"))
    alone = SizeReader([], {})
    assert not alone.knows(number)
    with pytest.raises(UnsupportedGraph, match="no input has the size"):
        alone.reader(number + 1)
    reader = SizeReader([], {expr_of(number): 1})
    assert reader.knows_symbol(expr_of(number))
    assert reader.reader(number + 1)([], [None, 4]) == 5


def test_a_number_is_the_same_when_it_is_evaluated_often(env):
    rows = sym_int(env, env.create_symbol(3, "rows"))
    reader = SizeReader([rows], {}).reader(rows * 4 + 1)
    assert [reader([n], []) for n in range(30)] == [4 * n + 1 for n in range(30)]


def test_a_symbol_alone_is_read(env):
    count = sym_int(env, env.create_symbol(3, "count", size=False))
    assert SizeReader([torch.ones(2), count], {}).reader(count)([torch.ones(2), 7], []) == 7
