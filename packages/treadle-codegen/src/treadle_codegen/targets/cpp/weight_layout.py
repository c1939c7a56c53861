"""Matrix products with static weights: the weight is laid out for BLAS once, the bias joins what follows.

    before   t = w.t(); y = addmm(b, x, t); z = gelu(y)
    after    d = contiguous(w.t())  [static]; z = gelu(mm(x, d) + b)

A row-major right operand saves MKL its own copy of the transposed one. That is little (up to 4 % of 42 shapes from 16 to 2048 rows, one
thread of an EPYC, torch 2.13), and each call looks whether the weight has changed. So only large products get a copy. `addmm` writes the
broadcast bias to memory before the product; added in the kernel that reads the product anyway it costs nothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.lower.indexing import as_shape, hint_of
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.small_product import why_not_small
from treadle_codegen.lower.vector_product import why_not_few_rows
from treadle_codegen.rewrite.propagate import insert_call
from treadle_codegen.rewrite.static import is_view_of_input, static_nodes
from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record

aten = torch.ops.aten
# Of all weight copies of one graph together; beyond that memory matters more than time.
MAX_BYTES = 1 << 30
# Products of fewer rows take up to 17 % longer with a copy; ones of fewer multiplications gain less than a look at the weight costs, which
# is 5 us in a loop and 10 to 20 us between other work.
_FEWEST_ROWS, _FEWEST_MULTIPLICATIONS = 128, 1 << 25


def lay_out_weights(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Give every matrix product with a static, transposed right operand a row-major copy of it. Returns how many changed."""
    static = static_nodes(graph)
    copies: dict[fx.Node, fx.Node] = {}
    spent, changed = (
        sum(_bytes(node) for node in graph.nodes if node.meta.get("opaque")),
        0,
    )  # packed weights count as well
    for node in list(graph.nodes):
        record = operator_record(node.target)
        position = None if record is None else record.right_operand
        if position is None or why_not_copy(node.args[position], static, spent) is not None:
            continue
        weight = node.args[position]
        if is_read_by_loop(node.args[position - 1], weight) or why_not_gain(node, weight) is not None:
            continue
        if weight not in copies:
            with graph.inserting_after(weight):
                dense = insert_call(graph, mode, weight, _row_major, weight)
            dense.target, dense.kwargs = aten.clone.default, {"memory_format": torch.contiguous_format}
            copies[weight] = dense
            spent += _bytes(weight)
        node.replace_input_with(weight, copies[weight])
        changed += 1
    return changed


def _bytes(node: fx.Node) -> int:
    value: torch.Tensor = node.meta["val"]
    return value.numel() * value.dtype.itemsize


def is_read_by_loop(left: Any, weight: fx.Node) -> bool:
    """Whether a loop reads the weight as it lies: the left operand is a row or a few, or the product small (`lower.vector_product`)."""
    if not isinstance(left, fx.Node):
        return False
    given, value = left.meta["val"], weight.meta["val"]
    shapes = as_shape(given.shape), as_shape(value.shape), as_shape(value.stride())
    if why_not_small(*shapes[:2], value.dtype) is None:
        return True
    if not isinstance(given.shape[-2], int):
        return False  # asking a symbolic number would make a guard of the answer
    return given.shape[-2] == 1 or why_not_few_rows(*shapes, value.dtype) is None


def why_not_gain(product: fx.Node, weight: fx.Node) -> str | None:
    """Why a copy of the weight costs as much as it saves, or None."""
    rows = [hint_of(size) for size in product.meta["val"].shape[:-1]]
    if None in rows:
        return "rows that nothing is known about"
    count = math.prod(rows)  # type: ignore[arg-type]
    if count < _FEWEST_ROWS:
        return "too few rows"
    terms, columns = weight.meta["val"].shape[-2:]
    return "too small" if count * terms * columns < _FEWEST_MULTIPLICATIONS else None


def why_not_copy(weight: Any, static: set[fx.Node], spent: int) -> str | None:
    """Why a right operand is used with the strides it has, or None."""
    if weight not in static or not is_view_of_input(weight):
        return "not a view of a parameter"
    value = weight.meta["val"]
    if value.stride(-1) == 1:
        return "row-major already"
    if value.device.type != "cpu" or not value.dtype.is_floating_point:
        return "not a floating-point product on the CPU"
    if not all(isinstance(n, int) for n in value.shape) or value.numel() == 0:
        return "symbolic or empty"
    return "too much memory for copies" if spent + value.numel() * value.dtype.itemsize > MAX_BYTES else None


def _row_major(x: torch.Tensor) -> torch.Tensor:
    return aten.clone.default(x, memory_format=torch.contiguous_format)


def release_biases(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Turn `addmm` into `mm` and an addition where kernels of ours read the result. Returns how many changed."""
    turned = 0
    for node in list(graph.nodes):
        if node.target is aten.addmm.default and why_not_release(node) is None:
            bias, left, right = node.args
            with graph.inserting_before(node):
                product = graph.call_function(aten.mm.default, (left, right))
                total = graph.call_function(aten.add.Tensor, (product, bias))
            for replacement in (product, total):  # of addmm's shape and strides both
                replacement.meta.update({k: v for k, v in node.meta.items() if k in ("val", "stack_trace")})
            node.replace_all_uses_with(total)
            graph.erase_node(node)
            turned += 1
    return turned


def why_not_release(node: fx.Node) -> str | None:
    """Why the bias stays with `addmm`, or None."""
    if node.kwargs:
        return "scaled"
    bias = node.args[0]
    if not isinstance(bias, fx.Node) or bias.meta["val"].dim() != 1:
        return "not a row of biases"
    value = node.meta["val"]
    if value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64):
        return "the product is rounded before the bias would be added"
    readers = _readers(node)
    if not readers:
        return "unused"
    for reader in readers:
        record = operator_record(reader.target)
        is_product = record is not None and record.kind is Kind.MATMUL
        if reader.op == "output" or is_product or str(reader.target) not in LOWERINGS:
            return f"{reader} reads the result from memory"
    return None


def _readers(node: fx.Node) -> list[fx.Node]:
    """Users behind views that keep the memory as it is."""
    found: list[fx.Node] = []
    for user in node.users:
        record = operator_record(user.target)
        found.extend(_readers(user) if record is not None and record.reinterprets else [user])
    return found
