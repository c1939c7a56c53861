"""Whether packing convolutions of rows, volumes and transposed ones gains more than converting layouts at a graph's edges costs.

    x [contiguous input] -> convolution -> y [contiguous output]                     stays: both would be converted
    x [contiguous input] -> convolution -> relu -> convolution -> mean -> y          is packed: only x is converted

Between a graph's operators the layout of a result costs nothing: loops of ours write it as its readers want it. Images gain so much more
that they need no such question. One thread of an EPYC, float32, microseconds as it is, packed, and packed between contiguous tensors:

    Conv1d(16, 32, 1) over 8000              128   121   222
    Conv1d(256, 256, 3) over 8 rows of 100  3519     -  3692
    Conv3d(64, 64, 1) over 4, 16, 16         103   108   335
    Conv3d(64, 64, 3) over 4, 16, 16        4802  1782     -
    ConvTranspose2d(64, 32, 2, 2) over 32, 32  364   200   469
    ConvTranspose1d(512, 256, 4, 2, 1) over 50  724     -   595
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import fx

from treadle_codegen.lower.indexing import hint_of
from treadle_shapes.torch import operator as operator_record

_SECONDS_PER_ELEMENT = 0.3e-9  # of a conversion
_MARGIN = 3  # times the conversions


def _is_volume_without_onednn(conv: fx.Node) -> bool:
    """Whether PyTorch computes it by matrix products of copied windows: single volumes, dense windows of more than a point."""
    weight, stride, dilation = conv.args[1], conv.args[3], conv.args[5]
    assert isinstance(weight, fx.Node)
    is_plain = all(s == 1 for s in (*stride, *dilation))  # type: ignore[misc]
    is_single = hint_of(conv.meta["val"].shape[0]) == 1
    return is_single and is_plain and math.prod(weight.meta["val"].shape[2:]) > 1


# Kinds, the first that holds -> seconds that packing saves of a multiply-addition
_SAVED: tuple[tuple[Callable[[fx.Node], bool], float], ...] = (
    (lambda conv: bool(conv.args[6]), 4e-12),
    (lambda conv: conv.meta["val"].dim() == 3, 1.7e-12),
    (_is_volume_without_onednn, 30e-12),
    (lambda conv: True, 1e-12),
)


def is_image(conv: fx.Node) -> bool:
    return conv.meta["val"].dim() == 4 and not conv.args[6]


def why_not_pack_together(convolutions: Sequence[fx.Node]) -> str | None:
    """Why a graph's convolutions other than those of images should stay as they are, or None."""
    saved = sum(multiply_adds(conv) * next(s for holds, s in _SAVED if holds(conv)) for conv in convolutions)
    converted = sum(_elements_at_edges(conv) for conv in convolutions)
    if saved < _MARGIN * converted * _SECONDS_PER_ELEMENT:
        return "converting the graph's inputs and outputs would cost more"
    return None


def multiply_adds(conv: fx.Node) -> int:
    """Multiply-additions of a convolution whose sizes have hints."""
    x, weight = conv.args[:2]
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    points = x if conv.args[6] else conv
    return elements(points.meta["val"]) * weight.meta["val"][0].numel()


def _elements_at_edges(conv: fx.Node) -> int:
    x, found = conv.args[0], 0
    assert isinstance(x, fx.Node)
    if _is_contiguous_input(x):
        found += elements(x.meta["val"])
    if hint_of(conv.meta["val"].shape[1]) != 1 and _is_output(conv):
        found += elements(conv.meta["val"])
    return found


def _is_contiguous_input(x: fx.Node) -> bool:
    """Whether a tensor lies in a graph's input, and not channels-last."""
    value, root = x.meta["val"], x
    while root.op == "call_function" and _is_view(root):
        (root,) = root.all_input_nodes
    return root.op == "placeholder" and hint_of(value.shape[1]) != 1 and hint_of(value.stride(1)) != 1


def _is_output(node: fx.Node) -> bool:
    """Whether a node's result, or a view of it, is returned by the graph."""
    return any(user.op == "output" or (_is_view(user) and _is_output(user)) for user in node.users)


def _is_view(node: fx.Node) -> bool:
    record = operator_record(node.target) if node.op == "call_function" else None
    return record is not None and record.is_view and len(node.all_input_nodes) == 1


def elements(value: torch.Tensor) -> int:
    """How many elements a tensor has whose sizes have hints."""
    return math.prod(hint_of(n) or 0 for n in value.shape)
