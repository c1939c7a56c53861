"""Closed integer intervals, and for each operation an interval that contains all its results."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from treadle_shapes.intern import Node

if TYPE_CHECKING:
    from treadle_shapes.nodes import Expr

INF = float("inf")
#: (lowest, highest) with -INF and INF for "no bound"; the finite ends are ints.
Interval: TypeAlias = "tuple[int | float, int | float]"
EVERYTHING: Interval = (-INF, INF)

# Ends of powers and shifts with more bits than this become infinite, so that bounds stay cheap.
_MAX_BITS = 256
_LARGEST = 1 << 4096


class Range(NamedTuple):
    """The closed interval of the values of a symbol or expression; `None` stands for "no bound on this side".

    In the maps given to `bounds` and `simplify` an end may be an expression: `{i: Range(0, n - 1)}` says `0 <= i < n`.
    """

    lower: int | Expr | None = None
    upper: int | Expr | None = None

    def __contains__(self, value: object) -> bool:
        if not isinstance(value, int) or isinstance(self.lower, Node) or isinstance(self.upper, Node):
            return False
        return (self.lower is None or self.lower <= value) and (self.upper is None or value <= self.upper)


def to_interval(lower: int | None, upper: int | None) -> Interval:
    return (-INF if lower is None else lower, INF if upper is None else upper)


def to_range(interval: Interval) -> Range:
    low, high = interval
    return Range(None if low == -INF else int(low), None if high == INF else int(high))


def plus(a: int | float, b: int | float) -> int | float:
    """a + b of ends of intervals."""
    # inf + huge int would overflow in float arithmetic, so infinities are passed through untouched.
    if a in (INF, -INF):
        return a
    return b if b in (INF, -INF) else a + b


def times(a: int | float, b: int | float) -> int | float:
    """a * b of ends of intervals, where 0 * INF is 0."""
    if a == 0 or b == 0:
        return 0
    if a in (INF, -INF) or b in (INF, -INF):
        return INF if (a > 0) == (b > 0) else -INF
    return a * b


def _widened(low: int | float, high: int | float) -> Interval:
    """Widen an interval whose ends are too large to be cheap: outer ends to infinity, inner ends towards zero."""
    if low > _LARGEST or low < -_LARGEST:
        low = _LARGEST if low > 0 else -INF
    if high > _LARGEST or high < -_LARGEST:
        high = -_LARGEST if high < 0 else INF
    return low, high


def add(x: Interval, y: Interval) -> Interval:
    return plus(x[0], y[0]), plus(x[1], y[1])


def scale(x: Interval, c: int) -> Interval:
    if c >= 0:
        return times(x[0], c), times(x[1], c)
    return times(x[1], c), times(x[0], c)


def mul(x: Interval, y: Interval) -> Interval:
    ends = [times(a, b) for a, b in product(x, y)]
    return _widened(min(ends), max(ends))


def _quotient(a: int | float, b: int | float) -> int | float | None:
    """floor(a / b) at a corner of the box; None where both ends are infinite (see floordiv)."""
    if b in (INF, -INF):
        if a in (INF, -INF):
            return None
        return 0 if a == 0 or (a > 0) == (b > 0) else -1
    if a in (INF, -INF):
        return a if b > 0 else -a
    return a // b


def hull(x: Interval, y: Interval) -> Interval:
    return min(x[0], y[0]), max(x[1], y[1])


def nonzero_parts(y: Interval) -> list[Interval]:
    """The negative and the positive part of an interval: divisors are never zero."""
    parts = []
    if y[0] < 0:
        parts.append((y[0], min(y[1], -1)))
    if y[1] > 0:
        parts.append((max(y[0], 1), y[1]))
    return parts


def floordiv(x: Interval, y: Interval) -> Interval:
    """floor(x / y) is monotone in x for fixed y, and in y on each side of zero for fixed x: corners are enough.

    A corner with both ends infinite is dropped: the divisor's finite end gives the same or a wider limit.
    """
    result: Interval | None = None
    for part in nonzero_parts(y):
        ends = [q for a, b in product(x, part) if (q := _quotient(a, b)) is not None]
        interval = (min(ends), max(ends))
        result = interval if result is None else hull(result, interval)
    return EVERYTHING if result is None else result


def _positive_mod(x: Interval, y: Interval) -> Interval:
    if x[0] >= 0 and x[1] < y[0]:
        return x
    if y[0] == y[1] and x[0] != -INF and x[1] != INF and x[0] // y[0] == x[1] // y[0]:
        return x[0] % y[0], x[1] % y[0]
    high = plus(y[1], -1)
    return 0, (min(high, x[1]) if x[0] >= 0 else high)


def mod(x: Interval, y: Interval) -> Interval:
    """x % y lies between 0 and y and has y's sign; x % -y == -(-x % y)."""
    result: Interval | None = None
    for part in nonzero_parts(y):
        if part[0] > 0:
            interval = _positive_mod(x, part)
        else:
            low, high = _positive_mod((-x[1], -x[0]), (-part[1], -part[0]))
            interval = (-high, -low)
        result = interval if result is None else hull(result, interval)
    return EVERYTHING if result is None else result


