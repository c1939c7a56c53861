"""Guards: recorded decisions, the minimal list of guards that implies all of them, and its compiled check."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from treadle_shapes.bounds import OWN
from treadle_shapes.errors import ContradictionError, ExpressionTooLargeError, UsageError
from treadle_shapes.facts import Facts
from treadle_shapes.floats import has_float_symbol, holds
from treadle_shapes.nodes import BoolExpr, BoolLike, Fn, Node, Symbol, as_terms, children
from treadle_shapes.printers import text, to_python
from treadle_shapes.prove import follows, prove


class Frame(NamedTuple):
    """One line of user code."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        # Only messages need linecache. It loads re and tokenize, a third of this package's import time, so it is imported here.
        import linecache

        text = linecache.getline(self.filename, self.line).strip()
        return f"{self.filename}:{self.line} in {self.function}" + (f": {text}" if text else "")


Stack = tuple[Frame, ...]

_SKIPPED = ("treadle_shapes", "treadle_tracer", "treadle_autograd", "torch", "sympy")


def user_stack(limit: int = 4) -> Stack:
    """Return the caller's innermost frames that belong neither to Treadle nor to torch."""
    frames: list[Frame] = []
    frame = sys._getframe(1)
    while frame is not None and len(frames) < limit:
        module = frame.f_globals.get("__name__", "").partition(".")[0]
        if module not in _SKIPPED:
            frames.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(frames)


class Guard:
    """A condition on sizes that compiled code relies on, and the user's line that asked."""

    __slots__ = ("expr", "reason", "stack")

    def __init__(self, expr: BoolExpr, stack: Stack = (), reason: str = "") -> None:
        self.expr = expr
        self.stack = stack
        self.reason = reason

    def __repr__(self) -> str:
        return f"Guard({self})"

    @property
    def where(self) -> str:
        return str(self.stack[0]) if self.stack else "unknown place"

    def __str__(self) -> str:
        return f"{text(self.expr)}  # {self.reason or self.where}"


class Dropped:
    """A guard that is not checked, and the guards that imply it. An empty tuple: the symbols' ranges imply it."""

    __slots__ = ("_candidates", "_implied_by", "guard")

    def __init__(self, guard: Guard, candidates: Sequence[Guard]) -> None:
        """candidates: guards that together imply `guard`. `implied_by` finds the ones that suffice, on first access."""
        self.guard = guard
        self._candidates = tuple(candidates)
        self._implied_by: tuple[Guard, ...] | None = None

    @property
    def implied_by(self) -> tuple[Guard, ...]:
        if self._implied_by is None:
            self._implied_by = _implied_by(self.guard, self._candidates)
        return self._implied_by


def _facts(guards: Sequence[Guard]) -> Facts | None:
    facts = Facts()
    try:
        for guard in guards:
            facts.add(guard.expr)
    except ContradictionError:
        return None
    return facts


def _implied_by(guard: Guard, later: Sequence[Guard]) -> tuple[Guard, ...]:
    """Return the guards that imply `guard`: none or one of `later` where a proof shows it, otherwise all of them."""
    candidates: list[tuple[Guard, ...]] = [(), *[(other,) for other in later]]
    for candidate in candidates:
        facts = _facts(candidate)
        if facts is not None and prove(guard.expr, facts) is True:
            return candidate
    return tuple(later)


# -- bounds of single symbols -----------------------------------------------------------------------------------------

#: (symbol, is upper end, end)
Bound = tuple[Symbol, bool, int]


def bound_of(condition: BoolExpr) -> Bound | None:
    """Return the bound that a condition sets on one symbol, None for any other condition.

    s + c <= 0  ==  s <= -c;  c - s <= 0  ==  s >= c;  s != end  ==  s >= end + 1 where s starts at `end` (the upper end likewise)
    """
    op = condition.op
    if op not in ("le0", "ne0"):
        return None
    coefficients, const = as_terms(condition.args[0])
    if len(coefficients) != 1:
        return None
    ((s, c),) = coefficients.items()
    if not isinstance(s, Symbol) or c not in (1, -1):
        return None
    if op == "le0":
        return (s, True, -const) if c == 1 else (s, False, const)
    end = -const * c
    if end == s.lower:
        return s, False, end + 1
    return (s, True, end - 1) if end == s.upper else None


