"""What is known only when a graph runs: its symbols in a second trace, and the asserts that protect what follows from them.

The tracer's graph has been run on fake tensors once; `example_value` holds what every node gave. A node that makes symbols of its own
(`t.item()`, `x.nonzero()`) makes new ones when it is run again, which are the same numbers: `same_symbols` says so to the environment.
Every fact about such symbols is checked by an `aten._assert_scalar` node, which `hoist_asserts` puts right behind the last node that it
needs. So nothing that relies on a fact comes before its check, whatever uses the facts later.

    %u = aten._local_scalar_dense(%t)                  %u = aten._local_scalar_dense(%t)
    %zeros = aten.full([%u], 0)               ==>      %ge = operator.ge(%u, 0)
    %ge = operator.ge(%u, 0)                           %_ = aten._assert_scalar(%ge, "n >= 0 does not hold")
    %_ = aten._assert_scalar(%ge, "n >= 0 ...")        %zeros = aten.full([%u], 0)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_shapes.expr import BoolExpr, Eq, Lt, Ne, Symbol, free_symbols, maximum, minimum, where

from .symbolic import SYMBOLIC

if TYPE_CHECKING:
    from treadle_shapes.torch import FakeShapeEnv

aten = torch.ops.aten


def adapter_of(mode: Any) -> FakeShapeEnv | None:
    """The environment of a fake mode, if it is one of treadle_shapes."""
    if mode.shape_env is None:
        return None
    from treadle_shapes.torch import FakeShapeEnv

    return mode.shape_env if isinstance(mode.shape_env, FakeShapeEnv) else None


def same_symbols(adapter: FakeShapeEnv, expected: Any, result: Any) -> dict[Any, Any]:
    """Tell the environment that symbols just made are those that stand in the same places of `expected`; gives new symbol -> old one."""
    fresh = {adapter.from_sympy(s) for s in adapter.pending_fresh_unbacked_symbols}
    adapter.pending_fresh_unbacked_symbols.clear()
    found: dict[Any, Any] = {}
    for theirs, mine in _numbers(expected, result) if fresh else ():
        old, new = _symbol_of(theirs), _symbol_of(mine)
        if new in fresh and old is not None and new is not old and new not in found:
            found[new] = old
            if isinstance(new, Symbol):  # nothing is learnt about floats that could be put in for them
                adapter.env.add_fact(Eq(new, old))
    return found


def _symbol_of(number: Any) -> Any:
    """The symbol that a number is, or that makes a truth value (`u != 0`)."""
    expression = number.node.value
    free = free_symbols(expression)
    return next(iter(free)) if len(free) == 1 and (expression in free or isinstance(expression, BoolExpr)) else None


def _numbers(expected: Any, result: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of symbolic numbers in the same places of two results."""
    if isinstance(expected, SYMBOLIC) and type(result) is type(expected):
        yield expected, result
    elif isinstance(expected, torch.Tensor) and isinstance(result, torch.Tensor):
        if expected.dim() == result.dim():
            numbers = ((t.storage_offset(), *t.size(), *t.stride()) for t in (expected, result))
            yield from (pair for pair in zip(*numbers, strict=True) if all(isinstance(n, torch.SymInt) for n in pair))
    elif isinstance(expected, (list, tuple)) and isinstance(result, (list, tuple)) and len(expected) == len(result):
        for one, other in zip(expected, result, strict=True):
            yield from _numbers(one, other)


def explain_offset(adapter: FakeShapeEnv, func: Any, args: Sequence[Any], result: torch.Tensor) -> set[Any]:
    """Where a view begins whose position only the run can tell: fake kernels make a symbol for it, which is the formula of the operator.
    Gives the symbols explained.

    x.select(d, i)    offset + (i + size if i < 0 else i) * stride
    x[start:]         offset + max(0, min(start + size if start < 0 else start, size)) * stride
    """
    offset = result.storage_offset()
    symbol = offset.node.value if isinstance(offset, torch.SymInt) else None  # type: ignore[attr-defined]
    if not isinstance(symbol, Symbol) or func not in (aten.select.int, aten.slice.Tensor):
        return set()
    x, dim, position = (*args, 0, 0)[:3]
    if position is None:
        return set()
    size, stride, start, at = (raw_expr(n) for n in (x.size(dim), x.stride(dim), x.storage_offset(), position))
    at = where(Lt(at, 0), at + size, at)
    if func is aten.slice.Tensor:
        at = maximum(0, minimum(at, size))
    if symbol in free_symbols(at) or symbol in free_symbols(start):
        return set()
    adapter.env.add_fact(Eq(symbol, start + at * stride))
    return {symbol}


