"""What values and rules may ask of the graph of a trace, a part of `values.value.TraceContext`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.source import Source
    from treadle_tracer.values.calls_that_write import CallsThatWrite


class Graph(Protocol):
    """The graph under construction: see `output.graph`."""

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """The nodes made so far, in order."""
        ...

    def call(
        self,
        op: str,
        target: Callable[..., Any] | str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        example_value: Any,
        stack_trace: str,
    ) -> fx.Node:
        """A `call_function` or `call_method` node."""
        ...

    def placeholder(self, source: Source, example_input: Any, example_value: Any) -> fx.Node:
        """A placeholder for an outside tensor or number."""
        ...

    def stand_in(self, name: str, example_value: Any) -> fx.Node:
        """A placeholder behind all calls, for an argument of a backward body."""
        ...

    def input_of(self, node: fx.Node) -> tuple[Source, Any] | None:
        """Where the outside tensor or number of a node comes from, and the object of this call; None for any other node."""
        ...

    def writes(self) -> CallsThatWrite:
        """The calls made so far that write."""
        ...

    def last(self) -> fx.Node:
        """The last node."""
        ...

    def why_not_move(self, before: fx.Node) -> str | None:
        """Why the calls behind `before` cannot be the body of a function that the graph calls."""
        ...

    def why_not_take_out(self, before: fx.Node, results: Sequence[fx.Node | None]) -> str | None:
        """Why the calls behind `before` cannot run later, in a backward pass."""
        ...

    def take_out(
        self, before: fx.Node, given: Sequence[fx.Node | None], results: Sequence[fx.Node | None]
    ) -> tuple[fx.GraphModule, list[fx.Node], set[fx.Node]]:
        """Make a graph module of the calls behind `before`: (*given, *others) -> results; the others; and the removed nodes."""
        ...
