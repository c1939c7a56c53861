"""Products of 16-bit matrices with a softmax between them become attention, which one kernel computes without its scores in memory.

    before   s = bmm(q, k);  t = s * 0.125 + bias;  p = _softmax(t, -1);  y = bmm(p, v)        s, t, p: as many as queries times keys
    after    s = scores(q, k);  t = s * 0.125 + bias;  y = attend(t, v)                        `lower.attention`

What happens to the scores is whatever a loop computes point by point, and nothing else may need them or the weights. Where a graph is
differentiated, backward would: so it computes them again (`parts_of_attention`). Scores are summed and kept in float32, as
`scaled_dot_product_attention` keeps them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.ir.loops import IntLike
from treadle_codegen.ir.ops import LOW_FLOATS
from treadle_codegen.lower.indexing import Shape, as_shape, hint_of, product
from treadle_codegen.lower.lowerings import LOWERINGS
from treadle_codegen.lower.registry import name_of
from treadle_codegen.rewrite.propagate import insert_call
from treadle_codegen.targets.triton.attention_operators import operators
from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record

aten = torch.ops.aten
_SOFTMAX = {aten._softmax.default: False, aten._safe_softmax.default: True}
_PRODUCTS = (aten.bmm.default, aten.baddbmm.default)
_KEPT = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.expand.default, aten.clone.default, aten._to_copy.default, aten.detach.default,
    aten.alias.default, aten.reshape.default,
})  # fmt: skip
_POINT_BY_POINT = (Kind.POINTWISE, Kind.VIEW, Kind.COPY)
_MOST_TERMS = 256  # of a score, and columns of a value: a program holds as many for each of its queries
_FEWEST_TERMS = 16  # tensor cores take no fewer
_FEWEST_QUERIES, _FEWEST_KEYS = 32, 64
_MOST_BETWEEN = 64  # calls between the scores and their softmax


class _Found(NamedTuple):
    """What attention consists of: the product of scores with its factors, the softmax, and the product of weights and values.

    inner: the scores, what becomes of them, and the weights: as many as queries times keys.
    """

    scores: fx.Node
    factors: tuple[fx.Node, fx.Node]
    softmax: fx.Node
    product: fx.Node
    inner: frozenset[fx.Node]


def is_softmax(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target in _SOFTMAX


def fuse_attention(graph: fx.Graph, mode: FakeTensorMode) -> int:
    """Rewrite the graph's attentions. Returns how many there were."""
    found = [f for node in graph.nodes if is_softmax(node) and isinstance(f := attention_around(node), _Found)]
    for attention in found:
        _rewrite(graph, mode, attention)
    if found:
        graph.eliminate_dead_code()
    return len(found)


def parts_of_attention(graph: fx.Graph, others: Container[fx.Node]) -> list[frozenset[fx.Node]]:
    """What the kernels of a joint graph's attentions keep out of memory. others: the nodes that are not in its forward half."""
    softmaxes = [node for node in graph.nodes if node not in others and is_softmax(node)]
    return [f.inner for node in softmaxes if isinstance(f := attention_around(node, others), _Found)]


def attention_around(softmax: fx.Node, others: Container[fx.Node] = ()) -> _Found | str:
    """The attention with this softmax in it, or why there is none. others: nodes whose reading of scores and weights does not count."""
    dim, value = softmax.args[1], softmax.meta["val"]
    if value.dim() < 3 or dim not in (-1, value.dim() - 1):
        return "a softmax along another dimension"
    weights = _weights(softmax, others)
    if isinstance(weights, str):
        return weights
    *kept, last = weights
    scores = _scores(softmax, others)
    if isinstance(scores, str):
        return scores
    first, *_ = scores
    factors = _factors(first)
    if factors is None:
        return "no factors of 16 bits"
    reason = why_not_worth_it(factors, last)
    return reason or _Found(first, factors, softmax, last, frozenset([*scores, softmax, *kept]))


def _readers(node: fx.Node, others: Container[fx.Node]) -> list[fx.Node]:
    return [user for user in node.users if user not in others]


