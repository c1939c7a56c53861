"""Matrix products with static weights run in oneDNN, with the weight packed once.

    before   t = w.t(); y = addmm(b, x, t)
    after    p = pack_linear_weight(w)  [static]; y = mkldnn._linear_pointwise(x, p, b, "none", [], "")

A BLAS copies the right operand into blocks on every call. For few rows that copy is most of the time. A call of oneDNN costs more than
one of `mm`, so small products lose. One thread of an EPYC (Zen 4), torch 2.13, weights that are in no cache, microseconds of `mm` with the
weight as it lies, `mm` with a row-major copy, and oneDNN with a packed weight:

    terms, columns       M = 2              4              8               32               128                784
    64, 64           4   4   17     5   3   17      5    3  17      9    7  20      17   14   28      76    72    87
    256, 256        44  39   50    45  33   36     52   40  43     81   69  70     201  188  187    1036  1014   999
    256, 1024      170  92  119   179 160   84    194  174 107    311  296 209     779  780  667    4318  4159  3984
    768, 768       287 229  255   272 307  204    321  355 252    564  598 471    1949 1923 1762   10807 10425  9046
    768, 3072     1276 729  868   992 1297 612   1162 1438 777   2305 2567 1731   7075 6891 5836   39349 38575 33526
    3072, 768      811 964  817   852 1020 523   1028 1190 716   2128 2280 1671   6619 6597 5676   36790 37009 33039
    768, 30522 [ms]  15.3 7.3 7.6  14.4 12.9 4.9  16.6 14.9 6.8   34.8 30.7 15.8    121  124   60

With two threads it saves more: of 768, 3072, 49 % at 8 rows and 40 % at 128. In bfloat16, `mm` runs in oneDNN itself and orders the weight
on every call: 768, 3072 takes 950 and 528 us at 4 rows, 1282 and 982 at 32, 3417 and 3134 at 128; results are equal bit by bit.
oneDNN's own activations behind the product gain nothing over our loops, which read it anyway.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import as_shape, contiguous, hint_of, same_strides
from treadle_codegen.rewrite.propagate import insert_call
from treadle_codegen.rewrite.static import is_view_of_input, static_nodes
from treadle_codegen.targets.cpp.weight_layout import MAX_BYTES

aten = torch.ops.aten
MM, ADDMM, BMM = aten.mm.default, aten.addmm.default, aten.bmm.default
LINEAR = torch.ops.mkldnn._linear_pointwise.default

_FEWEST_ROWS = {torch.float32: 3, torch.bfloat16: 2}
_SECONDS_PER_CALL = {torch.float32: 14e-6, torch.bfloat16: 4e-6}  # beyond those of `mm.out`
_SECONDS_PER_BYTE = 30e-12  # of a weight: what copying it into blocks takes at the least
_SECONDS_PER_FLOP = {torch.float32: 0.03 / 90e9, torch.bfloat16: 0.0}  # what the blocks save of computing
_MARGIN = 2  # times the cost of a call


def _fake_linear(x: torch.Tensor, w: torch.Tensor, _b: Any, *_post: Any) -> torch.Tensor:
    return x.new_empty((*x.shape[:-1], w.shape[0]))


FAKE_RULES = {LINEAR: _fake_linear}


def pack_linear_weight(weight: torch.Tensor) -> torch.Tensor:
    """A right operand [terms, columns] of any strides in the blocks that oneDNN chooses: an opaque tensor [columns, terms]."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.t())


