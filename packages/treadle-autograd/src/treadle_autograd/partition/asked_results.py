"""Operators of backward passes are asked for those results only that the graph uses.

    grad_input, grad_weight = convolution_backward(g, x, w, ..., output_mask=[True, True, False])          nobody uses grad_weight
    ==>  convolution_backward(g, x, w, ..., output_mask=[True, False, False])

A joint graph is recorded with the gradients of all inputs. The engine asks formulas for what a backward pass needs, and so do graphs that
compute some of the gradients.
"""

from __future__ import annotations

import functools
import operator
from typing import Any

import torch
from torch import fx

_MASKS = ("output_mask", "grad_input_mask", "mask")


def ask_for_used_results(node: fx.Node) -> None:
    """Narrow the node's mask of results to those that its users take."""
    place = None if node.op != "call_function" else _place_of_mask(node.target)
    if place is None or len(node.args) <= place or any(user.target is not operator.getitem for user in node.users):
        return
    used = {user.args[1] for user in node.users}
    asked: Any = node.args[place]
    narrowed = [is_asked and k in used for k, is_asked in enumerate(asked)]
    if narrowed == list(asked) or not any(narrowed):
        return
    node.update_arg(place, narrowed)
    if "val" in node.meta:
        kept = zip(narrowed, node.meta["val"], strict=True)
        node.meta["val"] = tuple(value if is_asked else None for is_asked, value in kept)


@functools.lru_cache(maxsize=1024)
def _place_of_mask(target: Any) -> int | None:
    """The position of the argument that says, for each result of the operator, whether it is to be computed; None where there is none.

    Only ATen's: what another library's operator means by a mask is its own business."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten" or "backward" not in target.name():
        return None
    for place, argument in enumerate(target._schema.arguments):
        kind: Any = argument.type
        is_list = isinstance(kind, torch.ListType) and isinstance(kind.getElementType(), torch.BoolType)
        if is_list and argument.name in _MASKS and len(target._schema.returns) == argument.N:
            return place
    return None