def _wider(conditions: Sequence[BoolExpr]) -> dict[int, tuple[int, ...]]:
    """Map the position of each bound that a narrower bound of the same symbol implies to the position of that narrower bound."""
    narrowest: dict[tuple[Symbol, bool], tuple[int, int]] = {}
    wider: list[tuple[int, tuple[Symbol, bool]]] = []
    for position, condition in enumerate(conditions):
        bound = bound_of(condition)
        if bound is None:
            continue
        s, upper, end = bound
        best = narrowest.get((s, upper))
        if best is None or (end < best[0] if upper else end > best[0]):
            narrowest[s, upper] = (end, position)
            if best is not None:
                wider.append((best[1], (s, upper)))
        else:
            wider.append((position, (s, upper)))
    return {position: (narrowest[side][1],) for position, side in wider}


# The guard function and every explanation need this list, and parts of one program share it.
@lru_cache(64)
def _minimal(
    conditions: tuple[BoolExpr, ...], witness: tuple[tuple[Symbol, int], ...]
) -> tuple[tuple[int, ...], dict[int, tuple[int, ...]]]:
    """Return (positions of the conditions to keep, dropped position -> positions of the conditions that together imply it)."""
    dropped = _wider(conditions)
    facts = Facts(dict(witness) if witness else None)
    kept: list[int] = []
    mentioned: set[Symbol] = set()
    for position in range(len(conditions) - 1, -1, -1):
        if position in dropped:
            continue
        condition = conditions[position]
        simple: BoolLike = condition
        if not mentioned.isdisjoint(condition.free_symbols):
            simple = facts.simplify(condition)
            if follows(simple, facts):
                dropped[position] = tuple(kept)
                continue
        kept.append(position)
        mentioned |= condition.free_symbols
        facts.take(simple)
    return tuple(kept[::-1]), dropped


def minimal(guards: Sequence[Guard], witness: Mapping[Symbol, int] | None = None) -> tuple[list[Guard], list[Dropped]]:
    """Return (the guards to check, the guards that follow from those). Every dropped guard has a proof.

    The narrowest of several bounds of one symbol implies the others. The remaining guards are visited from the last to the first: a guard
    was recorded because the earlier ones did not imply it, so only later ones can.
    witness: sizes at which all guards hold. They refute most implications without a proof search.
    """
    unique: dict[BoolExpr, Guard] = {}
    for guard in guards:
        unique.setdefault(guard.expr, guard)
    inputs = tuple(unique.values())
    kept, dropped = _minimal(tuple(unique), tuple(witness.items()) if witness else ())
    return [inputs[k] for k in kept], [
        Dropped(inputs[position], [inputs[k] for k in dropped[position]]) for position in sorted(dropped)
    ]


# -- the compiled check -----------------------------------------------------------------------------------------------