def _weights(softmax: fx.Node, others: Container[fx.Node]) -> list[fx.Node] | str:
    """The views and copies of the weights, and as the last one their product with the values."""
    node, matrix = softmax, _matrix(softmax)
    found: list[fx.Node] = []
    while True:
        readers = _readers(node, others)
        if len(readers) != 1:
            return "the weights have several readers, or none"
        (user,) = readers
        found.append(user)
        if user.target is aten.bmm.default and user.args[0] is node and user.args[1] is not node:
            return found
        if user.target not in _KEPT or _matrix(user) != matrix:
            return "the weights go into something else than a product"
        if _count(user) != _count(softmax):
            return "the weights are repeated"
        node = user


def _scores(softmax: fx.Node, others: Container[fx.Node]) -> list[fx.Node] | str:
    """The one product that the softmax depends on point by point, and what becomes of it before the softmax."""
    matrix, count = _matrix(softmax), _count(softmax)
    between: dict[fx.Node, None] = {softmax: None}
    found: list[fx.Node] = []
    waiting = [softmax.args[0]]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, fx.Node) or node in between or node in found:
            continue
        if not isinstance(node.meta.get("val"), torch.Tensor) or _count(node) != count:
            continue  # a mask or a bias for several matrices: another operand
        if node.target in _PRODUCTS and _matrix(node) == matrix:
            found.append(node)
        elif node.op == "call_function" and not why_not_point_by_point(node):
            between[node] = None
            waiting += node.all_input_nodes
        if len(between) > _MOST_BETWEEN:
            return "too much happens to the scores"
    inner = [node for node in found if all(user in between for user in _readers(node, others))]
    if len(inner) != 1:
        return f"scores of {len(inner)} products"
    reached = {inner[0]: None}
    for node in softmax.graph.nodes:
        if node in between and node is not softmax and not reached.keys().isdisjoint(node.all_input_nodes):
            reached[node] = None
            if not all(user in between for user in _readers(node, others)):
                return "something else needs the scores"
    return [*reached]


def _matrix(node: fx.Node) -> Shape:
    return as_shape(node.meta["val"].shape[-2:])


def _count(node: fx.Node) -> IntLike:
    return product(as_shape(node.meta["val"].shape))


def why_not_point_by_point(node: fx.Node) -> str | None:
    """Why a call does not take its arguments point by point, as far as a loop can compute it; None if it does."""
    record = operator_record(node.target)
    if record is None or record.kind not in _POINT_BY_POINT or record.is_random:
        return "an operator of another kind"
    return None if name_of(node.target) in LOWERINGS else "no loop computes it"


