"""PyTorch's control flow operators as Python, traced and run in place of PyTorch's own, which start torch.compile.

    torch.cond(p, f, g, (x,))     ==>     f(x) if p else g(x)

A condition that is known while tracing costs a guard or nothing; loops over a known number of steps are unrolled. Where Python needs the
truth of a tensor the graph breaks, and Python runs this code. The checks of arguments are PyTorch's (torch/_higher_order_ops, torch 2.13);
that the branches of `cond` agree in dtype and shape is not checked.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.utils._pytree as pytree


def cond(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    """`torch.cond`"""
    if isinstance(pred, torch.Tensor) and pred.numel() != 1:
        raise RuntimeError(f"Expected pred to be bool or single-element tensor, but got {pred}.")
    if not isinstance(pred, (torch.Tensor, bool, int, float)):
        raise RuntimeError(f"Expected pred to be bool or tensor, but got {pred}.")
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


def while_loop(cond_fn: Callable[..., Any], body_fn: Callable[..., Any], carried_inputs: Any) -> Any:
    """`torch._higher_order_ops.while_loop`"""
    if not callable(cond_fn) or not callable(body_fn):
        raise RuntimeError("Expect cond_fn and body_fn to be callable.")
    carried = tuple(carried_inputs)
    while cond_fn(*carried):
        found = body_fn(*carried)
        carried = tuple(found) if isinstance(found, (tuple, list)) else (found,)
    return carried


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> Any:
    """`torch._higher_order_ops.scan`: (the last carry, the outputs of all steps stacked)"""
    leaves, spec = pytree.tree_flatten(xs)
    if len(leaves) == 0:
        return init, []
    _check_steps(leaves, dim)
    steps = leaves[0].shape[dim]
    carry, outputs, structure = init, [], None
    for step in range(steps - 1, -1, -1) if reverse else range(steps):
        x = pytree.tree_unflatten([leaf.select(dim, step) for leaf in leaves], spec)
        carry, output = combine_fn(carry, x)
        found, structure = pytree.tree_flatten(output)
        outputs.append(found)
    if reverse:
        outputs.reverse()
    place = dim % leaves[0].dim()
    stacked = [_stack([output[k] for output in outputs], place) for k in range(len(outputs[0]))]
    return carry, pytree.tree_unflatten(stacked, structure)


def _stack(outputs: Any, place: int) -> Any:
    if outputs[0] is None:
        return None
    stacked = torch.stack(outputs)
    return stacked.movedim(0, place) if place < stacked.dim() else stacked


def map_(f: Callable[..., Any], xs: Any, *args: Any) -> Any:
    """`torch._higher_order_ops.map`: f(x, *args) for x along the first dimension, stacked"""
    leaves, spec = pytree.tree_flatten(xs)
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise RuntimeError(f"Mapped xs can only consist of tensors. Got xs {leaves}.")
    steps = leaves[0].shape[0]
    if steps == 0:
        raise RuntimeError("Leading dimensions of mapped xs cannot be 0.")
    for leaf in leaves:
        if leaf.shape[0] != steps:
            shapes = [other.shape for other in leaves]
            raise RuntimeError(f"Leading dimensions of mapped xs must be consistent. Got shapes {shapes}.")
    outputs, structure = [], None
    for step in range(steps):
        found = f(pytree.tree_unflatten([leaf[step] for leaf in leaves], spec), *args)
        flat, structure = pytree.tree_flatten(found)
        outputs.append(flat)
    stacked = [_stack([output[k] for output in outputs], 0) for k in range(len(outputs[0]))]
    return pytree.tree_unflatten(stacked, structure)


def _check_steps(leaves: Any, dim: int) -> None:
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            raise RuntimeError(f"All xs leaves must be a Tensor but got {leaf}")
        if leaf.dim() <= dim or leaf.shape[dim] == 0:
            raise RuntimeError("All xs leaves must at least have 'dim' number of dimensions and scan dimension > 0")


_BY_NAME = {"cond": cond, "while_loop": while_loop, "scan": scan, "map": map_}


def in_place_of(function: types.FunctionType) -> Callable[..., Any] | None:
    """The function here that stands for PyTorch's, or None. `associative_scan` of combine_mode="generic" is Python in PyTorch, too."""
    own = _BY_NAME.get(function.__name__)
    module = None if own is None else sys.modules.get(f"torch._higher_order_ops.{function.__name__}")
    return own if module is not None and getattr(module, function.__name__) is function else None
