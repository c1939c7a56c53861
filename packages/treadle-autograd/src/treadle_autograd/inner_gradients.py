"""Gradients that a graph computes itself, by nodes that call `torch.autograd.grad`.

    %loss = f(%x, %w)                                               ==>    the operators of f and of its backward pass, in one
    %grads = torch.autograd.grad((%loss,), (%w,))                          functional graph
    output (%loss, %grads[0])

The traces run such a node as they run any other. PyTorch's autograd differentiates the functional tensors, provided that the inputs
among them require gradients as the real ones do and that grad mode is what it is when the graph runs.
"""

from __future__ import annotations

import torch
from torch import fx


def computes_gradients(gm: fx.GraphModule) -> bool:
    """Whether a node of the graph calls `torch.autograd.grad`."""
    return bool(gm.graph.find_nodes(op="call_function", target=torch.autograd.grad))
