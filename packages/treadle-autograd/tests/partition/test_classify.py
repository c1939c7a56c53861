"""What nodes are to the partition."""

from __future__ import annotations

import pytest
import torch
from joint_graphs import joint_of
from torch import fx

from treadle_autograd import aot
from treadle_autograd.partition import is_view, save_everything, viewed


def _nodes(function, *inputs):
    return {node.name: node for node in joint_of(function, *inputs).graph.nodes}


def test_one_of_several_views_is_a_view():
    def program(x):
        first, second = x.sin().unbind(0)
        values, _ = second.sort()
        return first * values

    nodes = _nodes(program, torch.ones(2, 3, requires_grad=True))
    shown = {name for name, node in nodes.items() if is_view(node)}
    assert {"unbind_int", "getitem", "getitem_1"} <= shown
    assert viewed(nodes["getitem_1"]) is viewed(nodes["unbind_int"]) is nodes["sin_default"]
    of_sort = [node for node in nodes.values() if node.args and "sort" in str(node.args[0])]
    assert of_sort and not any(map(is_view, of_sort))


def one_of_several(x):
    part = x.t().unbind(0)[1] + 1
    x.t().mul_(part)
    return x.sum()


def beside_an_output(x):
    h = x * 2
    return h, h.unbind(0)[1] * x.sum()


def _leaf():
    return torch.linspace(0.3, 1.4, 9).view(3, 3).requires_grad_()


def test_the_own_write_to_an_input_leaves_what_is_read_of_it():
    """A part that is saved would show the new values."""
    compiled = aot(fx.symbolic_trace(one_of_several), [_leaf() * 1], inference=False, forward=lambda gm, _: gm.forward)
    leaf, other = _leaf(), _leaf()
    (found,) = compiled(leaf * 1)
    found.backward()
    one_of_several(other * 1).backward()
    torch.testing.assert_close(leaf.grad, other.grad)


def test_a_later_write_to_an_output_is_found():
    gm = fx.symbolic_trace(beside_an_output)
    compiled = aot(gm, [_leaf()], inference=False, forward=lambda gm, _: gm.forward, partition=save_everything)
    for function in (beside_an_output, compiled):
        h, y = function(_leaf())
        with torch.no_grad():
            h.mul_(2)
        with pytest.raises(RuntimeError, match="modified"):
            y.sum().backward()
