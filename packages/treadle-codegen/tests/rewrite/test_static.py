"""The static prologue: what is taken out of a graph, and when its values are computed again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from aten_capture import capture
from torch import fx

from treadle_codegen.rewrite.static import (
    Prologue,
    hoist_static,
    is_view_of_input,
    static_frontier,
    static_nodes,
    why_not_once,
)

aten = torch.ops.aten


def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ (w.t() * 2) + b.unsqueeze(0).expand(4, 6) + torch.rand_like(b) * (w.sum() + x.sum())


def graph() -> fx.Graph:
    return capture(fn, [torch.randn(4, 8), torch.randn(6, 8), torch.randn(6)], static=(1, 2)).graph


def targets(nodes: Sequence[fx.Node]) -> list[str]:
    return [str(node.target) for node in nodes if node.op == "call_function"]


def test_static_nodes_depend_on_parameters_alone() -> None:
    g = graph()
    static = [node for node in g.nodes if node in static_nodes(g)]
    assert set(targets(static)) == {
        "aten.t.default", "aten.mul.Tensor", "aten.unsqueeze.default", "aten.expand.default", "aten.sum.default",
    }  # fmt: skip
    assert all("rand" not in target for target in targets(static))


def test_views_of_parameters_are_repeated_rather_than_kept() -> None:
    g = graph()
    static = static_nodes(g)
    assert targets(static_frontier(g, static)) == ["aten.mul.Tensor", "aten.sum.default"]
    assert [is_view_of_input(n) for n in g.nodes if n in static and n.op == "call_function"].count(True) == 3


def test_hoisting_takes_the_computations_out() -> None:
    g = graph()
    found = hoist_static(g)
    assert found is not None
    prologue, positions = found
    g.lint()
    assert positions == [1] and targets(list(prologue.nodes)) == [
        "aten.t.default",
        "aten.mul.Tensor",
        "aten.sum.default",
    ]
    derived = [node for node in g.nodes if node.op == "placeholder"][3:]
    assert len(derived) == 2 and all(node.meta["static_input"] is True for node in derived)
    assert "aten.t.default" not in targets(list(g.nodes))


def test_nothing_to_hoist() -> None:
    assert hoist_static(capture(lambda x, w: x @ w.t(), [torch.randn(2, 3)] * 2, static=()).graph) is None
    assert (
        hoist_static(capture(lambda x, w: x @ w.t(), [torch.randn(2, 3), torch.randn(4, 3)], static=(1,)).graph) is None
    )


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda w: torch.rand_like(w), "draws random numbers"),
        (lambda w: w.mul_(2), "mutates"),
        (lambda w: w * 2, None),
    ],
)
def test_why_a_call_cannot_be_done_once(function: Callable[[torch.Tensor], torch.Tensor], reason: str | None) -> None:
    node = next(n for n in capture(function, [torch.randn(3)], static=(0,)).graph.nodes if n.op == "call_function")
    found = why_not_once(node)
    assert found is None if reason is None else found is not None and reason in found


def test_results_whose_size_is_data_are_not_kept() -> None:
    g = fx.Graph()
    weight = g.placeholder("w")
    weight.meta["val"] = torch.ones(3)
    node = g.call_function(aten.nonzero.default, (weight,))
    node.meta["val"] = torch.ones(3, 1)
    assert why_not_once(node) == "its size depends on what the parameter holds"
    node = g.call_function(aten._local_scalar_dense.default, (weight,))
    node.meta["val"] = 3
    assert why_not_once(node) == "it is a number, or a check"


class Counted:
    """A prologue of `w * 2` that counts how often it runs, and a probe whose answer the test sets."""

    def __init__(self) -> None:
        self.runs = self.probes = 0
        self.bits = 7
        g = fx.Graph()
        w = g.placeholder("w")
        g.output((g.call_function(self.double, (w,)),))
        self.prologue = Prologue(fx.GraphModule({}, g), (1,), self.probe)

    def double(self, w: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return w * 2

    def probe(self, tensors: Sequence[torch.Tensor]) -> Callable[[], int]:
        self.probes += 1
        return lambda: self.bits


def test_values_are_kept_while_nothing_changes() -> None:
    counted, x, w = Counted(), torch.ones(2), torch.ones(3)
    (first,) = counted.prologue([x, w])
    assert counted.prologue([torch.zeros(9), w])[0] is first
    assert (counted.runs, counted.probes) == (1, 1) and torch.equal(first, w * 2)


def test_values_are_computed_again_after_a_change() -> None:
    counted, x, w = Counted(), torch.ones(2), torch.ones(3)
    counted.prologue([x, w])
    w.add_(1)  # another version
    assert torch.equal(counted.prologue([x, w])[0], w * 2) and counted.runs == 2
    counted.bits = 8  # a write that only memory shows
    counted.prologue([x, w])
    assert (counted.runs, counted.probes) == (3, 1)
    counted.prologue([x, torch.zeros(3)])  # other memory: sampled anew
    assert (counted.runs, counted.probes) == (4, 2)


def test_a_write_while_the_values_are_computed_is_found_by_the_next_call() -> None:
    counted, w = Counted(), torch.ones(3)

    def written_meanwhile(w: torch.Tensor) -> torch.Tensor:
        result = w * 2
        if counted.bits == 7:
            counted.bits = 8
            w.data.add_(1)
        return result

    g = fx.Graph()
    g.output((g.call_function(written_meanwhile, (g.placeholder("w"),)),))
    counted.prologue.graph = fx.GraphModule({}, g)
    assert torch.equal(counted.prologue([None, w])[0], torch.full((3,), 2.0))
    assert torch.equal(counted.prologue([None, w])[0], torch.full((3,), 4.0))


def test_values_have_no_gradient() -> None:
    counted = Counted()
    weight = torch.nn.Parameter(torch.ones(3))
    assert not counted.prologue([None, weight])[0].requires_grad
