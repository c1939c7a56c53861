"""Builds the FX graph of one trace: placeholders for outside tensors, `get_attr` for parameters and buffers, torch-level calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch import fx

from treadle_shapes.torch import HooklessGraphModule

from ..source import Source
from ..values.calls_that_write import CallsThatWrite
from . import subgraph
from .deferred_asserts import tag_asserts
from .write_separation import WriteSeparation


class TracedGraphModule(HooklessGraphModule):
    """The graph of a trace."""


# Torch takes these types of Python for dtypes. A graph's source, from which it runs in eager, cannot name them.
_DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


class Watch(Protocol):
    """Sees every call of the graph when the trace makes it."""

    def check_node(self, target: Any) -> None:
        """Before the node is made; may raise."""

    def note_node(self, node: fx.Node) -> None:
        """After it is made."""


class GraphBuilder:
    """The graph under construction.

    Placeholders and attributes come before all calls, in the order in which the trace first used them.

    checkpoint: number of the checkpointed part of the program that is being traced, which its calls get as `meta["checkpoint"]`.
    records_anew: that part runs without gradients at first, and with them in backward, so that no answer about them is right for both.
    separation: keeps writes and calls under exception handlers in different graphs, where they may not be in one.
    """

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.attributes: dict[str, Any] = {}
        self.input_sources: list[Source] = []
        self.example_inputs: list[Any] = []
        self.placeholders: list[fx.Node] = []
        self.calls = 0
        self.watch: Watch | None = None
        self.checkpoint: int | None = None
        self.records_anew = False
        self.separation: WriteSeparation | None = None
        self._last_input: fx.Node | None = None
        self._first_call: fx.Node | None = None
        self._names: set[str] = set()
        self._inputs: dict[fx.Node, tuple[Source, Any]] = {}
        self._writes: CallsThatWrite | None = None

    @property
    def has_calls(self) -> bool:
        """Whether there is anything to compute."""
        return self.calls > 0

    @property
    def nodes(self) -> Iterable[fx.Node]:
        """The nodes made so far, in order."""
        return self.graph.nodes

    def placeholder(self, source: Source, example_input: Any, example_value: Any) -> fx.Node:
        """A placeholder for the outside tensor (or dynamic int) at `source`."""
        with self._in_front():
            node = self.graph.placeholder(self._fresh(source.text))
        self._last_input = node
        node.meta.update(example_value=example_value, source=source.text)
        self._inputs[node] = (source, example_input)
        if self.separation is not None:
            self.separation.note_input(node)
        self.input_sources.append(source)
        self.example_inputs.append(example_input)
        self.placeholders.append(node)
        return node

    def attribute(self, source: Source, tensor: torch.Tensor, example_value: Any) -> fx.Node:
        """A `get_attr` node for the outside tensor at `source`, which the graph module holds itself."""
        name = self._fresh(source.text)
        self.attributes[name] = tensor
        with self._before_calls():
            node = self.graph.create_node("get_attr", name, name=name)
        node.meta.update(example_value=example_value, source=source.text)
        self._inputs[node] = (source, tensor)
        if self.separation is not None:
            self.separation.note_input(node)
        return node

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
        if self.watch is not None:
            self.watch.check_node(target)
        args, kwargs = tuple(map(_printable, args)), {name: _printable(value) for name, value in kwargs.items()}
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta["example_value"] = example_value
        node.meta["stack_trace"] = stack_trace
        if self.checkpoint is not None:
            node.meta["checkpoint"] = self.checkpoint
        if self._first_call is None:
            self._first_call = node
        self.calls += 1
        if self.watch is not None:
            self.watch.note_node(node)
        if self.separation is not None:
            self.separation.note_call(node)
        return node

    def erase(self, node: fx.Node) -> None:
        """Remove a call that nothing uses and that has no effect."""
        if node is self._first_call:
            self._first_call = None if node.next.op == "root" else node.next
        self.graph.erase_node(node)
        self.calls -= 1
        self._writes = None

    def input_of(self, node: fx.Node) -> tuple[Source, Any] | None:
        """Where the outside tensor or number of a node comes from, and the object of this call; None for any other node."""
        return self._inputs.get(node)

    def writes(self) -> CallsThatWrite:
        """The calls made so far that write."""
        if self._writes is None:
            self._writes = CallsThatWrite()
        self._writes.catch_up(self.graph, list(self._inputs.items()))
        return self._writes

    def last(self) -> fx.Node:
        """The last node; the root of the list if there is none."""
        return self.graph._root.prev

    def stand_in(self, name: str, example_value: Any) -> fx.Node:
        """A placeholder behind all calls, for an argument of calls that `take_out` will take out of the graph."""
        node = self.graph.placeholder(self._fresh(name))
        node.meta.update(example_value=example_value, stand_in=True)
        return node

    def why_not_move(self, before: fx.Node) -> str | None:
        """Why the calls behind `before` cannot be the body of a function that the graph calls."""
        return subgraph.why_not_move(before)

    def why_not_take_out(self, before: fx.Node, results: Sequence[fx.Node | None]) -> str | None:
        """Why the calls behind `before`, a backward body that computes `results`, cannot run later."""
        return subgraph.why_not_take_out(before, results)

    def take_out(
        self, before: fx.Node, given: Sequence[fx.Node | None], results: Sequence[fx.Node | None]
    ) -> tuple[fx.GraphModule, list[fx.Node], set[fx.Node]]:
        """Make a graph module of the calls behind `before`: see `subgraph.take_out`."""
        self._writes = None
        return subgraph.take_out(self.erase, before, given, results)

    def finish(self, output_nodes: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph module whose output is a flat tuple of exactly these nodes.

        Unused placeholders and attributes are removed. Calls stay, since an in-place call need not have users.
        """
        for node in list(self.graph.nodes):
            if node.op == "output":
                self.graph.erase_node(node)
        output = self.graph.output(tuple(output_nodes))
        output.meta["example_value"] = tuple(node.meta["example_value"] for node in output_nodes)
        tag_asserts(self.graph)
        self._drop_unused_inputs()
        used = {node.target for node in self.graph.nodes if node.op == "get_attr"}
        root = torch.nn.Module()
        for name, tensor in self.attributes.items():
            if name in used:
                _attach(root, name, tensor)
        # Its Python code is written when somebody asks for it. Most backends read the graph only.
        return TracedGraphModule(root, self.graph, "TracedGraph")

    def _drop_unused_inputs(self) -> None:
        kept = []
        for position, node in enumerate(self.placeholders):
            if node.users:
                kept.append(position)
            else:
                self.graph.erase_node(node)
        self.placeholders = [self.placeholders[i] for i in kept]
        self.input_sources = [self.input_sources[i] for i in kept]
        self.example_inputs = [self.example_inputs[i] for i in kept]
        for node in list(self.graph.nodes):
            if node.op == "get_attr" and not node.users:
                self.graph.erase_node(node)

    def _in_front(self) -> Any:
        """Insert after the last placeholder, so that placeholders come first."""
        if self._last_input is not None:
            return self.graph.inserting_after(self._last_input)
        first = next(iter(self.graph.nodes), None)
        return self.graph.inserting_before(first) if first is not None else nullcontext()

    def _before_calls(self) -> Any:
        return self.graph.inserting_before(self._first_call) if self._first_call is not None else nullcontext()

    def _fresh(self, text: str) -> str:
        """A Python name made from a source text: `self.layer[0].weight` gives `self_layer_0_weight`."""
        base = re.sub(r"\W+", "_", text).strip("_") or "value"
        if base == "self":  # FX takes a first placeholder of this name for the graph module
            base = "self_"
        if base[0].isdigit():
            base = f"_{base}"
        name, count = base, 0
        while name in self._names or hasattr(torch.nn.Module, name):
            count += 1
            name = f"{base}_{count}"
        self._names.add(name)
        return name


def _attach(root: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Make `tensor` itself an attribute of the module: parameter, or buffer that is not saved."""
    if isinstance(tensor, torch.nn.Parameter):
        root.register_parameter(name, tensor)
    else:
        root.register_buffer(name, tensor, persistent=False)


def _printable(argument: Any) -> Any:
    return _DTYPES.get(argument, argument) if type(argument) is type else argument
