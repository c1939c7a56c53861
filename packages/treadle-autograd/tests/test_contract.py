"""The descriptions of a graph's inputs and outputs."""

from __future__ import annotations

import torch
from aten_runner import compile_traced

from treadle_autograd.contract import (
    CallInput,
    Contract,
    FreshOutput,
    Geometry,
    InputItself,
    Mutation,
    StaticInput,
    ViewOfFresh,
    ViewOfInput,
)
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import sym_int


def test_geometries_are_static_without_symbols():
    env = ShapeEnv()
    n = sym_int(env, env.create_symbol(5, "n"))
    assert Geometry((2, 3), (3, 1), 0).static
    assert not Geometry((n, 3), (3, 1), 0).static
    assert not Geometry((2, 3), (3, 1), n).static


def test_static_tensors_in_the_order_of_the_placeholders():
    first, second = torch.ones(2), torch.zeros(3)
    contract = Contract((StaticInput("a", first), StaticInput("b", second), CallInput(0)), (), ())
    assert [id(t) for t in contract.static_tensors] == [id(first), id(second)]


def test_the_example_of_the_module():
    def f(x, y):
        x.add_(1)
        z = y * 2
        return x, x[0], z.t(), z

    contract = compile_traced(f, [torch.ones(3, 4), torch.ones(3, 4)]).contract
    assert contract == Contract(
        inputs=(CallInput(0), CallInput(1)),
        mutations=(Mutation(input=0, position=0),),
        outputs=(
            InputItself(0),
            ViewOfInput(0, Geometry((4,), (1,), 0)),
            ViewOfFresh(1, Geometry((4, 3), (1, 4), 0)),
            FreshOutput(1),
        ),
    )


def test_static_inputs_are_equal_if_their_tensor_is_one():
    tensor = torch.ones(3)
    same, other = StaticInput("w", tensor), StaticInput("w", tensor.clone())
    assert same == StaticInput("w", tensor) and hash(same) == hash(StaticInput("w", tensor))
    assert same != other and same != StaticInput("b", tensor)
    assert Contract((same,), (), ()) == Contract((StaticInput("w", tensor),), (), ()) != Contract((other,), (), ())
