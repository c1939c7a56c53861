"""Conditions that are known to hold: equalities as substitutions, ranges, remainders, inequalities between expressions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, overload

from treadle_shapes import ranges
from treadle_shapes.bounds import KnownRanges, join_residues, residue_of, split_linear
from treadle_shapes.errors import ContradictionError, ShapesError
from treadle_shapes.logic import Eq, Not
from treadle_shapes.nodes import BoolExpr, BoolLike, Expr, Fn, IntLike, Sum, Symbol, as_terms, free_symbols, make_sum
from treadle_shapes.ranges import INF, Range
from treadle_shapes.rewrite import evaluate, simplify, substitute


class NotPositive(NamedTuple):
    """A polynomial that is 0 or less. position: how many such facts came before; value: its value at the witness."""

    position: int
    terms: dict[Expr, int]
    const: int
    value: int | None


class Facts:
    """A growing set of true conditions, applied to every expression that is simplified afterwards.

    witness: values of symbols at which every fact holds that they determine. A condition that is false there cannot follow from the
        facts, so no proof of it is tried.
    """

    def __init__(self, witness: Mapping[Symbol, int] | None = None) -> None:
        self.witness = witness
        self.substitutions: dict[Symbol, IntLike] = {}
        self.ranges: dict[Symbol, Range] = {}
        #: expressions without a constant term (`x % n`, `x // n`, `s*t`, ...) whose value is known -> that value
        self.values: dict[Expr, int] = {}
        #: polynomials p over more than one symbol with p <= 0 -> their values at the witness (None: not determined)
        self.not_positive: dict[Expr, int | None] = {}
        #: conditions that hold as they stand (p != 0, disjunctions, ...)
        self.holding: set[BoolExpr] = set()
        #: symbols without a value while tracing; no substitution expresses a symbol with a value by these
        self.unbacked: set[Symbol] = set()
        self._known_ranges: KnownRanges | None = None
        self._indexed: dict[
            Expr, int | None
        ] = {}  # the facts that `_by_monomial` has: `not_positive`, or what that was before
        self._by_monomial: dict[tuple[Expr, bool], list[NotPositive]] = {}
        self._indexed_count = 0

    @property
    def known_ranges(self) -> KnownRanges:
        """Return the ranges and remainders in the form that `simplify` and `bounds` take."""
        if self._known_ranges is None:
            self._known_ranges = KnownRanges(dict(self.ranges), dict(self.values))
        return self._known_ranges

    @overload
    def at_witness(self, e: IntLike) -> int | None: ...
    @overload
    def at_witness(self, e: BoolLike) -> bool | None: ...
    def at_witness(self, e):
        """Return the value of an expression or condition at the witness, or None when the witness does not determine it."""
        if isinstance(e, (int, float)):
            return e
        try:
            return None if self.witness is None else evaluate(e, self.witness)
        except (ShapesError, ArithmeticError, ValueError):
            return None

    def not_positive_by_monomial(self) -> Mapping[tuple[Expr, bool], Sequence[NotPositive]]:
        """`not_positive` by (monomial, whether its coefficient is positive), in the order in which the facts came."""
        facts = self.not_positive
        if self._indexed is not facts:
            self._indexed, self._by_monomial, self._indexed_count = facts, {}, 0
        for position, (p, value) in enumerate(itertools.islice(facts.items(), self._indexed_count, None)):
            terms, const = as_terms(p)
            fact = NotPositive(self._indexed_count + position, terms, const, value)
            for monomial, c in terms.items():
                self._by_monomial.setdefault((monomial, c > 0), []).append(fact)
        self._indexed_count = len(facts)
        return self._by_monomial

    def copy(self, *, keep_witness: bool = False) -> Facts:
        """Copy the facts. keep_witness: the caller guarantees that facts added to the copy hold at the witness, too."""
        other = Facts(self.witness if keep_witness else None)
        other.substitutions, other.ranges = dict(self.substitutions), dict(self.ranges)
        other.values, other.not_positive = dict(self.values), dict(self.not_positive)
        if not keep_witness:
            other.not_positive = dict.fromkeys(self.not_positive)
        other.holding, other.unbacked = set(self.holding), set(self.unbacked)
        return other

    @overload
    def simplify(self, e: IntLike) -> IntLike: ...
    @overload
    def simplify(self, e: BoolLike) -> BoolLike: ...
    def simplify(self, e):
        """Return `e` with all facts put in."""
        if isinstance(e, (int, float)):
            return e
        if self.substitutions:
            e = substitute(e, self.substitutions)
        e = simplify(e, self.known_ranges)
        if self.values and isinstance(e, Sum):
            value = self.values.get(make_sum(dict(e.coefficients), 0))  # type: ignore[arg-type]
            if value is not None:
                return value + e.const
        # Inequalities are in `ranges` and `not_positive`, never in `holding`.
        if isinstance(e, BoolExpr) and e.op != "le0" and self.holding:
            if e in self.holding:
                return True
            if Not(e) in self.holding:
                return False
        return e

    def add(self, condition: BoolLike) -> None:
        """Add a condition as a fact. Raises ContradictionError when it is known to be false."""
        self.take(self.simplify(condition))

    def take(self, condition: BoolLike) -> None:
        """Like `add`, for a condition that `simplify` has already simplified."""
        if isinstance(condition, bool):
            if not condition:
                raise ContradictionError("the condition contradicts what is already known")
            return
        handler = _ADD.get(condition.op)
        if handler is None:
            self.holding.add(condition)
        else:
            handler(self, condition)

    def _add_and(self, condition: BoolExpr) -> None:
        for part in condition.args:
            self.add(part)

    def _add_le(self, condition: BoolExpr) -> None:
        p = condition.args[0]
        if not self._narrow(p):
            self.not_positive[p] = self.at_witness(p)
        if isinstance(p, Expr) and -p in self.not_positive:
            self._equal(p)

    def _narrow(self, p: Expr) -> bool:
        """Turn p <= 0 over one linear symbol into a bound of that symbol, over one quotient into a bound of its dividend, over one power
        of a number into a bound of the exponent. False when p has another form."""
        coefficients, const = as_terms(p)
        if len(coefficients) != 1:
            return False
        ((s, c),) = coefficients.items()
        if isinstance(s, Fn) and s.op == "floordiv" and isinstance(s.args[1], int) and s.args[1] > 0:
            x, n = s.args
            self.add(x <= -const // c * n + n - 1 if c > 0 else x >= -(const // c) * n)
            return True
        if isinstance(s, Fn) and s.op == "pow" and isinstance(s.args[0], int) and s.args[0] > 1:
            base, exponent = s.args
            most = _largest_exponent(base, -const // c if c > 0 else -(const // c) - 1)
            self.add(exponent <= most if c > 0 else exponent >= most + 1)
            return True
        if not isinstance(s, Symbol):
            return False
        old_low, old_high = self.known_ranges.interval(s)
        low, high = (old_low, min(old_high, -const // c)) if c > 0 else (max(old_low, -(const // c)), old_high)
        self._set_range(s, low, high)
        return True

    def _set_range(self, s: Symbol, low: int | float, high: int | float) -> None:
        if s in self.known_ranges.residues:
            # Move the ends inwards to values with the known remainder.
            n, r = self.known_ranges.residues[s]
            low, high = low if low == -INF else low + (r - low) % n, high if high == INF else high - (high - r) % n
        if low > high:
            raise ContradictionError(f"no value is left for {s.name}: at least {low} and at most {high}")
        self.ranges[s] = ranges.to_range((low, high))
        self._known_ranges = None
        if low == high:
            self._replace(s, int(low))

    def _add_eq(self, condition: BoolExpr) -> None:
        self._equal(condition.args[0])
        self.holding.add(condition)

    def _equal(self, p: Expr) -> None:
        """Add p == 0: as a substitution where it can be solved for a symbol, as two inequalities otherwise."""
        coefficients, const = as_terms(p)
        if len(coefficients) == 1:
            ((node, c),) = coefficients.items()
            if isinstance(node, Fn) and const % c == 0:
                self._add_value(node, -const // c)
                return
        # Solve for unbacked symbols first, then for the latest symbol by name: earlier inputs then name the sizes of later ones.
        unbacked_before: set[Symbol] = set(self.unbacked)
        for s in sorted(p.free_symbols, key=lambda s: (s in self.unbacked, len(s.name), s.name), reverse=True):
            split = split_linear(p, s)
            if split is not None and isinstance(split[0], int) and split[0] in (1, -1):
                value = split[1] * -split[0]
                # An unbacked number is not expressed by later ones, which the graph does not know yet where it uses the number.
                if unbacked_before.issuperset(free_symbols(value) & self.unbacked):
                    self._replace(s, value)
                    return
            unbacked_before.discard(s)
        whole = make_sum(dict(coefficients), 0)
        if isinstance(whole, Expr):
            self.values.update({whole: -const, -whole: const})  # type: ignore[dict-item]
            self._known_ranges = None
        for side in (p, -p):
            assert isinstance(side, Expr)
            self.not_positive[side] = self.at_witness(side)

    def _add_value(self, node: Fn, value: int) -> None:
        """Add node == value. The node is that number from here on, a quotient bounds its dividend, and a power its exponent."""
        residue = residue_of(node, value)
        if residue is not None:
            x, found = residue
            old = self.known_ranges.residues.get(x)
            if old is not None and join_residues(old, found) is None:
                raise ContradictionError(f"{node} == {value} contradicts ({x}) % {old[0]} == {old[1]}")
        self.values[node] = value
        self._known_ranges = None
        if residue is not None and isinstance(residue[0], Symbol):
            self._set_range(residue[0], *self.known_ranges.interval(residue[0]))
        if node.op in ("floordiv", "pow"):
            for bound in (node - value, value - node):
                assert isinstance(bound, Expr)
                self._narrow(bound)

    def raise_lower(self, symbols: Iterable[Symbol], low: int) -> None:
        """Add low <= s for symbols without a substitution."""
        known_ranges, points = self.known_ranges, []
        for s in symbols:
            old_low, high = known_ranges.interval(s)
            if max(old_low, low) < high:
                self.ranges[s] = ranges.to_range((max(old_low, low), high))
            else:
                points.append(s)
        self._known_ranges = None
        for s in points:
            self._set_range(s, max(self.known_ranges.interval(s)[0], low), self.known_ranges.interval(s)[1])

    def _replace(self, s: Symbol, value: IntLike) -> None:
        """Substitute `value` for s in all facts. The range of s becomes facts about `value`."""
        low, high = self.known_ranges.interval(s)
        one = {s: value}
        self.substitutions = {t: substitute(e, one) for t, e in self.substitutions.items()}
        self.substitutions[s] = value
        self._known_ranges = None
        old_le, old_holding, old_values = self.not_positive, self.holding, self.values
        self.not_positive, self.holding, self.values = {}, set(), {}
        pending: list[BoolLike] = [Eq(substitute(node, one), number) for node, number in old_values.items()]
        pending += [substitute(p, one) <= 0 for p in old_le]
        pending += [substitute(c, one) for c in old_holding if c.op != "eq0" or s not in c.free_symbols]
        if low != -INF:
            pending.append(value >= int(low))
        if high != INF:
            pending.append(value <= int(high))
        for condition in pending:
            self.add(condition)

    def _add_ne(self, condition: BoolExpr) -> None:
        self.holding.add(condition)
        coefficients, const = as_terms(condition.args[0])
        if len(coefficients) == 1:
            ((s, c),) = coefficients.items()
            if isinstance(s, Symbol) and c == 1:
                low, high = self.known_ranges.interval(s)
                if low == -const:
                    self._set_range(s, low + 1, high)
                elif high == -const:
                    self._set_range(s, low, high - 1)


def _largest_exponent(base: int, most: int) -> int:
    """The largest n with base ** n <= most; -1 where there is none."""
    n, power = -1, 1
    while power <= most:
        n, power = n + 1, power * base
    return n


_ADD = {"and": Facts._add_and, "le0": Facts._add_le, "eq0": Facts._add_eq, "ne0": Facts._add_ne}
