"""The numbers of a trace, beside those of a run of its graph on fake tensors of other sizes.

    rows = x[x > 0]           # trace: u0 rows, x of s0     run at s0 = 1: v0 rows
    rows.repeat(s0 + 1)       # trace: (s0 + 1) * u0        run: 2 * v0, the same

A symbol that only the data can tell is a symbol of the run's own there. Where it is first met it is bound to that, and later numbers are
compared with it in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx

from .call_changes import is_same_number

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


class ReplayedNumbers:
    """What the symbols of a trace stand for in a run. known: the values of those that its inputs give."""

    def __init__(self, known: Mapping[Any, Any]):
        self.known = dict(known)

    def in_run(self, want: Any) -> Any:
        """What a number of the trace is in the run: a number or an expression. Raises LookupError for one that is not bound."""
        from treadle_shapes import evaluate, substitute
        from treadle_shapes.torch import expr_of

        expr = expr_of(want)
        if isinstance(expr, (int, float)):
            return expr
        values = {symbol: self.known[symbol] for symbol in expr.free_symbols}
        if all(isinstance(value, (int, float)) for value in values.values()):
            return evaluate(expr, values)  # type: ignore[arg-type]
        return substitute(expr, values)  # type: ignore[arg-type]

    def agree(self, want: Any, have: Any) -> bool:
        """Whether a number of the run is the one that the trace says."""
        from treadle_shapes.torch import raw_expr

        found = raw_expr(have)
        self._bind(want, found)
        try:
            number = self.in_run(want)
        except LookupError:
            return False
        if isinstance(number, (int, float)) and isinstance(found, (int, float)):
            return is_same_number(number, found)
        return number is found

    def all_agree(self, wants: Iterable[Any], haves: Iterable[Any]) -> bool:
        """Whether sizes or strides of the run are those that the trace says."""
        wants, haves = tuple(wants), tuple(haves)
        return len(wants) == len(haves) and all(map(self.agree, wants, haves))

    def _bind(self, want: Any, found: Any) -> None:
        """Take the one symbol of `want` that is not bound yet for the one of `found`, or for the number that it is in the run."""
        from treadle_shapes.torch import expr_of

        expr = expr_of(want)
        unbound = getattr(expr, "free_symbols", frozenset()) - self.known.keys()
        if len(unbound) != 1:
            return
        (symbol,) = unbound
        inner = [found] if expr is symbol else getattr(found, "free_symbols", ())
        if len(inner) == 1:
            (self.known[symbol],) = inner


def depends_on_data(gm: fx.GraphModule, known: Mapping[Any, Any]) -> bool:
    """Whether a number of the graph follows from more than the sizes and numbers that its inputs give."""
    return any(_symbols_in(node.meta.get("example_value")) - known.keys() for node in gm.graph.nodes)


def _symbols_in(value: Any) -> frozenset[Any]:
    from treadle_shapes.torch import raw_expr

    if isinstance(value, (tuple, list)):
        return frozenset().union(*map(_symbols_in, value))
    if isinstance(value, torch.Tensor):
        return _symbols_in(tuple(value.shape)) if getattr(value, "_has_symbolic_sizes_strides", False) else frozenset()
    return getattr(raw_expr(value), "free_symbols", frozenset()) if isinstance(value, _SYMBOLIC) else frozenset()


__all__ = ["ReplayedNumbers", "depends_on_data"]
