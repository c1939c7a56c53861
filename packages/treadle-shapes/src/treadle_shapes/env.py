"""ShapeEnv: the symbols of one traced program, what was decided about them, and why.

Facts answer a decision where they settle it. Otherwise the hints (the sizes of the traced call) answer it, and the answer is
recorded as a guard with the user's line. The compiled code is right for all sizes that satisfy the guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from treadle_shapes import explain, promises
from treadle_shapes.errors import (
    ConstraintError,
    ContradictionError,
    DivisionByZeroError,
    SizeOverflowError,
    UnbackedError,
    UndecidedError,
    UsageError,
)
from treadle_shapes.facts import Facts
from treadle_shapes.floats import FloatExpr, FloatLike, FloatSymbol, defined, float_symbol, has_float_symbol, same
from treadle_shapes.guards import Dropped, Guard, GuardFunction, Stack, minimal, user_stack
from treadle_shapes.logic import Eq, Ge, Ne, Not, at_least, check_condition
from treadle_shapes.nodes import BoolExpr, BoolLike, IntLike, Node, Symbol, computed_sizes, free_symbols, symbol
from treadle_shapes.printers import text
from treadle_shapes.prove import DEFAULT_STEPS, follows, prove, settle
from treadle_shapes.ranges import Range, to_range
from treadle_shapes.rewrite import evaluate
from treadle_shapes.symbols import INT64_MAX, POLICIES, Policy, RuntimeAssert, SymbolInfo, check_symbol

_HIGHEST_OF_NO_INDEX = -1
"""The number that `index.max()` stands for where there is no index, so that the count is `index.max() + 1`."""


class ShapeEnv:
    """Symbols with hints, decisions with guards, facts, constraints and explanations.

    duck_shape: two dynamic dims of equal size share one symbol. This makes fewer symbols and guards their equality.
    specialize_zero_one: symbols start at 2. When False they start at 1, and a question about a size of 1 is a decision.
        Sizes that are 0 or 1 in the traced call are constants either way; give another hint to trace for all sizes.
    where: returns the user's stack for a decision. The default finds the innermost frames outside the package.
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
        #: how many facts have been added; answers change only when it does
        self.learnt = 0
        self.guards: list[Guard] = []
        self.declared: list[Guard] = []
        self.runtime_asserts: list[RuntimeAssert] = []
        #: the conditions in `runtime_asserts` that no program states: assumed answers, see `size_oblivious_answers`
        self.assumptions: list[BoolLike] = []
        #: later sources of a duck-shaped symbol: (symbol, source), to be checked for equality
        self.shared: list[tuple[Symbol, str]] = []
        #: the adapter of this environment for another library (see treadle_shapes.torch), kept alive as long as this object
        self.adapter: Any = None
        #: answers conditions on values known only at run time where it can, and guards what it answers
        self.oracle: Callable[[BoolLike], bool | None] | None = None
        #: whether the code that asks now looks for a short cut for at most one item: its general part is right for these, too
        self.asks_for_short_cut: Callable[[], bool] | None = None
        #: see `dividing_like_c`
        self.divides_like_c = False
        self._by_size: dict[int, Symbol] = {}
        self._named: dict[str, IntLike] = {}
        self._decided: dict[BoolExpr, bool] = {}
        #: answers to guard_or_true / guard_or_false; later facts do not invalidate them
        self._answers: dict[tuple[BoolLike, bool], bool] = {}
        self._recording = True
        self._refusing = False
        self._general = self._assumes = False
        #: whether `SymNode.guard_int` raises for numbers that the facts do not make constant
        self.refuses_plain_numbers = False
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
        """Return a symbol for the value `hint` found at `source` (text such as `L['x'].size()[0]`), or the plain int.

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
        """Like `create_symbol`. All dims created with one name are one symbol; their sources must have equal sizes.

        Raises ConstraintError when the sizes of the traced call differ.
        """
        named = self._named.get(name)
        if named is None:
            named = self._named[name] = self.create_symbol(hint, source, dynamic, lower=lower, upper=upper)
            return named
        size = self.hint(named)
        if size != hint:
            first = self.source_of(named) if isinstance(named, Symbol) else str(named)
            raise ConstraintError(
                f"the dimension named {name!r} is {size} at {first} but {hint} at {source}; {explain.place(self)}; "
                f"give the same sizes, or use two names"
            )
        if isinstance(named, Symbol):
            self.shared.append((named, source))
        return named

    def create_float(self, hint: float | None, source: str) -> FloatSymbol:
        """Return a symbol for the float `hint` found at `source`. A hint of None means that the value is known only at run time."""
        s = float_symbol(f"f{self._counts['f']}")
        self._counts["f"] += 1
        policy = "auto" if hint is not None else "unbacked"
        self.symbols[s] = SymbolInfo(s, hint, source, policy, self.where(), False)  # type: ignore[index, arg-type]
        if hint is not None:
            self.hints[s] = hint  # type: ignore[index, assignment]
        return s

    def create_unbacked(self, source: str = "", *, lower: int | None = None, upper: int | None = None) -> Symbol:
        """Return a symbol for a value that is known only at run time, such as `x.item()`. `source` is the user's text for it."""
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
        """Return the text of an expression with sources in place of symbol names."""
        if not isinstance(e, Node):
            return str(e)
        return text(e, {s: self.source_of(s) for s in free_symbols(e)})

    def is_unbacked(self, e: IntLike | BoolLike) -> bool:
        """Whether the value still depends on a symbol without a hint after all facts are put in."""
        return any(s not in self.hints for s in free_symbols(self.simplify(e)))

    def hint(self, e: IntLike | BoolLike) -> int | bool | None:
        """Return the value at the hints, or None when the value depends on an unbacked symbol."""
        if any(s not in self.hints for s in free_symbols(e)):
            e = self.simplify(e)
            if any(s not in self.hints for s in free_symbols(e)):
                return None
        return evaluate(e, self.hints)

    def simplify(self, e: IntLike | BoolLike) -> IntLike | BoolLike:
        """Return `e` with all facts put in."""
        return self.facts.simplify(e)  # type: ignore[arg-type]

    def bounds(self, e: IntLike) -> Range:
        """Return a closed interval that holds every value of `e` under the facts."""
        simple = self.facts.simplify(e)
        return to_range(self.facts.known_ranges.interval(simple))

    # -- decisions ----------------------------------------------------------------------------------------------------

    def prove(self, condition: BoolLike) -> bool | None:
        """Return True or False when the facts imply it, None otherwise. Records nothing."""
        if isinstance(condition, bool):
            return condition
        decided = self._decided.get(condition)
        if decided is not None:
            return decided
        check_condition("prove", condition)
        result = self._settle(self.facts.simplify(condition), self.facts, self.steps)
        if result is not None:
            self._decided[condition] = result
        return result

    @staticmethod
    def _settle(simple: BoolLike, facts: Facts, steps: int) -> bool | None:
        """Answer a condition that `facts` have already simplified; None when they do not settle it."""
        # All facts hold at the hints unless run-time values contradict them. A condition that is false there cannot be proved.
        true = None if isinstance(simple, bool) or facts.unbacked else facts.at_witness(simple)
        if true is None:
            return settle(simple, facts, steps)
        return true if follows(simple if true else Not(simple), facts, steps) else None

    def prove_under(self, assumptions: Iterable[BoolLike], condition: BoolLike) -> bool | None:
        """Return True or False when the facts and `assumptions` together imply it, None otherwise.

        Records nothing. The answer is also None when the assumptions contradict each other or the facts.
        """
        facts = self._facts_under(assumptions)
        return None if facts is None else prove(condition, facts, self.steps)

    def simplify_under(self, assumptions: Iterable[BoolLike], e: IntLike) -> IntLike:
        """Return `e` simplified under the facts and `assumptions`, or `e` unchanged when these contradict each other."""
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
        """Return the truth of a condition. Facts answer it; otherwise the hints do, and a guard records the answer.

        Raises UnbackedError when it depends on a value known only at run time, ConstraintError when the guard would
        fix a dimension that the user declared dynamic, UndecidedError inside `refusing_guards`.
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
                return self._answer_of_generic(condition, result)
        if self._refusing and self._recording:
            raise UndecidedError(f"{self.describe(condition)} would need a guard; {explain.place(self)}")
        value = self.hint(condition)
        if value is None:
            answer = self.ask_oracle(condition)
            answer = self._assume(condition) if answer is None else answer
            if answer is None:
                raise UnbackedError(explain.unbacked(self, condition), simple)
            return answer
        if self._recording:
            self._guard(simple if value else self.facts.simplify(Not(simple)))
            self._decided[condition] = bool(value)
        return bool(value)

    def guard_or_true(self, condition: BoolLike) -> bool:
        """Return the truth of a condition as `decide` does; True when it depends on a value known only at run time. For inputs that
        have no size of 1 (see `_prove_generic`); the caller's code must be right with the answer True in any other case."""
        return self._or(condition, True)

    def guard_or_false(self, condition: BoolLike) -> bool:
        """Return the truth of a condition as `decide` does; False when it depends on a value known only at run time. For inputs that
        have no size of 1 (see `_prove_generic`); the caller's code must be right with the answer False in any other case."""
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
        # An answer that follows from the facts alone also follows from the facts and "no size is 1".
        result = self.prove(condition) if self.specialize_zero_one else self._prove_generic(condition)
        if result is not None:
            return self._answer_of_generic(condition, result)
        value = self.hint(condition)
        if value is None:
            return default
        if bool(value) is not default:
            return self.decide(condition)
        try:
            answer = self._settle_above_one(condition)
            return self.decide(condition) if answer is None else answer
        except ConstraintError:  # the caller must do without a guard that fixes what the user declared dynamic
            return default

    def _settle_above_one(self, condition: BoolLike) -> bool | None:
        """The answer that follows once the sizes computed in a condition (n // 4, max(n - 2, 1)) stay at 2 or more where they are so in
        this call; None when that settles nothing. Guards that they stay so: a bound of an input's size stands for the whole condition."""
        bounds = [at_least(e, 2) for e in computed_sizes(self.simplify(condition)) if (self.hint(e) or 0) >= 2]
        if not bounds or self.specialize_zero_one:
            return None
        facts = self._without_ones().copy()
        try:
            for bound in bounds:
                facts.add(bound)
        except ContradictionError:
            return None
        answer = self._settle(facts.simplify(condition), facts, self.steps)
        if answer is not None:
            for bound in bounds:
                self.decide(bound)
        return answer

    def _prove_generic(self, condition: BoolLike) -> bool | None:
        """Return the answer that holds when no size is 1, None when there is none. A dim of size 1 only allows more layouts and
        broadcasts than this answer says, and a caller that gives a default accepts that."""
        if isinstance(condition, bool) or self.specialize_zero_one:
            return condition if isinstance(condition, bool) else None
        facts = self._without_ones()
        return self._settle(facts.simplify(condition), facts, self.steps)

    def _without_ones(self) -> Facts:
        if self._generic is None:
            sizes = (s for s, info in self.symbols.items() if info.size and info.hint is not None and info.hint > 1)
            self._generic = self.facts.copy(keep_witness=True)
            self._generic.raise_lower([s for s in sizes if s not in self._generic.substitutions], 2)
        return self._generic

    def _answer_of_generic(self, condition: BoolLike, answer: bool) -> bool:
        """The answer that "no size is 1" gives. An equation becomes a guard: backends see only from a fact that a size is 1."""
        if answer and isinstance(condition, BoolExpr) and condition.op == "eq0" and not self.is_unbacked(condition):
            before, self._general = self._general, False
            try:
                return self.decide(condition)
            finally:
                self._general = before
        return answer

    def specialize(self, e: IntLike) -> int:
        """Return the constant value of `e`. A guard records it unless the facts imply it."""
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
        """Return the constant value of a float expression. A guard on its bits records it."""
        if not isinstance(e, FloatExpr):
            return e
        value = self.hint(e)  # type: ignore[arg-type]
        if value is None:
            raise UnbackedError(explain.unbacked(self, e), e)  # type: ignore[arg-type]
        self.decide(same(e, float(value)))
        return float(value)

    def check_float(self, e: FloatLike) -> None:
        """Guard that Python computes a float here for later values, as it does at the hints.

        Raises what Python raises at the hints, or UsageError when the result is a complex number.
        """
        if not has_float_symbol(e) or any(s not in self.hints for s in free_symbols(e)):
            return
        value = evaluate(e, self.hints)  # type: ignore[call-overload]
        if not isinstance(value, float):
            raise UsageError(f"{self.describe(e)} is {value}, not a float; {explain.place(self)}")  # type: ignore[arg-type]
        self.decide(defined(e))

    def check_divisor(self, divisor: IntLike) -> None:
        """Guard that `divisor` is not zero. Raises DivisionByZeroError when it is zero, or when it is unbacked and can be zero."""
        nonzero = Ne(divisor, 0)
        answer = self.prove(nonzero)
        if answer:
            return
        if answer is None and self.hint(divisor):
            before, self._general = self._general, False  # this guards a real division, not a short cut for sizes of 1
            try:
                self.decide(nonzero)
            finally:
                self._general = before
            return
        if answer is None and (self.ask_oracle(nonzero) or self._assume(nonzero)):
            return
        raise DivisionByZeroError(explain.division(self, divisor, answer is False or self.hint(divisor) == 0))

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
        """Raise UndecidedError for decisions that facts do not settle and for new facts. For code whose result may be discarded."""
        before, self._refusing = self._refusing, True
        try:
            yield
        finally:
            self._refusing = before

    @contextmanager
    def size_oblivious_answers(self, assume: bool = False) -> Iterator[None]:
        """Answer a decision without a guard when "no size is 1" settles it. For kernels whose code for sizes of 1 only saves
        work. The caller must check what such kernels return for sizes of 1.

        assume: also answer a decision that "unbacked sizes are 2 or more" settles, and add a runtime assertion (listed in
        `assumptions`). The caller must be able to do without the result when the assertion fails.
        """
        before = self._general, self._assumes
        self._general, self._assumes = True, assume
        try:
            yield
        finally:
            self._general, self._assumes = before

    @contextmanager
    def dividing_like_c(self) -> Iterator[None]:
        """Quotients of numbers are infinity or nan where the divisor is 0, as in C++ code of PyTorch and Python code in its place."""
        before, self.divides_like_c = self.divides_like_c, True
        try:
            yield
        finally:
            self.divides_like_c = before

    def ask_oracle(self, condition: BoolLike) -> bool | None:
        """Return the oracle's answer, a fact from here on; None when there is no oracle or answer, or nothing may be recorded."""
        if self.oracle is None or self._refusing or not self._recording:
            return None
        answer = self.oracle(condition)
        if answer is not None:
            try:
                self.add_fact(condition if answer else Not(condition))
            except ContradictionError:  # the program has stated what does not hold in this call
                return None
        return answer

    def _assume(self, condition: BoolLike) -> bool | None:
        """Return the answer for unbacked sizes, and highest indices that counts follow from, of 2 or more, and assert it from here on
        (unless it changes no result: where guards are suppressed, and for short cuts). None when there is no such answer."""
        saves_work = not self._recording or (self.asks_for_short_cut is not None and self.asks_for_short_cut())
        if not self._assumes and not saves_work:
            return None
        numbers = [s for s in free_symbols(self.simplify(condition)) if s not in self.hints]
        if any(isinstance(s, FloatExpr) or self.facts.known_ranges.lower(s) < _HIGHEST_OF_NO_INDEX for s in numbers):
            return None
        answer = self.prove_under([Ge(s, 2) for s in numbers], condition)
        if answer is not None and not saves_work:
            self.assume(condition if answer else Not(condition))
        return answer

    def assume(self, condition: BoolLike) -> None:
        """Like `expect`, for a condition that the program does not need. The caller must be able to deoptimise where it fails."""
        before = len(self.runtime_asserts)
        self.expect(condition)
        self.assumptions += [found.condition for found in self.runtime_asserts[before:]]

    def _guard(self, guard: BoolLike) -> None:
        """Record a condition that holds at the hints. `facts` have simplified it and do not settle it."""
        assert isinstance(guard, BoolExpr), "a decided condition cannot need a guard"
        recorded = Guard(guard, self.where())
        promises.check_equation(self, recorded)
        self._learn(guard)
        self.guards.append(recorded)
        promises.check_ranges(self, recorded)

    def _learn(self, simple: BoolLike) -> None:
        """Add a fact that `facts` have already simplified."""
        if self._refusing:
            raise UndecidedError(f"{self.describe(simple)} would become a fact; {explain.place(self)}")
        self.learnt += 1
        self.facts.take(simple)
        self._generic = None

    # -- facts stated by the program or the user ----------------------------------------------------------------------

    def expect(self, condition: BoolLike, message: str = "") -> bool:
        """Accept the program's statement that the condition holds. For unbacked values it becomes a fact and a runtime assertion.

        Returns False when the condition is known to be false, True otherwise.
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
        """Add a fact that the caller guarantees, such as "a count is not negative". Nothing checks it later.

        Raises ContradictionError when it is known to be false, ConstraintError when the hints do not satisfy it.
        """
        answer = self.prove(condition)
        if answer is False:
            raise ContradictionError(explain.contradiction(self, condition))
        if answer is None:
            promises.check_hints(self, condition)
            self._accept(condition, self.facts.simplify(condition))

    def declare(self, condition: BoolLike, reason: str = "") -> None:
        """Add the user's promise about the inputs: a range, an equality or a multiple (Eq(s % 8, 0)). See `validate`.

        Raises ContradictionError when it contradicts an earlier declaration, ConstraintError when the hints do not
        satisfy it.
        """
        declared = Guard(condition, self.where(), reason) if isinstance(condition, BoolExpr) else None
        answer = self.prove(condition)
        if answer is False:
            raise ContradictionError(explain.contradiction(self, condition))
        if declared is None or answer:
            return
        promises.check_hints(self, condition)
        self._accept(condition, self.facts.simplify(condition))
        self.declared.append(declared)

    def _accept(self, condition: BoolLike, simple: BoolLike) -> None:
        """Add a stated condition as a fact. On ContradictionError the facts stay as they were."""
        before = self.facts.copy(keep_witness=True)
        try:
            self._learn(simple)
        except ContradictionError:
            self.facts = before
            raise ContradictionError(explain.contradiction(self, condition)) from None

    def violations(self) -> list[str]:
        """Describe each recorded guard that excludes sizes which the user declared possible."""
        return explain.violations(self)

    def validate(self) -> None:
        """Raise ConstraintError when a guard excludes sizes that were declared dynamic."""
        promises.check_guards(self)

    def check_declared(self, values: Mapping[Symbol, int]) -> None:
        """Raise ConstraintError when values of a later call break a declared range or promise."""
        promises.check_values(self, values)

    # -- guards and explanations --------------------------------------------------------------------------------------

    def minimal_guards(self) -> tuple[list[Guard], list[Dropped]]:
        """Return (guards to check, dropped guards with the guards that imply them)."""
        return minimal([*self.declared, *self.guards], self.hints)

    def compile_guards(self, symbols: Iterable[Symbol] | None = None) -> GuardFunction:
        """Compile one check: a function of the values of `symbols` -> bool. Default: all symbols with hints, in order of creation."""
        order = tuple(symbols) if symbols is not None else tuple(s for s in self.symbols if s in self.hints)
        kept, _dropped = self.minimal_guards()
        return GuardFunction(order, tuple(g for g in kept if g.expr.free_symbols <= set(order)))

    def explain(self, s: IntLike) -> str:
        """Say why a dimension is static or dynamic: its source, policy, range, the lines that constrained it, implied guards."""
        return explain.explain(self, s)
