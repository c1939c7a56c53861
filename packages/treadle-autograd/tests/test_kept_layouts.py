"""In-place operators on tensors of all layouts: captured under gradients, with eager's values, strides and gradients."""

from __future__ import annotations

import pytest
import torch
from aten_runner import compile_traced
from gradient_oracle import assert_same, gradients, leaves, run_operators
from torch import fx

from treadle_autograd import aot
from treadle_autograd.layouts import dense_order, memory_order

GENERATOR = torch.Generator().manual_seed(0)
MASK = torch.rand(4, 4, generator=GENERATOR) > 0.5
INDEX = torch.randint(0, 4, (4, 4), generator=GENERATOR)
PLACES = torch.rand(4, 4, generator=GENERATOR).argsort(0)
ROWS = torch.tensor([2, 0, 1])

LAYOUTS = {
    "contiguous": lambda x: x * 2,
    "transposed view": lambda x: (x * 2).t(),
    "transposed": lambda x: x.t() * 2,
    "columns of a transposed matrix": lambda x: (torch.cat([x, x]) * 2).t()[:, 2:6],
    "every other row": lambda x: (torch.cat([x, x]) * 2)[::2],
    "every other column": lambda x: (torch.cat([x, x]) * 2)[::2].t(),
}

OPERATORS = {
    "masked_fill_": lambda y, v: y.masked_fill_(MASK, 3.0),
    "masked_fill_ by a tensor": lambda y, v: y.masked_fill_(MASK, v.sum()),
    "masked_scatter_": lambda y, v: y.masked_scatter_(MASK, v),
    "scatter_": lambda y, v: y.scatter_(0, PLACES, v),
    "scatter_add_": lambda y, v: y.scatter_add_(1, INDEX, v),
    "scatter_reduce_": lambda y, v: y.scatter_reduce_(0, INDEX, v, "amax"),
    "index_add_": lambda y, v: y.index_add_(0, ROWS, v[:3]),
    "index_copy_": lambda y, v: y.index_copy_(1, ROWS, v[:, :3]),
    "index_fill_": lambda y, v: y.index_fill_(1, ROWS, 2.0),
    "index_put_": lambda y, v: y.index_put_((ROWS,), v[:3], accumulate=True),
    "index_reduce_": lambda y, v: y.index_reduce_(0, ROWS, v[:3], "mean"),
    "put_": lambda y, v: y.put_(ROWS, v.reshape(-1)[:3]),
    "tril_": lambda y, v: y.tril_(),
    "triu_": lambda y, v: y.triu_(1),
    "cumsum_": lambda y, v: y.cumsum_(0),
    "cumprod_": lambda y, v: y.cumprod_(1),
    "addmm_": lambda y, v: y.addmm_(v, v),
    "addr_": lambda y, v: y.addr_(v[0], v[1]),
    "baddbmm_": lambda y, v: y.unsqueeze(0).baddbmm_(v[None], v[None]),
    "lerp_": lambda y, v: y.lerp_(v, 0.3),
    "renorm_": lambda y, v: y.renorm_(2, 0, 1.0),
    "xlogy_": lambda y, v: y.xlogy_(v),
    "fill_diagonal_": lambda y, v: y.fill_diagonal_(1.0),
    "bernoulli_": lambda y, v: y.bernoulli_(0.5),
    "ge_": lambda y, v: y.ge_(0.5),
    "logical_not_": lambda y, v: y.logical_not_(),
    "t_": lambda y, v: y.t_(),
    "squeeze_": lambda y, v: y.unsqueeze(0).squeeze_(0),
    "copy_": lambda y, v: y.copy_(v),
    "row": lambda y, v: (y.__setitem__(1, v[0]), y)[1],
}
WITHOUT_DERIVATIVE = ("bernoulli_", "ge_", "logical_not_")
"""Autograd's history of what these write to is not that of any functional operator."""


