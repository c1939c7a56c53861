"""Calls that may raise (`meta["may_raise"]`) run in full, whatever part of their results the graph uses."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture

from treadle_codegen import compile_graph

PARTLY_USED = {
    "nothing": lambda x, i: (x[i], x + 1)[1],
    "one element": lambda x, i: x[i][0] + 1,
    "the shape": lambda x, i: torch.zeros_like(x[i]),
    "the shape of what follows": lambda x, i: torch.zeros_like(x[i].exp() * 2),
    "the shape of a reduction": lambda x, i: torch.zeros_like(torch.softmax(x[i], 0)),
    "an empty part": lambda x, i: x.index_select(0, i)[:0],
    "a part of a sum": lambda x, i: (x[i] + 1)[1:],
    "the shape, twice": lambda x, i: (torch.zeros_like(x[i]), torch.ones_like(x[i])),
    "filled": lambda x, i: torch.fill(x.gather(0, i), 3),
    "one element of a division": lambda x, i: (i // (i - 1))[1:],
    "a parameter": lambda x, i: (torch.linalg.inv_ex(x.view(2, 2), check_errors=True), x[:1] + 1)[1],
}
RAISING = ("index", "index_select", "gather", "div", "linalg_inv_ex")


def graph_of(function, *inputs, static=()):
    """The graph as the autograd package gives it: calls that may raise are marked, and stay without users."""
    gm = capture(function, inputs, static)
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and str(node.target).split(".")[1] in RAISING:
            node.meta["may_raise"] = True
    return gm


@pytest.mark.parametrize("name", PARTLY_USED)
def test_what_is_not_used_is_checked(name):
    function, x = PARTLY_USED[name], torch.randn(4)
    good, bad = torch.tensor([2, 3]), torch.tensor([1, 7])
    if name == "one element of a division":
        bad = torch.tensor([1, 2])
    static = [0] if name == "a parameter" else []
    compiled = compile_graph(graph_of(function, x, good, static=static), [x, good])
    if name == "a parameter":
        x = torch.zeros(4)
    else:
        expected = function(x, good)
        for mine, theirs in zip(
            compiled(x, good), expected if isinstance(expected, tuple) else (expected,), strict=True
        ):
            torch.testing.assert_close(mine, theirs)
    with pytest.raises((RuntimeError, IndexError)):
        function(x, bad)
    with pytest.raises((RuntimeError, IndexError)):
        compiled(x, bad)


def test_an_index_read_in_full_is_not_stored_for_its_own_sake():
    graph = graph_of(lambda x, i: (x[i] + 1).exp(), torch.randn(4), torch.tensor([1]))
    assert compile_graph(graph, []).ir_text.count("store") == 1
