"""torch.cond and while_loop as nodes, and when their Python code is traced instead."""

from __future__ import annotations

import pytest
import torch
from torch._higher_order_ops import map as torch_map
from torch._higher_order_ops import scan, while_loop

from treadle_tracer import Unsupported
from treadle_tracer.trace.driver import trace_function


def graph_of(function, *args):
    """The nodes of a trace with control flow, and the result of the graph's own run."""
    result = trace_function(function, args)
    module = result.graph.finish([result.value.node(None)])
    found = module(*result.graph.example_inputs)[0]
    return [node for node in module.graph.nodes if hasattr(node.target, "control_flow")], module, found


def test_branches_are_bodies_of_a_node():
    w = torch.randn(4)
    program = lambda x: torch.cond(x.sum() > 0, lambda a: a * w, lambda a: a - 1, (x,))  # noqa: E731
    for x in (torch.ones(4), -torch.ones(4)):
        (node,), _, found = graph_of(program, x)
        assert node.target.control_flow == "cond" and len(node.target.bodies_of) == 2
        torch.testing.assert_close(found, x * w if x.sum() > 0 else x - 1)


def test_a_known_condition_takes_its_branch():
    nodes, module, found = graph_of(
        lambda x: torch.cond(x.dim() == 1, lambda a: a * 2, lambda a: a - 1, (x,)), torch.ones(4)
    )
    assert not nodes and found.tolist() == [2.0] * 4
    assert len([node for node in module.graph.nodes if node.op.startswith("call_")]) == 1


def test_results_have_memory_of_their_own():
    x = torch.ones(4)
    _, module, _ = graph_of(lambda x: torch.cond(x.sum() > 0, lambda a: a, lambda a: -a, (x,)), x)
    (found,) = module(x)
    assert torch.equal(found, x) and found.data_ptr() != x.data_ptr()


def test_loops():
    (node,), _, found = graph_of(
        lambda x: while_loop(lambda a: a.sum() < 100, lambda a: (a * 2,), (x,))[0], torch.ones(4)
    )
    assert node.target.control_flow == "while_loop" and found.tolist() == [32.0] * 4
    nodes, _, found = graph_of(lambda x: scan(lambda c, a: (c + a, c * a), torch.zeros(4), x)[1], torch.ones(3, 4))
    assert not nodes and found[:, 0].tolist() == [0.0, 1.0, 2.0]
    nodes, _, found = graph_of(lambda x: torch_map(lambda a: a * 2, x), torch.ones(3, 4))
    assert not nodes and found.tolist() == [[2.0] * 4] * 3


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.cond(x.sum() > 0, lambda a: a.sum(), lambda a: a, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda a: (a, 1), lambda a: (a, 1), (x,))[0],
        lambda x: torch.cond(x.sum() > 0, lambda a: a + a.sum().item(), lambda a: a, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda a: a.add_(1), lambda a: a * 1, (x,)),
        lambda x: while_loop(lambda a: a.sum() < 9, lambda a: (a.sum(),), (x,))[0],
    ],
)
def test_what_is_no_node(program):
    with pytest.raises(Unsupported) as error:
        trace_function(program, (torch.ones(4),))
    assert error.value.code == "branch-on-tensor"
