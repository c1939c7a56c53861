"""Convolutions with static weights run in oneDNN with weights packed once, channels-last, with what follows them fused in.

    before   y = convolution(x, w, b, ...); z = relu(y + shortcut)
    after    p = pack(w); z = mkldnn._convolution_pointwise.binary(x, shortcut, p, b, ..., "add", 1.0, "relu", [], None)

oneDNN computes in blocks over the channels; given the layouts PyTorch uses by default it reorders activations on the way in
and out and the weights on every call. Measured on resnet18's first layer, one thread: 3.4 ms as it is, 1.4 ms like this. In bfloat16,
convolutions of mobilenetv3 take 174, 365, 146 and 96 us as they are and 74, 160, 72 and 47 like this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import as_shape, hint_of
from treadle_codegen.rewrite.propagate import propagate_layouts
from treadle_codegen.rewrite.relayout import (
    channels_last,
    drop_needless_copies,
    output_strides,
    restore_outputs,
    why_not_relayout,
)
from treadle_codegen.rewrite.static import static_nodes

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
POINTWISE = torch.ops.mkldnn._convolution_pointwise.default
BINARY = torch.ops.mkldnn._convolution_pointwise.binary


def _fake_pointwise(x: Any, w: Any, b: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_post: Any) -> Any:
    return CONVOLUTION(x, w, b, stride, padding, dilation, False, [0, 0], groups)


def _fake_binary(
    x: Any, _other: Any, w: Any, b: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_post: Any
) -> Any:
    return CONVOLUTION(x, w, b, stride, padding, dilation, False, [0, 0], groups)


FAKE_RULES = {POINTWISE: _fake_pointwise, BINARY: _fake_binary}
_DTYPES = (torch.float32, torch.bfloat16)  # bfloat16 comes here only if the processor multiplies it (`wide_products`)
_SMALL_KERNEL, _SMALL_IMAGE = 3, 20480  # PyTorch's: extents of the kernel, elements of the image
_MIN_WORK = 1 << 16  # multiply-adds; below this the layout conversions cost more than they save


@dataclass(frozen=True, slots=True)
class PostOp:
    """An activation that oneDNN applies on the way out: its name there and its parameters."""

    attr: str
    scalars: tuple[float, ...] = ()
    algorithm: str | None = None


def _hardtanh(low: float = -1.0, high: float = 1.0) -> PostOp:
    return PostOp("hardtanh", (low, high))


# ATen operator -> its post-op, from the operator's arguments after the tensor; None when these arguments have none
_POST_OPS: dict[Any, Any] = {
    aten.relu.default: lambda: PostOp("relu"),
    aten.hardtanh.default: _hardtanh,
    aten.hardswish.default: lambda: PostOp("hardswish"),
    aten.silu.default: lambda: PostOp("swish"),
    aten.sigmoid.default: lambda: PostOp("sigmoid"),
    aten.gelu.default: lambda: PostOp("gelu", algorithm="none"),
}


def pack_weight(
    weight: torch.Tensor, padding: list[int], stride: list[int], dilation: list[int], groups: int, input_size: list[int]
) -> torch.Tensor:
    """The weight in the blocked layout that oneDNN chooses for this convolution (an opaque mkldnn tensor)."""
    return torch.ops.aten.mkldnn_reorder_conv2d_weight.default(
        weight.to_mkldnn(), padding, stride, dilation, groups, input_size
    )


def pack_convolutions(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Rewrite every convolution that gains. Returns how many changed. The graph's outputs keep their strides."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return 0
    static = static_nodes(graph)
    chosen = [n for n in graph.nodes if n.target is CONVOLUTION and why_not_pack(n, static) is None]
    output = graph.output_node()
    if not chosen or why_not_relayout(output) is not None:
        return 0
    wanted = output_strides(output)
    packed = {_pack(graph, conv, mode) for conv in chosen}
    propagate_layouts(graph, mode, FAKE_RULES, packed)
    drop_needless_copies(graph, (POINTWISE, BINARY))
    restore_outputs(graph, output, wanted, mode)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.is_impure() or bool(node.meta.get("may_raise")))
    return len(chosen)


def why_not_pack(conv: fx.Node, static: set[fx.Node]) -> str | None:
    """Why a convolution stays as it is, or None."""
    x, weight, bias, _stride, _padding, _dilation, transposed = conv.args[:7]
    value = conv.meta["val"]
    if transposed or value.dim() != 4:
        return "transposed, or not two-dimensional"
    if value.dtype not in _DTYPES or value.device.type != "cpu":
        return "not float32 or bfloat16 on the CPU"
    if not isinstance(weight, fx.Node) or weight not in static:
        return "its weight is computed from inputs"
    if isinstance(bias, fx.Node) and bias not in static:
        return "its bias is computed from inputs"
    if not isinstance(x, fx.Node) or not all(isinstance(n, int) for n in weight.meta["val"].shape):
        return "its weight has symbolic sizes"
    sizes = [hint_of(n) for n in (*value.shape, *x.meta["val"].shape)]
    if None in sizes:
        return "sizes that nothing is known about"
    if 0 in sizes:
        return "an empty tensor"
    if is_computed_without_primitive(conv) and any(not isinstance(n, int) for n in x.meta["val"].shape):
        return "a small image whose size changes"
    work = math.prod(sizes[:4]) * weight.meta["val"][0].numel()  # type: ignore[arg-type]
    return "too little work" if work < _MIN_WORK else None


def is_computed_without_primitive(conv: fx.Node) -> bool:
    """Whether PyTorch multiplies matrices instead of calling oneDNN (`use_mkldnn` of aten/src/ATen/native/Convolution.cpp, torch 2.13).

    oneDNN makes a primitive for every new size, in 0.3 to 0.5 ms, and small images are convolved faster than that. Three layers on images
    of 20 to 60 pixels, at sizes that are new in every call and at ones that come again, one thread: eager 1.12 and 0.96 ms, packed weights
    1.43 and 0.49, weights as they are 0.99 and 0.42.
    """
    x, weight, groups = conv.args[0], conv.args[1], conv.args[8]
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    kernel = weight.meta["val"].shape[2:]
    elements = math.prod(hint_of(n) or 0 for n in x.meta["val"].shape)
    is_one = hint_of(x.meta["val"].shape[0]) == 1
    return is_one and groups == 1 and min(kernel) <= _SMALL_KERNEL and elements <= _SMALL_IMAGE


def _pack(graph: fx.Graph, conv: fx.Node, mode: FakeTensorMode) -> fx.Node:
    x, weight, bias, stride, padding, dilation, _, _, groups = conv.args
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    chain, other, alpha, post = _what_follows(conv)
    last = chain[-1]
    with graph.inserting_before(last):
        # With symbolic sizes, for those of the first call: the layout hardly depends on them, and oneDNN takes any.
        likely = [hint_of(n) for n in x.meta["val"].shape]
        packed = graph.call_function(pack_weight, (weight, padding, stride, dilation, groups, likely))
        packed.meta.update(val=weight.meta["val"], opaque=True)
        arranged = channels_last(graph, x, conv, mode)
        geometry = (padding, stride, dilation, groups)
        if other is None:
            args: tuple[Any, ...] = (
                arranged,
                packed,
                bias,
                *geometry,
                post.attr,
                list(post.scalars),
                post.algorithm or "",
            )
            node = graph.call_function(POINTWISE, args)
        else:
            shortcut = channels_last(graph, other, conv, mode)
            unary = (None, [], None) if post.attr == "none" else (post.attr, list(post.scalars), post.algorithm)
            node = graph.call_function(BINARY, (arranged, shortcut, packed, bias, *geometry, "add", alpha, *unary))
    node.meta.update(last.meta)
    last.replace_all_uses_with(node)
    for replaced in reversed(chain):  # a dead user would hide later chances
        graph.erase_node(replaced)
    return node


def _what_follows(conv: fx.Node) -> tuple[list[fx.Node], fx.Node | None, float, PostOp]:
    """The chain conv [add] [activation] that the convolution can take over, the tensor it adds, its factor, the activation."""
    chain, other, alpha = [conv], None, 1.0
    user = _only_user(conv)
    if user is not None and user.target is aten.add.Tensor:
        a, b = user.args
        shortcut = b if a is conv else a
        alpha = float(user.kwargs.get("alpha", 1))  # type: ignore[arg-type]
        if (
            isinstance(shortcut, fx.Node)
            and shortcut is not conv
            and _same_kind(shortcut, conv)
            and (alpha == 1.0 or a is conv)
        ):
            chain.append(user)
            other = shortcut
            user = _only_user(user)
    if user is not None and user.target in _POST_OPS and not user.kwargs:
        post = _POST_OPS[user.target](*user.args[1:])
        if other is None or post.attr == "relu":
            return [*chain, user], other, alpha, post
    return chain, other, alpha, PostOp("none")


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _same_kind(a: fx.Node, b: fx.Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        return False
    return as_shape(x.shape) == as_shape(y.shape) and x.dtype == y.dtype
