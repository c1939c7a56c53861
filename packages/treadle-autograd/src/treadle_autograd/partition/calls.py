"""Calls that a partition adds to the joint graph and its halves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from treadle_shapes.torch import fake_calls, static_call_key

from ..graph_nodes import append_call


class Calls:
    """Calls on equal metadata have one and the same fake result: layers repeat."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def append(self, graph: fx.Graph, like: fx.Node, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A call where the graph inserts, on the line of the program that `like` is of."""
        made = append_call(graph, target, args, kwargs)
        made.meta = {key: value for key, value in like.meta.items() if key not in ("val", "may_raise", "no_grad")}
        made.meta["val"] = self._result(target, [a.meta["val"] if isinstance(a, fx.Node) else a for a in args], kwargs)
        return made

    def _result(self, target: Callable[..., Any], values: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        mode = values[0].fake_mode
        found = static_call_key(mode, target, values, kwargs)
        if found is not None and found[0] in self._results:
            return self._results[found[0]]
        with mode:
            result = fake_calls(mode).call(target, lambda: target(*values, **kwargs), values, kwargs)
        if found is not None:
            self._results[found[0]] = result
        return result
