"""`explain`: what tracing a function once with given arguments comes to, as a report for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import fx

from treadle_tracer.compile import compile_handler

from .api import attach
from .backends import eager
from .observer import Reporter, guards_text
from .options import compile_options
from .stats import Break, StatsRecorder


@dataclass
class Explanation:
    """The graphs, breaks and guards of one call, and what the call returned."""

    graphs: list[fx.GraphModule] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    result: Any = None

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    def __str__(self) -> str:
        lines = [
            f"{self.graph_count} graphs, {self.break_count} breaks, {sum(len(g.splitlines()) for g in self.guards)} guards"
        ]
        for number, gm in enumerate(self.graphs):
            calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
            lines.append(f"graph {number}: {len(calls)} operations")
        for number, broke in enumerate(self.breaks):
            lines.append(f"break {number}: {broke.code} at {broke.where}\n    {broke.reason}")
        return "\n".join(lines)


def explain(fn: Callable[..., Any]) -> Callable[..., Explanation]:
    """A function that calls `fn` with the arguments it is given, traced but not compiled, and tells what tracing did.

    >>> print(treadle.explain(model)(x))  # doctest: +SKIP
    """

    def run(*args: Any, **kwargs: Any) -> Explanation:
        explanation = Explanation()

        def listen(event: str, value: Any) -> None:
            if event == "graph":
                explanation.graphs.append(value)
            elif event == "break":
                explanation.breaks.append(value)
            elif event == "entry":
                explanation.guards.append(guards_text(value))

        options = compile_options(False, None, None, None, own_backend=True)
        backend: Callable[[fx.GraphModule, Sequence[Any]], Any] = eager(options)
        handler = compile_handler(backend, options.for_tracer(), Reporter(StatsRecorder(), listen))
        explanation.result = attach(fn, handler)(*args, **kwargs)
        return explanation

    return run
