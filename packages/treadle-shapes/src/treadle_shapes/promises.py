"""What the user has declared about sizes: guards must leave it open, the traced call must satisfy it, and later calls must keep it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from treadle_shapes import explain
from treadle_shapes.errors import ConstraintError, MissingValueError, UsageError
from treadle_shapes.floats import FloatExpr
from treadle_shapes.guards import Guard
from treadle_shapes.nodes import BoolLike, Symbol, is_polynomial
from treadle_shapes.rewrite import evaluate

if TYPE_CHECKING:
    from treadle_shapes.env import ShapeEnv


def check_equation(env: ShapeEnv, guard: Guard) -> None:
    """Refuse a guard that fixes a dimension declared dynamic, before it becomes a fact.

    An equation of polynomials has finitely many roots and fixes the dimension. `s % 8 == 0` and `max(s, 4) == s` leave many
    sizes. Whether the range has shrunk to one size shows only after the guard has become a fact: `check_ranges`.
    """
    if guard.expr.op == "eq0" and len(guard.expr.free_symbols) == 1 and is_polynomial(guard.expr.args[0]):
        (s,) = guard.expr.free_symbols
        _refuse_one_size(env, s, guard)


def check_ranges(env: ShapeEnv, guard: Guard) -> None:
    """Refuse a guard that has become a fact and fixes a dimension declared dynamic."""
    for s, value in env.facts.substitutions.items():
        if isinstance(value, int):
            _refuse_one_size(env, s, guard, value)
    ranges = env.facts.known_ranges
    for s in guard.expr.free_symbols:
        if not isinstance(s, FloatExpr) and ranges.lower(s) == ranges.upper(s):
            _refuse_one_size(env, s, guard)


def _refuse_one_size(env: ShapeEnv, s: Symbol, guard: Guard, value: int | None = None) -> None:
    """Raise if the user has declared `s` dynamic. `value`: what the guard fixes it at, by default its hint."""
    info = env.symbols.get(s)
    if info is not None and info.policy == "dynamic":
        raise ConstraintError(explain.specialised(env, info, env.hints[s] if value is None else value, guard))


def check_guards(env: ShapeEnv) -> None:
    """Refuse guards that exclude sizes which the user declared possible."""
    found = env.violations()
    if found:
        raise ConstraintError("\n".join(found))


def check_hints(env: ShapeEnv, condition: BoolLike) -> None:
    """Refuse a condition that the sizes of the traced call do not satisfy."""
    if env.hint(condition) is False:
        raise ConstraintError(
            f"{env.describe(condition)} is declared ({explain.place(env)}) but does not hold for the given sizes: "
            + ", ".join(f"{env.source_of(s)} == {env.hints.get(s)}" for s in explain.symbols_in_order(condition))
        )


def check_values(env: ShapeEnv, values: Mapping[Symbol, int]) -> None:
    """Refuse values of a later call that break a declared range or promise."""
    for s, value in values.items():
        if not isinstance(s, Symbol):
            raise UsageError(f"check_declared: values by symbols are needed, got {s!r}")
        if value not in s.range:
            raise ConstraintError(explain.outside(env, s, value))
    for promise in env.declared:
        missing = [s for s in explain.symbols_in_order(promise.expr) if s not in values]
        if missing:
            raise MissingValueError(
                f"check_declared: {env.describe(promise.expr)} is promised, and there is no value for {env.source_of(missing[0])}"
            )
        if not evaluate(promise.expr, values):
            given = ", ".join(f"{env.source_of(s)} == {values[s]}" for s in explain.symbols_in_order(promise.expr))
            raise ConstraintError(
                f"{env.describe(promise.expr)}, promised at {promise.where}, does not hold for {given}"
            )
