from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from treadle_shapes.torch import is_made_without_gradients


def traced(calls: list[tuple[str, tuple[object, ...], bool]]) -> fx.Node:
    """The last of a chain of method calls, each with the grad mode it is made in. Without gradients, fake views are plain tensors."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    value = torch.zeros(3, 4)
    node.meta["example_value"] = value
    mode = True
    for name, args, wanted in calls:
        if wanted is not mode:
            graph.call_function(torch._C._set_grad_enabled, (wanted,))
            mode = wanted
        node = (
            graph.call_function(operator.getitem, (node, 0))
            if name == "getitem"
            else graph.call_method(name, (node, *args))
        )
        with torch.set_grad_enabled(wanted):
            value = value[0] if name == "getitem" else getattr(value, name)(*args)
        if not wanted and isinstance(value, torch.Tensor) and not name.endswith("_"):
            value = value.detach()
        node.meta["example_value"] = value
    if not mode:
        graph.call_function(torch._C._set_grad_enabled, (True,))
    return node


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([("t", (), True)], False),
        ([("t", (), False)], True),
        ([("t", (), False), ("t", (), True)], True),
        ([("t", (), True), ("t", (), False)], True),
        ([("detach", (), False)], False),
        ([("detach", (), False), ("t", (), True)], False),
        ([("mul", (2,), False)], False),
        ([("mul", (2,), False), ("t", (), True)], False),
        ([("t", (), False), ("mul_", (2,), True)], True),
        ([("mul_", (2,), False)], False),
        ([("unbind", (), True), ("getitem", (), True)], False),
    ],
)
def test_views_made_without_gradients(calls, expected):
    assert is_made_without_gradients(traced(calls)) is expected


def test_graphs_that_begin_without_gradients():
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.zeros(3, 4)
    before = graph.call_method("t", (x,))
    before.meta["example_value"] = x.meta["example_value"].t().detach()
    graph.call_function(torch._C._set_grad_enabled, (True,))
    assert is_made_without_gradients(before)
