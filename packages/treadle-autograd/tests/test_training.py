"""Compiled training: what is saved between the forward and the backward graph."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from treadle_autograd import aot
from treadle_autograd.partition import min_cut, save_everything


@pytest.mark.parametrize("partition", [min_cut, save_everything])
def test_an_output_written_in_place_may_be_saved(partition):
    graph = fx.Graph()
    x = graph.placeholder("x")
    result = graph.call_function(torch.relu_, (graph.call_function(torch.add, (x, 1)),))
    graph.output((result,))
    gm = fx.GraphModule(torch.nn.Module(), graph)
    given, expected = (torch.tensor([-2.0, 3.0], requires_grad=True) for _ in range(2))
    run = aot(gm, [given], inference=False, forward=lambda gm, inputs: gm, partition=partition)
    for leaf, function in ((given, run), (expected, gm)):
        (output,) = function(leaf)
        assert output._version == 1
        output.sum().backward()
    assert given.grad is not None and given.grad.equal(expected.grad)
