"""The forward graph under autograd."""

from __future__ import annotations

import torch
from torch import fx

from treadle_autograd.rerun import DifferentiableRun

aten = torch.ops.aten


def test_a_functional_copy_has_derivatives():
    """PyTorch has none for `aten.copy`, which an in-place copy becomes."""
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    graph.output((graph.call_function(aten.copy.default, (x, graph.call_function(aten.mul.Tensor, (y, y)))),))
    run = DifferentiableRun(fx.GraphModule(torch.nn.Module(), graph), {}, {})
    leaf = torch.tensor([2.0, 3.0], requires_grad=True)
    (found,) = run.run(torch.zeros(2), leaf, enable_io_processing=False)
    (first,) = torch.autograd.grad(found.sum(), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    assert first.tolist() == [4.0, 6.0] and second.tolist() == [2.0, 2.0]
