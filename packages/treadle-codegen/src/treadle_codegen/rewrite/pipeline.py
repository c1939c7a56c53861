"""The list of graph-level rewrites, and what they leave for run time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.rewrite.fold_batch_norm import fold_batch_norm
from treadle_codegen.rewrite.propagate import fake_mode_of
from treadle_codegen.rewrite.static import hoist_static, is_static_input, static_frontier, static_nodes
from treadle_codegen.rewrite.text import format_graph
from treadle_codegen.rewrite.verify import Rules, verify_graph, verify_prologue, verify_rewrite
from treadle_shapes.torch import Kind
from treadle_shapes.torch import operator as operator_record

Check = Callable[[str, Callable[[], str], Callable[[], list[str]]], None]


def _unchecked(name: str, text: Callable[[], str], problems: Callable[[], list[str]]) -> None:
    pass


class GraphView:
    """A graph with the attributes of the module it came from, without generating the Python code of a GraphModule."""

    def __init__(self, graph: fx.Graph, owner: fx.GraphModule) -> None:
        self.graph = graph
        self.owner = owner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.owner, name)


Rewrite = Callable[[fx.Graph, FakeTensorMode], int]


class EarlyRewrite(NamedTuple):
    """A rewrite that needs no static inputs. It runs on graphs with a node that `concerns` it; others are not copied for it."""

    run: Rewrite
    concerns: Callable[[fx.Node], bool]


Rewritten = tuple[fx.GraphModule, tuple[fx.GraphModule, tuple[int, ...]] | None]


def rewrite_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    rewrites: Sequence[Rewrite] = (),
    rules: Rules = MappingProxyType({}),
    check: Check = _unchecked,
) -> Rewritten:
    """(rewritten copy of the graph, prologue graph and positions of its inputs or None); `gm` stays as it is.

    rewrites: the target's own, run after those that pay off everywhere.
    rules: fake implementations of what they call, for the verifier.
    check: told the name of each rewrite, its result as text and the violations of its contract, both on demand.
    """
    mode = fake_mode_of(gm.graph)
    if mode is None or why_not_rewrite(gm, example_inputs) is not None or not _may_gain(gm.graph):
        return gm, None
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))

    def problems() -> list[str]:
        return verify_graph(graph, mode, rules) + verify_rewrite(gm.graph, graph)

    for rewrite in (fold_batch_norm, *rewrites):
        rewrite(graph, mode)
        check(rewrite.__name__, lambda: format_graph(graph), problems)
    hoisted = hoist_static(graph)
    view = cast(fx.GraphModule, GraphView(graph, gm))
    if hoisted is None:
        return view, None
    owner = gm.owner if isinstance(gm, GraphView) else gm
    prologue = fx.GraphModule(owner, hoisted[0]), tuple(hoisted[1])
    before = sum(node.op == "placeholder" for node in gm.graph.nodes)
    check(
        "hoist_static",
        lambda: f"{format_graph(graph)}prologue\n{format_graph(prologue[0].graph)}",
        lambda: problems() + verify_graph(hoisted[0], mode, rules) + verify_prologue(graph, prologue, before),
    )
    return view, prologue


def rewrite_early(gm: fx.GraphModule, rewrites: Sequence[EarlyRewrite], check: Check = _unchecked) -> fx.GraphModule:
    """A copy of the graph with the layouts and dtypes that a target's operators prefer, or `gm` itself if nothing changes."""
    mode = fake_mode_of(gm.graph)
    wanted = [rewrite for rewrite in rewrites if any(map(rewrite.concerns, gm.graph.nodes))]
    if mode is None or not wanted:
        return gm
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    changed = 0
    for rewrite in wanted:
        changed += rewrite.run(graph, mode)
        check(
            rewrite.run.__name__,
            lambda: format_graph(graph),
            lambda: verify_graph(graph, mode, {}) + verify_rewrite(gm.graph, graph),
        )
    return cast(fx.GraphModule, GraphView(graph, gm)) if changed else gm


def _may_gain(graph: fx.Graph) -> bool:
    """Whether any rewrite could find something: copying a graph for nothing costs as much as lowering it."""
    return any(map(_gains, graph.nodes)) or bool(static_frontier(graph, static_nodes(graph)))


def convolves(node: fx.Node) -> bool:
    record = operator_record(node.target) if node.op == "call_function" else None
    return record is not None and record.kind is Kind.CONVOLUTION


def _gains(node: fx.Node) -> bool:
    record = operator_record(node.target) if node.op == "call_function" else None
    return record is not None and record.kind in (Kind.CONVOLUTION, Kind.MATMUL)


def why_not_rewrite(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> str | None:
    """Why nothing may be computed from parameters ahead of a call."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    static = [x for n, x in zip(placeholders, example_inputs, strict=False) if is_static_input(n)]
    if not static:
        return "no static inputs"
    if any(not isinstance(x, torch.Tensor) or type(x) not in (torch.Tensor, torch.nn.Parameter) for x in static):
        return "a static input is not a plain tensor"
    if any(x.is_inference() for x in static):
        return "a parameter was made in inference mode and has no version counter"
    return None
