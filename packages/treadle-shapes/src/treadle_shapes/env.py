"""ShapeEnv: the symbols of one traced program, what was decided about them, and why.

A decision is answered from facts where they settle it; otherwise from the hints (the sizes at hand while tracing), and
then it is recorded as a guard with the user's line: the compiled code is right for all sizes that satisfy the guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from treadle_shapes import explain
from treadle_shapes import guards as guards_module
from treadle_shapes.errors import (
    ConstraintError,
    ContradictionError,
    DivisionByZeroError,
    MissingValueError,
    SizeOverflowError,
    UnbackedError,
    UndecidedError,
    UsageError,
)
from treadle_shapes.facts import Facts
from treadle_shapes.floats import FloatExpr, FloatLike, FloatSymbol, defined, float_symbol, has_float_symbol, same
from treadle_shapes.guards import Dropped, Guard, GuardFunction, Stack, user_stack
from treadle_shapes.logic import Eq, Ge, Ne, Not, check_condition
from treadle_shapes.nodes import BoolExpr, BoolLike, IntLike, Node, Symbol, free_symbols, is_polynomial, symbol
from treadle_shapes.printers import text
from treadle_shapes.prove import DEFAULT_STEPS, follows, prove, settle
from treadle_shapes.ranges import Range, to_range
from treadle_shapes.rewrite import evaluate
from treadle_shapes.symbols import INT64_MAX, POLICIES, Policy, RuntimeAssert, SymbolInfo, check_symbol


class ShapeEnv:
    """Symbols with hints, decisions with guards, facts, constraints and explanations.

    duck_shape: two dynamic dims of equal size share one symbol (fewer symbols, but tied: a guard on their equality).
    specialize_zero_one: symbols start at 2; when False they start at 1, and a size of 1 is decided on where something
        asks. (Sizes that are 0 or 1 at hand are constants either way: give another hint to trace for all sizes.)
    where: gives the user's stack for a decision; the default looks for the innermost frames outside the package.
    """

    def __init__(
        self,
        *,
        duck_shape: bool = False,
        specialize_zero_one: bool = False,
        steps: int = DEFAULT_STEPS,
        where: Callable[[], Stack] = user_stack,
    ) -> None:
        self.duck_shape = duck_shape
        self.specialize_zero_one = specialize_zero_one
        self.steps = steps
        self.where = where
        self.symbols: dict[Symbol, SymbolInfo] = {}
        self.hints: dict[Symbol, int] = {}
        self.facts = Facts(self.hints)
        #: how many facts have been added; while it stays the same, so do all answers
        self.learnt = 0
        self.guards: list[Guard] = []
        self.declared: list[Guard] = []
        self.runtime_asserts: list[RuntimeAssert] = []
        #: those of `runtime_asserts` that nobody has stated: answers taken for the usual ones, see `size_oblivious_answers`
        self.assumptions: list[BoolLike] = []
        #: later sources of a duck-shaped symbol: (symbol, source), to be checked for equality
        self.shared: list[tuple[Symbol, str]] = []
        #: the face this environment shows to another library (see treadle_shapes.torch), kept here to live as long
        self.adapter: Any = None
        self._by_size: dict[int, Symbol] = {}
        self._named: dict[str, IntLike] = {}
        self._decided: dict[BoolExpr, bool] = {}
        #: answers to guard_or_true / guard_or_false, which stay right whatever is learnt later
        self._answers: dict[tuple[BoolLike, bool], bool] = {}
        self._recording = True
        self._refusing = False
        self._general = False
        self._assumes = False
        self._generic: Facts | None = None
        self._counts = {"s": 0, "u": 0, "f": 0}

    # -- symbols ------------------------------------------------------------------------------------------------------

    def create_symbol(
        self,
        hint: int,
        source: str,
        dynamic: Policy = "auto",
        *,
        lower: int | None = None,
        upper: int | None = None,
        size: bool = True,
    ) -> IntLike:
        """A symbol for the value `hint` found at `source` (text such as `L['x'].size()[0]`), or the plain int.

        dynamic: "static" gives the int; "auto" a symbol that decisions may make constant; "dynamic" a symbol whose
            specialisation raises ConstraintError. lower, upper: declared range; size=False: any integer, not a size.
        Raises ConstraintError for a hint outside the range, SizeOverflowError beyond 64 bits.
        """
        if dynamic not in POLICIES:
            raise UsageError(f"create_symbol: dynamic must be one of {', '.join(POLICIES)}, got {dynamic!r}")
        check_symbol(source, lower, upper)
        if isinstance(hint, bool) or not isinstance(hint, int):
            raise UsageError(f"create_symbol: the hint of {source} must be an int, got {hint!r}")
        if not -INT64_MAX - 1 <= hint <= INT64_MAX:
            raise SizeOverflowError(
                f"{source} == {hint} does not fit in 64 bits; {explain.place(self)}; use smaller sizes"
            )
        if dynamic == "static":
            return hint
        if (lower is not None and hint < lower) or (upper is not None and hint > upper):
            raise ConstraintError(
                f"{source} == {hint} is outside its declared range {explain.interval(lower, upper)}; "
                f"{explain.place(self)}; declare a range that holds it, or do not mark {source} as dynamic"
            )
        if size and dynamic == "auto" and hint < 2:
            return hint
        if size and lower is None:
            lower = min(2 if self.specialize_zero_one else 1, hint)
        if self.duck_shape and size and dynamic == "auto" and hint in self._by_size:
            self.shared.append((self._by_size[hint], source))
            return self._by_size[hint]
        s = self._new("s", lower, upper, hint, source, dynamic, size)
        if size:
            self._by_size.setdefault(hint, s)
        return s

    def create_named(
        self,
        name: str,
        hint: int,
        source: str,
        dynamic: Policy = "auto",
        *,
        lower: int | None = None,
        upper: int | None = None,
    ) -> IntLike:
        """Like `create_symbol`, and all dims created with one name are one symbol, whose sources must agree.

        Raises ConstraintError when the sizes at hand do not.
        """
        known = self._named.get(name)
        if known is None:
            known = self._named[name] = self.create_symbol(hint, source, dynamic, lower=lower, upper=upper)
            return known
        size = self.hint(known)
        if size != hint:
            first = self.source_of(known) if isinstance(known, Symbol) else str(known)
            raise ConstraintError(
                f"the dimension named {name!r} is {size} at {first} but {hint} at {source}; {explain.place(self)}; "
                f"give the same sizes, or use two names"
            )
        if isinstance(known, Symbol):
            self.shared.append((known, source))
        return known

    def create_float(self, hint: float | None, source: str) -> FloatSymbol:
        """A symbol for the float `hint` found at `source`; None for one that is known only at run time."""
        s = float_symbol(f"f{self._counts['f']}")
        self._counts["f"] += 1
        policy = "auto" if hint is not None else "unbacked"
        self.symbols[s] = SymbolInfo(s, hint, source, policy, self.where(), False)  # type: ignore[index, arg-type]
        if hint is not None:
            self.hints[s] = hint  # type: ignore[index, assignment]
        return s

    def create_unbacked(self, source: str = "", *, lower: int | None = None, upper: int | None = None) -> Symbol:
        """A symbol for a value that is known only at run time, such as `x.item()`; `source` is how the user wrote it."""
        check_symbol(source, lower, upper)
        s = self._new("u", lower, upper, None, source or f"value {self._counts['u']}", "unbacked")
        self.facts.unbacked.add(s)
        return s

    def _new(
        self,
        kind: str,
        lower: int | None,
        upper: int | None,
        hint: int | None,
        source: str,
        policy: str,
        size: bool = False,
    ) -> Symbol:
        s = symbol(f"{kind}{self._counts[kind]}", lower, upper)
        self._counts[kind] += 1
        self.symbols[s] = SymbolInfo(s, hint, source, policy, self.where(), size)
        self._generic = None
        if hint is not None:
            self.hints[s] = hint
        return s

    def source_of(self, s: Symbol) -> str:
        return self.symbols[s].source if s in self.symbols else s.name

    def describe(self, e: IntLike | BoolLike) -> str:
        """Text of an expression in the user's terms: sources instead of symbol names."""
        if not isinstance(e, Node):
            return str(e)
        return text(e, {s: self.source_of(s) for s in free_symbols(e)})

    def is_unbacked(self, e: IntLike | BoolLike) -> bool:
        """Whether the value needs a symbol that has no hint, after all that is known is put in."""
        return any(s not in self.hints for s in free_symbols(self.simplify(e)))

    def hint(self, e: IntLike | BoolLike) -> int | bool | None:
        """The value at the hints, None when an unbacked symbol is involved."""
        if any(s not in self.hints for s in free_symbols(e)):
            e = self.simplify(e)
            if any(s not in self.hints for s in free_symbols(e)):
                return None
        return evaluate(e, self.hints)

    def simplify(self, e: IntLike | BoolLike) -> IntLike | BoolLike:
        """`e` with all facts put in."""
        return self.facts.simplify(e)  # type: ignore[arg-type]

    def bounds(self, e: IntLike) -> Range:
        """A closed interval of all values `e` can have under the facts."""
        simple = self.facts.simplify(e)
        return to_range(self.facts.known.interval(simple))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def prove(self, condition: BoolLike) -> bool | None:
        """True or False when that follows from what is known, None otherwise; records nothing."""
        if isinstance(condition, bool):
            return condition
        known = self._decided.get(condition)
        if known is not None:
            return known
        check_condition("prove", condition)
        result = self._settle(self.facts.simplify(condition), self.facts, self.steps)
        if result is not None:
            self._decided[condition] = result
        return result

    @staticmethod
    def _settle(simple: BoolLike, facts: Facts, steps: int) -> bool | None:
        """What facts say about a condition that they have simplified."""
        # All facts hold at the hints (unless run-time values contradict them), so what is false there cannot be proved.
        true = None if isinstance(simple, bool) or facts.unbacked else facts.at_witness(simple)
        if true is None:
            return settle(simple, facts, steps)
        return true if follows(simple if true else Not(simple), facts, steps) else None

    def prove_under(self, assumptions: Iterable[BoolLike], condition: BoolLike) -> bool | None:
        """True or False when that follows where all `assumptions` hold besides what is known, None otherwise.

        Records nothing. None also when the assumptions contradict each other or what is known.
        """
        facts = self._facts_under(assumptions)
        return None if facts is None else prove(condition, facts, self.steps)

    def simplify_under(self, assumptions: Iterable[BoolLike], e: IntLike) -> IntLike:
        """`e` where all `assumptions` hold besides what is known; as it is when they contradict that."""
        facts = self._facts_under(assumptions)
        return e if facts is None else facts.simplify(e)

    def _facts_under(self, assumptions: Iterable[BoolLike]) -> Facts | None:
        facts = self.facts.copy()
        try:
            for assumption in assumptions:
                facts.add(assumption)
        except ContradictionError:
            return None
        return facts

    def decide(self, condition: BoolLike) -> bool:
        """The truth of a condition: from facts, or from the hints and then recorded as a guard.

        Raises UnbackedError when it depends on a value known only at run time, ConstraintError when the guard would
        make a dimension constant that the user declared dynamic, UndecidedError inside `refusing_guards`.
        """
        if isinstance(condition, bool):
            return condition
        result = self._decided.get(condition)
        if result is not None:
            return result
        check_condition("decide", condition)
        simple = self.facts.simplify(condition)
        result = self._settle(simple, self.facts, self.steps)
        if result is not None:
            self._decided[condition] = result
            return result
        if self._general:
            result = self._prove_generic(condition)
            if result is not None:
                return result
        if self._refusing and self._recording:
            raise UndecidedError(f"{self.describe(condition)} would need a guard; {explain.place(self)}")
        value = self.hint(condition)
        if value is None:
            assumed = self._assume(condition)
            if assumed is None:
                raise UnbackedError(explain.unbacked(self, condition), simple)
            return assumed
        if self._recording:
            self._guard(simple if value else self.facts.simplify(Not(simple)))
            self._decided[condition] = bool(value)
        return bool(value)

    def guard_or_true(self, condition: BoolLike) -> bool:
        """True unless the condition is known, or at the hints found, to be false: the answer True must be right anyway.

        Records a guard only for the answer False.
        """
        return self._or(condition, True)

    def guard_or_false(self, condition: BoolLike) -> bool:
        """False unless the condition is known, or at the hints found, to be true: the answer False must be right anyway.

        Records a guard only for the answer True.
        """
        return self._or(condition, False)

    def _or(self, condition: BoolLike, default: bool) -> bool:
        result = self._answers.get((condition, default))
        if result is None:
            check_condition("guard_or_true / guard_or_false", condition)
            result = self._find_answer(condition, default)
            if self._recording:
                self._answers[condition, default] = result
        return result

    def _find_answer(self, condition: BoolLike, default: bool) -> bool:
        # What follows from the facts follows where, besides, no size is 1.
        result = self.prove(condition) if self.specialize_zero_one else self._prove_generic(condition)
        if result is not None:
            return result
        value = self.hint(condition)
        return default if value is None or bool(value) is default else self.decide(condition)

    def _prove_generic(self, condition: BoolLike) -> bool | None:
        """The answer that holds when no size is 1. A dim of size 1 only makes more layouts and broadcasts possible than
        the general answer says, and who asks with a default takes the general answer."""
        if isinstance(condition, bool) or self.specialize_zero_one:
            return condition if isinstance(condition, bool) else None
        if self._generic is None:
            self._generic = self._facts_without_ones()
        return self._settle(self._generic.simplify(condition), self._generic, self.steps)

    def specialize(self, e: IntLike) -> int:
        """The constant value of `e`, recorded as a guard where it is not known already."""
        simple = self.simplify(e)
        if isinstance(simple, int):
            return simple
        value = self.hint(simple)
        if value is None:
            raise UnbackedError(explain.unbacked(self, simple), simple)
        if not -INT64_MAX - 1 <= value <= INT64_MAX:
            raise SizeOverflowError(
                f"{self.describe(simple)} == {value} does not fit in 64 bits; {explain.place(self)}; use smaller sizes"
            )
        self.decide(Eq(simple, int(value)))  # type: ignore[arg-type]
        return int(value)

    def specialize_float(self, e: FloatLike) -> float:
        """The constant value of a float expression, recorded as a guard on its bits."""
        if not isinstance(e, FloatExpr):
            return e
        value = self.hint(e)  # type: ignore[arg-type]
        if value is None:
            raise UnbackedError(explain.unbacked(self, e), e)  # type: ignore[arg-type]
        self.decide(same(e, float(value)))
        return float(value)

    def check_float(self, e: FloatLike) -> None:
        """Make sure that Python computes a float here: for every later value as for those at hand.

        Raises what Python raises for the values at hand, UsageError when it gives a complex number.
        """
        if not has_float_symbol(e) or any(s not in self.hints for s in free_symbols(e)):
            return
        value = evaluate(e, self.hints)  # type: ignore[call-overload]
        if not isinstance(value, float):
            raise UsageError(f"{self.describe(e)} is {value}, not a float; {explain.place(self)}")  # type: ignore[arg-type]
        self.decide(defined(e))

    def check_divisor(self, divisor: IntLike) -> None:
        """Make sure that a division by `divisor` is defined. Raises DivisionByZeroError when it is or can be zero."""
        nonzero = Ne(divisor, 0)
        known = self.prove(nonzero)
        if known:
            return
        if known is None and self.hint(divisor):
            before, self._general = self._general, False  # no short cut for 1, but a division that is there
            try:
                self.decide(nonzero)
            finally:
                self._general = before
            return
        if known is None and self._assume(nonzero):
            return
        what = self.describe(divisor)
        if known is False or self.hint(divisor) == 0:
            raise DivisionByZeroError(
                f"division by {what}, which is 0; {explain.place(self)}; check that {what} is not 0 before that line"
            )
        raise DivisionByZeroError(
            f"division by {what}, which is known only at run time and can be 0; {explain.place(self)}; "
            f"state that it is not: torch._check({what} > 0), or env.expect(Ne(divisor, 0))"
        )

    def _facts_without_ones(self) -> Facts:
        facts = self.facts.copy(keep_witness=True)
        sizes = [s for s, info in self.symbols.items() if info.size and info.hint is not None and info.hint > 1]
        facts.raise_lower([s for s in sizes if s not in facts.substitutions], 2)
        return facts

    @contextmanager
    def suppress_guards(self) -> Iterator[None]:
        """Answer decisions from the hints without recording them, for code whose decisions change no result."""
        before, self._recording = self._recording, False
        try:
            yield
        finally:
            self._recording = before

    @contextmanager
    def refusing_guards(self) -> Iterator[None]:
        """Decisions that facts do not settle, and new facts, raise UndecidedError: for code that may turn out not to count."""
        before, self._refusing = self._refusing, True
        try:
            yield
        finally:
            self._refusing = before

    @contextmanager
    def size_oblivious_answers(self, assume: bool = False) -> Iterator[None]:
        """A decision that is settled as soon as no size is 1 gets that answer without a guard: for kernels whose code for
        sizes of 1 only saves work. What they give at 1 is for the caller to check.

        assume: a decision that is settled as soon as sizes known only at run time are 2 or more gets that answer, too, and a
        runtime assertion (`assumptions` lists them): for callers that can do without the result where it does not hold.
        """
        before = self._general, self._assumes
        self._general, self._assumes = True, assume
        try:
            yield
        finally:
            self._general, self._assumes = before

    def _assume(self, condition: BoolLike) -> bool | None:
        """The usual answer to a question about sizes known only at run time, asserted from here on; None where there is none.

        Where guards are suppressed the answer changes no result, and nothing is asserted.
        """
        if not self._assumes and self._recording:
            return None
        numbers = [s for s in free_symbols(self.simplify(condition)) if s not in self.hints]
        if any(isinstance(s, FloatExpr) or self.facts.known.lower(s) < 0 for s in numbers):
            return None
        answer = self.prove_under([Ge(s, 2) for s in numbers], condition)
        if answer is not None and self._recording:
            self.assume(condition if answer else Not(condition))
        return answer

    def assume(self, condition: BoolLike) -> None:
        """`expect` for what is only usual: callers must be able to do without what follows from it."""
        known = len(self.runtime_asserts)
        self.expect(condition)
        self.assumptions += [found.condition for found in self.runtime_asserts[known:]]

    def _guard(self, guard: BoolLike) -> None:
        """Record a condition that holds at the hints and that `facts` have simplified but not settled."""
        assert isinstance(guard, BoolExpr), "a decided condition cannot need a guard"
        recorded = Guard(guard, self.where())
        self._check_dynamic(recorded)
        self._learn(guard)
        self.guards.append(recorded)
        for s, value in self.facts.substitutions.items():
            if isinstance(value, int):
                self._check_specialised(s, value, recorded)
        for s in guard.free_symbols:
            if not isinstance(s, FloatExpr) and self.facts.known.lower(s) == self.facts.known.upper(s):
                self._check_specialised(s, self.hints[s], recorded)

    def _learn(self, simple: BoolLike) -> None:
        """Make a fact of a condition that `facts` have simplified already."""
        if self._refusing:
            raise UndecidedError(f"{self.describe(simple)} would become a fact; {explain.place(self)}")
        self.learnt += 1
        self.facts.take(simple)
        self._generic = None

    def _check_dynamic(self, guard: Guard) -> None:
        """Refuse a guard that fixes a dimension declared dynamic, before it becomes a fact.

        A polynomial has finitely many roots. `s % 8 == 0` and `max(s, 4) == s` leave many sizes; whether an interval has
        shrunk to one of them is seen when it has become a fact.
        """
        if guard.expr.op == "eq0" and len(guard.expr.free_symbols) == 1 and is_polynomial(guard.expr.args[0]):
            (s,) = guard.expr.free_symbols
            info = self.symbols.get(s)
            if info is not None and info.policy == "dynamic":
                raise ConstraintError(explain.specialised(self, info, self.hints[s], guard))

    def _check_specialised(self, s: Symbol, value: int, guard: Guard) -> None:
        info = self.symbols.get(s)
        if info is not None and info.policy == "dynamic":
            raise ConstraintError(explain.specialised(self, info, value, guard))

    # -- facts stated by the program or the user ----------------------------------------------------------------------

    def expect(self, condition: BoolLike, message: str = "") -> bool:
        """The program states that this holds. About run-time values it becomes a fact and a runtime assertion.

        Returns the truth: False only when the condition is known to be false.
        """
        result = self.prove(condition)
        if result is not None:
            return result
        assert isinstance(condition, BoolExpr)
        if not self.is_unbacked(condition):
            return self.decide(condition)
        simple = self.facts.simplify(condition)
        assert isinstance(simple, BoolExpr)
        self._accept(condition, simple)
        self.runtime_asserts.append(RuntimeAssert(simple, message or self.describe(simple), self.where()))
        return True

    def add_fact(self, condition: BoolLike) -> None:
        """Take as a fact what the caller guarantees (the result of a count is not negative); nothing checks it later.

        Raises ContradictionError when it is known to be false, ConstraintError when the sizes at hand do not satisfy it.
        """
        known = self.prove(condition)
        if known is False:
            raise ContradictionError(explain.contradiction(self, condition))
        if known is None:
            self._check_at_hand(condition)
            self._accept(condition, self.facts.simplify(condition))

    def declare(self, condition: BoolLike, reason: str = "") -> None:
        """The user promises this about the inputs (a range, an equality, a multiple: Eq(s % 8, 0)); see `validate`.

        Raises ContradictionError when it cannot hold with what was declared before, ConstraintError when the hints
        do not satisfy it.
        """
        declared = Guard(condition, self.where(), reason) if isinstance(condition, BoolExpr) else None
        known = self.prove(condition)
        if known is False:
            raise ContradictionError(explain.contradiction(self, condition))
        if declared is None or known:
            return
        self._check_at_hand(condition)
        self._accept(condition, self.facts.simplify(condition))
        self.declared.append(declared)

    def _check_at_hand(self, condition: BoolLike) -> None:
        if self.hint(condition) is False:
            raise ConstraintError(
                f"{self.describe(condition)} is declared ({explain.place(self)}) but does not hold for the given sizes: "
                + ", ".join(f"{self.source_of(s)} == {self.hints.get(s)}" for s in explain.symbols_in_order(condition))
            )

    def _accept(self, condition: BoolLike, simple: BoolLike) -> None:
        """Make a fact of what somebody states, or raise ContradictionError and know what was known before."""
        before = self.facts.copy(keep_witness=True)
        try:
            self._learn(simple)
        except ContradictionError:
            self.facts = before
            raise ContradictionError(explain.contradiction(self, condition)) from None

    def violations(self) -> list[str]:
        """Where recorded guards exclude sizes that the user declared possible, in words."""
        return explain.violations(self)

    def validate(self) -> None:
        """Raise ConstraintError when guards do not allow all that was declared dynamic."""
        found = self.violations()
        if found:
            raise ConstraintError("\n".join(found))

    def check_declared(self, values: Mapping[Symbol, int]) -> None:
        """Raise ConstraintError when values of a later call break a declared range or promise."""
        for s, value in values.items():
            if not isinstance(s, Symbol):
                raise UsageError(f"check_declared: values by symbols are needed, got {s!r}")
            if value not in s.range:
                raise ConstraintError(explain.outside(self, s, value))
        for promise in self.declared:
            missing = [s for s in explain.symbols_in_order(promise.expr) if s not in values]
            if missing:
                raise MissingValueError(
                    f"check_declared: {self.describe(promise.expr)} is promised, and there is no value for {self.source_of(missing[0])}"
                )
            if not evaluate(promise.expr, values):
                given = ", ".join(f"{self.source_of(s)} == {values[s]}" for s in explain.symbols_in_order(promise.expr))
                raise ConstraintError(
                    f"{self.describe(promise.expr)}, promised at {promise.where}, does not hold for {given}"
                )

    # -- guards and explanations --------------------------------------------------------------------------------------

    def minimal_guards(self) -> tuple[list[Guard], list[Dropped]]:
        """(guards to check, guards dropped with the proof of what implies them)"""
        return guards_module.minimal([*self.declared, *self.guards], self.hints)

    def compile_guards(self, symbols: Iterable[Symbol] | None = None) -> GuardFunction:
        """One function of the values of `symbols` (default: all with hints, in order of creation) -> bool."""
        order = tuple(symbols) if symbols is not None else tuple(s for s in self.symbols if s in self.hints)
        kept, _dropped = self.minimal_guards()
        return GuardFunction(order, tuple(g for g in kept if g.expr.free_symbols <= set(order)))

    def explain(self, s: IntLike) -> str:
        """Why a dimension is what it is: its source, policy, range, the lines that constrained it, implied guards."""
        return explain.explain(self, s)
