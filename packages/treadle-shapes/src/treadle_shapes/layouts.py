"""Sizes and strides as lists of expressions: dense layouts and blocks of memory. Nothing here takes a decision.

nested_extent([(6, 2), (1, 2), (2, 3)])     12: in some order of the dimensions, each stride is the product of the sizes below it
nested_extent([(8, 2), (1, 6)])             None: there is a gap
without_floor(max(n, 1) * m)                n * m
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from treadle_shapes.nodes import Expr, Fn, IntLike, Product, Sum


class Layout(NamedTuple):
    """Sizes and strides of a result."""

    sizes: list[IntLike]
    strides: list[IntLike]


def same(a: IntLike, b: IntLike) -> bool:
    """Whether two numbers are the same expression. True is certain; False may be wrong."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def all_same(a: Sequence[IntLike], b: Sequence[IntLike]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def dense_strides(sizes: Sequence[IntLike]) -> list[IntLike]:
    """Return row-major strides. As in torch, a size of 0 counts as 1. Symbolic sizes are taken to be at least 1."""
    strides: list[IntLike] = []
    reach: IntLike = 1
    for size in reversed(sizes):
        strides.append(reach)
        reach = reach * (size if isinstance(size, Expr) else max(size, 1))
    return strides[::-1]


def is_dense(layout: Layout) -> bool:
    """Whether the layout is row-major, dense and not empty. True is certain; False may be wrong."""
    return all_same(layout.strides, dense_strides(layout.sizes)) and 0 not in layout.sizes


def product(sizes: Iterable[IntLike]) -> IntLike:
    """Return the product of sizes; 1 for no sizes."""
    result: IntLike = 1
    for size in sizes:
        result = result * size
    return result


def nested_extent(dims: Iterable[tuple[IntLike, IntLike]]) -> IntLike | None:
    """Return the number of elements that the (stride, size) pairs visit, if they visit a block of memory once and without gaps.

    None if they do not, or if that takes a decision. The caller leaves out dimensions of size 1, whose strides mean nothing.
    """
    remaining = list(dims)
    extent: IntLike = 1
    while remaining:
        found = next((dim for dim in remaining if dim[0] == extent), None)
        if found is None:
            return None
        remaining.remove(found)
        extent = extent * found[1]
    return extent


def without_floor(e: IntLike) -> IntLike:
    """Replace `max(n, 1)` by `n` in a stride. PyTorch counts a size of 0 as 1 there, which matters for empty tensors only."""
    if isinstance(e, Fn) and e.op == "max" and len(e.args) == 2 and 1 in e.args:
        return without_floor(e.args[0] if e.args[1] == 1 else e.args[1])
    if isinstance(e, Sum):
        total: IntLike = e.const
        for monomial, coefficient in e.coefficients.items():
            total = total + without_floor(monomial) * coefficient
        return total
    if isinstance(e, Product):
        return product([without_floor(atom) ** power for atom, power in e.powers.items()])
    return e


__all__ = ["Layout", "all_same", "dense_strides", "is_dense", "nested_extent", "product", "same", "without_floor"]
