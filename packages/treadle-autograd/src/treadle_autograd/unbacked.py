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

from treadle_shapes.expr import BoolExpr, Eq, Ne, Symbol, free_symbols
from treadle_shapes.torch import FakeShapeEnv, Operator, raw_expr


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


def offset_fact(
    shape_env: FakeShapeEnv, record: Operator | None, args: Sequence[Any], result: torch.Tensor
) -> set[Any]:
    """Define the unbacked storage offset of a view, for which a fake kernel has made a symbol, by the operator's arguments.

    Returns the symbols that are defined now.

    x.select(d, i)    offset + (i + size if i < 0 else i) * stride
    x[start:]         offset + max(0, min(start + size if start < 0 else start, size)) * stride
    """
    if record is None or record.offset_function is None:
        return set()
    symbol = raw_expr(result.storage_offset())
    if not isinstance(symbol, Symbol):
        return set()
    x, dim, position = (*args, 0, 0)[:3]
    if position is None:
        return set()
    size, stride, start, at = (raw_expr(n) for n in (x.size(dim), x.stride(dim), x.storage_offset(), position))
    if symbol in free_symbols(at) | free_symbols(size) | free_symbols(start):
        return set()
    shape_env.env.add_fact(Eq(symbol, record.offset_function(start, size, stride, at)))
    return {symbol}


def has_elements(
    shape_env: FakeShapeEnv | None, func: Any, record: Operator | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a reduction without an identity has elements to reduce. Eager raises over nothing, where a kernel would return some number.

    For sizes known at run time only, the expectation that they have becomes an assert of the graph.
    """
    if record is None or record.no_empty_over is None or args[0].dim() == 0:
        return True
    x = args[0]
    given = _argument(func, record.no_empty_over, args, kwargs) if record.no_empty_over else None
    dims = [given] if isinstance(given, int) else list(given) if given else range(x.dim())
    sizes = [raw_expr(x.size(dim)) for dim in dims]
    return all(size != 0 if isinstance(size, int) else shape_env.env.expect(Ne(size, 0)) for size in sizes)  # type: ignore[union-attr]


def _argument(func: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The argument `name` of a call, or its default."""
    for position, argument in enumerate(func._schema.arguments):
        if argument.name == name:
            return args[position] if position < len(args) else kwargs.get(name, argument.default_value)
    raise AssertionError(f"{func} has no argument {name!r}")