def check(program, inputs):
    """Compare the results of a program and their gradients with eager's; returns the compiled callable."""
    wanted = [True] * len(inputs)
    theirs, expected = gradients(program, leaves(inputs, wanted))
    compiled = aot(fx.symbolic_trace(program), leaves(inputs, wanted), inference=False, forward=run_operators)
    mine, found = gradients(compiled, leaves(inputs, wanted))
    for one, other in zip(mine, theirs, strict=True):
        assert_same(one, other, 1e-5, 1e-6)
    for one, other in zip(found, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, equal_nan=True)
    return compiled


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_values_strides_and_gradients_are_eagers(name, layout):
    inputs = [torch.rand(4, 4, generator=torch.Generator().manual_seed(seed)) + 0.1 for seed in (1, 2)]

    def returns_values(x, v):
        return ((OPERATORS[name](LAYOUTS[layout](x), v) * x).sin(),)

    def returns_the_tensor(x, v):
        y = LAYOUTS[layout](x)
        result = OPERATORS[name](y, v)
        return result * 1, y.cos(), result, y

    assert check(returns_values, inputs).why_eager is None
    reason = check(returns_the_tensor, inputs).why_eager
    assert reason is None or name in WITHOUT_DERIVATIVE, reason


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["masked_fill_", "tril_", "index_add_", "fill_diagonal_", "bernoulli_"])
def test_strides_are_eagers_without_gradients(name, layout):
    def program(x, v):
        y = LAYOUTS[layout](x)
        return OPERATORS[name](y, v), y + 1

    inputs = [torch.rand(4, 4), torch.rand(4, 4)]
    torch.manual_seed(0)
    expected = program(*inputs)
    compiled = compile_traced(program, inputs)
    assert compiled.why_eager is None
    torch.manual_seed(0)
    for mine, theirs in zip(compiled(*inputs), expected, strict=True):
        assert mine.stride() == theirs.stride() and mine.equal(theirs)


GAPS = {
    "first columns": lambda x: x[:4, :4],
    "every other column": lambda x: x[:4, ::2],
    "every other row": lambda x: x[::2, :4],
    "part of a transposed matrix": lambda x: x[:4, :4].t(),
}


@pytest.mark.parametrize("layout", GAPS)
@pytest.mark.parametrize("name", ["masked_fill_", "tril_", "index_add_", "fill_diagonal_", "lerp_", "cumsum_", "row"])
def test_inputs_with_gaps_keep_their_strides(name, layout):
    def program(x, v):
        return OPERATORS[name](x, v) + 1, x

    theirs, mine, v = (torch.rand(8, 8, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    part = GAPS[layout]
    compiled = compile_traced(program, [part(mine), v[:4, :4]])
    assert compiled.why_eager is None
    for found, expected in zip(compiled(part(mine), v[:4, :4]), program(part(theirs), v[:4, :4]), strict=True):
        assert found.stride() == expected.stride()
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (4, 3), (3, 3, 3)])
def test_diagonals(shape, wrap):
    compiled = check(lambda x: ((x * 2).fill_diagonal_(0.5, wrap=wrap).cos(),), [torch.randn(shape)])
    assert compiled.why_eager is None


def test_diagonals_of_integers():
    x = torch.arange(12).view(3, 4)
    compiled = compile_traced(lambda x: (x + 0).fill_diagonal_(7), [x])
    assert compiled(x)[0].equal(x.clone().fill_diagonal_(7))


def test_orders_of_memory():
    x = torch.empty(2, 3, 4)
    assert dense_order(x.shape, x.stride()) == [0, 1, 2] and memory_order(x) is None
    y = x.permute(2, 0, 1)
    assert dense_order(y.shape, y.stride()) == [1, 2, 0] == memory_order(y)
    gaps = x[:, ::2].permute(2, 0, 1)
    assert dense_order(gaps.shape, gaps.stride()) is None and memory_order(gaps) == [1, 2, 0]
    assert memory_order(x[:, ::2]) is None
    assert memory_order(x[:, :1].expand(2, 3, 4).transpose(0, 2)) is None
