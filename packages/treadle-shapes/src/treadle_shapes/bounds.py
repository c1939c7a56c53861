"""Compute the interval of an expression from the ranges of its symbols."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from treadle_shapes import ranges
from treadle_shapes.nodes import (
    BoolExpr,
    Expr,
    Fn,
    IntLike,
    Product,
    Sum,
    Symbol,
    add,
    as_powers,
    as_terms,
    make_product,
    make_sum,
)
from treadle_shapes.ranges import EVERYTHING, INF, Interval, Range

# Some bounds need the bounds of new sums, at every level of nesting. They are computed up to this depth only.
_DEPTH = 6
# `least_at_corner` gives up on polynomials that would have more terms than this when shifted.
_CORNER_TERMS = 64


class KnownRanges:
    """The ranges of symbols and the known values of expressions while one question is answered. Caches the interval of every node.

    `ranges` maps symbols to `Range`s whose ends may be expressions; other symbols have their own lower and upper.
    """

    __slots__ = ("_done", "memo", "ranges", "residues", "symbolic", "values")

    def __init__(self, ranges_: Mapping[Symbol, Range], values: Mapping[Expr, int] | None = None) -> None:
        """values: values of expressions that facts give."""
        self.ranges = ranges_
        self.values = values or {}
        #: x -> (n, r) for the facts x % n == r with constant n; x is the primitive part of a sum
        self.residues: dict[Expr, tuple[int, int]] = {}
        for node, remainder in self.values.items():
            found = residue_of(node, remainder)
            if found is not None:
                x, residue = found
                old = self.residues.get(x)
                self.residues[x] = residue if old is None else join_residues(old, residue) or residue
        self.memo: dict[object, IntLike | BoolExpr | bool] = dict(self.values)
        self._done: dict[Expr, Interval] = {}
        #: the symbols with an end that is an expression
        self.symbolic = [s for s, r in ranges_.items() if isinstance(r[0], Expr) or isinstance(r[1], Expr)]

    def interval(self, e: IntLike) -> Interval:
        if not isinstance(e, Expr):
            return (e, e)
        found = self._done.get(e)
        if found is None:
            # The range of a symbol may mention the symbol itself. It is unbounded inside its own computation.
            self._done[e] = EVERYTHING
            found = self._done[e] = self._compute(e)
        return found

    def lower(self, e: IntLike) -> int | float:
        return self.interval(e)[0] if isinstance(e, Expr) else e

    def upper(self, e: IntLike) -> int | float:
        return self.interval(e)[1] if isinstance(e, Expr) else e

    def _compute(self, e: Expr) -> Interval:
        if isinstance(e, Symbol):
            return self._symbol(e)
        if isinstance(e, Sum):
            return self._sum(e)
        if isinstance(e, Product):
            return self._product(e)
        assert isinstance(e, Fn)
        if e.op == "where" and isinstance(e.args[0], BoolExpr) and e.args[0].op == "le0" and e.depth <= _DEPTH:
            return self._chosen(e.args[0].args[0], e.args[1], e.args[2])
        transfer = ranges.TRANSFER.get(e.op)
        if transfer is None:
            return EVERYTHING
        return transfer(*[self.interval(arg) if isinstance(arg, (Expr, int)) else arg for arg in e.args])

    def _symbol(self, s: Symbol) -> Interval:
        known = self.ranges.get(s)
        own = ranges.to_interval(s.lower, s.upper)
        if known is None:
            return own
        lower, upper = known
        low = own[0] if lower is None else max(own[0], self.lower(lower))
        high = own[1] if upper is None else min(own[1], self.upper(upper))
        return (low, high) if low <= high else own

    def _chosen(self, p: IntLike, a: IntLike, b: IntLike) -> Interval:
        """where(p <= 0, a, b): there a == (a - p) + p <= a - p, and b == (b - p) + p >= b - p + 1.
        where(i < n, i, i - n) with 0 <= i < 2*n lies between 0 and n - 1 this way."""
        low_a, high_a = self.interval(a)
        low_b, high_b = self.interval(b)
        low_a, high_a = max(low_a, self.lower(a + p)), min(high_a, self.upper(a - p))
        low_b, high_b = max(low_b, self.lower(b - p) + 1), min(high_b, self.upper(b + p) - 1)
        if low_a > high_a or low_b > high_b:  # one side is never taken
            low_a, high_a, low_b, high_b = (*self.interval(a), *self.interval(b))
        return min(low_a, low_b), max(high_a, high_b)

    def _product(self, e: Product) -> Interval:
        result: Interval = (1, 1)
        for atom, power in e.powers.items():
            part = self.interval(atom)
            result = ranges.mul(result, part if power == 1 else ranges.power(part, (power, power)))
        return result

    def _sum(self, e: Sum) -> Interval:
        low: int | float = e.const
        high: int | float = e.const
        for monomial, c in e.coefficients.items():
            part = self.interval(monomial)
            if c != 1:
                part = ranges.scale(part, c)
            low, high = ranges.add((low, high), part)
        if self.symbolic and (low == -INF or high == INF or len(e.coefficients) > 1):
            low, high = self._eliminate(e, low, high)
        if len(e.coefficients) > 1:
            low, high = self._quotients(e, low, high)
        if low == -INF and len(e.coefficients) > 1:
            low = self._from_corner(e)
        if high == INF and len(e.coefficients) > 1:
            high = -self._from_corner(make_sum({m: -c for m, c in e.coefficients.items()}, -e.const))
        return low, high

    def _eliminate(self, e: Sum, low: int | float, high: int | float) -> Interval:
        """Replace symbols by their symbolic ends: i <= n - 1 makes i - n <= -1 for every n."""
        for s in self.symbolic:
            if s not in e.free_symbols:
                continue
            split = split_linear(e, s)
            if split is None:
                continue
            factor, rest = split
            sign = self.interval(factor)
            if sign[0] < 0 < sign[1]:
                continue
            own = self.ranges[s]
            at_low, at_high = (own[0], own[1]) if sign[0] >= 0 else (own[1], own[0])
            if at_low is not None:
                low = max(low, self.lower(rest + factor * at_low))
            if at_high is not None:
                high = min(high, self.upper(rest + factor * at_high))
        return low, high

    def _quotients(self, e: Sum, low: int | float, high: int | float) -> Interval:
        """Bound the first quotient of the sum by x - n + 1 <= n * (x // n) <= x, for a constant n > 0."""
        for atom, c in e.coefficients.items():
            if not isinstance(atom, Fn) or atom.op != "floordiv" or atom.depth > _DEPTH:
                continue
            x, n = atom.args
            if not isinstance(x, Expr) or not isinstance(n, int) or n <= 0 or c % n:
                continue
            k = c // n
            most = e - atom * c + x * k
            least = most - k * (n - 1)
            if k < 0:
                most, least = least, most
            return max(low, self.lower(least)), min(high, self.upper(most))
        return low, high

    def _from_corner(self, e: IntLike) -> int | float:
        """Return a lower bound of a polynomial that is least where all its atoms are least: m*n - m >= 0 for m, n >= 1."""
        terms, const = as_terms(e)
        least = least_at_corner(terms, const, self)
        return -INF if least is None else least


class _Own(KnownRanges):
    """Only the symbols' own ranges. Intervals are cached on the nodes themselves."""

    __slots__ = ()

    def interval(self, e: IntLike) -> Interval:
        if not isinstance(e, Expr):
            return (e, e)
        found = e._own
        if found is None:
            found = e._own = self._compute(e)
        return found


OWN = _Own({})


def primitive(e: Expr) -> tuple[int, Expr, int]:
    """Return (g, x, c) with e == g * x + c, where the coefficients of x have no common divisor and the first one is positive."""
    coefficients, const = as_terms(e)
    g = gcd(*coefficients.values())
    if next(iter(coefficients.values())) < 0:
        g = -g
    x = make_sum({m: c // g for m, c in coefficients.items()}, 0)
    assert isinstance(x, Expr)
    return g, x, const


#: (n, r): x % n == r
Residue = tuple[int, int]


def residue_of(node: Expr, remainder: int) -> tuple[Expr, Residue] | None:
    """Return the primitive x and its residue that the fact `node` == remainder gives, for a node (g*x + c) % n.

    None where n is not a constant, or shares a factor with g.
    """
    if (
        not isinstance(node, Fn)
        or node.op != "mod"
        or not isinstance(node.args[0], Expr)
        or not isinstance(node.args[1], int)
    ):
        return None
    n = node.args[1]
    g, x, c = primitive(node.args[0])
    if gcd(g, n) != 1:
        return None
    return x, (n, (remainder - c) * pow(g, -1, n) % n)


def join_residues(one: Residue, other: Residue) -> Residue | None:
    """Combine two residues of one expression (Chinese remainder theorem). None when they exclude each other."""
    (n, r), (m, q) = one, other
    g = gcd(n, m)
    if (q - r) % g:
        return None
    step = (q - r) // g * pow(n // g, -1, m // g) % (m // g)
    return n // g * m, r + n * step


def least_at_corner(terms: Mapping[Expr, int], const: int, known: KnownRanges) -> int | None:
    """Return the value of const + sum(c * monomial) where every atom is at its lower bound, if that is the least value.

    It is the least value if, after substituting a = lower(a) + t and multiplying out, no coefficient of a power of some t >= 0 is
    negative. Returns None otherwise, for sums without products (their interval is exact enough), and for very long sums.
    """
    degrees = [sum(m.powers.values()) if isinstance(m, Product) else 1 for m in terms]
    top = max(degrees, default=1)
    # The substitution does not change the coefficients of the highest powers.
    if top == 1 or sum([1 << degree for degree in degrees]) > _CORNER_TERMS:
        return None
    if any(degree == top and c < 0 for degree, c in zip(degrees, terms.values(), strict=True)):
        return None
    shifted: dict[tuple[Expr, ...], int] = {}
    for monomial, c in terms.items():
        part: dict[tuple[Expr, ...], int] = {(): c}
        for atom, power in as_powers(monomial).items():
            low = known.interval(atom)[0]
            if low == -INF:
                return None
            for _ in range(power):
                larger: dict[tuple[Expr, ...], int] = {}
                for factors, k in part.items():
                    # Every monomial lists its atoms in the same order, so equal products have equal keys.
                    key = (*factors, atom)
                    larger[key] = larger.get(key, 0) + k
                    if low:
                        larger[factors] = larger.get(factors, 0) + k * int(low)
                part = larger
        for factors, k in part.items():
            shifted[factors] = shifted.get(factors, 0) + k
    corner = shifted.pop((), 0) + const
    return corner if all(k >= 0 for k in shifted.values()) else None


def split_linear(e: IntLike, s: Symbol) -> tuple[IntLike, IntLike] | None:
    """Return (factor, rest) with e == factor * s + rest and no s in either, or None when e is not linear in s."""
    if not isinstance(e, Expr) or s not in e.free_symbols:
        return 0, e
    coefficients, const = as_terms(e)
    factors: list[IntLike] = []
    rest: dict[Expr, int] = {}
    for monomial, c in coefficients.items():
        if s not in monomial.free_symbols:
            rest[monomial] = c
            continue
        powers = dict(as_powers(monomial))
        if powers.pop(s, 0) != 1 or any(s in atom.free_symbols for atom in powers):
            return None
        factors.append(make_product(powers) * c)
    return add(*factors), make_sum(rest, const)


def linear_coefficients(e: IntLike, symbols) -> tuple[dict[Symbol, IntLike], IntLike] | None:
    """Return ({s: c}, rest) with e == sum(c * s) + rest and none of `symbols` in any c or in rest, else None.

    Only symbols that occur in `e` are keys.
    """
    symbols = list(symbols)
    found: dict[Symbol, IntLike] = {}
    rest = e
    for s in symbols:
        split = split_linear(rest, s)
        if split is None:
            return None
        factor, rest = split
        if isinstance(factor, int) and factor == 0:
            continue
        if isinstance(factor, Expr) and not factor.free_symbols.isdisjoint(symbols):
            return None
        found[s] = factor
    return found, rest


def bounds(e: IntLike, known: Mapping[Symbol, Range] | None = None) -> Range:
    """Return a closed interval that holds every value of `e`. It need not be the smallest one.

    >>> bounds(symbol("i", 0, 7) * 4 + 1)
    Range(lower=1, upper=29)
    """
    return ranges.to_range((KnownRanges(known) if known else OWN).interval(e))
