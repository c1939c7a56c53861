"""Turn the tracer's events into statistics and logs."""

from __future__ import annotations

import dis
import io
import linecache
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

import torch
from torch import fx

from treadle_tracer import Skip, Unsupported

from . import logs
from .stats import Break, Recompile, StatsRecorder, stats


class Reporter:
    """The `treadle_tracer.Observer` of one compiled function: counts events in `recorder`, logs them, and passes them to `listener`.

    listener: called as ``listener(event, value)`` for "graph" (GraphModule), "break" (Break), "recompile" (Recompile), "entry" (Entry).
    """

    def __init__(self, recorder: StatsRecorder = stats, listener: Callable[[str, Any], None] | None = None) -> None:
        self.recorder = recorder
        self.listener = listener

    def _notify(self, event: str, value: Any) -> None:
        if self.listener is not None:
            self.listener(event, value)

    def on_graph(self, gm: fx.GraphModule) -> None:
        calls = sum(node.op in ("call_function", "call_method", "call_module") for node in gm.graph.nodes)
        self.recorder.add(graph_nodes=calls)
        logs.emit("graph_code", lambda: gm.print_readable(print_output=False))
        logs.emit("graph_sizes", lambda: _graph_sizes(gm))
        self._notify("graph", gm)

    def on_break(self, reason: Unsupported) -> None:
        graph_break = describe_break(reason)
        self.recorder.add(graph_break=graph_break)
        logs.emit(
            "graph_breaks",
            lambda: _break_text(graph_break, reason),
        )
        self._notify("break", graph_break)

    def on_recompile(self, code: CodeType, reason: str) -> None:
        recompile = Recompile(code.co_qualname, reason)
        self.recorder.add(recompile=recompile)
        logs.emit("recompiles", lambda: f"{_place(code)}: {reason}")
        self._notify("recompile", recompile)

    def on_skip(self, code: CodeType, reason: Skip) -> None:
        if not reason.is_others_code:
            self.recorder.add(skipped=f"{_place(code)}: {reason}")
        logs.emit("skips", lambda: f"{_place(code)}: {reason}")

    def on_wait(self, code: CodeType, guard: str) -> None:
        logs.emit("skips", lambda: f"{_place(code)}: this call runs in eager, since it ends what it relies on: {guard}")

    def on_entry(self, entry: Any) -> None:
        logs.emit("guards", lambda: guards_text(entry))
        logs.emit("bytecode", lambda: _disassembly(entry.code))
        self._notify("entry", entry)

    def phase(self, name: str) -> AbstractContextManager[None]:
        return self.recorder.phase(name)


def describe_break(reason: Unsupported) -> Break:
    """A graph break with its reason in one line and the innermost line of the user's program."""
    text = reason.info.explanation if not reason.context else f"{reason.info.explanation} ({reason.context})"
    where = f"{reason.user_stack[-1][0]}:{reason.user_stack[-1][1]}" if reason.user_stack else "?"
    return Break(reason.code, text, where)


def guards_text(entry: Any) -> str:
    """One line per guard of an entry, in the words that recompile reasons use."""
    return "\n".join(check.reason or f"{check.op} {check.path}" for check in entry.guard.checks)


def _break_text(graph_break: Break, reason: Unsupported) -> str:
    """Code, place, reason, the user's source line, and hints."""
    where = f"{graph_break.code} at {graph_break.where}"
    return f"{where}: {graph_break.reason}{_source_line(reason)}{_hints(reason)}"


def _source_line(reason: Unsupported) -> str:
    if not reason.user_stack:
        return ""
    file, line, _ = reason.user_stack[-1]
    text = linecache.getline(file, line).strip()
    return f"\n    {text}" if text else ""


def _hints(reason: Unsupported) -> str:
    return "".join(f"\n  hint: {hint}" for hint in reason.info.hints)


def _place(code: CodeType) -> str:
    return f"{code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"


def _disassembly(code: CodeType) -> str:
    out = io.StringIO()
    dis.dis(code, file=out, depth=0)
    return out.getvalue()


def _graph_sizes(gm: fx.GraphModule) -> str:
    lines = []
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if isinstance(value, torch.Tensor):
            lines.append(f"{node.name}: {tuple(value.size())} {str(value.dtype).removeprefix('torch.')}")
    return "\n".join(lines)
