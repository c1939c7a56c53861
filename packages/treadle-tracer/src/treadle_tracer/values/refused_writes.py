"""Writes that PyTorch refuses when they run, and fake tensors do not: to a tensor whose elements share memory, and to one that was made in
inference mode. The graph breaks in front of them, so that what the program has done before is done when PyTorch raises.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record
from treadle_tracer.values.call_effects import storages, written_arguments


def why_not_run(node: fx.Node, made_in_inference_mode: Collection[int]) -> str | None:
    """Why PyTorch may refuse the call of a node, or None. made_in_inference_mode: storages of such tensors from outside."""
    written = [argument.meta.get("example_value") for argument in written_arguments(node)]
    record = operator_record(node.target)
    writes_elements = record is None or record.kind is not Kind.VIEW  # `t_` changes sizes and strides
    if writes_elements and any(map(_has_shared_elements, written)):
        return "it writes to an expanded tensor"
    if not made_in_inference_mode or torch.is_inference_mode_enabled():
        return None
    used = [argument.meta.get("example_value") for argument in node.all_input_nodes]
    touched = [*written, *used] if _requires_grad(node.meta.get("example_value")) else written
    if any(storages(value) & set(made_in_inference_mode) for value in touched):
        return "a tensor made in inference mode is neither written to nor saved for a backward pass"
    return None


def _has_shared_elements(value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return False
    layout = zip(value.shape, value.stride(), strict=True)
    return any(type(step) is int and step == 0 and (type(size) is not int or size > 1) for size, step in layout)


def _requires_grad(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return any(map(_requires_grad, value))
    return isinstance(value, torch.Tensor) and value.requires_grad


__all__ = ["why_not_run"]
