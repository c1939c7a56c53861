"""Layout functions of views: each computes a view's layout from its argument's. Sizes and strides may be symbolic. Needs no torch.

    transpose(Layout([b, 8], [8, 1]), 0, 1)     # Layout([8, b], [1, 8])

Each function returns None where the operator refuses its arguments, or where the answer takes a decision about sizes.
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle_shapes import rules
from treadle_shapes.layouts import Layout, dense_strides, is_dense, product, same
from treadle_shapes.nodes import IntLike


def _dims(dims: Sequence[int], count: int) -> list[int] | None:
    """Return dimensions counted from the front, or None for dimensions that the operator refuses."""
    found = [d + count if d < 0 else d for d in dims]
    return found if all(0 <= d < count for d in found) and len(set(found)) == len(found) else None


def permute(t: Layout, dims: Sequence[int]) -> Layout | None:
    order = _dims(dims, len(t.sizes))
    if order is None or len(order) != len(t.sizes):
        return None
    return Layout([t.sizes[d] for d in order], [t.strides[d] for d in order])


def transpose(t: Layout, first: int, second: int) -> Layout | None:
    count = len(t.sizes)
    if not (-count <= first < count and -count <= second < count):
        return None
    order = list(range(count))
    order[first], order[second] = order[second], order[first]
    return permute(t, order)


def transpose_matrix(t: Layout) -> Layout | None:
    return transpose(t, 0, 1) if len(t.sizes) == 2 else None


def unsqueeze(t: Layout, dim: int) -> Layout | None:
    count = len(t.sizes)
    if not -count - 1 <= dim <= count:
        return None
    d = dim + count + 1 if dim < 0 else dim
    stride = t.sizes[d] * t.strides[d] if d < count else 1
    return Layout([*t.sizes[:d], 1, *t.sizes[d:]], [*t.strides[:d], stride, *t.strides[d:]])


def expand(t: Layout, sizes: Sequence[IntLike], *, implicit: bool = False) -> Layout | None:
    added = len(sizes) - len(t.sizes)
    if added < 0:
        return None
    if not t.sizes:
        return None if any(isinstance(n, int) and n < 0 for n in sizes) else Layout(list(sizes), [0] * added)
    result = Layout([], [])
    for d in reversed(range(len(sizes))):
        wanted = sizes[d]
        if d < added:
            if isinstance(wanted, int) and wanted < 0:
                return None
            old: IntLike = 1
            # As in C++, the stride of a new dimension is the extent of the one behind it.
            stride = result.sizes[0] * result.strides[0] if result.sizes else 1
        else:
            old, stride = t.sizes[d - added], t.strides[d - added]
        kept = same(old, wanted) or (isinstance(wanted, int) and wanted == -1)
        if not kept and not (isinstance(old, int) and old == 1):
            return None
        result.sizes.insert(0, old if kept else wanted)
        result.strides.insert(0, stride if kept else 0)
    return result


def view(t: Layout, sizes: Sequence[IntLike]) -> Layout | None:
    if not is_dense(t):
        return None
    total = product(t.sizes)
    open_dims = [d for d, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if len(open_dims) > 1 or any(isinstance(size, int) and size < -1 or size == 0 for size in sizes):
        return None
    found = list(sizes)
    if open_dims:
        known = product([size for d, size in enumerate(sizes) if d != open_dims[0]])
        quotient, rest = rules.split_multiple(total, known)
        if not same(rest, 0):
            return None
        found[open_dims[0]] = quotient
    return Layout(found, dense_strides(found)) if same(product(found), total) else None
