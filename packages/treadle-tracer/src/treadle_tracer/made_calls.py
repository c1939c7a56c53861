"""Calls of a graph that are made apart from it, on real tensors: what they give is known while tracing, or a guard compares it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import fx


def function_of(node: fx.Node) -> Callable[..., Any]:
    """What the node calls, as a function of all its arguments."""
    target: Any = node.target
    return getattr(torch.Tensor, target) if isinstance(target, str) else target  # type: ignore[no-any-return]


def make_calls(calls: Iterable[fx.Node], values: dict[fx.Node, Any]) -> None:
    """Make the calls in order; `values` has what other nodes give, and gets what the calls give."""
    for node in calls:
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
        values[node] = function_of(node)(*args, **kwargs)


def is_small(tensor: torch.Tensor, most_elements: int) -> bool:
    """Whether a fake tensor stands for plain memory on the CPU, of known size and few elements."""
    return is_plain(tensor) and all(isinstance(n, int) for n in tensor.shape) and tensor.numel() <= most_elements


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a fake tensor stands for plain memory on the CPU."""
    return tensor.device.type == "cpu" and tensor.layout is torch.strided
