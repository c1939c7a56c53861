"""Texts of a ShapeEnv for people: explanations of dimensions, and error messages in the user's terms."""

from __future__ import annotations

from itertools import islice, product
from typing import TYPE_CHECKING

from treadle_shapes.errors import UsageError
from treadle_shapes.facts import Facts
from treadle_shapes.floats import holds
from treadle_shapes.logic import COMPARISONS
from treadle_shapes.nodes import BoolExpr, BoolLike, Expr, IntLike, Symbol, as_terms, free_symbols
from treadle_shapes.rewrite import evaluate

if TYPE_CHECKING:
    from treadle_shapes.env import ShapeEnv, SymbolInfo
    from treadle_shapes.guards import Guard, Stack


# `_left_out` tries at most this many combinations of sizes.
_MOST_TRIED = 2000


def explain(env: ShapeEnv, e: IntLike) -> str:
    """See `ShapeEnv.explain`."""
    if not isinstance(e, Expr):
        return f"{e} is a constant: the dimension was static from the start (policy static, or size 0 or 1)"
    if not isinstance(e, Symbol):
        parts = [explain(env, s) for s in symbols_in_order(e)]
        return "\n".join([f"{env.describe(e)} is computed from", *parts])
    if e not in env.symbols:
        raise UsageError(f"explain: {e.name} is no symbol of this environment")
    info = env.symbols[e]
    also = "".join([f", also {source}" for s, source in env.shared if s is e])
    lines = [f"{e.name} ({info.source}{also}, hint {info.hint}, {info.policy}) {_state(env, e)}"]
    kept, dropped = env.minimal_guards()
    lines += [f"  because {env.describe(g.expr)}, at {g.where}" for g in kept if e in g.expr.free_symbols]
    for drop in dropped:
        if e in drop.guard.expr.free_symbols:
            cause = " and ".join(env.describe(g.expr) for g in drop.implied_by) or "the ranges of the symbols"
            lines.append(f"  {env.describe(drop.guard.expr)} (at {drop.guard.where}) follows from {cause}")
    for stated in env.runtime_asserts:
        if e in stated.condition.free_symbols:
            lines.append(f"  {env.describe(stated.condition)}, checked at run time (stated at {_first(stated.stack)})")
    return "\n".join(lines)


def _state(env: ShapeEnv, s: Symbol) -> str:
    value = env.simplify(s)
    if isinstance(value, int):
        return f"is static: it must be {value}"
    if value is not s:
        return f"always equals {env.describe(value)}"
    low, high = env.bounds(s)
    if low is None:
        return "is dynamic, any integer" + ("" if high is None else f" up to {high}")
    return f"is dynamic, from {low} to {'any size' if high is None else high}"


def _first(stack: Stack) -> str:
    return str(stack[0]) if stack else "an unknown place"


def place(env: ShapeEnv) -> str:
    """Return the user's line that is being traced."""
    stack = env.where()
    return f"asked at {stack[0]}" if stack else "asked at an unknown place"


def symbols_in_order(e: IntLike | BoolLike) -> list[Symbol]:
    return sorted(free_symbols(e), key=lambda s: s.order)


def interval(low: int | None, high: int | None) -> str:
    return f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"


def declared_range(env: ShapeEnv, s: Symbol) -> str:
    """Describe the range of a symbol and the place of its declaration."""
    stack = env.symbols[s].stack if s in env.symbols else ()
    return f"{interval(s.lower, s.upper)} of {env.source_of(s)}" + (f" declared at {stack[0]}" if stack else "")


def outside(env: ShapeEnv, s: Symbol, value: int) -> str:
    """Message: a later call has a size outside its declared range."""
    where = env.symbols[s].stack if s in env.symbols else ()
    return (
        f"{env.source_of(s)} == {value} is outside its declared range {interval(s.lower, s.upper)}"
        + (f" (declared at {where[0]})" if where else "")
        + "; declare a range that holds it, or give another size"
    )


def specialised(env: ShapeEnv, info: SymbolInfo, value: int, guard: Guard) -> str:
    """Message: a guard fixes a dimension that was declared dynamic."""
    return (
        f"{info.source} is declared dynamic, but {env.describe(guard.expr)} is needed at {guard.where}, "
        f"which makes it the constant {value}; mark it static, or change that line to work for any size"
    )


