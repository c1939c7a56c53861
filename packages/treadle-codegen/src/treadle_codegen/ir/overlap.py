"""Whether a loop may write where it reads: does any of its points load what another one stores?

y[i] = y[i] + 1          no: each point loads what it stores itself
y[8*i + 3] = y[8*i + 2]  no: the two never meet
y[i + 1] = y[i]          yes
"""

from __future__ import annotations

from collections.abc import Sequence

from treadle_codegen.ir.loops import Axis, Instr, IntLike, load_of
from treadle_shapes.expr import Expr, Range, bounds, linear_coefficients


def loads_of(body: Sequence[Instr], buffer: str) -> list[IntLike | None]:
    """The indices at which a body loads from a buffer; None for a place that is data."""
    return [load[1] for load in map(load_of, body) if load is not None and load[0] == buffer]


def may_meet(load: IntLike | None, store: IntLike, axes: Sequence[Axis]) -> bool:
    """Whether one point of the axes may load what another stores; each point stores to an element of its own."""
    if load is None:
        return True
    if load == store:
        return False
    if not all(isinstance(axis.extent, int) for axis in axes):
        return True
    loaded, stored = known_coefficients(load, axes), known_coefficients(store, axes)
    if loaded is not None and stored is not None and loaded[0] == stored[0]:
        extents = [axis.extent for axis in axes]
        steps = [(c, e) for c, e in zip(loaded[0], extents, strict=True) if isinstance(e, int)]
        return _reaches(loaded[1] - stored[1], steps)
    return not _apart(load, store, axes)


def known_coefficients(index: IntLike, axes: Sequence[Axis]) -> tuple[list[int], int] | None:
    """Coefficients of the axes in an index and what is left of it, if these are known numbers."""
    if isinstance(index, int):
        return [0] * len(axes), index
    found = linear_coefficients(index, [axis.symbol for axis in axes])
    if found is None or not isinstance(found[1], int):
        return None
    coefficients = [found[0].get(axis.symbol, 0) for axis in axes]
    numbers = [c for c in coefficients if isinstance(c, int)]
    return (numbers, found[1]) if len(numbers) == len(coefficients) else None


def _reaches(distance: int, steps: list[tuple[int, int]]) -> bool:
    """Whether two points lie `distance` apart: a sum of coefficient * d, -extent < d < extent, over (coefficient, extent) of the axes."""
    steps = sorted([(abs(c), e) for c, e in steps if c != 0 and e > 1], reverse=True)
    return _reach(distance, steps, 0, [256])


def _reach(distance: int, steps: list[tuple[int, int]], at: int, left: list[int]) -> bool:
    """The same for the steps from `at` on; true when the search takes too long (`left` counts down)."""
    if at == len(steps):
        return distance == 0
    rest = sum(c * (e - 1) for c, e in steps[at + 1 :])
    coefficient, extent = steps[at]
    low = max(-(extent - 1), -((rest - distance) // coefficient))
    high = min(extent - 1, (distance + rest) // coefficient)
    for d in range(low, high + 1):
        left[0] -= 1
        if left[0] < 0 or _reach(distance - coefficient * d, steps, at + 1, left):
            return True
    return False


def _apart(load: IntLike, store: IntLike, axes: Sequence[Axis]) -> bool:
    """Whether everything loaded lies below or above everything stored."""
    ranges = {a.symbol: Range(0, a.extent - 1) for a in axes}
    reach = [bounds(e, ranges) if isinstance(e, Expr) else Range(e, e) for e in (load, store)]
    (low, high), (first, last) = [(r.lower, r.upper) for r in reach]
    below = isinstance(high, int) and isinstance(first, int) and high < first
    return below or (isinstance(low, int) and isinstance(last, int) and last < low)
