"""Leaves of autograd that a program makes and that leave the graph beside results that depend on them.

    y = x.clone().requires_grad_()        eager's z has a history that ends in y: `torch.autograd.grad(z, y)` gives a gradient
    z = y.sin()
    return y, z

A compiled graph has a history that ends in its inputs. The frame is left before the leaf is made, which is an input of what follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..errors import Unsupported
from ..values.histories import leaves_of

if TYPE_CHECKING:
    from .replacement import Usage


def check_leaves(usage: Usage) -> None:
    """Raises Unsupported for such a leaf."""
    if not usage.leaves:
        return
    values = [node.meta.get("example_value") for node in usage.outputs]
    recorded = [value for value in values if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    reached = set(map(id, leaves_of(recorded)))
    for leaf, made_at in usage.leaves:
        if id(leaf) in reached:
            text = "a tensor made to require gradients leaves the graph beside what has been computed from it"
            raise Unsupported("reconstruct", text, (), made_at)


__all__ = ["check_leaves"]
