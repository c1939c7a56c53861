"""The calls of a graph under construction that write, by the memory that they write to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.source import Source
from treadle_tracer.values.call_effects import only_computes, storages, written_arguments

Outside = tuple[Source, Any]


class CallsThatWrite:
    """Grows with the graph: only what is new is looked at. A graph from which a call has been removed needs a new one."""

    def __init__(self) -> None:
        self._written: list[Outside] = []
        self._are_written: set[Source] = set()
        self._by_memory: dict[int, list[fx.Node]] = {}
        self._inputs: dict[int, list[Outside]] = {}
        self._known_inputs = 0
        self._last: fx.Node | None = None

    def to(self, memory: Iterable[int]) -> list[fx.Node]:
        """The calls that may write to these storages."""
        return list(dict.fromkeys(node for storage in memory for node in self._by_memory.get(storage, ())))

    def take_written(self) -> list[Outside]:
        """The outside tensors that calls may have written to since this was asked last."""
        found, self._written = self._written, []
        return found

    def catch_up(self, graph: fx.Graph, inputs: Sequence[tuple[fx.Node, Outside]]) -> None:
        """Note what is new in the graph. inputs: all nodes that stand for outside objects, in the order in which they were made."""
        for node, outside in inputs[self._known_inputs :]:
            if isinstance(outside[1], torch.Tensor):
                self._note_input(node, outside)
        self._known_inputs = len(inputs)
        root = graph._root
        node = root.next if self._last is None else self._last.next
        while node is not root:
            if node.op[:5] == "call_" and not only_computes(node):
                self._note_write(node)
            node = node.next
        self._last = root.prev

    def _note_input(self, node: fx.Node, outside: Outside) -> None:
        for memory in storages(node.meta.get("example_value")):
            self._inputs.setdefault(memory, []).append(outside)
            if memory in self._by_memory:
                self._note_written(outside)

    def _note_write(self, node: fx.Node) -> None:
        known = operator_record(node.target) is not None
        arguments = written_arguments(node) if known else node.all_input_nodes
        for memory in {m for argument in arguments for m in storages(argument.meta.get("example_value"))}:
            self._by_memory.setdefault(memory, []).append(node)
            for outside in self._inputs.get(memory, ()):
                self._note_written(outside)

    def _note_written(self, outside: Outside) -> None:
        if outside[0] not in self._are_written:
            self._are_written.add(outside[0])
            self._written.append(outside)
