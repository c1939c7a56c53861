"""`explain`: trace a function once with given arguments and report graphs, breaks, guards and sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

import treadle_autograd
from treadle_autograd import aot
from treadle_shapes import paused
from treadle_tracer import Payload, compile_handler, profit_of

from .api import attach
from .backends import eager
from .observer import Reporter, guards_text
from .options import CompileOptions, compile_options
from .stats import Break, StatsRecorder
from .through_aot import needs_gradients

if TYPE_CHECKING:
    from treadle_autograd import PartitionReport


@dataclass
class Explanation:
    """The graphs, breaks and guards of one call, and what the call returned.

    sizes: one line per dimension of an input, static or dynamic with its range, followed by the program's lines that constrain it.
    partitions: for every graph that gradients flow through, what would be saved for backward, and what computed again. Their text is
        not part of that of the explanation.
    profits: for every graph, the calls of operators that it is expected to save against eager (negative: to cost); None if that is unknown.
    """

    graphs: list[fx.GraphModule] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    guards: list[str] = field(default_factory=list)
    sizes: list[str] = field(default_factory=list)
    partitions: list[PartitionReport] = field(default_factory=list)
    profits: list[float | None] = field(default_factory=list)
    result: Any = None

    @property
    def is_unprofitable(self) -> bool:
        """Whether the graphs cost more than they save, so that `treadle.compile` leaves a function with graph breaks to Python."""
        known = [profit for profit in self.profits if profit is not None]
        return bool(self.breaks) and len(known) == len(self.profits) and sum(known) < 0

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def break_count(self) -> int:
        return len(self.breaks)

    def __str__(self) -> str:
        n_guards = sum(len(text.splitlines()) for text in self.guards)
        counts = [(self.graph_count, "graph"), (self.break_count, "break"), (n_guards, "guard")]
        lines = [", ".join(_count(number, noun) for number, noun in counts)]
        for number, gm in enumerate(self.graphs):
            calls = [node for node in gm.graph.nodes if node.op.startswith("call_")]
            lines.append(f"graph {number}: {_count(len(calls), 'operation')}")
        for number, found in enumerate(self.breaks):
            lines.append(f"break {number}: {found.code} at {found.where}\n    {found.reason}")
        if self.is_unprofitable:
            lines.append("left to Python: graphs this small cost more than they save (option leave_unprofitable)")
        for partition in self.partitions:
            lines.append(
                f"saved for backward: {_count(len(partition.saved), 'tensor')}, {partition.saved_bytes} bytes without inputs"
            )
        return "\n".join([*lines, *self.sizes])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def explain(fn: Callable[..., Any], *, dynamic: bool | None = None) -> Callable[..., Explanation]:
    """A function that calls `fn`, traced but not compiled, and returns an `Explanation`.

    dynamic: as in `treadle.compile`. True shows which sizes can vary, and which lines of the program keep the others constant.

    >>> print(treadle.explain(model, dynamic=True)(x))  # doctest: +SKIP
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
                explanation.sizes += describe_sizes(value.payload)

        options = compile_options(False, dynamic, None, None, own_backend=True)
        run_graph = eager(options)

        def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            explanation.profits.append(profit_of(gm, torch.is_grad_enabled()))
            explanation.partitions += describe_partition(gm, example_inputs, options)
            return run_graph(gm, example_inputs)

        handler = compile_handler(backend, options.for_tracer(), Reporter(StatsRecorder(), listen))
        explanation.result = attach(fn, handler)(*args, **kwargs)
        return explanation

    return run


def describe_partition(
    gm: fx.GraphModule, example_inputs: Sequence[Any], options: CompileOptions
) -> list[PartitionReport]:
    """The report of the graph's partition; none for a graph without gradients, or one that runs in eager."""
    if not (torch.is_grad_enabled() and needs_gradients(gm, example_inputs)):
        return []
    budget = treadle_autograd.with_budget(options.values["memory_budget"])
    with paused():
        from treadle_codegen import parts_to_compute_again as again

        found: Any = aot(
            gm, example_inputs, inference=False, forward=lambda graph, inputs: graph, partition=budget, again=again
        )
    return [] if found.partition_report is None else [found.partition_report()]


def describe_sizes(payload: Payload) -> list[str]:
    """One line per size of an entry's inputs and per other dynamic number, each followed by one line per decision about it."""
    numbers = payload.dynamic
    dynamic = {} if numbers is None else {text: i for i, text in enumerate(numbers.texts)}
    lines = []
    for guard in payload.tensors:
        for dim, size in enumerate(guard.sizes if guard.identity is None else ()):
            text = f"{guard.source.text}.size()[{dim}]"
            if text in dynamic:
                lines += _describe_number(payload, dynamic.pop(text))
            elif dim not in guard.dynamic_dims:
                lines.append(f"{text}: static, {size}")
    return lines + [line for position in dynamic.values() for line in _describe_number(payload, position)]


def _describe_number(payload: Payload, position: int) -> list[str]:
    """The values that the decisions leave to one dynamic number."""
    from treadle_shapes import Facts

    numbers = payload.dynamic
    assert numbers is not None
    symbol = numbers.symbols[position]
    facts = Facts()
    for decision in numbers.decisions:
        facts.add(decision.expr)
    value = facts.simplify(symbol)
    if isinstance(value, int):
        state = f"static, it must be {value}"
    elif value is not symbol:
        state = f"always {numbers.describe(value)}"
    else:
        state = _state(*numbers.box[position])
    about = [decision for decision in numbers.decisions if symbol in decision.expr.free_symbols]
    decided = [f"    {numbers.describe(decision.expr)}, decided at {decision.where}" for decision in about]
    return [f"{numbers.texts[position]}: {state}", *decided]


def _state(lower: int | None, upper: int | None) -> str:
    """The interval of a number in words."""
    if lower is None and upper is None:
        return "dynamic, any number"
    if upper is None:
        return f"dynamic, {lower} or more"
    return f"dynamic, at most {upper}" if lower is None else f"dynamic, {lower} to {upper}"
