"""Sizes and strides as lists of expressions: dense layouts, and what can be told of them without a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from treadle_shapes.nodes import Expr, IntLike


class Layout(NamedTuple):
    """Sizes and strides of a result."""

    sizes: list[IntLike]
    strides: list[IntLike]


def same(a: IntLike, b: IntLike) -> bool:
    """Whether two numbers are written alike; "no" may be wrong, "yes" is not."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def all_same(a: Sequence[IntLike], b: Sequence[IntLike]) -> bool:
    return len(a) == len(b) and all(map(same, a, b))


def dense_strides(sizes: Sequence[IntLike]) -> list[IntLike]:
    """Row-major strides, with torch's rule that a size of 0 counts as 1; expressions are taken to be at least 1."""
    strides: list[IntLike] = []
    reach: IntLike = 1
    for size in reversed(sizes):
        strides.append(reach)
        reach = reach * (size if isinstance(size, Expr) else max(size, 1))
    return strides[::-1]


def is_dense(layout: Layout) -> bool:
    """Whether the strides are written as those of a dense row-major tensor with elements; "no" may be wrong, "yes" is not."""
    return all_same(layout.strides, dense_strides(layout.sizes)) and 0 not in layout.sizes


__all__ = ["Layout", "all_same", "dense_strides", "is_dense", "same"]
