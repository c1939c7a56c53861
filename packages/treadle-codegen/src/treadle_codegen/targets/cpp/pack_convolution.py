"""Convolutions with static weights run in oneDNN with weights packed once, channels-last, with what follows them fused in.

    before   y = convolution(x, w, b, ...); z = relu(y + shortcut)
    after    p = pack(w); z = mkldnn._convolution_pointwise.binary(x, shortcut, p, b, ..., "add", 1.0, "relu", [], None)

oneDNN computes in blocks over the channels; given the layouts PyTorch uses by default it reorders activations on the way in
and out and the weights on every call. Measured on resnet18's first layer, one thread: 3.4 ms as it is, 1.4 ms like this. In bfloat16,
convolutions of mobilenetv3 take 174, 365, 146 and 96 us as they are and 74, 160, 72 and 47 like this. Volumes: 64 channels of 4 by 32 by
32 take 20.5 and 6.9 ms, 256 of 1 by 8 by 8 3.2 and 0.7, since PyTorch computes small batches of them without oneDNN.

Rows are images of height 1:

    before   y = convolution(x, w, b, [stride], ...)                      x [N, C, L]
    after    y = squeeze(_convolution_pointwise(unsqueeze(x, 2), p, b, ..., [1, stride]), 2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import as_shape, hint_of
from treadle_codegen.rewrite.propagate import insert_call, propagate_layouts, running
from treadle_codegen.rewrite.relayout import (
    channels_last,
    drop_needless_copies,
    output_strides,
    restore_outputs,
    why_not_relayout,
)
from treadle_codegen.rewrite.static import static_nodes
from treadle_codegen.targets.cpp.packing_gain import elements, is_image, multiply_adds, why_not_pack_together
from treadle_codegen.targets.cpp.packs_at_sizes import pack_at_sizes

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
POINTWISE = torch.ops.mkldnn._convolution_pointwise.default
BINARY = torch.ops.mkldnn._convolution_pointwise.binary
TRANSPOSED = torch.ops.mkldnn._convolution_transpose_pointwise.default


def _channels_last_like(x: torch.Tensor, channels: Any, points: list[Any]) -> torch.Tensor:
    """What oneDNN returns for channels-last arguments. The convolution's own meta function would ask about symbolic sizes again."""
    batch, strides, room = x.shape[0], [1], channels
    for size in reversed(points):
        strides.insert(1, room)
        room = room * size
    return x.new_empty_strided((batch, channels, *points), (room, *strides))


def _fake_pointwise(
    x: Any, w: Any, _b: Any, padding: Any, stride: Any, dilation: Any, _groups: int, *_post: Any
) -> Any:
    sizes = zip(x.shape[2:], w.shape[2:], padding, stride, dilation, strict=True)
    return _channels_last_like(x, w.shape[0], [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, p, s, d in sizes])


def _fake_binary(x: Any, _other: Any, *args: Any) -> Any:
    return _fake_pointwise(x, *args)


def _fake_transposed(
    x: Any, w: Any, _b: Any, padding: Any, extra: Any, stride: Any, dilation: Any, groups: int, *_post: Any
) -> Any:
    sizes = zip(x.shape[2:], w.shape[2:], padding, extra, stride, dilation, strict=True)
    points = [(n - 1) * s - 2 * p + d * (k - 1) + e + 1 for n, k, p, e, s, d in sizes]
    return _channels_last_like(x, w.shape[1] * groups, points)


FAKE_RULES = {POINTWISE: _fake_pointwise, BINARY: _fake_binary, TRANSPOSED: _fake_transposed}
_REORDER = {4: aten.mkldnn_reorder_conv2d_weight.default, 5: aten.mkldnn_reorder_conv3d_weight.default}
_DTYPES = (torch.float32, torch.bfloat16)  # bfloat16 comes here only if the processor multiplies it (`wide_products`)
_SMALL_KERNEL, _SMALL_IMAGE = 3, 20480  # PyTorch's: extents of the kernel, elements of the image
_MIN_WORK = 1 << 16  # multiply-adds; below this the layout conversions cost more than they save

# Channels of a group below which oneDNN's transposed convolutions are slower packed: over 28 by 28, 64 groups of 1 channel take 550 us as
# they are and 723 packed, 8 groups of 8 703 and 839, 2 groups of 32 3652 and 1128.
_NARROWEST_TRANSPOSED_GROUP = 32


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
    reorder = _REORDER[weight.dim()]
    return reorder(weight.to_mkldnn(), padding, stride, dilation, groups, input_size)


def pack_transposed_weight(weight: torch.Tensor, *geometry: Any) -> torch.Tensor:
    """The same for a transposed convolution, whose geometry has the output's padding behind the padding."""
    return torch.ops.mkldnn._reorder_convolution_transpose_weight.default(weight, *geometry)


_PACKS = {
    (False, True): pack_weight,
    (True, True): pack_transposed_weight,
    (False, False): pack_at_sizes(pack_weight),
    (True, False): pack_at_sizes(pack_transposed_weight),
}
"""By whether a convolution is transposed, and whether its sizes are constants."""


