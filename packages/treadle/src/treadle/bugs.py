"""The boundary where a bug of treadle becomes a warning and eager execution, or an exception.

Any exception in a pass is a bug of treadle. Its report names the pass, the user's line and a program that reproduces it. Exceptions that
a user can cause (wrong options, an own backend that raises) pass through.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from torch import fx

import treadle_autograd
import treadle_codegen
import treadle_tracer
from treadle_autograd import user_line
from treadle_codegen import CodegenUnavailable, OptionError

from . import logs
from .dump import write_reproducer
from .errors import TreadleWarning
from .hook import without_hook
from .options import CompileOptions
from .stats import EagerGraph, stats

Compiled = Callable[..., Sequence[Any]]
T = TypeVar("T")

# The packages' own reports of their bugs. They have the attributes `pass_name`, `user_line` and `dump_path`.
_PACKAGE_ERRORS = (treadle_tracer.InternalError, treadle_autograd.InternalError, treadle_codegen.InternalError)


class InternalError(treadle_tracer.InternalError):
    """A bug of treadle: the pass that failed, the user's line ("file:line", or ""), and a program that reproduces it (a path, or "")."""

    def __init__(self, pass_name: str, message: str, user_line: str = "", dump_path: str = "") -> None:
        super().__init__(pass_name, message, user_line, dump_path)
        where = f" (from {user_line})" if user_line else ""
        reproduce = f"; reproduce with: python {dump_path}" if dump_path else ""
        self.message = message
        self.args = (f"internal error in pass {pass_name!r}{where}: {message}{reproduce}",)


_warned: set[str] = set()


def reset_warnings() -> None:
    """Let warnings that are given once be given again."""
    _warned.clear()


def warn_once(message: str) -> None:
    """Warn, unless a warning with this text has been given since the last reset."""
    if message not in _warned:
        _warned.add(message)
        warnings.warn(message, TreadleWarning, stacklevel=2)


def run_in_eager(gm: fx.GraphModule, reason: str) -> Compiled:
    """`gm` itself as the compiled callable, with the reason as `why_eager`. Counts and logs the reason."""
    stats.add(eager_graph=EagerGraph(reason))
    logs.emit("eager", reason)
    run: Any = without_hook(gm.forward)
    run.why_eager = reason
    return run


def compile_or_eager(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, build: Callable[[], Compiled]
) -> Compiled:
    """The result of `build`, or `gm` in eager if no code can be generated for it here or a pass has a bug."""
    return compile_or(lambda reason: run_in_eager(gm, reason), gm, example_inputs, options, build)


def compile_or(
    otherwise: Callable[[str], T],
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    options: CompileOptions,
    build: Callable[[], T],
) -> T:
    """The result of `build`, which compiles `gm` or something made from it; `otherwise(reason)` if no code can be generated or a pass has
    a bug."""
    try:
        return build()
    except OptionError:
        raise
    except CodegenUnavailable as unavailable:
        warn_once(f"Graphs run in eager: {unavailable}")
        return otherwise(str(unavailable))
    except Exception as bug:  # one of the two named boundaries (docs/contracts.md, section 6)
        if treadle_tracer.is_out_of_room(bug):
            raise
        error = describe_bug(bug, gm, example_inputs, options)
        if options.values["raise_internal_errors"]:
            raise error from bug
        warnings.warn(f"A graph runs in eager because of a bug in treadle: {error}", TreadleWarning, stacklevel=2)
        return otherwise(str(error))


def describe_bug(
    bug: Exception, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> InternalError:
    """The report of a bug. Writes a reproducer."""
    pass_name, message, line = "compile", f"{type(bug).__name__}: {bug}", ""
    if isinstance(bug, _PACKAGE_ERRORS):
        dumped = f" (dumped to {bug.dump_path})" if bug.dump_path else ""
        pass_name, message, line = bug.pass_name, f"{bug.message}{dumped}", bug.user_line
    path = write_reproducer(gm, example_inputs, pass_name, message, options.values["dump_dir"])
    return InternalError(pass_name, message, line or _first_user_line(gm), path)


def _first_user_line(gm: fx.GraphModule) -> str:
    """The line of the user's program that the graph begins with, "" if no node has one."""
    return next((line for node in gm.graph.nodes if (line := user_line(node.meta.get("stack_trace")))), "")
