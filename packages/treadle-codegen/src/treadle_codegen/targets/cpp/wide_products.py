"""Matrix products, convolutions and attention of 16-bit numbers in float32, where the processor has no instructions for them.

    before   y = mm(x, w)                                   (float16)
    after    y = mm(x.float(), w.float()).half()            w.float() once where w is a parameter

oneDNN and ATen then convert element by element inside of their loops. One thread of a processor with AVX-512 and no float16 products:
a linear layer of 128 by 768 by 3072 takes 27 ms in float16 and 8 ms in float32, a convolution of 64 channels over 56 by 56 pixels
44 ms and 1.2 ms. Both add up in float32; the result is rounded once.
"""

from __future__ import annotations

import functools
import operator

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import hint_of
from treadle_codegen.rewrite.propagate import insert_call, running, same_layout, value_of
from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record

_KINDS = (Kind.MATMUL, Kind.CONVOLUTION, Kind.ATTENTION)
_FEW_ROWS = 8
_TO_COPY = torch.ops.aten._to_copy.default


def compute_in_float32(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Rewrite every product of numbers that the processor does not multiply. Returns how many changed."""
    wide: dict[fx.Node, fx.Node] = {}
    chosen = [node for node in graph.nodes if is_slow_product(node) and why_not_wide(node) is None]
    return sum(_widen(graph, mode, node, wide) for node in chosen)


def is_slow_product(node: fx.Node) -> bool:
    """Whether a node multiplies and adds up numbers of a dtype for which the processor has no such instructions."""
    record = operator_record(node.target) if node.op == "call_function" else None
    if record is None or record.kind not in _KINDS:
        return False
    values = [a.meta.get("val") for a in node.all_input_nodes]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return any(v.dtype in slow_dtypes() for v in tensors) and all(v.device.type == "cpu" for v in tensors)


def why_not_wide(node: fx.Node) -> str | None:
    """Why a slow product stays as it is, or None."""
    record, value = operator_record(node.target), node.meta["val"]
    if record is not None and record.kind is Kind.CONVOLUTION:
        return None
    result = value[0] if isinstance(value, (tuple, list)) else value
    rows = hint_of(result.shape[-2]) if result.dim() > 1 else 1
    is_product = record is not None and record.kind is Kind.MATMUL
    is_column = is_product and result.dim() > 1 and hint_of(result.shape[-1]) == 1
    if is_column or (rows is not None and rows < _FEW_ROWS):
        return "it takes as long as reading its factors, and in float32 these are twice as long"
    return None


@functools.cache
def slow_dtypes() -> frozenset[torch.dtype]:
    """The dtypes of 16 bits in which the processor has no instructions for products."""
    found = set()
    for dtype, supported in (
        (torch.float16, "_is_mkldnn_fp16_supported"),
        (torch.bfloat16, "_is_mkldnn_bf16_supported"),
    ):
        answer = getattr(torch.ops.mkldnn, supported, None)
        if torch.backends.mkldnn.is_available() and answer is not None and not answer():
            found.add(dtype)
    return frozenset(found)


def _widen(graph: fx.Graph, mode: FakeTensorMode, node: fx.Node, wide: dict[fx.Node, fx.Node]) -> bool:
    value = node.meta["val"]
    many = isinstance(value, (tuple, list))
    if many and not all(user.target is operator.getitem for user in node.users):
        return False
    if any(isinstance(k, torch.dtype) for k in node.kwargs.values()):
        return False
    arguments = {a: _widened(graph, mode, a, wide) for a in node.all_input_nodes}
    args, kwargs = [fx.map_arg(given, lambda a: arguments[a]) for given in (node.args, node.kwargs)]
    with running(mode):
        computed = node.target(*value_of(args), **value_of(kwargs))  # type: ignore[operator]
    if not same_layout(value, computed):
        return False  # float32 goes to a kernel with results in another layout
    with graph.inserting_before(node):
        product = graph.call_function(node.target, args, dict(kwargs))  # type: ignore[arg-type]
    product.meta.update({**{k: v for k, v in node.meta.items() if k != "mutates"}, "val": computed})
    if not many:
        _replace(graph, mode, node, product)
        return True
    for user in list(node.users):
        with graph.inserting_before(user):
            item = graph.call_function(operator.getitem, (product, user.args[1]))
        item.meta.update({k: v for k, v in user.meta.items() if k != "mutates"}, val=computed[user.args[1]])
        _replace(graph, mode, user, item)
    graph.erase_node(node)
    return True


def _widened(graph: fx.Graph, mode: FakeTensorMode, node: fx.Node, wide: dict[fx.Node, fx.Node]) -> fx.Node:
    """The node in float32."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dtype not in slow_dtypes():
        return node
    if node not in wide:
        with graph.inserting_after(_last_of_its_kind(node)):
            wide[node] = insert_call(graph, mode, node, _TO_COPY, node, dtype=torch.float32)
    return wide[node]


def _last_of_its_kind(node: fx.Node) -> fx.Node:
    """The node itself, or the last placeholder: these come first in a graph."""
    while node.op == "placeholder" and node.next.op == "placeholder":
        node = node.next
    return node


def _replace(graph: fx.Graph, mode: FakeTensorMode, old: fx.Node, new: fx.Node) -> None:
    """Put `new`, converted to the dtype of `old`, in its place."""
    dtype = old.meta["val"].dtype
    if new.meta["val"].dtype != dtype:
        with graph.inserting_after(new):
            new = insert_call(graph, mode, old, _TO_COPY, new, dtype=dtype)
    if "mutates" in old.meta:
        new.meta["mutates"] = old.meta["mutates"]
    old.replace_all_uses_with(new)
    graph.erase_node(old)
