"""Batch norm in evaluation mode after a convolution with static parameters disappears into the convolution.

    before   y = conv(x, w, b); z = (y - mean) * rsqrt(var + eps) * gamma + beta
    after    s = gamma * rsqrt(var + eps); z = conv(x, w * s, (b - mean) * s + beta)

The new weight and bias depend on static inputs only, so that `static.hoist_static` takes them out of the graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.rewrite.propagate import insert_call
from treadle_codegen.rewrite.static import static_nodes

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
_NO_TRAINING = aten._native_batch_norm_legit_no_training.default
_NATIVE = aten.native_batch_norm.default


def fold_batch_norm(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Fold batch norms into the convolutions before them. Returns how many were folded."""
    static = static_nodes(graph)
    folded = 0
    for node in list(graph.nodes):
        if node.target in (_NO_TRAINING, _NATIVE) and why_not_fold(node, static) is None:
            _fold(graph, node, mode)
            folded += 1
    return folded


def why_not_fold(norm: fx.Node, static: set[fx.Node]) -> str | None:
    """Why a batch norm cannot become part of the convolution before it."""
    conv, *parameters = norm.args[:5]
    if norm.target is _NATIVE and norm.args[5] is not False:
        return "it normalises with the batch's own statistics"
    if not isinstance(conv, fx.Node) or conv.target is not CONVOLUTION:
        return "its argument is not a convolution's result"
    if len(conv.users) != 1:
        return "the convolution's result is used elsewhere"
    if conv.args[6] and conv.args[8] != 1:
        return "the convolution is transposed and in groups, each with output channels of its own"
    if any(isinstance(p, fx.Node) and p not in static for p in (*parameters, conv.args[1], conv.args[2])):
        return "a parameter is computed from inputs"
    if parameters[2] is None or parameters[3] is None:
        return "it has no running statistics"
    if not conv.meta["val"].dtype == norm.args[3].meta["val"].dtype == torch.float32:  # type: ignore[union-attr]
        return "not float32"
    if any(u.target is not operator.getitem or (u.args[1] != 0 and u.users) for u in norm.users):
        return "its saved statistics are used"
    return None


def _fold(graph: fx.Graph, norm: fx.Node, mode: FakeTensorMode) -> None:
    conv, gamma, beta, mean, var = norm.args[:5]
    assert isinstance(conv, fx.Node)
    eps = norm.args[-1]
    weight, bias = conv.args[1], conv.args[2]
    channels = conv.meta["val"].shape[1]

    def call(op: Any, *args: Any) -> fx.Node:
        return insert_call(graph, mode, norm, op, *args)

    with graph.inserting_before(conv):
        scale = call(aten.rsqrt.default, call(aten.add.Scalar, var, eps))
        if gamma is not None:
            scale = call(aten.mul.Tensor, scale, gamma)
        shift = call(aten.neg.default, mean) if bias is None else call(aten.sub.Tensor, bias, mean)
        shift = call(aten.mul.Tensor, shift, scale)
        if beta is not None:
            shift = call(aten.add.Tensor, shift, beta)
        dims = len(weight.meta["val"].shape)  # type: ignore[union-attr]
        along = [1, channels] if conv.args[6] else [channels, 1]  # a transposed weight has the input's channels first
        column = call(aten.view.default, scale, along + [1] * (dims - 2))
        new_weight = call(aten.mul.Tensor, weight, column)
        new_conv = call(CONVOLUTION, conv.args[0], new_weight, shift, *conv.args[3:])
    for user in list(norm.users):
        if user.args[1] == 0:
            user.replace_all_uses_with(new_conv)
        graph.erase_node(user)
    graph.erase_node(norm)
    graph.erase_node(conv)