# Reductions that have no value over no elements: operator -> the position of its dimension(s), None where it reduces all.
_NOT_OF_NOTHING: dict[Any, int | None] = {
    aten.max.default: None,
    aten.min.default: None,
    aten.median.default: None,
    aten.max.dim: 1,
    aten.min.dim: 1,
    aten.median.dim: 1,
    aten.argmax.default: 1,
    aten.argmin.default: 1,
    aten.amax.default: 1,
    aten.amin.default: 1,
    aten.kthvalue.default: 2,
    aten.mode.default: 1,
}


def has_elements(adapter: FakeShapeEnv, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Eager raises where such a reduction has nothing to reduce; a kernel would give a number. So that is a fact which the graph checks;
    False if it is known not to hold."""
    if func not in _NOT_OF_NOTHING or not args[0]._has_symbolic_sizes_strides:
        return True
    x, at = args[0], _NOT_OF_NOTHING[func]
    given = kwargs.get("dim", args[at] if at is not None and len(args) > at else None)
    if given is None and func is aten.mode.default:
        given = -1
    dims = [given] if isinstance(given, int) else list(given) if given else range(x.dim())
    sizes = [raw_expr(x.size(dim)) for dim in dims]
    return all(adapter.env.expect(Ne(size, 0)) for size in sizes if adapter.env.is_unbacked(size))


def raw_expr(number: Any) -> Any:
    """The expression of a number as it was made, no facts put in."""
    return number.node.value if isinstance(number, SYMBOLIC) else number  # type: ignore[union-attr]


def is_number_call(node: fx.Node) -> bool:
    """Whether the node computes a number from numbers, so that the tracer's result is the result."""
    return (
        node.op == "call_function"
        and not isinstance(node.target, torch._ops.OpOverload)
        and isinstance(node.meta.get("example_value"), (*SYMBOLIC, int, float))
        and bool(node.all_input_nodes)
        and all(isinstance(n.meta.get("example_value"), (*SYMBOLIC, int, float)) for n in node.all_input_nodes)
    )


def is_assert(node: fx.Node) -> bool:
    return node.target is aten._assert_scalar.default


# ---- the place of asserts

_SIZE_QUERIES = frozenset({aten.sym_size.int, aten.sym_stride.int})


def _is_arithmetic(node: fx.Node) -> bool:
    """A node without effects that computes a number from numbers or from the metadata of a tensor."""
    if node.op != "call_function":
        return False
    return node.target in _SIZE_QUERIES or (
        not isinstance(node.target, torch._ops.OpOverload)
        and isinstance(node.meta.get("val"), (*SYMBOLIC, bool, int, float))
    )


def hoist_asserts(graph: fx.Graph) -> None:
    """Move every assert, with the arithmetic it needs, right behind the last operator or input that it depends on."""
    nodes = list(graph.nodes)
    if not any(map(is_assert, nodes)):
        return
    needs: dict[fx.Node, dict[fx.Node, None]] = {}  # node -> arithmetic below it, in order of computation
    waits: dict[fx.Node, set[fx.Node]] = {}  # node -> operators and inputs below it
    for node in nodes:
        if is_assert(node) or _is_arithmetic(node):
            needs[node], waits[node] = {}, set()
            for used in node.all_input_nodes:
                needs[node].update(needs.get(used, {}))
                waits[node] |= waits.get(used, {used})
            needs[node][node] = None
    pending = [node for node in nodes if is_assert(node)]
    placed: dict[fx.Node, None] = {}
    for node in nodes:
        placed.setdefault(node)
        following = node.next
        if pending and not (node.op == "placeholder" and following.op == "placeholder"):
            ready = [found for found in pending if waits[found] <= placed.keys()]
            pending = [found for found in pending if found not in ready]
            for found in ready:
                placed.update(needs[found])
    order = list(placed)
    for before, node in zip(order, order[1:], strict=False):
        before.append(node)
