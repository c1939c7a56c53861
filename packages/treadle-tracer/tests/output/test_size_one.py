"""Size-one checks: which graphs, traced with larger sizes, are right where sizes are 1."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.output.size_one import why_graph_differs


def graph_of(function, make):
    """The symbolic graph of a function whose first size varies, and the symbol of that size."""
    fast, recorder = compiled(function)
    for n in (3, 4):
        fast(make(n))
    gm = recorder.graphs[-1]
    size = next(node for node in gm.graph.nodes if node.op == "placeholder").meta["example_value"].shape[0]
    from treadle_shapes.torch import raw_expr

    return gm, raw_expr(size)


def ones(n):
    return torch.ones(n, 2)


SAME = {
    "pointwise": lambda x: torch.relu(x) * 2,
    "sum": lambda x: x.sum(0),
    "stack": lambda x: torch.stack([x, x], 1),
}
DIFFERENT = {
    "squeeze": (lambda x: x.squeeze(0) * 2, "squeeze"),
    "division by zero": (lambda x: x.sum() * (1.0 / (x.shape[0] - 1)), "truediv"),
    "expand": (lambda x: x[:, 0].unsqueeze(1).expand(x.shape[0], 2) + x.squeeze(), "squeeze"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_at_1(name):
    gm, symbol = graph_of(SAME[name], ones)
    assert why_graph_differs(gm, [ones(1)], {symbol: 1}) is None


@pytest.mark.parametrize("name", DIFFERENT)
def test_the_call_that_differs_is_named(name):
    function, culprit = DIFFERENT[name]
    gm, symbol = graph_of(function, ones)
    assert why_graph_differs(gm, [ones(5)], {symbol: 5}) is None
    assert culprit in why_graph_differs(gm, [ones(1)], {symbol: 1})


def test_an_operator_that_refuses_its_arguments_is_named():
    gm, symbol = graph_of(lambda x: x @ x.t(), ones)
    (product,) = [node for node in gm.graph.nodes if node.name == "matmul"]
    product.args = (product.args[0], product.args[0])
    why_not = why_graph_differs(gm, [ones(5)], {symbol: 5})
    assert why_not is not None and why_not.startswith("matmul: RuntimeError")
