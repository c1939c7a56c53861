"""Recorded decisions, the smallest list of them that says the same, and a compiled function that checks it."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from treadle_shapes.errors import ContradictionError
from treadle_shapes.facts import Facts
from treadle_shapes.nodes import BoolExpr, Symbol
from treadle_shapes.printers import to_python
from treadle_shapes.prove import prove


class Frame(NamedTuple):
    """One line of user code."""

    filename: str
    line: int
    function: str

    def __str__(self) -> str:
        # Here, not at the top: it loads re and tokenize, a third of this package's import time, for messages only.
        import linecache

        text = linecache.getline(self.filename, self.line).strip()
        return f"{self.filename}:{self.line} in {self.function}" + (f": {text}" if text else "")


Stack = tuple[Frame, ...]

_SKIPPED = ("treadle_shapes", "treadle_tracer", "treadle_autograd", "torch", "sympy")


def user_stack(limit: int = 4) -> Stack:
    """The innermost frames of the caller that belong neither to this package nor to torch."""
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
        return f"{to_python(self.expr)}  # {self.reason or self.where}"


class Dropped(NamedTuple):
    """A guard that need not be checked, and the guards that imply it (empty: the symbols' ranges alone do)."""

    guard: Guard
    implied_by: tuple[Guard, ...]


def _facts(guards: Sequence[Guard]) -> Facts | None:
    facts = Facts()
    try:
        for guard in guards:
            facts.add(guard.expr)
    except ContradictionError:
        return None
    return facts


def _implied_by(guard: Guard, later: Sequence[Guard]) -> tuple[Guard, ...]:
    """The fewest of the guards that together imply `guard` for which that is easily seen: none, one, or all of them."""
    candidates: list[tuple[Guard, ...]] = [(), *[(other,) for other in later]]
    for candidate in candidates:
        facts = _facts(candidate)
        if facts is not None and prove(guard.expr, facts) is True:
            return candidate
    return tuple(later)


def minimal(guards: Sequence[Guard]) -> tuple[list[Guard], list[Dropped]]:
    """(the guards to check, the guards that follow from those); every dropped one has a proof.

    Goes from the last guard to the first: a guard was recorded because the earlier ones did not imply it, so what makes
    it superfluous came later.
    """
    unique: dict[BoolExpr, Guard] = {}
    for guard in guards:
        unique.setdefault(guard.expr, guard)
    facts = Facts()
    kept: list[Guard] = []
    dropped: list[Dropped] = []
    for guard in reversed(unique.values()):
        if prove(guard.expr, facts) is True:
            dropped.append(Dropped(guard, _implied_by(guard, kept)))
        else:
            kept.append(guard)
            facts.add(guard.expr)
    return kept[::-1], dropped[::-1]


class GuardFunction:
    """A compiled check: call it with the values of `symbols` in order (or see `bind`) to get True or False.

    `source` is its Python text, `check` the function itself.
    """

    def __init__(self, symbols: tuple[Symbol, ...], guards: tuple[Guard, ...]) -> None:
        self.symbols = symbols
        self.guards = guards
        names = {s: f"v{index}" for index, s in enumerate(self.symbols)}
        conditions = [check for s, name in names.items() if (check := _range_check(s, name))]
        conditions += [to_python(guard.expr, names) for guard in self.guards]
        body = " and ".join(f"({c})" for c in conditions) or "True"
        self.source = f"def check({', '.join(names.values())}):\n    return {body}\n"
        namespace: dict = {"math": math}
        exec(compile(self.source, "<treadle_shapes guards>", "exec"), namespace)
        self.check: Callable[..., bool] = namespace["check"]

    def __call__(self, *values: int) -> bool:
        return self.check(*values)

    def bind(self, values: Mapping[Symbol, int]) -> bool:
        return self.check(*[values[s] for s in self.symbols])

    def why_fails(self, *values: int) -> str | None:
        """The first range or guard that these values do not satisfy, in words."""
        known = dict(zip(self.symbols, values, strict=True))
        for s, value in known.items():
            if value not in s.range:
                return f"{s.name} == {value} is outside [{s.lower}, {'inf' if s.upper is None else s.upper}]"
        for guard in self.guards:
            if not GuardFunction(self.symbols, (guard,)).check(*values):
                shown = ", ".join(f"{s.name}={known[s]}" for s in self.symbols if s in guard.expr.free_symbols)
                return f"{to_python(guard.expr)} fails for {shown} (needed by {guard.where})"
        return None


def _range_check(s: Symbol, name: str) -> str:
    below = "" if s.lower is None else f"{s.lower} <= "
    above = "" if s.upper is None else f" <= {s.upper}"
    return f"{below}{name}{above}" if below or above else ""
