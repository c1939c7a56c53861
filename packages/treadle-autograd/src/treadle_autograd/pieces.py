"""A graph that enters and leaves inference mode, in pieces: what runs in one mode is compiled in it.

    y = a(x)                       piece 1, compiled and run as any graph
    enter_inference_mode(True)     the switches run as they are
    z = b(y)                       piece 2, compiled and run in inference mode: what it makes are inference tensors
    leave_inference_mode()
    return z, c(y)                 piece 3

A piece is compiled when it first runs, for the tensors that the pieces before have made. The graph's guards fix what the modes are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any, NamedTuple

import torch
from torch import fx
from torch.types import py_sym_types

from treadle_shapes.torch import HooklessGraphModule, enter_inference_mode, raw_expr

CompilePiece = Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Sequence[Any]]]


def switches_inference_mode(gm: fx.GraphModule) -> bool:
    """Whether the graph enters inference mode."""
    return any(node.target is enter_inference_mode for node in gm.graph.nodes)


class Piece(NamedTuple):
    """A part of a graph. inputs, outputs: nodes of the whole graph; last: those of the inputs that nothing needs afterwards."""

    graph_module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    last: tuple[fx.Node, ...]


def run_in_pieces(gm: fx.GraphModule, compile_piece: CompilePiece) -> Callable[..., Sequence[Any]]:
    """A callable that runs `gm` piece by piece. Each is compiled by `compile_piece(piece, inputs)` when it first runs."""
    steps = [Compiled(step, compile_piece) if isinstance(step, Piece) else step for step in split(gm)]
    placeholders = [node for node in gm.graph.nodes if node.op == "placeholder"]
    results: Any = gm.graph.output_node().args[0]
    attributes = {node: _attribute(gm, node) for node in gm.graph.nodes if node.op == "get_attr" and node in results}

    def run(*args: Any) -> Sequence[Any]:
        values: dict[fx.Node, Any] = dict(zip(placeholders, args, strict=True)) | attributes
        del args
        for step in steps:
            if isinstance(step, Compiled):
                step.run(values)
            else:
                step.target(*step.args)  # type: ignore[operator]
        return fx.map_arg(results, values.__getitem__)  # type: ignore[return-value]

    return run


class Compiled:
    """A piece and what it is compiled to, from its first run on."""

    def __init__(self, piece: Piece, compile_piece: CompilePiece) -> None:
        self._piece = piece
        self._compile = compile_piece
        self._function: Callable[..., Sequence[Any]] | None = None

    def run(self, values: dict[fx.Node, Any]) -> None:
        """Add the results of the piece to `values`, and take out what nothing needs any more."""
        given = [values[node] for node in self._piece.inputs]
        function = self._function
        if function is None:
            function = self._function = self._compile(self._piece.graph_module, given)
        for node in self._piece.last:
            del values[node]
        values.update(zip(self._piece.outputs, function(*given), strict=True))


def split(gm: fx.GraphModule) -> list[Piece | fx.Node]:
    """The pieces of a graph and the switches between them, in order."""
    groups: list[list[fx.Node] | fx.Node] = []
    group_of: dict[fx.Node, int] = {}
    for node in gm.graph.nodes:
        if not node.op.startswith("call_"):
            continue
        if _is_switch(node):
            groups.append(node)
            continue
        made_in = group_of.get(node.args[0]) if _is_part(node) else None  # type: ignore[arg-type]
        if made_in is None:
            if not groups or isinstance(groups[-1], fx.Node):
                groups.append([])
            made_in = len(groups) - 1
        group = groups[made_in]
        assert isinstance(group, list)
        group.append(node)
        group_of[node] = made_in
    kept = set(gm.graph.output_node().all_input_nodes)
    found: list[Piece | fx.Node] = []
    for group in reversed(groups):
        found.append(group if isinstance(group, fx.Node) else _piece(gm, group, kept))
    return found[::-1]


def why_not_compile(piece: fx.GraphModule) -> str | None:
    """Why a piece must run in eager: sizes of its inputs follow from numbers that are none of its inputs."""
    values = [node.meta.get("example_value") for node in piece.graph.find_nodes(op="placeholder")]
    numbers = [n for value in values for n in _numbers(value) if isinstance(n, py_sym_types)]
    known = {raw_expr(number) for number in numbers}
    if all(expr.free_symbols <= known for expr in known):
        return None
    return "a size between two parts of the graph follows from others"


def _numbers(value: Any) -> Sequence[Any]:
    if isinstance(value, torch.Tensor):
        return (*value.size(), *value.stride(), value.storage_offset())
    return (value,)


def _piece(gm: fx.GraphModule, nodes: Sequence[fx.Node], kept: set[fx.Node]) -> Piece:
    """The piece of these nodes; `kept` are the nodes that later pieces read, to which those of this one are added."""
    inside = set(nodes)
    read = dict.fromkeys(used for node in nodes for used in node.all_input_nodes if used not in inside)
    inputs = tuple(node for node in read if node.op != "get_attr")
    outputs = tuple(node for node in nodes if node in kept)
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(node.meta)
    for node in (*(node for node in read if node.op == "get_attr"), *nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    output = graph.output(tuple(copies[node] for node in outputs))
    output.meta["example_value"] = tuple(node.meta.get("example_value") for node in outputs)
    last = tuple(node for node in inputs if node not in kept)
    kept.difference_update(outputs)
    kept.update(inputs)
    return Piece(HooklessGraphModule(gm, graph, "Piece"), inputs, outputs, last)


def _is_part(node: fx.Node) -> bool:
    """Whether the call takes a result of another out of its tuple: one that indexes a tensor has the same target."""
    owner = node.args[0] if node.target is getitem else None
    return isinstance(owner, fx.Node) and not isinstance(owner.meta.get("example_value"), torch.Tensor)


def _is_switch(node: fx.Node) -> bool:
    """Whether the call sets state of torch: it takes and gives no value of the graph."""
    return not node.all_input_nodes and not node.users and node.meta.get("example_value") is None


def _attribute(gm: fx.GraphModule, node: fx.Node) -> Any:
    value: Any = gm
    for name in str(node.target).split("."):
        value = getattr(value, name)
    return value