class GuardFunction:
    """A check of sizes. Call it with the values of `symbols` in order (or use `bind`) to get True or False.

    `check` is the function itself, `source` its Python text. `box` holds the closed interval of each symbol (None: no bound), from its
    range and from the guards that bound it. `relations` holds the other guards. Only relations are compiled.
    """

    def __init__(self, symbols: tuple[Symbol, ...], guards: tuple[Guard, ...]) -> None:
        self.symbols = symbols
        self.guards = guards
        ends: dict[Symbol, list[int | None]] = {s: [s.lower, s.upper] for s in symbols}
        relations = []
        for guard in guards:
            bound = bound_of(guard.expr)
            if bound is None:
                relations.append(guard)
                continue
            s, upper, end = bound
            old = ends[s][upper]
            ends[s][upper] = end if old is None else min(old, end) if upper else max(old, end)
        self.relations = tuple(relations)
        self.box: tuple[tuple[int | None, int | None], ...] = tuple((ends[s][0], ends[s][1]) for s in symbols)
        self.check: Callable[..., bool] = self._compiled() if relations else _box_check(self.box)

    @property
    def source(self) -> str:
        names = {s: f"v{index}" for index, s in enumerate(self.symbols)}
        conditions = [
            check for ends, name in zip(self.box, names.values(), strict=True) if (check := _within(ends, name))
        ]
        conditions += [to_python(guard.expr, names) for guard in self.relations]
        body = " and ".join([f"({c})" for c in conditions]) or "True"
        head = f"def check({', '.join(names.values())}):\n"
        if any(_may_fail(guard.expr) for guard in self.relations):
            # The expression may have no value at other sizes. The guard excludes those.
            return f"{head}    try:\n        return {body}\n    except (ArithmeticError, ValueError):\n        return False\n"
        return f"{head}    return {body}\n"

    def _compiled(self) -> Callable[..., bool]:
        if any(_mentions(guard.expr, ("pow", "shl")) for guard in self.relations):
            return self._evaluated()  # Python returns a fraction or a huge integer here
        try:
            return _function_of(self.source)
        except (ExpressionTooLargeError, SyntaxError, MemoryError):
            return self._evaluated()  # the text is too long, or nested deeper than Python's parser allows

    def _evaluated(self) -> Callable[..., bool]:
        inside, symbols, relations = _box_check(self.box), self.symbols, self.relations

        def check(*values: int) -> bool:
            by_symbol = dict(zip(symbols, values, strict=True))
            return inside(*values) and all(holds(guard.expr, by_symbol) for guard in relations)

        return check

    def __call__(self, *values: int) -> bool:
        return self.check(*values)

    def bind(self, values: Mapping[Symbol, int]) -> bool:
        return self.check(*[values[s] for s in self.symbols])

    def why_fails(self, *values: int) -> str | None:
        """Describe the first range or guard that these values do not satisfy; None when they satisfy all."""
        by_symbol = dict(zip(self.symbols, values, strict=True))
        for s, value in by_symbol.items():
            if isinstance(value, int) and value not in s.range:
                return f"{s.name} == {value} is outside [{s.lower}, {'inf' if s.upper is None else s.upper}]"
        for guard in self.guards:
            if not holds(guard.expr, by_symbol):
                shown = ", ".join(f"{s.name}={by_symbol[s]}" for s in self.symbols if s in guard.expr.free_symbols)
                return f"{text(guard.expr)} fails for {shown} (needed by {guard.where})"
        return None


def _functions(e: Node) -> Iterator[Fn]:
    """Yield every function node of a condition once."""
    seen, stack = {e}, [e]
    while stack:
        node = stack.pop()
        if isinstance(node, Fn):
            yield node
        below = [child for child in children(node) if child not in seen]
        seen.update(below)
        stack += below


def _mentions(e: Node, ops: tuple[str, ...]) -> bool:
    return any(node.op in ops for node in _functions(e))


def _may_fail(e: BoolExpr) -> bool:
    """Whether Python may raise when it computes this: because of floats, a divisor that can be 0, or a negative shift count."""
    if has_float_symbol(e):
        return True
    for node in _functions(e):
        if node.op in ("floordiv", "mod", "shr"):
            low, high = OWN.interval(node.args[1])
            if low <= 0 <= high and not (node.op == "shr" and low == 0):
                return True
    return False


@lru_cache(256)
def _function_of(source: str) -> Callable[..., bool]:
    """Return the function `check` that `source` defines. It has no state, so equal texts share it."""
    namespace: dict = {"math": math}
    exec(compile(source, "<treadle_shapes guards>", "exec"), namespace)
    return namespace["check"]


def _within(ends: tuple[int | None, int | None], name: str) -> str:
    low, high = ends
    below = "" if low is None else f"{low} <= "
    above = "" if high is None else f" <= {high}"
    return f"{below}{name}{above}" if below or above else ""


def _one(low: float, high: float) -> Callable[..., bool]:
    return lambda a: low <= a <= high


def _two(low: float, high: float, low_b: float, high_b: float) -> Callable[..., bool]:
    return lambda a, b: low <= a <= high and low_b <= b <= high_b


def _box_check(box: Sequence[tuple[int | None, int | None]]) -> Callable[..., bool]:
    """Return a check of intervals alone. It uses ready-made functions, because running Python's compiler would dominate the cost."""
    ends = [(-math.inf if low is None else low, math.inf if high is None else high) for low, high in box]
    # Float symbols have no bounds, and nan would lie in no interval, so they are left out.
    bounded = [(index, *pair) for index, pair in enumerate(ends) if pair != (-math.inf, math.inf)]
    if len(bounded) == len(ends) == 1:
        return _one(*ends[0])
    if len(bounded) == len(ends) == 2:
        return _two(*ends[0], *ends[1])
    count = len(ends)

    def check(*values: int) -> bool:
        if len(values) != count:
            raise UsageError(f"a guard function of {count} values was called with {len(values)}")
        return all(low <= values[index] <= high for index, low, high in bounded)

    return check