def _factors(scores: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """The matrices of a product, if they are of 16 bits or have been converted from 16 bits to float32 for it."""
    dtype, factors = scores.meta["val"].dtype, scores.args[-2:]
    if dtype not in LOW_FLOATS:
        found = [_conversion(x) for x in factors]  # type: ignore[arg-type]
        if dtype != torch.float32 or len({c and c[0].meta["val"].dtype for c in found}) != 1 or None in found:
            return None
    return factors  # type: ignore[return-value]


def _conversion(node: fx.Node) -> tuple[fx.Node, list[fx.Node]] | None:
    """The 16-bit tensor that a float32 one was converted from, and the views and copies between them, the last one first."""
    steps: list[fx.Node] = []
    while node.op == "call_function" and isinstance(source := node.args[0], fx.Node):
        if node.target is aten._to_copy.default and source.meta["val"].dtype in LOW_FLOATS:
            return source, steps
        record = operator_record(node.target)
        if node.target is not aten.clone.default and (record is None or not record.is_strided_view):
            return None
        steps.append(node)
        node = source
    return None


def _without_conversion(graph: fx.Graph, mode: FakeTensorMode, node: fx.Node) -> fx.Node:
    if node.meta["val"].dtype in LOW_FLOATS:
        return node
    found = _conversion(node)
    assert found is not None
    source, steps = found
    for step in reversed(steps):
        if step.target in (aten.view.default, aten._unsafe_view.default):
            source = _viewed(graph, mode, step, source, step.args[1])
        else:
            source = insert_call(graph, mode, step, step.target, source, *step.args[1:], **step.kwargs)
    return source


def _viewed(graph: fx.Graph, mode: FakeTensorMode, like: fx.Node, x: fx.Node, sizes: Any) -> fx.Node:
    """A tensor in another shape, copied where its strides do not allow that."""
    try:
        return insert_call(graph, mode, like, aten.view.default, x, sizes)
    except (RuntimeError, ValueError):
        copy = insert_call(graph, mode, like, aten.clone.default, x, memory_format=torch.contiguous_format)
        return insert_call(graph, mode, like, aten.view.default, copy, sizes)


def _size(graph: fx.Graph, mode: FakeTensorMode, x: fx.Node, dim: int) -> Any:
    size = x.meta["val"].shape[dim]
    return size if isinstance(size, int) else insert_call(graph, mode, x, aten.sym_size.int, x, dim)


def why_not_worth_it(factors: tuple[fx.Node, fx.Node], last: fx.Node) -> str | None:
    """Why a kernel for attention would not be faster than one for each product, or could not be made."""
    _, rows, terms = factors[0].meta["val"].shape
    keys, columns = factors[1].meta["val"].shape[-1], last.meta["val"].shape[-1]
    if last.meta["val"].dtype not in LOW_FLOATS:
        return "values of more than 16 bits"
    if not isinstance(terms, int) or not isinstance(columns, int):
        return "matrices of unknown width"
    if not all(_FEWEST_TERMS <= n <= _MOST_TERMS for n in (terms, columns)):
        return "scores of few or of many terms"
    for size, least in ((rows, _FEWEST_QUERIES), (keys, _FEWEST_KEYS)):
        hint = hint_of(size)
        if hint is not None and hint < least:
            return "few queries or keys"
    return None


def _rewrite(graph: fx.Graph, mode: FakeTensorMode, found: _Found) -> None:
    with graph.inserting_before(found.scores):
        plain = [_without_conversion(graph, mode, x) for x in found.factors]
        dtype = found.scores.meta["val"].dtype
        inner = insert_call(graph, mode, found.scores, operators().scores.default, *plain, dtype)
        if found.scores.target is aten.baddbmm.default:
            inner = _added(graph, mode, found.scores, inner)
    found.scores.replace_all_uses_with(inner)
    last, before = found.product, found.softmax.args[0]
    value = last.args[1]
    assert isinstance(value, fx.Node)
    assert isinstance(before, fx.Node)
    terms, columns = plain[0].meta["val"].shape[-1], value.meta["val"].shape[-1]
    with graph.inserting_before(last):
        outer = [_size(graph, mode, before, dim) for dim in range(before.meta["val"].dim() - 1)]
        spread = _viewed(graph, mode, last, value, [*outer[:-1], _size(graph, mode, value, 1), columns])
        is_safe = _SOFTMAX[found.softmax.target]
        result = insert_call(graph, mode, last, operators().attend.default, before, spread, terms, is_safe)
        flat = _viewed(graph, mode, last, result, [_size(graph, mode, value, 0), outer[-1], columns])
    last.replace_all_uses_with(flat)
    graph.erase_node(last)


def _added(graph: fx.Graph, mode: FakeTensorMode, like: fx.Node, inner: fx.Node) -> fx.Node:
    """`beta * added + alpha * scores`."""
    beta, alpha = like.kwargs.get("beta", 1), like.kwargs.get("alpha", 1)
    if alpha != 1:
        inner = insert_call(graph, mode, like, aten.mul.Tensor, inner, alpha)
    added = like.args[0]
    if beta == 0:  # what is added may be anything then, even NaN
        return inner
    if beta != 1:
        added = insert_call(graph, mode, like, aten.mul.Tensor, added, beta)
    return insert_call(graph, mode, like, aten.add.Tensor, added, inner)
