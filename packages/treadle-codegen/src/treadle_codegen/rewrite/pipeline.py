"""The list of graph-level rewrites, and what they leave for run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from treadle_codegen.rewrite.fold_batch_norm import fold_batch_norm
from treadle_codegen.rewrite.pack_convolution import pack_convolutions
from treadle_codegen.rewrite.propagate import fake_mode_of
from treadle_codegen.rewrite.static import hoist_static, is_static_input


def rewrite_graph(
    gm: fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[fx.GraphModule, tuple[fx.GraphModule, tuple[int, ...]] | None]:
    """(rewritten copy of the graph, prologue graph and positions of its inputs or None); `gm` stays as it is."""
    if why_not_rewrite(gm, example_inputs) is not None:
        return gm, None
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    copy = fx.GraphModule(gm, graph)
    mode = fake_mode_of(graph)
    if mode is None:
        return gm, None
    fold_batch_norm(copy, mode)
    pack_convolutions(copy, mode)
    hoisted = hoist_static(copy)
    return (copy, None) if hoisted is None else (copy, (hoisted[0], tuple(hoisted[1])))


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
