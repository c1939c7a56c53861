"""Expressions as Python functions, for those that are evaluated in every call of a graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from treadle_shapes.errors import ExpressionTooLargeError
from treadle_shapes.nodes import Node, children
from treadle_shapes.printers import to_python

# Python computes a fraction or a huge integer here, or raises exceptions of its own.
_UNLIKE_PYTHON = frozenset({"pow", "shl", "shr"})
# Python raises an exception of its own where the divisor is 0.
_DIVISIONS = frozenset({"floordiv", "mod"})


def python_function(e: Node, symbols: Sequence[Node]) -> Callable[..., Any] | None:
    """A function of the values of `symbols`, in order, that gives what `evaluate` gives; None where Python computes something else.

    s0 * 4 + s1          lambda v0, v1: 4*v0 + v1
    """
    if any(map(_is_unlike_python, _parts(e))):
        return None
    names = {s: f"v{index}" for index, s in enumerate(symbols)}
    try:
        return _function_of(f"lambda {', '.join(names.values())}: {to_python(e, names)}")
    except (ExpressionTooLargeError, SyntaxError, MemoryError, RecursionError):
        return None  # the text is too long, or nested deeper than Python's parser allows


def _is_unlike_python(e: Node) -> bool:
    op = getattr(e, "op", "")
    if op in _DIVISIONS:
        divisor = e.args[1]  # type: ignore[attr-defined]
        return not isinstance(divisor, int) or divisor == 0
    return op in _UNLIKE_PYTHON


def _parts(e: Node) -> set[Node]:
    """The expression and all that it is computed from."""
    seen, stack = {e}, [e]
    while stack:
        below = [child for child in children(stack.pop()) if child not in seen]
        seen.update(below)
        stack += below
    return seen


@lru_cache(256)
def _function_of(source: str) -> Callable[..., Any]:
    """The function that `source` defines. It has no state, so equal texts share it."""
    return eval(compile(source, "<treadle_shapes expression>", "eval"), {"math": math})


__all__ = ["python_function"]
