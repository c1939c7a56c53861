"""What the kernels of a joint graph keep out of memory, by target."""

from __future__ import annotations

import pytest
import torch
from aten_capture import capture
from torch import fx

from treadle_codegen import OptionError, parts_to_compute_again

aten = torch.ops.aten


def joint() -> tuple[fx.Graph, set[fx.Node]]:
    """A graph of attention and of what its derivative reads, and the nodes of the derivative."""

    def program(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        weights = (torch.bmm(q, k) * 0.5).softmax(-1)
        result = torch.bmm(weights, v)
        dv = torch.bmm(weights.mT, dy)
        dp = torch.bmm(dy, v.mT)
        return result, dv, dp * weights

    args = [torch.randn(shape).half() for shape in ((2, 70, 32), (2, 32, 80), (2, 80, 32), (2, 70, 32))]
    graph = capture(program, args).graph
    calls = [node for node in graph.nodes if node.op == "call_function"]
    first = next(k for k, node in enumerate(calls) if [n.target for n in calls[: k + 1]].count(aten.bmm.default) == 2)
    return graph, {*calls[first + 1 :], graph.output_node()} - {calls[first]}


def test_scores_and_weights_are_not_kept_on_gpus() -> None:
    graph, others = joint()
    (part,) = parts_to_compute_again(graph, others, target="triton")
    targets = [node.target for node in graph.nodes if node in part]
    assert targets == [aten.bmm.default, aten.mul.Tensor, aten._softmax.default]


def test_what_forward_reads_itself_is_kept() -> None:
    graph, _ = joint()
    assert parts_to_compute_again(graph, {graph.output_node()}, target="triton") == []


def test_cpus_keep_everything() -> None:
    assert parts_to_compute_again(*joint()) == []


def test_an_unknown_target() -> None:
    with pytest.raises(OptionError, match="unknown target 'gpu'"):
        parts_to_compute_again(*joint(), target="gpu")
