"""Switches of torch after a graph that raises half-way."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from treadle_tracer.output.torch_switches import restoring_switches


def graph(switches):
    found = fx.Graph()
    for value in (False, True) if switches else ():
        found.call_function(torch._C._set_grad_enabled, (value,))
    found.output(())
    return fx.GraphModule(torch.nn.Module(), found)


def fails():
    torch._C._set_grad_enabled(False)
    raise ValueError("half-way")


def test_a_graph_that_switches_back_at_its_end_does_so_when_it_raises():
    with pytest.raises(ValueError, match="half-way"):
        restoring_switches(fails, graph(switches=True))()
    assert torch.is_grad_enabled()


def test_a_graph_without_switches_is_called_as_it_is():
    assert restoring_switches(fails, graph(switches=False)) is fails
