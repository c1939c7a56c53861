"""The contract of graph rewrites: the rewrites obey it, and every planted fault is found."""

from __future__ import annotations

import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (the name everybody knows)
from aten_capture import capture
from torch import fx

from treadle_codegen.rewrite.pipeline import rewrite_graph
from treadle_codegen.rewrite.propagate import fake_mode_of
from treadle_codegen.rewrite.verify import verify_graph, verify_prologue, verify_rewrite
from treadle_codegen.targets.table import TARGETS

aten = torch.ops.aten


def fn(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, _ = (F.linear(x, w * 2, b) * (b * 2)).sort(-1)
    return values, x.sum(0)


def graphs() -> tuple[fx.GraphModule, fx.Graph, tuple[fx.GraphModule, tuple[int, ...]]]:
    """A graph, its copy after the rewrites, and the prologue."""
    inputs = [torch.randn(5, 80), torch.randn(6, 80), torch.randn(6)]
    gm = capture(fn, inputs, static=(1, 2))
    cpp = TARGETS["cpp"]
    after, prologue = rewrite_graph(gm, inputs, cpp.rewrites().static, cpp.rewrites().fake_rules)
    assert prologue is not None
    return gm, after.graph, prologue


def problems_of(plant: Callable[[fx.Graph], None]) -> list[str]:
    gm, after, _ = graphs()
    mode = fake_mode_of(after)
    assert mode is not None
    plant(after)
    return verify_graph(after, mode, {}) + verify_rewrite(gm.graph, after)


def named(graph: fx.Graph, target: object) -> fx.Node:
    return next(node for node in graph.nodes if node.target is target)


def nothing(graph: fx.Graph) -> None:
    pass


def out_of_order(graph: fx.Graph) -> None:
    first = next(iter(graph.nodes))
    first.prepend(named(graph, aten.mm.default))


def writes(graph: fx.Graph) -> None:
    node = named(graph, aten.mul.Tensor)
    node.target = aten.mul_.Tensor


def no_value(graph: fx.Graph) -> None:
    del named(graph, aten.mul.Tensor).meta["val"]


def other_shape(graph: fx.Graph) -> None:
    node = named(graph, aten.mul.Tensor)
    node.meta["val"] = node.meta["val"][:2]


def other_dtype(graph: fx.Graph) -> None:
    node = named(graph, aten.mul.Tensor)
    with node.meta["val"].fake_mode:
        node.meta["val"] = node.meta["val"].double()


def other_strides(graph: fx.Graph) -> None:
    node = named(graph, aten.mm.default)
    with node.meta["val"].fake_mode:
        node.meta["val"] = torch.empty_strided((4, 6), (1, 4))


def no_such_call(graph: fx.Graph) -> None:
    node = named(graph, aten.mm.default)
    node.args = (node.args[1], node.args[1])


def other_output(graph: fx.Graph) -> None:
    output = next(iter(reversed(graph.nodes)))
    output.args = ((output.args[0][1], output.args[0][0]),)


def fewer_outputs(graph: fx.Graph) -> None:
    output = next(iter(reversed(graph.nodes)))
    output.args = (output.args[0][:1],)


def swapped_placeholders(graph: fx.Graph) -> None:
    first, second = [node for node in graph.nodes if node.op == "placeholder"][:2]
    second.append(first)


def no_longer_static(graph: fx.Graph) -> None:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    del placeholders[1].meta["static_input"]


def derived_is_not_static(graph: fx.Graph) -> None:
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    del placeholders[-1].meta["static_input"]


def gone(graph: fx.Graph) -> None:
    for node in reversed([node for node in graph.nodes if node.op == "placeholder"]):
        if not node.users:
            graph.erase_node(node)
    while sum(node.op == "placeholder" for node in graph.nodes) > 2:
        last = [node for node in graph.nodes if node.op == "placeholder"][-1]
        last.replace_all_uses_with(next(iter(graph.nodes)))
        graph.erase_node(last)


FAULTS: dict[Callable[[fx.Graph], None], str] = {
    out_of_order: "not a valid graph",
    writes: "writes to self",
    no_value: "has no val",
    other_shape: "its arguments give",
    other_dtype: "its arguments give",
    other_strides: "its arguments give",
    no_such_call: "cannot be computed from its arguments",
    other_output: "output 0 was",
    fewer_outputs: "2 outputs became 1",
    swapped_placeholders: "placeholder 0 was",
    no_longer_static: "placeholder 1 was",
    derived_is_not_static: "is not static",
    gone: "are gone",
}


def test_the_rewrites_obey_the_contract() -> None:
    gm, after, prologue = graphs()
    mode = fake_mode_of(after)
    assert mode is not None
    assert problems_of(nothing) == []
    assert verify_prologue(after, prologue, 3) == [] and verify_graph(prologue[0].graph, mode, {}) == []
    assert any(node.target is operator.getitem for node in after.nodes)


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_planted_faults_are_found(plant: Callable[[fx.Graph], None]) -> None:
    problems = problems_of(plant)
    assert any(FAULTS[plant] in problem for problem in problems), problems


def test_faults_of_a_prologue_are_found() -> None:
    _, after, (module, positions) = graphs()
    assert "no static placeholder" in verify_prologue(after, (module, (0, *positions[1:])), 3)[0]
    assert any("positions for" in p for p in verify_prologue(after, (module, positions[1:]), 3))
    assert any("further placeholders" in p for p in verify_prologue(after, (module, positions), 2))
    output = next(iter(reversed(module.graph.nodes)))
    output.args = (tuple(reversed(output.args[0])),)
    assert any("the prologue returns" in p for p in verify_prologue(after, (module, positions), 3))