def _power_end(base: int | float, exponent: int | float) -> int | float:
    """base ** exponent for base >= 0, widened to infinity when it gets long."""
    if exponent == 0:
        return 1
    if base in (0, 1):
        return base
    if base == INF or exponent == INF or int(base).bit_length() * exponent > _MAX_BITS:
        return INF
    return base**exponent


def power(x: Interval, n: Interval) -> Interval:
    """x ** n for n >= 0, with 0 ** 0 == 1."""
    if n[0] < 0:
        n = (0, n[1])
    if n[1] < 0:
        return EVERYTHING
    if x[0] >= 0:
        # Monotone in both for x >= 1; a zero base gives 1 at exponent 0 and 0 elsewhere.
        if x[0] == 0:
            return (0 if n[1] > 0 else 1), max(_power_end(x[1], n[1]), 1 if n[0] == 0 else 0)
        low = _power_end(x[0], n[0])
        return (low if low != INF else 1), _power_end(x[1], n[1])
    top = max(_power_end(-x[0], n[1]), _power_end(max(x[1], 0), n[1]), 1 if n[0] == 0 else 0)
    if n[0] == n[1] and n[0] % 2 == 0:
        return (0 if x[1] >= 0 else _floor_power(-x[1], n[0])), top
    if n[0] == n[1]:
        return -_power_end(-x[0], n[0]), (_power_end(x[1], n[0]) if x[1] >= 0 else -_floor_power(-x[1], n[0]))
    return -top, top


def _floor_power(base: int | float, exponent: int | float) -> int | float:
    """A finite lower bound of base ** exponent for base >= 1 (1 where the exact value would be long)."""
    value = _power_end(base, exponent)
    return 1 if value == INF else value


def _two_to(n: Interval) -> Interval:
    return power((2, 2), n)


def shift_left(x: Interval, n: Interval) -> Interval:
    """x << n == x * 2 ** n for n >= 0."""
    return mul(x, _two_to(n))


def shift_right(x: Interval, n: Interval) -> Interval:
    """x >> n == floor(x / 2 ** n) for n >= 0."""
    return floordiv(x, _two_to(n))


def minimum(*parts: Interval) -> Interval:
    return min(p[0] for p in parts), min(p[1] for p in parts)


def maximum(*parts: Interval) -> Interval:
    return max(p[0] for p in parts), max(p[1] for p in parts)


def where(_condition: object, a: Interval, b: Interval) -> Interval:
    return hull(a, b)


def _all_ones(x: int | float) -> int | float:
    """The smallest 2 ** k - 1 that is not below x."""
    return INF if x == INF else (1 << int(x).bit_length()) - 1


def bit_and(x: Interval, y: Interval) -> Interval:
    """x & y: between 0 and either side when that side is not negative; else no bit above the longer side's appears."""
    if x[0] >= 0 and y[0] >= 0:
        return 0, min(x[1], y[1])
    if x[0] >= 0:
        return 0, x[1]
    if y[0] >= 0:
        return 0, y[1]
    return _signed_bits(x, y)


def bit_or(x: Interval, y: Interval) -> Interval:
    """x | y of non-negative sides is at least the larger and sets no bit above the longer side's."""
    if x[0] >= 0 and y[0] >= 0:
        return max(x[0], y[0]), _all_ones(max(x[1], y[1]))
    return _signed_bits(x, y)


def bit_xor(x: Interval, y: Interval) -> Interval:
    """x ^ y of non-negative sides sets no bit above the longer side's."""
    if x[0] >= 0 and y[0] >= 0:
        return 0, _all_ones(max(x[1], y[1]))
    return _signed_bits(x, y)


def _signed_bits(x: Interval, y: Interval) -> Interval:
    reach = max(abs(end) for end in (*x, *y))
    top = _all_ones(reach)
    return plus(-top, -1), top


def anything(*_parts: object) -> Interval:
    return EVERYTHING


#: interval of the result of each function node, by its op name
TRANSFER: dict[str, Callable[..., Interval]] = {
    "floordiv": floordiv,
    "mod": mod,
    "product": mul,
    "pow": power,
    "shl": shift_left,
    "shr": shift_right,
    "min": minimum,
    "max": maximum,
    "where": where,
    "bitand": bit_and,
    "bitor": bit_or,
    "bitxor": bit_xor,
}
