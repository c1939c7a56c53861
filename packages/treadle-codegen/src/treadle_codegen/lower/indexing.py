"""Shapes, strides and index arithmetic on plain ints and symbolic expressions alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch

from treadle_codegen.ir.loops import IntLike
from treadle_shapes import layouts
from treadle_shapes.expr import Expr, Fn, Sum, Symbol, bounds, symbol
from treadle_shapes.layouts import nested_extent, product, without_floor
from treadle_shapes.torch import env_of, expr_of, raw_expr

Shape = tuple[IntLike, ...]
# Layers of a model have the same few shapes. Expressions are unique objects, so tuples of them are keys.
_cached = lru_cache(1 << 12)

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


def as_intlike(value: Any) -> IntLike:
    """A size as an int or an Expr; `value` is an int, an Expr or a SymInt made by treadle_shapes."""
    return value if isinstance(value, (int, Expr)) else expr_of(value)


def raw_number(value: Any) -> Any:
    """The expression under a symbolic number as it was computed, without the facts that were learnt later."""
    return raw_expr(value) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else as_intlike(value)


def hint_of(value: Any) -> int | None:
    """The number that a size was at the first call, None for one known only while running: to choose by, never to rely on."""
    if isinstance(value, int):
        return value
    expr, env = as_intlike(value), env_of(value)
    return expr if isinstance(expr, int) else None if env is None else env.hint(expr)


def as_shape(values: Sequence[Any]) -> Shape:
    return tuple([v if type(v) is int else as_intlike(v) for v in values])


def is_symbolic(val: Any) -> bool:
    """Whether a fake value is a number known only at run time, or a tensor with such a size, stride or offset."""
    if isinstance(val, torch.Tensor):
        return val._has_symbolic_sizes_strides
    return isinstance(val, SYMBOLIC)


def is_plain(val: Any) -> bool:
    """Whether a tensor is no more than strided memory; others (sparse, oneDNN) only operators can handle."""
    return val.layout == torch.strided and not val.is_quantized


def exact_strides(val: Any, of: Callable[[Sequence[Any]], Shape] = as_shape) -> Shape:
    """The strides of a fake tensor; zeros for a tensor that has none."""
    return of(val.stride()) if is_plain(val) else (0,) * val.dim()


def dense_strides(val: Any) -> Shape:
    """The strides of a fake tensor, with `n` where PyTorch writes `max(n, 1)`: that differs for tensors without elements
    only, and keeps products of sizes recognisable."""
    return tuple([s if type(s) is int else without_floor(s) for s in exact_strides(val)])


def fake_layout(val: Any) -> tuple[Shape, Shape]:
    """Shape and `dense_strides` of a fake tensor."""
    if val._has_symbolic_sizes_strides or not is_plain(val):
        return as_shape(val.shape), dense_strides(val)
    return tuple(val.shape), val.stride()


@_cached
def contiguous(shape: Shape) -> Shape:
    """Row-major strides, with torch's rule that a size of 0 counts as 1."""
    return tuple(layouts.dense_strides(shape))


