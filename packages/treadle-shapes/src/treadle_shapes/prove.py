"""Prove that a condition follows from facts: True, False, or None when the step budget does not settle it."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from operator import itemgetter

from treadle_shapes.bounds import least_at_corner
from treadle_shapes.facts import Facts
from treadle_shapes.logic import check_condition
from treadle_shapes.nodes import BoolExpr, BoolLike, Expr, Fn, IntLike, as_powers, as_terms, make_product, make_sum
from treadle_shapes.ranges import plus, times

DEFAULT_STEPS = 400
_DEPTH = 3  # how many facts one proof combines


class _Prover:
    def __init__(self, facts: Facts, steps: int) -> None:
        self.facts = facts
        self.known_ranges = facts.known_ranges
        self.steps = steps
        #: polynomials at the facts' witness
        self.values: dict[IntLike, int | None] = {}

    def condition(self, c: BoolLike) -> bool | None:
        if isinstance(c, bool):
            return c
        if c in self.facts.holding:
            return True
        handler = _BY_OP.get(c.op)
        return None if handler is None else handler(self, c)

    def at_most_zero(self, p: IntLike, sign: int = 1, shift: int = 0) -> bool:
        """Whether sign * p + shift <= 0 follows.

        It follows from the range, or as r + k*q with a fact q <= 0, k > 0 and r <= 0. At most `_DEPTH` facts are combined.
        """
        terms, const = as_terms(p)
        value = self._value(p)
        if value is not None:
            value = value * sign + shift
            if value > 0:
                return False
        return self._search(
            terms if sign > 0 else {m: -c for m, c in terms.items()}, const * sign + shift, value, _DEPTH
        )

    def _value(self, p: IntLike) -> int | None:
        if p not in self.values:
            self.values[p] = self.facts.at_witness(p)
        return self.values[p]

    def _search(self, terms: dict[Expr, int], const: int, value: int | None, depth: int) -> bool:
        """Whether const + sum(c * monomial) <= 0 follows.

        value: the polynomial's value at the facts' witness. All facts hold there, so a condition that is false there follows from none.
        """
        if self.steps <= 0 or (value is not None and value > 0):
            return False
        self.steps -= 1
        if self._upper(terms, const) <= 0:
            return True
        if depth == 0:
            return False
        least = least_at_corner({m: -c for m, c in terms.items()}, -const, self.known_ranges)
        if least is not None and least >= 0:
            return True
        for monomial, c, q_terms, q_const, q_value in self._facts_on(terms):
            # With equal signs, subtracting a positive multiple of q from a multiple of p cancels the monomial.
            d = q_terms[monomial]
            g = gcd(c, d)
            c, d = abs(c) // g, abs(d) // g
            left = None if value is None or q_value is None else value * d - q_value * c
            if left is not None and left > 0:
                continue
            rest = {m: k * d for m, k in terms.items()}
            for m, k in q_terms.items():
                k = rest.get(m, 0) - k * c
                if k:
                    rest[m] = k
                else:
                    del rest[m]
            if self._search(rest, const * d - q_const * c, left, depth - 1):
                return True
            if self.steps <= 0:
                return False
        return False

    def _facts_on(self, terms: dict[Expr, int]) -> Iterator[tuple[Expr, int, dict[Expr, int], int, int | None]]:
        """Polynomials that are 0 or less and have a monomial with the sign that it has among the terms: facts, and what extrema among
        the terms imply. Each is (the monomial, its coefficient among the terms, the polynomial as terms and constant, its value at the
        facts' witness)."""
        index = self.facts.not_positive_by_monomial()
        found = [
            (fact.position, k, monomial, c, fact)
            for k, (monomial, c) in enumerate(terms.items())
            for fact in index.get((monomial, c > 0), ())
        ]
        found.sort(key=itemgetter(0, 1))  # the order of the facts, so that the steps are spent alike
        for _, _, monomial, c, fact in found:
            yield monomial, c, fact.terms, fact.const, fact.value
        for extremum, extremum_c in terms.items():
            for q in self._of_extrema(extremum, extremum_c < 0):
                q_terms, q_const = as_terms(q)
                for monomial, c in terms.items():
                    if c * q_terms.get(monomial, 0) > 0:
                        yield monomial, c, q_terms, q_const, self._value(q)

    def _of_extrema(self, monomial: Expr, is_least: bool) -> Iterator[IntLike]:
        """`x*a - x*max(a, b)` for lower bounds and `x*min(a, b) - x*a` for upper ones, where x is not negative."""
        powers = as_powers(monomial)
        for atom in powers:
            if not isinstance(atom, Fn) or atom.op != ("max" if is_least else "min"):
                continue
            others = make_product({a: n - (a is atom) for a, n in powers.items() if n > (a is atom)})
            if self.known_ranges.lower(others) >= 0:
                for arg in atom.args:
                    yield others * arg - monomial if is_least else monomial - others * arg

    def _upper(self, terms: dict[Expr, int], const: int) -> int | float:
        """Return an upper bound of const + sum(c * monomial)."""
        interval = self.known_ranges.interval
        high: int | float = const
        plain = True
        for monomial, c in terms.items():
            part = interval(monomial)
            high = plus(high, times(part[c > 0], c))
            plain = plain and not (isinstance(monomial, Fn) and monomial.op == "floordiv")
        # A sum has tighter bounds than its terms where it holds products (see `least_at_corner`) or quotients (see here).
        return high if plain or high <= 0 or len(terms) < 2 else self.known_ranges.upper(make_sum(dict(terms), const))

    def less_or_equal(self, c: BoolExpr) -> bool | None:
        p = c.args[0]
        if self.at_most_zero(p):
            return True
        return False if self.at_most_zero(p, -1, 1) else None

    def equal(self, c: BoolExpr) -> bool | None:
        p = c.args[0]
        if self.at_most_zero(p, 1, 1) or self.at_most_zero(p, -1, 1):
            return False
        return True if self.at_most_zero(p) and self.at_most_zero(p, -1) else None

    def unequal(self, c: BoolExpr) -> bool | None:
        result = self.equal(c)
        return None if result is None else not result

    def must_hold(self, c: BoolLike) -> bool:
        """Whether `c` is proved true. Spends no steps on proving it false."""
        if isinstance(c, bool):
            return c
        if c in self.facts.holding:
            return True
        op, args = c.op, c.args
        if op == "le0":
            return self.at_most_zero(args[0])
        if op == "eq0":
            return self.at_most_zero(args[0]) and self.at_most_zero(args[0], -1)
        if op == "ne0":
            return self.at_most_zero(args[0], 1, 1) or self.at_most_zero(args[0], -1, 1)
        if op == "and":
            return all(self.must_hold(part) for part in args)
        if op == "or":
            return any(self.must_hold(part) for part in args)
        return op == "not" and self.condition(args[0]) is False

    def all_of(self, c: BoolExpr) -> bool | None:
        results = [self.condition(part) for part in c.args]
        return False if False in results else None if None in results else True

    def any_of(self, c: BoolExpr) -> bool | None:
        results = [self.condition(part) for part in c.args]
        return True if True in results else None if None in results else False

    def negation(self, c: BoolExpr) -> bool | None:
        result = self.condition(c.args[0])
        return None if result is None else not result


_BY_OP = {
    "le0": _Prover.less_or_equal,
    "eq0": _Prover.equal,
    "ne0": _Prover.unequal,
    "and": _Prover.all_of,
    "or": _Prover.any_of,
    "not": _Prover.negation,
}


def prove(condition: BoolLike, facts: Facts | None = None, steps: int = DEFAULT_STEPS) -> bool | None:
    """Return True or False when `facts` and the symbols' ranges imply it, None when `steps` steps do not settle it.

    >>> n = symbol("n", 1)
    >>> prove(n * n >= n)
    True
    """
    check_condition("prove", condition)
    facts = Facts() if facts is None else facts
    return settle(facts.simplify(condition), facts, steps)


def settle(simple: BoolLike, facts: Facts, steps: int = DEFAULT_STEPS) -> bool | None:
    """Like `prove`, for a condition that `facts` have already simplified."""
    try:
        return simple if isinstance(simple, bool) else _Prover(facts, steps).condition(simple)
    except RecursionError:
        return None


def follows(simple: BoolLike, facts: Facts, steps: int = DEFAULT_STEPS) -> bool:
    """Whether a condition that `facts` have already simplified is proved true."""
    try:
        return _Prover(facts, steps).must_hold(simple)
    except RecursionError:
        return False
