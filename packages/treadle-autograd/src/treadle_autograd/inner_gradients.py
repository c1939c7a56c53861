"""Gradients that a graph computes itself, by nodes that call `torch.autograd.grad`, and tensors that begin to require gradients in it.

    %loss = f(%x, %w)                                               ==>    the operators of f and of its backward pass, in one
    %grads = torch.autograd.grad((%loss,), (%w,))                          functional graph
    output (%loss, %grads[0])

The traces run such a node as they run any other. PyTorch's autograd differentiates the functional tensors, provided that the inputs
among them require gradients as the real ones do and that grad mode is what it is when the graph runs.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx


def computes_gradients(gm: fx.GraphModule) -> bool:
    """Whether autograd matters to what the graph computes: a node calls `torch.autograd.grad`, `requires_grad_`, or `detach_` of an
    input."""
    find = gm.graph.find_nodes
    if find(op="call_function", target=torch.autograd.grad) or find(op="call_method", target="requires_grad_"):
        return True
    detached = [*find(op="call_method", target="detach_"), *find(op="call_function", target=torch.detach_)]
    return any(_owner(node).op in ("placeholder", "get_attr") for node in detached)


def _owner(node: fx.Node) -> fx.Node:
    """The node whose tensor a method that works in place returns, or `node` itself."""
    while node.all_input_nodes and str(getattr(node.target, "__name__", node.target)).endswith("_"):
        node = node.all_input_nodes[0]
    return node


def is_gradient_call(node: fx.Node) -> bool:
    """Whether the node runs a backward pass."""
    return node.target is torch.autograd.grad


def changed_inputs(wrappers: Sequence[Any], differentiable: Collection[int]) -> tuple[tuple[int, bool], ...]:
    """(input, whether it requires gradients now) of the inputs of which the graph has changed that.

    wrappers: the inputs' functional tensors after the run; differentiable: identities of those that required gradients before.
    """
    tensors = [(i, wrapper) for i, wrapper in enumerate(wrappers) if isinstance(wrapper, torch.Tensor)]
    return tuple(
        (i, wrapper.requires_grad)
        for i, wrapper in tensors
        if wrapper.is_leaf and wrapper.requires_grad != (id(wrapper) in differentiable)
    )


def differentiable_outputs(outputs: Sequence[Any], inputs: Sequence[Any]) -> list[torch.Tensor]:
    """The outputs that require gradients, inputs apart."""
    known = {id(value) for value in inputs}
    tensors = [value for value in outputs if isinstance(value, torch.Tensor) and id(value) not in known]
    return [value for value in tensors if value.requires_grad]
