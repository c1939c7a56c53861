"""Calls with an effect are kept although nobody uses their results."""

from __future__ import annotations

import math

import pytest
import torch
from aten_runner import compile_traced, error_of
from torch import fx
from torch.nn import functional as F

from treadle_autograd.effects import has_effect


def _set_nowhere(x, i):
    torch.zeros(4)[i] = 1
    return x + 1


UNUSED = {
    "index": lambda x, i: (x[i], x + 1)[1],
    "gather": lambda x, i: (x.gather(0, i), x + 1)[1],
    "index_select": lambda x, i: (x.index_select(0, i), x + 1)[1],
    "scatter": lambda x, i: (x.scatter(0, i, 1.0), x + 1)[1],
    "embedding": lambda x, i: (F.embedding(i, x.view(2, 2)), x + 1)[1],
    "cross_entropy": lambda x, i: (F.cross_entropy(x.view(1, 4), i), x + 1)[1],
    "take": lambda x, i: (torch.take(x, i), x + 1)[1],
    "division": lambda x, i: (i // (i - i), x + 1)[1],
    "remainder": lambda x, i: (i % 0, x + 1)[1],
    "inverse": lambda x, i: (torch.linalg.inv(x.view(2, 2) * 0), x + 1)[1],
    "cholesky": lambda x, i: (torch.linalg.cholesky(x.view(2, 2) * 0 - 1), x + 1)[1],
    "singular_values": lambda x, i: (torch.linalg.svd(x.view(2, 2) * math.nan)[1], x + 1)[1],
    "binary_cross_entropy": lambda x, i: (F.binary_cross_entropy(x * 0 + 2, x * 0), x + 1)[1],
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_nobody_uses_raises_all_the_same(name):
    args = torch.randn(4), torch.tensor([7])
    expected = error_of(UNUSED[name], *args)
    assert expected is not None
    compiled = compile_traced(UNUSED[name], [torch.randn(4), torch.tensor([1])] if name != "remainder" else args)
    assert compiled.why_eager is None
    assert error_of(compiled, *args) == expected


def test_a_write_that_nobody_reads_raises_all_the_same():
    compiled = compile_traced(
        lambda x, i: (torch.zeros(4).index_put((i,), x[:1]), x + 1)[1], [torch.randn(4), torch.tensor([1])]
    )
    assert error_of(compiled, torch.randn(4), torch.tensor([7])) == (
        IndexError,
        "index 7 is out of bounds for dimension 0 with size 4",
    )


def test_what_cannot_raise_is_still_dropped():
    compiled = compile_traced(lambda x: (x.exp(), x.sum(), x // 2, x.long() // 3, x + 1)[4], [torch.randn(4)])
    assert [str(n.target) for n in compiled.aten_graph.graph.nodes if n.op == "call_function"] == ["aten.add.Tensor"]


def test_effects_by_kind_of_node():
    aten = torch.ops.aten
    graph = fx.Graph()
    x = graph.placeholder("x")
    total = graph.call_function(aten.sum.default, (x,))
    noise = graph.call_function(aten.rand_like.default, (x,))
    number = graph.call_function(aten._local_scalar_dense.default, (total,))
    check = graph.call_function(aten._assert_scalar.default, (number, "message"))
    row = graph.call_function(aten.select.int, (x, 0, 0))
    row.meta["may_raise"] = True
    twice = graph.call_function(lambda n: n * 2, (number,))
    unknown = graph.call_function(torch.ops.profiler._record_function_enter_new.default, ("name",))
    nodes = (x, total, noise, check, row, twice, unknown)
    assert [has_effect(node) for node in nodes] == [True, False, True, True, True, False, True]
