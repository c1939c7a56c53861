"""Unbacked symbols in the second trace: numbers that only the run of the graph can tell.

The tracer has run the graph on fake tensors once; a node's `example_value` is what it returned. A node that makes unbacked symbols
(`t.item()`, `x.nonzero()`) makes new ones when it runs again. `unify_symbols` tells the environment that they are the tracer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.types import py_sym_types

from treadle_shapes.expr import BoolExpr, Eq, Lt, Ne, Symbol, free_symbols, maximum, minimum, where
from treadle_shapes.torch import FakeShapeEnv, raw_expr

aten = torch.ops.aten


def shape_env_of(mode: Any) -> FakeShapeEnv | None:
    """The environment of a fake mode, None if it has none or one of PyTorch's own."""
    return mode.shape_env if isinstance(mode.shape_env, FakeShapeEnv) else None


def unify_symbols(shape_env: FakeShapeEnv, expected: Any, result: Any) -> dict[Any, Any]:
    """Make the symbols of `result` that are new equal to those in the same places of `expected`. Returns new symbol -> old symbol."""
    fresh = {shape_env.from_sympy(s) for s in shape_env.pending_fresh_unbacked_symbols}
    shape_env.pending_fresh_unbacked_symbols.clear()
    found: dict[Any, Any] = {}
    for theirs, mine in _pairs_of_numbers(expected, result) if fresh else ():
        old, new = _symbol_of(theirs), _symbol_of(mine)
        if new in fresh and old is not None and new is not old and new not in found:
            found[new] = old
            if isinstance(new, Symbol):  # the environment keeps no equalities of floats
                shape_env.env.add_fact(Eq(new, old))
    return found


def tracers_float(node: fx.Node, result: Any) -> Any:
    """The tracer's float instead of a new one: the environment cannot be told that two float symbols are one number."""
    expected = node.meta.get("example_value")
    return expected if isinstance(result, torch.SymFloat) and isinstance(expected, torch.SymFloat) else result


def _symbol_of(number: Any) -> Any:
    """The symbol that a number is, or that a bool of the form `u != 0` is about."""
    expression = raw_expr(number)
    free = free_symbols(expression)
    return next(iter(free)) if len(free) == 1 and (expression in free or isinstance(expression, BoolExpr)) else None


def _pairs_of_numbers(expected: Any, result: Any) -> Iterator[tuple[Any, Any]]:
    """Pairs of symbolic numbers in the same places of two results."""
    if isinstance(expected, py_sym_types) and type(result) is type(expected):
        yield expected, result
    elif isinstance(expected, torch.Tensor) and isinstance(result, torch.Tensor):
        if expected.dim() == result.dim():
            numbers = ((t.storage_offset(), *t.size(), *t.stride()) for t in (expected, result))
            yield from (pair for pair in zip(*numbers, strict=True) if all(isinstance(n, torch.SymInt) for n in pair))
    elif isinstance(expected, (list, tuple)) and isinstance(result, (list, tuple)) and len(expected) == len(result):
        for one, other in zip(expected, result, strict=True):
            yield from _pairs_of_numbers(one, other)


def offset_fact(shape_env: FakeShapeEnv, func: Any, args: Sequence[Any], result: torch.Tensor) -> set[Any]:
    """Define the unbacked storage offset of a view, for which a fake kernel has made a symbol, by the operator's arguments.

    Returns the symbols that are defined now.

    x.select(d, i)    offset + (i + size if i < 0 else i) * stride
    x[start:]         offset + max(0, min(start + size if start < 0 else start, size)) * stride
    """
    symbol = raw_expr(result.storage_offset())
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
    shape_env.env.add_fact(Eq(symbol, start + at * stride))
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


def has_elements(shape_env: FakeShapeEnv, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Expect that a reduction without an identity has elements to reduce; False if it is known to have none.

    Eager raises over nothing, where a kernel would return some number, so the expectation becomes an assert of the graph.
    """
    if func not in _NOT_OF_NOTHING or not args[0]._has_symbolic_sizes_strides:
        return True
    x, at = args[0], _NOT_OF_NOTHING[func]
    given = kwargs.get("dim", args[at] if at is not None and len(args) > at else None)
    if given is None and func is aten.mode.default:
        given = -1
    dims = [given] if isinstance(given, int) else list(given) if given else range(x.dim())
    sizes = [raw_expr(x.size(dim)) for dim in dims]
    return all(shape_env.env.expect(Ne(size, 0)) for size in sizes if shape_env.env.is_unbacked(size))