def unbacked(env: ShapeEnv, e: IntLike | BoolLike) -> str:
    """Message: tracing needs a value that is known only at run time."""
    simple = env.simplify(e)
    unknown = sorted((s for s in free_symbols(simple) if s not in env.hints), key=lambda s: s.order)
    sources = ", ".join(env.source_of(s) for s in unknown)
    return (
        f"{env.describe(simple)} must be known while tracing, but {sources} is known only at run time; "
        f"{place(env)}; state what holds with torch._check(...), or ask guard_or_false / guard_or_true"
    )


def contradiction(env: ShapeEnv, condition: BoolLike) -> str:
    """Message: a condition contradicts earlier ones. A condition that its symbols' ranges refute arrives as False."""
    concerned = symbols_in_order(condition) or [s for s in env.symbols if s in env.hints]
    before = [f"{env.describe(g.expr)} declared at {g.where}" for g in env.declared]
    before += [f"{env.describe(g.expr)} needed at {g.where}" for g in env.guards]
    before += [f"{env.describe(a.condition)} stated at {_first(a.stack)}" for a in env.runtime_asserts]
    before += [f"the range {declared_range(env, s)}" for s in concerned]
    what = "this condition" if isinstance(condition, bool) else env.describe(condition)
    if not before:
        return f"{what} ({place(env)}) is known to be false: drop it"
    return f"{what} ({place(env)}) contradicts what was declared before: {'; '.join(before)}: drop one of them"


def violations(env: ShapeEnv) -> list[str]:
    """See `ShapeEnv.violations`."""
    found = []
    promised = Facts(env.hints)
    for promise in env.declared:
        promised.add(promise.expr)
    for guard in env.guards:
        needed = promised.simplify(guard.expr)
        symbols = symbols_in_order(needed)
        if isinstance(needed, bool) or not all(
            s in env.symbols and env.symbols[s].policy == "dynamic" for s in symbols
        ):
            continue
        example = _left_out(env, needed, symbols, promised)
        if example is not None:
            ranges = ", ".join(
                f"{env.source_of(s)} is declared to range over {interval(s.lower, s.upper)}" for s in symbols
            )
            sizes = " and ".join(f"{env.source_of(s)} == {value}" for s, value in example.items())
            found.append(
                f"{ranges}, but {env.describe(guard.expr)} is needed at {guard.where}, which leaves out {sizes}"
                f"{_remainder(env, symbols)}; declare what works, or change that line"
            )
    return found


def division(env: ShapeEnv, divisor: IntLike, is_zero: bool) -> str:
    """Say that a divisor is 0, or may be."""
    what = env.describe(divisor)
    if is_zero:
        return f"division by {what}, which is 0; {place(env)}; check that {what} is not 0 before that line"
    return (
        f"division by {what}, which is known only at run time and can be 0; {place(env)}; "
        f"state that it is not: torch._check({what} > 0), or env.expect(Ne(divisor, 0))"
    )


def _remainder(env: ShapeEnv, symbols: list[Symbol]) -> str:
    """Describe the range that guards leave to a single symbol, where it is narrower than declared; "" otherwise."""
    (s, *others) = symbols
    low, high = env.bounds(s)
    return "" if others or (low, high) == (s.lower, s.upper) else f": only {interval(low, high)} works"  # type: ignore[arg-type]


def _left_out(env: ShapeEnv, needed: BoolExpr, symbols: list[Symbol], promised: Facts) -> dict[Symbol, int] | None:
    """Find sizes that satisfy all declarations of the user and violate the condition. None when none were found."""
    per_symbol = max(3, int(_MOST_TRIED ** (1 / len(symbols))))
    tried = islice(product(*[_candidates(env, s, needed, per_symbol) for s in symbols]), _MOST_TRIED)
    for sizes in tried:
        example = dict(zip(symbols, sizes, strict=True))
        everything = {**env.hints, **example}
        everything.update({s: evaluate(value, everything) for s, value in promised.substitutions.items()})
        if not holds(needed, everything) and all(holds(promise.expr, everything) for promise in env.declared):
            return example
    return None


def _candidates(env: ShapeEnv, s: Symbol, needed: BoolExpr, count: int) -> list[int]:
    """Pick `count` sizes of the declared range: its ends, sizes near the condition's constants and the hint, then the smallest ones."""
    near = [env.hints[s]]
    for condition in (needed, *needed.args):
        if isinstance(condition, BoolExpr) and condition.op in COMPARISONS:
            terms, const = as_terms(condition.args[0])
            near += [-const // c for c in terms.values()]
    low, high = s.lower or 0, s.upper
    wanted = [
        low,
        *([] if high is None else [high]),
        *[n + d for n in near for d in (0, 1, -1)],
        *range(low, low + count),
    ]
    return sorted(list(dict.fromkeys([n for n in wanted if n in s.range]))[:count])
