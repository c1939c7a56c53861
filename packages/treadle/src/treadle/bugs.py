"""The one boundary where a bug of treadle turns into a warning plus eager execution, or into an exception.

An exception in a pass is a bug of treadle: it names the pass, the user's line and a program that reproduces it. Everything a person
can cause (wrong options, a backend of their own that raises) passes through untouched.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from treadle_codegen import CodegenUnavailable, OptionError
from treadle_tracer import InternalError as TracerInternalError

from . import logs
from .dump import write_reproducer
from .errors import TreadleWarning
from .hook import without_hook
from .options import CompileOptions
from .stats import EagerGraph, stats

Compiled = Callable[..., Sequence[Any]]


class InternalError(TracerInternalError):
    """A bug of treadle; ``pass_name``, ``user_line`` and ``dump_path`` say where and how to reproduce it."""


_said: set[str] = set()


def reset_warnings() -> None:
    """Let messages that are given once be given again."""
    _said.clear()


def run_in_eager(gm: fx.GraphModule, reason: str) -> Compiled:
    """`gm` itself as the compiled callable, counted and logged with the reason."""
    stats.add(eager_graph=EagerGraph(reason))
    logs.emit("eager", reason)
    return without_hook(gm.forward)


def warn_once(key: str, message: str) -> None:
    if key not in _said:
        _said.add(key)
        warnings.warn(message, TreadleWarning, stacklevel=2)


def compile_or_eager(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions, build: Callable[[], Compiled]
) -> Compiled:
    """What `build` returns; a graph in eager when it cannot be built on this machine or a pass has a bug."""
    try:
        return build()
    except OptionError:
        raise
    except CodegenUnavailable as unavailable:
        warn_once(f"unavailable:{unavailable}", f"treadle runs in eager: {unavailable}")
        return run_in_eager(gm, str(unavailable))
    except Exception as bug:  # the named boundary, ARCHITECTURE §3
        error = describe_bug(bug, gm, example_inputs, options)
        if options.values["raise_internal_errors"]:
            raise error from bug
        warnings.warn(f"{error} This graph runs in eager.", TreadleWarning, stacklevel=2)
        return run_in_eager(gm, str(error))


def describe_bug(
    bug: Exception, gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> InternalError:
    """The bug with its pass, the user's line and the path of a reproducer."""
    pass_name = getattr(bug, "pass_name", "compile")
    line = getattr(bug, "user_line", None) or _first_line(gm)
    message = str(bug) if hasattr(bug, "pass_name") else f"{type(bug).__name__}: {bug}"
    path = getattr(bug, "dump_path", None) or write_reproducer(
        gm, example_inputs, pass_name, message, options.values["dump_dir"]
    )
    where = f"; reproduce with: python {path}" if path else ""
    return InternalError(f"bug of treadle in pass {pass_name!r}", f"{message}{where}", line, path)


def _first_line(gm: fx.GraphModule) -> str | None:
    """The line of the user's program that the graph begins with."""
    for node in gm.graph.nodes:
        trace = node.meta.get("stack_trace")
        if trace:
            lines = [text.strip() for text in trace.splitlines() if text.strip().startswith("File ")]
            return lines[-1] if lines else None
    return None
