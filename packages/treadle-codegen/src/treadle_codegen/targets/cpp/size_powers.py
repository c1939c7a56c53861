"""Powers of sizes, which a kernel computes once: `for (...; j < treadle_pow(2, n0) / 4; ...)`.

    b1[j + 16*j0*(treadle_pow(2, n0)/4)]      ==>      const i64 s0 = treadle_pow(2, n0)/4;    ...    b1[j + 16*j0*s0]

A power is a loop over the bits of its exponent, which g++ does not take out of the loops around it. It does so with quotients and products.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from treadle_shapes.expr import Fn, Symbol, children


def powers_of_sizes(e: Any, sizes: Collection[Any], seen: set[Any]) -> Iterator[Fn]:
    """The largest parts of an expression that are made of powers of sizes and that cannot fail; nothing below what is in `seen`.

    sizes: the symbols, and functions, that are parameters.
    """
    if e in seen:
        return
    seen.add(e)
    if isinstance(e, Fn) and e.free_symbols and e not in sizes and _has_power(e) and _is_safe(e, sizes):
        yield e
        return
    for child in children(e):
        yield from powers_of_sizes(child, sizes, seen)


def _has_power(e: Any) -> bool:
    return (isinstance(e, Fn) and e.op == "pow") or any(map(_has_power, children(e)))


def _is_safe(e: Any, sizes: Collection[Any]) -> bool:
    """Whether an expression follows from sizes and can be computed where no element is: quotients are of constants other than 0."""
    if isinstance(e, Symbol) or e in sizes:
        return e in sizes
    if isinstance(e, Fn) and not (e.op == "pow" or (e.op in ("floordiv", "mod") and isinstance(e.args[1], int))):
        return False
    return all(_is_safe(child, sizes) for child in children(e))