def pack_linears(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Rewrite every product with a static weight that gains. Returns how many changed.

    To run behind `release_biases`: a bias that is still with its product goes to oneDNN.
    """
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return 0
    static = static_nodes(graph)
    packed: dict[Any, fx.Node] = {}
    spent = changed = 0
    for node in list(graph.nodes):
        weight = matrix_of(node)
        if weight is None:
            continue
        size = 0 if _identity(weight) in packed else _bytes(weight)
        if why_not_pack_linear(node, static, spent + size) is None:
            _pack(graph, mode, node, weight, packed)
            spent += size
            changed += 1
    return changed


def why_not_pack_linear(node: fx.Node, static: set[fx.Node], spent: int = 0) -> str | None:
    """Why a product stays as it is, or None. `spent`: bytes of all packed weights if it does not."""
    left, weight = node.args[-2], matrix_of(node)
    if weight is None or weight not in static:
        return "its weight is computed from inputs"
    if not isinstance(left, fx.Node) or left in static:
        return "it is computed once"
    value, matrix = node.meta["val"], weight.meta["val"]
    if value.device.type != "cpu" or value.dtype not in _FEWEST_ROWS:
        return "not float32 or bfloat16 on the CPU"
    if not all(isinstance(n, int) for n in matrix.shape) or matrix.numel() == 0:
        return "its weight has symbolic sizes, or is empty"
    if node.target is ADDMM and (node.kwargs or not _is_row_of_biases(node.args[0], matrix)):
        return "scaled, or what it adds is not a row in memory"
    if spent > MAX_BYTES:
        return "too much memory for copies"
    rows = [hint_of(size) for size in value.shape[:-1]]
    if None in rows:
        return "rows that nothing is known about"
    return why_not_gain(math.prod(rows), *matrix.shape, value.dtype)  # type: ignore[arg-type]


def why_not_gain(rows: int, terms: int, columns: int, dtype: torch.dtype) -> str | None:
    """Why packing the weight would not pay off for a product of [rows, terms] and [terms, columns], or None."""
    if columns == 1:
        return "a loop of ours multiplies by a vector"
    if rows < _FEWEST_ROWS[dtype]:
        return "too few rows: reading the weight takes all the time"
    weight = terms * columns
    saved = weight * dtype.itemsize * _SECONDS_PER_BYTE + 2 * rows * weight * _SECONDS_PER_FLOP[dtype]
    return "too small" if saved < _MARGIN * _SECONDS_PER_CALL[dtype] else None


def matrix_of(node: fx.Node) -> fx.Node | None:
    """The right operand of a product of two matrices, or the one matrix that all in a batch are multiplied by; None for other nodes.

    `matmul` makes a batch of a left operand whose dimensions it cannot take together, and expands the matrix.
    """
    if node.target in (MM, ADDMM):
        return node.args[-1] if isinstance(node.args[-1], fx.Node) else None
    if node.target is not BMM:
        return None
    right = found = node.args[1]
    while isinstance(found, fx.Node) and found.meta["val"].dim() > 2:
        if found.target not in (aten.view.default, aten.expand.default, aten.unsqueeze.default):
            return None
        found = found.args[0]
    assert isinstance(right, fx.Node)
    if not isinstance(found, fx.Node) or found.meta["val"].dim() != 2:
        return None
    many, one = right.meta["val"], found.meta["val"]
    (batch, *sizes), (step, *strides) = as_shape(many.shape), as_shape(many.stride())
    is_same = (*sizes, *strides) == (*as_shape(one.shape), *as_shape(one.stride()))
    return found if is_same and (step == 0 or batch == 1) else None


def _is_row_of_biases(bias: Any, matrix: torch.Tensor) -> bool:
    """Whether oneDNN can add it: it reads as many neighbours in memory as there are columns, whatever the strides say."""
    if not isinstance(bias, fx.Node):
        return False
    value = bias.meta["val"]
    return (
        as_shape(value.shape) == (matrix.shape[1],) and as_shape(value.stride()) == (1,) and value.dtype == matrix.dtype
    )


def _identity(weight: Any) -> Any:
    """What two right operands have in common if one packed copy serves both."""
    if not is_view_of_input(weight):
        return weight
    root, value = weight, weight.meta["val"]
    while root.op == "call_function":
        (root,) = root.all_input_nodes
    return root, value.dtype, as_shape(value.shape), as_shape(value.stride()), as_shape((value.storage_offset(),))


def _bytes(weight: fx.Node) -> int:
    value = weight.meta["val"]
    return value.numel() * value.dtype.itemsize if all(isinstance(n, int) for n in value.shape) else 0


def _pack(graph: fx.Graph, mode: FakeTensorMode, node: fx.Node, weight: fx.Node, packed: dict[Any, fx.Node]) -> None:
    left = node.args[-2]
    assert isinstance(left, fx.Node)
    identity = _identity(weight)
    if identity not in packed:
        packed[identity] = _packed_weight(graph, mode, weight)
    with graph.inserting_before(node):
        if not _is_row_major(left):  # oneDNN would copy it; a loop of ours may write it so in the first place
            left = insert_call(graph, mode, node, aten.clone.default, left, memory_format=torch.contiguous_format)
        bias = node.args[0] if node.target is ADDMM else None
        product = graph.call_function(LINEAR, (left, packed[identity], bias, "none", [], ""))
    product.meta.update(node.meta)
    node.replace_all_uses_with(product)
    graph.erase_node(node)


def _packed_weight(graph: fx.Graph, mode: FakeTensorMode, weight: fx.Node) -> fx.Node:
    after = weight
    while after.op == "placeholder" and after.next.op == "placeholder":  # these come first in a graph
        after = after.next
    with graph.inserting_after(after):
        packed = graph.call_function(pack_linear_weight, (weight,))
    with mode:
        transposed = weight.meta["val"].t()
    packed.meta.update(val=transposed, opaque=True)
    return packed


def _is_row_major(node: fx.Node) -> bool:
    value = node.meta["val"]
    shape = as_shape(value.shape)
    return same_strides(shape, as_shape(value.stride()), contiguous(shape))
