"""Size-one checks: which graphs, traced with larger sizes, are right where sizes are 1."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.output.size_one import why_graph_differs


def graph_of(function, make, **options):
    """The symbolic graph of a function whose first size varies, and the symbol of that size."""
    fast, recorder = compiled(function, **options)
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
    "squeeze beside an item": (lambda x: x.squeeze(0) * x.sum().item(), "squeeze"),
    "squeeze of selected rows": (lambda x: x[x[:, 0] > 0].unsqueeze(1) * x.squeeze(0), "squeeze"),
    "expand": (lambda x: x[:, 0].unsqueeze(1).expand(x.shape[0], 2) + x.squeeze(), "squeeze"),
}


@pytest.mark.parametrize("name", SAME)
def test_the_same_at_1(name):
    gm, symbol = graph_of(SAME[name], ones)
    assert why_graph_differs(gm, [ones(1)], {symbol: 1}) is None


FOUND = {
    "a float": lambda x: x * x.sum().item(),
    "an integer": lambda x: x.new_ones(int(x.sum().long().item())),
    "a condition": lambda x: _with_positive(x) * 2,
    "selected rows": lambda x: x[x[:, 0] > 0].repeat(x.shape[0] + 1, 2),
    "positions": lambda x: torch.nonzero(x) + 1,
}


def _with_positive(x):
    if not (x > 0).all():
        raise ValueError(f"not positive: {x}")
    return x


@pytest.mark.parametrize("name", FOUND)
def test_numbers_that_only_the_data_can_tell_are_the_same_at_1(name):
    gm, symbol = graph_of(FOUND[name], ones, capture_scalars=True)
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
