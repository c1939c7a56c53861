"""Errors of the tracer: unsupported user code (recovered by a graph break), wrong use, and bugs of the tracer.

Every `Unsupported` has a code that `breaks.toml` explains; a code that is not listed there is an InternalError.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files


@dataclass(frozen=True)
class BreakInfo:
    """An entry of `breaks.toml`: why tracing stops at this code, and what a user can do about it."""

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

    `code` is a key of `breaks.toml`, `context` names the object or call that stopped the trace, `user_stack` is the traced program's
    stack, outermost first, as (file, line, function). `made_at` is the instruction of the root frame that made the value at which the
    frame cannot be left, -1 if not known. `steps`: for each frame from the root inwards that may be left there (`trace.break_depth`), the
    step of the trace at which it carries out the instruction that failed or the call that has led to it. `most_frames`: how many of them
    may be left at most, None for all.
    """

    def __init__(
        self, code: str, context: str = "", user_stack: tuple[tuple[str, int, str], ...] = (), made_at: int = -1
    ):
        if code not in break_table():
            raise InternalError("errors", f"break code {code!r} is not listed in breaks.toml")
        self.code = code
        self.context = context
        self.user_stack = user_stack
        self.made_at = made_at
        self.steps: tuple[int, ...] = ()
        self.most_frames: int | None = None
        super().__init__(code, context)

    @property
    def info(self) -> BreakInfo:
        return break_table()[self.code]

    def __str__(self) -> str:
        where = "".join(f'\n  File "{file}", line {line}, in {name}' for file, line, name in self.user_stack)
        text = self.info.explanation if not self.context else f"{self.info.explanation} ({self.context})"
        return f"{self.code}: {text}{where}"


class ChosenBreak(Unsupported):
    """The trace ends here by choice: it would, too, if other numbers were constants."""


def without_frames(reason: Unsupported) -> Unsupported:
    """The reason alone. Its traceback would keep the whole trace alive, and with it the tensors of this call."""
    reason.__traceback__ = reason.__context__ = reason.__cause__ = None
    return reason


class BackendError(RuntimeError):
    """The backend raised, or returned something that cannot be called."""


class RecompileRefused(RuntimeError):
    """A call of a compiled function that no entry serves, under the stance "fail_on_recompile"."""


class ExportError(RuntimeError):
    """A function cannot be exported. `reasons` has every graph break, or other reason, as text with lines and hints."""

    def __init__(self, name: str, reasons: tuple[str, ...]) -> None:
        self.reasons = reasons
        numbered = "\n".join(f"{number}. {reason}" for number, reason in enumerate(reasons, 1))
        super().__init__(f"{name} cannot be exported as one graph:\n{numbered}")


class PathEnds(Exception):
    """A speculated path reaches an effect that must not happen. `trace.speculation` catches it."""


class BreakReached(BaseException):
    """A called frame has come to the step before which the trace is to end. The root frame catches it; nothing else may."""


class OtherPath(Exception):
    """The program takes another path than the graph takes for granted. Replacement code then runs the program itself; nobody sees it."""


class Empty(OtherPath):
    """A size that depends on data is 0, where the graph takes for granted that there is an item (`trace.emptiness`)."""


class InternalError(RuntimeError):
    """A bug of the tracer.

    `pass_name` is the pass that failed, `user_line` the line of the user's program that it worked on ("file:line", or ""), `dump_path` a
    file that reproduces the failure, or "".
    """

    def __init__(self, pass_name: str, message: str, user_line: str = "", dump_path: str = "") -> None:
        where = f" (from {user_line})" if user_line else ""
        dump = f"; graph dumped to {dump_path}" if dump_path else ""
        super().__init__(f"internal error in pass {pass_name!r}{where}: {message}{dump}")
        self.pass_name = pass_name
        self.message = message
        self.user_line = user_line
        self.dump_path = dump_path
