"""Proofs: does a condition follow from facts? True, False, or None when the steps allowed do not settle it."""

from __future__ import annotations

from treadle_shapes.facts import Facts
from treadle_shapes.nodes import BoolExpr, BoolLike, Expr, IntLike, Product, Symbol, as_powers, as_terms
from treadle_shapes.rewrite import substitute

DEFAULT_STEPS = 400
_DEGREE = 6  # of polynomials that are multiplied out


class _Prover:
    def __init__(self, facts: Facts, steps: int) -> None:
        self.facts = facts
        self.steps = steps

    def condition(self, c: BoolLike) -> bool | None:
        if isinstance(c, bool):
            return c
        if c in self.facts.holding:
            return True
        handler = _BY_OP.get(c.op)
        return None if handler is None else handler(self, c)

    def at_most_zero(self, p: IntLike, depth: int = 3) -> bool:
        """Whether p <= 0 follows: by its range, or as r + k*q with known q <= 0 and r <= 0, at most `depth` times."""
        if self.steps <= 0:
            return False
        self.steps -= 1
        if self.facts.known.upper(p) <= 0:
            return True
        if depth == 0 or not isinstance(p, Expr):
            return False
        terms, _ = as_terms(p)
        if any(isinstance(monomial, Product) for monomial in terms) and self._falls(p):
            return True
        for q in self.facts.not_positive:
            q_terms, _ = as_terms(q)
            for monomial, c in terms.items():
                d = q_terms.get(monomial, 0)
                # The same sign on a monomial: a positive multiple of q takes the monomial out of a multiple of p.
                if c * d > 0 and self.at_most_zero(p * abs(d) - q * abs(c), depth - 1):
                    return True
                if self.steps <= 0:
                    return False
        return False

    def _falls(self, p: Expr) -> bool:
        """Whether p <= 0 shows once every symbol is its lower bound and something more:
        s - s*s + 2 with s = 2 + t is -3*t - t*t."""
        terms, _ = as_terms(p)
        powers = [as_powers(monomial) for monomial in terms]
        if any(sum(power.values()) > _DEGREE or not all(isinstance(s, Symbol) for s in power) for power in powers):
            return False
        lower = {s: self.facts.known.lower(s) for s in p.free_symbols}
        if not all(isinstance(low, int) for low in lower.values()):
            return False
        coefficients, const = as_terms(substitute(p, {s: s + int(low) for s, low in lower.items()}))
        return const <= 0 and all(c <= 0 for c in coefficients.values())

    def less_or_equal(self, c: BoolExpr) -> bool | None:
        p = c.args[0]
        if self.at_most_zero(p):
            return True
        return False if self.at_most_zero(1 - p) else None

    def equal(self, c: BoolExpr) -> bool | None:
        p = c.args[0]
        if self.at_most_zero(p + 1) or self.at_most_zero(1 - p):
            return False
        return True if self.at_most_zero(p) and self.at_most_zero(-p) else None

    def unequal(self, c: BoolExpr) -> bool | None:
        result = self.equal(c)
        return None if result is None else not result

    def must_hold(self, c: BoolLike) -> bool:
        """Whether `c` is proved true; spends nothing on proving it false."""
        if isinstance(c, bool):
            return c
        if c in self.facts.holding:
            return True
        op, args = c.op, c.args
        if op == "le0":
            return self.at_most_zero(args[0])
        if op == "eq0":
            return self.at_most_zero(args[0]) and self.at_most_zero(-args[0])
        if op == "ne0":
            return self.at_most_zero(args[0] + 1) or self.at_most_zero(1 - args[0])
        if op == "and":
            return all(self.must_hold(part) for part in args)
        if op == "or":
            return any(self.must_hold(part) for part in args)
        return False

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
    """True or False when that follows from `facts` and the symbols' ranges, None when `steps` steps do not show it.

    >>> n = symbol("n", 1)
    >>> prove(n * n >= n)
    True
    """
    facts = Facts() if facts is None else facts
    return settle(facts.simplify(condition), facts, steps)


def settle(simple: BoolLike, facts: Facts, steps: int = DEFAULT_STEPS) -> bool | None:
    """`prove` for a condition that `facts` have simplified already."""
    try:
        return simple if isinstance(simple, bool) else _Prover(facts, steps).condition(simple)
    except RecursionError:
        return None


def follows(simple: BoolLike, facts: Facts, steps: int = DEFAULT_STEPS) -> bool:
    """Whether a condition that `facts` have simplified already is proved true."""
    try:
        return _Prover(facts, steps).must_hold(simple)
    except RecursionError:
        return False
