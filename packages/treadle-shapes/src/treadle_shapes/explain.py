"""What a ShapeEnv has to say to people: why a dimension is what it is, and the texts of its errors, in the user's terms."""

from __future__ import annotations

from typing import TYPE_CHECKING

from treadle_shapes.nodes import BoolExpr, BoolLike, IntLike, Symbol, free_symbols
from treadle_shapes.rewrite import evaluate

if TYPE_CHECKING:
    from treadle_shapes.env import ShapeEnv, SymbolInfo
    from treadle_shapes.guards import Guard


def explain(env: ShapeEnv, s: IntLike) -> str:
    """See `ShapeEnv.explain`."""
    if not isinstance(s, Symbol):
        return f"{s} is a constant: the dimension was static from the start (policy static, or size 0 or 1)"
    info = env.symbols[s]
    value = env.simplify(s)
    low, high = env.bounds(s)
    state = f"{s.name} ({info.source}, hint {info.hint}, {info.policy})"
    if isinstance(value, int):
        lines = [f"{state} is static: it must be {value}"]
    elif value is not s:
        lines = [f"{state} always equals {env.describe(value)}"]
    else:
        lines = [f"{state} is dynamic, from {low} to {'any size' if high is None else high}"]
    kept, dropped = env.minimal_guards()
    lines += [f"  because {env.describe(g.expr)}, at {g.where}" for g in kept if s in g.expr.free_symbols]
    for drop in dropped:
        if s in drop.guard.expr.free_symbols:
            cause = " and ".join(env.describe(g.expr) for g in drop.implied_by) or "the ranges of the symbols"
            lines.append(f"  {env.describe(drop.guard.expr)} (at {drop.guard.where}) follows from {cause}")
    return "\n".join(lines)


def place(env: ShapeEnv) -> str:
    """The user's line that is being worked on."""
    stack = env.where()
    return f"asked at {stack[0]}" if stack else "asked at an unknown place"


def symbols_in_order(condition: BoolLike) -> list[Symbol]:
    return sorted(condition.free_symbols, key=lambda s: s.order) if isinstance(condition, BoolExpr) else []


def interval(low: int | None, high: int | None) -> str:
    return f"[{'-inf' if low is None else low}, {'inf' if high is None else high}]"


def declared_range(env: ShapeEnv, s: Symbol) -> str:
    """The range of a symbol and where it was declared."""
    stack = env.symbols[s].stack if s in env.symbols else ()
    return f"{interval(s.lower, s.upper)} of {env.source_of(s)}" + (f" declared at {stack[0]}" if stack else "")


def outside(env: ShapeEnv, s: Symbol, value: int) -> str:
    """A later call has a size outside the range that was declared."""
    where = env.symbols[s].stack if s in env.symbols else ()
    return (
        f"{env.source_of(s)} == {value} is outside its declared range {interval(s.lower, s.upper)}"
        + (f" (declared at {where[0]})" if where else "")
        + "; declare a range that holds it, or give another size"
    )


def specialised(env: ShapeEnv, info: SymbolInfo, value: int, guard: Guard) -> str:
    """A guard makes a dimension constant that was declared dynamic."""
    return (
        f"{info.source} is declared dynamic, but {env.describe(guard.expr)} is needed at {guard.where}, "
        f"which makes it the constant {value}; mark it static, or change that line to work for any size"
    )


def unbacked(env: ShapeEnv, e: IntLike | BoolLike) -> str:
    """A value was asked for that is known only at run time."""
    simple = env.simplify(e)
    unknown = sorted((s for s in free_symbols(simple) if s not in env.hints), key=lambda s: s.order)
    sources = ", ".join(env.source_of(s) for s in unknown)
    return (
        f"{env.describe(simple)} must be known while tracing, but {sources} is known only at run time; "
        f"{place(env)}; state what holds with torch._check(...), or ask guard_or_false / guard_or_true"
    )


def contradiction(env: ShapeEnv, condition: BoolLike) -> str:
    """With what a promise does not go together. (A condition that the ranges of its symbols settle arrives as False.)"""
    concerned = symbols_in_order(condition) or [s for s in env.symbols if s in env.hints]
    before = [f"{env.describe(g.expr)} declared at {g.where}" for g in env.declared]
    before += [f"{env.describe(g.expr)} needed at {g.where}" for g in env.guards]
    before += [f"{env.describe(a.condition)} stated at {a.stack[0]}" for a in env.runtime_asserts if a.stack]
    before += [f"the range {declared_range(env, s)}" for s in concerned]
    what = "this condition" if isinstance(condition, bool) else env.describe(condition)
    return f"{what} ({place(env)}) contradicts what was declared before: {'; '.join(before)}: drop one of them"


def violations(env: ShapeEnv) -> list[str]:
    """See `ShapeEnv.violations`."""
    found = []
    for s, info in env.symbols.items():
        if info.policy != "dynamic":
            continue
        low, high = env.facts.ranges.get(s, s.range)
        for guard in env.guards:
            if guard.expr.free_symbols != {s} or guard in env.declared:
                continue
            wider = [v for v in (s.lower, s.upper) if v is not None and not evaluate(guard.expr, {s: v})]
            if wider or (s.upper is None and isinstance(high, int)):
                found.append(
                    f"{info.source} is declared to range over {interval(s.lower, s.upper)}, but {env.describe(guard.expr)} "
                    f"is needed at {guard.where}: only [{low}, {high}] works; declare that, or change that line"
                )
    return found
