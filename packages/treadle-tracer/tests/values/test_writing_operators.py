"""Custom operators that write to their arguments: Python runs them between graphs, or, if one graph is asked for, the graph holds them."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.values.call_effects import writes_without_functional_form


@torch.library.custom_op("treadle_writing::add_into", mutates_args={"target"})
def add_into(value: torch.Tensor, target: torch.Tensor) -> None:
    target.add_(value)


@torch.library.custom_op("treadle_writing::double_and_sum", mutates_args={"targets"})
def double_and_sum(targets: list[torch.Tensor]) -> torch.Tensor:
    for target in targets:
        target.mul_(2)
    return torch.stack([target.sum() for target in targets])


@double_and_sum.register_fake
def _(targets):
    return targets[0].new_empty(len(targets))


@torch.library.custom_op("treadle_writing::doubled", mutates_args=())
def doubled(value: torch.Tensor) -> torch.Tensor:
    return value * 2


@doubled.register_fake
def _(value):
    return torch.empty_like(value)


def an_argument(x, y):
    torch.ops.treadle_writing.add_into(y, x)
    return x * 2


def a_new_tensor(x, y):
    z = x * 2
    add_into(y, z)
    return z.sin(), z


def part_of_a_new_tensor(x, y):
    z = x * 2
    add_into(y[1:], z[1:])
    return z.sin(), z.view(-1)


def several(x, y):
    sums = double_and_sum([x, y])
    return x + y, sums * 2


@pytest.mark.parametrize("program", [an_argument, a_new_tensor, part_of_a_new_tensor, several])
def test_python_runs_them_between_graphs(program):
    run, recorder = compiled(program)
    theirs, mine = [torch.arange(3.0), torch.ones(3)], [torch.arange(3.0), torch.ones(3)]
    for _ in range(2):
        torch.testing.assert_close(run(*mine), program(*theirs))
        torch.testing.assert_close(mine, theirs)
    assert recorder.codes() == ["writing-operator"]
    targets = [str(node.target) for gm in recorder.graphs for node in gm.graph.nodes]
    assert not any("treadle_writing" in target for target in targets) and any("sin" in t or "mul" in t for t in targets)


def test_one_graph_holds_them_if_it_is_asked_for():
    run, recorder = compiled(an_argument, fullgraph=True)
    x, y = torch.arange(3.0), torch.ones(3)
    assert torch.equal(run(x, y), (torch.arange(3.0) + 1) * 2)
    assert torch.equal(x, torch.arange(3.0) + 1) and len(recorder.graphs) == 1


def test_which_operators_have_no_functional_form():
    ours = torch.ops.treadle_writing
    assert writes_without_functional_form(ours.add_into) and writes_without_functional_form(ours.add_into.default)
    assert not writes_without_functional_form(ours.doubled)
    assert not writes_without_functional_form(torch.ops.aten.add_.Tensor)
    assert not writes_without_functional_form(torch.add)
