"""Errors of the tracer: unsupported user code (recovered by a graph break), wrong use, and bugs of ours.

Every `Unsupported` carries a code that `breaks.toml` explains; raising one with a code that is not listed is an error at once.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class BreakInfo:
    """What `breaks.toml` says about a code: why tracing stops there, and what a person can do about it."""

    code: str
    explanation: str
    hints: tuple[str, ...]


@cache
def break_table() -> dict[str, BreakInfo]:
    """All codes of `breaks.toml`."""
    table = tomllib.loads((files("treadle_tracer") / "breaks.toml").read_text(encoding="utf-8"))
    return {code: BreakInfo(code, entry["explanation"], tuple(entry["hints"])) for code, entry in table.items()}


class Unsupported(Exception):
    """User code that cannot be traced. Recovered by a graph break at the instruction of the root frame.

    `code` is a key of `breaks.toml`, `context` says what exactly was met, `user_stack` is the traced program's stack,
    outermost first, as (file, line, function).
    """

    def __init__(self, code: str, context: str = "", user_stack: tuple[tuple[str, int, str], ...] = ()):
        if code not in break_table():
            raise InternalError("errors", f"break code {code!r} is not listed in breaks.toml")
        self.code = code
        self.context = context
        self.user_stack = user_stack
        super().__init__(code, context)

    @property
    def info(self) -> BreakInfo:
        return break_table()[self.code]

    def __str__(self) -> str:
        where = "".join(f'\n  File "{file}", line {line}, in {name}' for file, line, name in self.user_stack)
        text = self.info.explanation if not self.context else f"{self.info.explanation} ({self.context})"
        return f"{self.code}: {text}{where}"


class PathEnds(Exception):
    """A speculated path (`trace.speculation`) reaches an effect that must not happen. Never leaves that module."""


class InternalError(RuntimeError):
    """A bug of the tracer: the pass it happened in, and the user's line where known."""

    def __init__(self, pass_name: str, message: str, user_line: str = "", dump_path: str = ""):
        self.pass_name = pass_name
        self.message = message
        self.user_line = user_line
        self.dump_path = dump_path
        super().__init__(f"{pass_name}: {message}" + (f" (at {user_line})" if user_line else ""))