def pack_convolutions(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Rewrite every convolution that gains. Returns how many changed. The graph's outputs keep their strides."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return 0
    static = static_nodes(graph)
    chosen = [n for n in graph.nodes if n.target is CONVOLUTION and why_not_pack(n, static) is None]
    if why_not_pack_together([n for n in chosen if not is_image(n)]) is not None:
        chosen = list(filter(is_image, chosen))
    output = graph.output_node()
    if not chosen or why_not_relayout(output) is not None:
        return 0
    wanted = output_strides(output)
    packed = {_pack(graph, conv, mode) for conv in chosen}
    propagate_layouts(graph, mode, FAKE_RULES, packed)
    drop_needless_copies(graph, FAKE_RULES)
    restore_outputs(graph, output, wanted, mode)
    graph.eliminate_dead_code(is_impure_node=lambda node: node.is_impure() or bool(node.meta.get("may_raise")))
    return len(chosen)


def why_not_pack(conv: fx.Node, static: set[fx.Node]) -> str | None:
    """Why a convolution stays as it is, or None."""
    x, weight, bias, _stride, _padding, _dilation, transposed = conv.args[:7]
    value = conv.meta["val"]
    if value.dim() not in (3, 4, 5):
        return "more than three dimensions, or no batch"
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
    if transposed and conv.args[8] != 1 and weight.meta["val"].shape[0] // conv.args[8] < _NARROWEST_TRANSPOSED_GROUP:
        return "transposed, in groups of few channels"
    return "too little work" if multiply_adds(conv) < _MIN_WORK else None


def is_computed_without_primitive(conv: fx.Node) -> bool:
    """Whether PyTorch convolves by a product of matrices, without oneDNN (`use_mkldnn` of ATen's native/Convolution.cpp, torch 2.13).

    oneDNN makes a primitive for every new size, in 0.3 to 0.5 ms, and small images are convolved faster than that. Three layers on images
    of 20 to 60 pixels, at sizes that are new in every call and at ones that come again, one thread: eager 1.12 and 0.96 ms, packed weights
    1.43 and 0.49, weights as they are 0.99 and 0.42.
    """
    x, weight, transposed, groups = conv.args[0], conv.args[1], conv.args[6], conv.args[8]
    assert isinstance(x, fx.Node)
    assert isinstance(weight, fx.Node)
    kernel = weight.meta["val"].shape[2:]
    is_one = hint_of(x.meta["val"].shape[0]) == 1
    is_small = len(kernel) <= 2 and min(kernel) <= _SMALL_KERNEL and elements(x.meta["val"]) <= _SMALL_IMAGE
    return is_one and is_small and groups == 1 and not transposed


def _pack(graph: fx.Graph, conv: fx.Node, mode: FakeTensorMode) -> fx.Node:
    x, weight, bias, *_ = conv.args
    is_row = conv.meta["val"].dim() == 3
    chain, other, alpha, post = _what_follows(conv)
    last = chain[-1]

    def image_of(tensor: Any) -> fx.Node:
        return insert_call(graph, mode, conv, aten.unsqueeze.default, tensor, 2) if is_row else tensor

    with graph.inserting_before(last):
        image, kernel, geometry = image_of(x), image_of(weight), _geometry(conv)
        sizes = image.meta["val"].shape
        likely = [hint_of(n) for n in sizes]
        is_fixed = all(isinstance(n, int) for n in sizes)
        pack = _PACKS[bool(conv.args[6]), is_fixed]
        packed = graph.call_function(pack, (kernel, *geometry, likely))
        packed.meta.update(val=kernel.meta["val"], opaque=True)
        arranged = channels_last(graph, image, conv, mode)
        if other is None:
            target = TRANSPOSED if conv.args[6] else POINTWISE
            activation = (post.attr, list(post.scalars), post.algorithm or "")
            node = graph.call_function(target, (arranged, packed, bias, *geometry, *activation))
        else:
            shortcut = channels_last(graph, image_of(other), conv, mode)
            unary = (None, [], None) if post.attr == "none" else (post.attr, list(post.scalars), post.algorithm)
            node = graph.call_function(BINARY, (arranged, shortcut, packed, bias, *geometry, "add", alpha, *unary))
        node.meta.update(last.meta)
        result = node
        if is_row:
            with running(mode):
                node.meta["val"] = last.meta["val"].unsqueeze(2)
            result = insert_call(graph, mode, last, aten.squeeze.dim, node, 2)
    last.replace_all_uses_with(result)
    for replaced in reversed(chain):  # a dead user would hide later chances
        graph.erase_node(replaced)
    return node


def _geometry(conv: fx.Node) -> tuple[Any, ...]:
    """Padding, the output's padding of transposed ones, stride, dilation and groups, with an axis more for rows.

    ATen takes one number for all axes: `padding="valid"` is [0].
    """
    stride, padding, dilation, transposed, extra, groups = conv.args[3:]
    lists: list[tuple[int, Any]] = [(0, padding), *([(0, extra)] if transposed else []), (1, stride), (1, dilation)]
    axes = conv.meta["val"].dim() - 2
    full = [(neutral, list(given) * axes if len(given) == 1 else given) for neutral, given in lists]
    return *([neutral, *given] if axes == 1 else given for neutral, given in full), groups


def _what_follows(conv: fx.Node) -> tuple[list[fx.Node], fx.Node | None, float, PostOp]:
    """The chain conv [add] [activation] that the convolution can take over, the tensor it adds, its factor, the activation."""
    chain, other, alpha = [conv], None, 1.0
    user = _only_user(conv)
    if user is not None and user.target is aten.add.Tensor and not conv.args[6]:
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