@_cached
def is_dense(shape: Shape, strides: Shape) -> bool:
    """Whether the elements fill a block of memory without gaps or overlap (in any order of dimensions). Unknown counts as no."""
    dims = [(stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1]
    if any(size == 0 for _, size in dims):
        return True
    return nested_extent(dims) is not None


def same_strides(shape: Shape, a: Shape, b: Shape) -> bool:
    """Whether two stride tuples address the same memory, ignoring dimensions with at most one element."""
    if any(size == 0 for size in shape):
        return True
    return all(x == y for size, x, y in zip(shape, a, b, strict=True) if size != 1)


@_cached
def stride_order(shape: Shape, strides: Shape) -> Sequence[int]:
    """Dimensions from the slowest to the fastest varying in memory; ties and strides that cannot be compared keep the order of the shape.

    >>> stride_order((n, 32, h, w), (32*h*w, 1, 32*w, 32))
    [0, 2, 3, 1]
    """
    return tuple(slowest_first(range(len(shape)), strides))


def slowest_first(positions: Sequence[int], strides: Sequence[IntLike]) -> list[int]:
    """The positions by falling stride, stable; as given when some pair of strides cannot be compared."""
    ordered: list[int] = []
    for d in positions:
        at = len(ordered)
        while at > 0:
            keeps = not_smaller(strides[ordered[at - 1]], strides[d])
            if keeps is None:
                return list(positions)
            if keeps:
                break
            at -= 1
        ordered.insert(at, d)
    return ordered


def not_smaller(a: IntLike, b: IntLike) -> bool | None:
    """Whether stride `a` is at least `b` for all sizes (a multiple counts as such); None where that depends on them."""
    if isinstance(a, int) and isinstance(b, int):
        return a >= b
    if a == b or b == 0:
        return True
    if a == 0:
        return False
    if a % b == 0:
        return True
    if b % a == 0:
        return False
    difference = bounds(a - b, {})
    if difference.lower is not None and difference.lower >= 0:
        return True
    return False if difference.upper is not None and difference.upper < 0 else None


def linear(index: Sequence[IntLike], strides: Sequence[IntLike], offset: IntLike = 0) -> IntLike:
    return _linear(tuple(index), tuple(strides), offset)


@_cached
def _linear(index: Shape, strides: Shape, offset: IntLike) -> IntLike:
    total = offset
    for i, stride in zip(index, strides, strict=True):
        if i != 0:  # `0 * stride`, and sums of it, are the bulk of the work otherwise
            total = total + i * stride
    return total


def unravel(position: IntLike, shape: Sequence[IntLike]) -> list[IntLike]:
    """Row-major coordinates of a position. The first is not reduced by its size: positions are in range."""
    index: list[IntLike] = []
    for size in reversed(shape[1:]):
        if size == 0:
            return [0] * len(shape)  # there is no such position
        index.append(position % size)
        position = position // size
    index.append(position)
    return index[::-1]


def axis_symbol(name: str, extent: IntLike) -> Symbol:
    """The symbol of a loop axis; a constant extent gives it its range, so that divisions simplify at once."""
    return symbol(name, 0, max(extent - 1, 0) if isinstance(extent, int) else None)


def broadcasts_to(shape: Shape, target: Shape) -> bool:
    """Whether a shape can be expanded to another one."""
    if len(shape) > len(target):
        return False
    return all(size in (1, n) for size, n in zip(reversed(shape), reversed(target), strict=False))


def broadcast_index(index: Sequence[IntLike], shape: Shape) -> tuple[IntLike, ...]:
    """Index into an operand of `shape` at `index` of the broadcast result."""
    tail = index[len(index) - len(shape) :]
    return tuple([0 if size == 1 else i for i, size in zip(tail, shape, strict=True)])


def reshape_groups(source: Shape, target: Shape) -> list[tuple[list[int], list[int]]] | None:
    """Smallest runs of dimensions with equal products, as (source dims, target dims); None if they cannot be told apart.

    Where h // 2 stands beside a 2, their product is h: it is never more, and were it less in any run, the numbers of elements
    would differ. That holds as long as it is done on one side only.
    """
    found = _groups(source, target, lambda a, b: a == b)
    if found is None:
        found = _groups(source, target, lambda a, b: a == b or a == _undivided(b))
    return _groups(source, target, lambda a, b: a == b or _undivided(a) == b) if found is None else found


def _groups(
    source: Shape, target: Shape, equal: Callable[[IntLike, IntLike], bool]
) -> list[tuple[list[int], list[int]]] | None:
    groups: list[tuple[list[int], list[int]]] = []
    a = [d for d, size in enumerate(source) if size != 1]
    b = [d for d, size in enumerate(target) if size != 1]
    i = j = 0
    while i < len(a) or j < len(b):
        if i == len(a) or j == len(b):
            return None
        left, right = [a[i]], [b[j]]
        size_left, size_right = source[a[i]], target[b[j]]
        i, j = i + 1, j + 1
        while not equal(size_left, size_right):
            if j == len(b) or (i < len(a) and _smaller(size_left, size_right)):
                if i == len(a):
                    return None
                left.append(a[i])
                size_left, i = size_left * source[a[i]], i + 1
            else:
                right.append(b[j])
                size_right, j = size_right * target[b[j]], j + 1
        groups.append((left, right))
    return groups


def _smaller(a: IntLike, b: IntLike) -> bool:
    """Whether the run with the product `a` is the one to be continued. A guess will do: the caller needs products that become equal."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    if isinstance(a, int) or (a != 0 and b % a == 0):
        return True
    if isinstance(b, int) or (b != 0 and a % b == 0):
        return False
    return (len(a.free_symbols), not _is_divided(a)) < (len(b.free_symbols), not _is_divided(b))


def _is_divided(e: Expr) -> bool:
    atoms = e.coefficients if isinstance(e, Sum) else (e,)
    return any(isinstance(atom, Fn) and atom.op == "floordiv" for atom in atoms)


def _undivided(e: IntLike) -> IntLike:
    """A product with `k * (n // k)` replaced by `n`."""
    if not isinstance(e, Sum) or e.const != 0 or len(e.coefficients) != 1:
        return e
    ((monomial, coefficient),) = e.coefficients.items()
    atoms = [atom for atom, power in getattr(monomial, "powers", {monomial: 1}).items() for _ in range(power)]
    for k, atom in enumerate(atoms):
        divisor = atom.args[1] if isinstance(atom, Fn) and atom.op == "floordiv" else None
        if isinstance(divisor, int) and coefficient % divisor == 0:
            return _undivided(product([*atoms[:k], atom.args[0], *atoms[k + 1 :], coefficient // divisor]))
    return e


def reshape_index(source: Shape, target: Shape, index: Sequence[IntLike]) -> tuple[IntLike, ...]:
    """Index into `source` of the element at `index` of its reshape to `target` (same number of elements, not 0)."""
    return _reshape_index(source, target, tuple(index))


@_cached
def _reshape_index(source: Shape, target: Shape, index: Shape) -> tuple[IntLike, ...]:
    groups = reshape_groups(source, target)
    if groups is None:
        groups = [(list(range(len(source))), list(range(len(target))))]
    result: list[IntLike] = [0] * len(source)
    for left, right in groups:
        sizes = [target[d] for d in right]
        position = linear([index[d] for d in right], contiguous(tuple(sizes)))
        for d, i in zip(left, unravel(position, [source[d] for d in left]), strict=True):
            result[d] = i
    return tuple(result)


@_cached
def reshape_strides(shape: Shape, strides: Shape, target: Shape) -> Shape | None:
    """Strides of the reshape as a view of the same memory, or None if it needs a copy."""
    if any(size == 0 for size in target):
        return contiguous(target)
    groups = reshape_groups(shape, target)
    if groups is None:
        return None
    result: list[IntLike] = [1] * len(target)
    for left, right in groups:
        for d, e in zip(left, left[1:], strict=False):
            if strides[d] != strides[e] * shape[e]:
                return None
        step = strides[left[-1]]
        for d in reversed(right):
            result[d] = step
            step = step * target[d]
    return tuple(result)


def even_parts(length: int, parts: int) -> int:
    """A number of equal parts of `length`: a divisor close to `parts`, where there is one between half and twice as many.

    >>> even_parts(16384, 17), even_parts(1000, 30), even_parts(97, 8)
    (32, 40, 8)
    """
    larger = [n for n in range(parts, min(2 * parts, length) + 1) if length % n == 0]
    smaller = [n for n in range(parts, max(parts // 2, 1), -1) if length % n == 0]
    return (larger or smaller or [parts])[0]
