"""Numbers that follow from the sizes of a call, for calls at ever new sizes.

The first few sets of sizes are evaluated expression by expression. A graph that meets more of them, as one in a generation loop does,
gets a Python function that computes all its numbers at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from treadle_codegen.ir.loops import Expr
from treadle_shapes import ExpressionTooLargeError
from treadle_shapes.expr import evaluate, to_python

_EVALUATED = 3  # sets of sizes, before a function is written


class NumbersAtSizes:
    """A function of sizes that returns `template`, nested tuples of numbers and expressions, with the value of each expression.

    symbols: those whose values the sizes are, in order.
    """

    def __init__(self, symbols: Sequence[Any], template: tuple[Any, ...]) -> None:
        self._symbols = symbols
        self._template = template
        self._left = _EVALUATED
        self._compiled: Callable[..., tuple[Any, ...]] | None = None

    def __call__(self, sizes: tuple[int, ...]) -> tuple[Any, ...]:
        if self._compiled is None and self._left == 0:
            self._left = -1  # with an expression that is too large to write down, all sizes are evaluated
            with suppress(ExpressionTooLargeError):
                self._compiled = _function(self._symbols, self._template)
        if self._compiled is not None:
            return self._compiled(*sizes)
        if self._left > 0:
            self._left -= 1
        return _evaluated(self._template, dict(zip(self._symbols, sizes, strict=True)), {})


def _evaluated(item: Any, sizes: dict[Any, int], known: dict[Any, Any]) -> Any:
    """`known`: layers halve sizes again and again, and parts are computed once."""
    if isinstance(item, tuple):
        return tuple([_evaluated(each, sizes, known) for each in item])
    return evaluate(item, sizes, known) if isinstance(item, Expr) else item


def _function(symbols: Sequence[Any], template: tuple[Any, ...]) -> Callable[..., tuple[Any, ...]]:
    names: dict[Any, str] = {}  # by expression
    lines = [f"def numbers({', '.join(symbol.name for symbol in symbols)}):"]

    def text(item: Any) -> str:
        if isinstance(item, tuple):
            return f"({''.join(f'{text(each)}, ' for each in item)})"
        if not isinstance(item, Expr):
            return repr(item)
        if item not in names:
            source = to_python(item)
            names[item] = source if source.isidentifier() else f"k{len(names)}"
            if names[item] != source:
                lines.append(f"    {names[item]} = {source}")
        return names[item]

    lines.append(f"    return {text(template)}")
    scope: dict[str, Any] = {"math": math}
    exec(compile("\n".join(lines), "<treadle sizes>", "exec"), scope)  # our own text, nothing of the user's
    return scope["numbers"]
