"""Which values of the graph are still needed behind a node, and what they read: memory may be written over when nobody does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from treadle_codegen.ir.loops import load_of
from treadle_codegen.lower.nest import record_nest
from treadle_codegen.lower.tensor_expr import TensorExpr


@dataclass(slots=True, eq=False)
class _Value:
    """A tensor of the graph, the `number`th. last: the position of the last node that uses it. asked_at: how many buffers there were when
    the buffers were found that it is read from."""

    x: TensorExpr
    number: int
    last: int
    asked_at: int = 0


class LiveValues:
    """The values of the nodes lowered so far, by the buffers that they are read from. `values` and `buffers` grow in the meantime.

    What a computed value is read from changes when another one is stored that it is made of. That goes to a new buffer. So those that
    read a buffer are among the values that did when they were last asked, and those that were asked before there was the buffer.
    """

    def __init__(self, values: Mapping[torch.fx.Node, Any], buffers: Mapping[str, Any]) -> None:
        self._values, self._buffers = values, buffers
        self._seen = self._count = 0
        self._positions: dict[torch.fx.Node, int] = {}
        self._last: dict[torch.fx.Node, int] = {}
        self._born: dict[str, int] = {}  # buffer -> how many there were before it
        self._readers: dict[str, dict[_Value, None]] = {}
        self._computed: dict[_Value, None] = {}  # those that are not stored, in the order in which they were asked

    def readers_behind(self, node: torch.fx.Node, buffer: str) -> list[TensorExpr]:
        """The tensors that are read from the buffer and that nodes behind `node` use, in the order of the graph."""
        now = self._note_new(node)
        born = self._born[buffer]
        while self._computed:
            value = next(iter(self._computed))
            if value.asked_at > born:
                break
            del self._computed[value]
            if value.last > now:
                self._ask(value)
        known = self._readers.get(buffer, {})
        readers = [value for value in known if value.last > now and buffer in buffers_read(value.x)]
        self._readers[buffer] = dict.fromkeys(readers)
        return [value.x for value in sorted(readers, key=lambda value: value.number)]

    def moved(self, x: TensorExpr, buffer: str) -> None:
        """`x`, which was stored in the buffer, has been stored elsewhere."""
        for value in list(self._readers.get(buffer, {})):
            if value.x is x:
                self._ask(value)

    def _note_new(self, at: torch.fx.Node) -> int:
        """Note what has been made since the last time; the position of the node `at`."""
        if not self._positions:
            for position, node in enumerate(at.graph.nodes):
                self._positions[node] = position
                self._last.update(dict.fromkeys(node.all_input_nodes, position))
        now = self._positions[at]
        for name in _newest(self._buffers, len(self._buffers) - len(self._born)):
            self._born[name] = len(self._born)
        for node in _newest(self._values, len(self._values) - self._seen):
            value = self._values[node]
            for x in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(x, TensorExpr) and self._last.get(node, now) > now:
                    self._count += 1
                    self._ask(_Value(x, self._count, self._last[node]))
        self._seen = len(self._values)
        return now

    def _ask(self, value: _Value) -> None:
        """Find out what the value is read from."""
        value.asked_at = len(self._born)
        for buffer in buffers_read(value.x):
            self._readers.setdefault(buffer, {})[value] = None
        if value.x.storage is None:
            self._computed[value] = None


def _newest(mapping: Mapping[Any, Any], count: int) -> list[Any]:
    """The last keys of a dict, in order."""
    return list(islice(reversed(mapping), count))[::-1]  # type: ignore[call-overload]


def buffers_read(x: TensorExpr) -> frozenset[str]:
    """The buffers that computing `x` loads from. `TensorExpr.reads` may be out of date: what it is made of has been stored since."""
    if x.storage is not None:
        return frozenset((x.storage.buffer,))
    nest = record_nest(x.shape, x.shape, lambda o, index, _: x.element(o, index), {})
    return (
        frozenset()
        if nest is None
        else frozenset(load[0] for load in map(load_of, nest.builder.body) if load is not None)
    )
