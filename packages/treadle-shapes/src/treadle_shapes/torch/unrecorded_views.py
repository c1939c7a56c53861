"""Views made with gradients off, told by a traced graph.

    with torch.no_grad():
        v = h[0]       # a view; writes to it are refused where gradients are on, as are writes to views of it
        w = h.detach() # no view

Autograd's own flag tells them where the tensors viewed require gradients. Other fake tensors that are made with gradients off may be no
views: nothing that a fake call does depends on it, and plain tensors are made in half the time.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch import fx

from treadle_shapes.torch.function_transforms import unwrapped
from treadle_shapes.torch.operators import operator


def is_made_without_gradients(node: fx.Node) -> bool:
    """Whether what a node gives is a view that was made with gradients off, or a view of one.

    node: of a graph whose nodes hold their fake values in `meta["example_value"]`, and at whose end gradients are on.
    """
    value = node.meta.get("example_value")
    while (found := _viewed(node, value)) is not None:
        argument, given = found
        if given is value:  # one of several, or what is written to and returned
            if node.target is not getitem and operator(node.target) is None:
                return False  # the result of a function with a derivative of its own, whatever its body has made it of
        elif not value._is_view() and _is_detaching(node):
            return False
        elif is_made_in_no_grad(value) or not _is_recorded(node):
            return True
        node, value = argument, given
    return False


def is_made_in_no_grad(value: torch.Tensor) -> bool:
    """Whether autograd has marked a tensor as a view that was made with gradients off, or as a view of one."""
    meta = torch._C._autograd
    return value._is_view() and meta._get_creation_meta(value) == meta.CreationMeta.NO_GRAD_MODE


def _viewed(node: fx.Node, value: object) -> tuple[fx.Node, torch.Tensor] | None:
    """The argument whose memory a result of the node has, with its value, which may be among several."""
    memory = _memory(value)
    if memory is None:
        return None
    for argument in node.all_input_nodes:
        given = argument.meta.get("example_value")
        for tensor in given if isinstance(given, (tuple, list)) else (given,):
            if tensor is value or _memory(tensor) == memory:
                return argument, tensor
    return None


def _memory(value: object) -> int | None:
    """Equal for tensors that share memory; None for all else, and for tensors that have none of their own (sparse ones)."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        return unwrapped(value).untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def _is_detaching(node: fx.Node) -> bool:
    """Whether the call gives the memory of its argument as no view of it: `x.detach()`, `x.data`."""
    record = operator(node.target)
    return node.target is getattr or (record is not None and record.name == "aten.detach")


def _is_recorded(node: fx.Node) -> bool:
    """Whether gradients were on where the node was made."""
    before = node.prev
    while before.op != "root":
        if before.target is torch._C._set_grad_enabled:
            return bool(before.args[0])
        before = before.prev
    changes = (bool(later.args[0]) for later in node.graph.nodes if later.target is torch._C._set_grad_enabled)
    return not next(changes, False)  # what the first of them changes


__all__ = ["is_made_in_no_grad", "is_made_without_gradients"]
