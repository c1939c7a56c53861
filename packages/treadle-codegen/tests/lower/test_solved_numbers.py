"""Numbers of a graph that facts write with symbols that no input gives."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from treadle_codegen import CodegenOptions, compile_graph
from treadle_codegen.ir.loops import Define
from treadle_codegen.lower import lower_graph
from treadle_shapes import Eq, ShapeEnv
from treadle_shapes.torch import sym_int


def rewritten(factor: int) -> torch.fx.GraphModule:
    """A graph that multiplies a tensor by two numbers, of which it is known that they are factor * other - 1 and other + 3."""
    env = ShapeEnv()
    other = env.create_symbol(7, "other", size=False)
    graph = torch.fx.Graph()
    result = graph.placeholder("x")
    result.meta["val"] = torch.empty(4)
    numbers = [graph.placeholder(name) for name in ("first", "second")]
    for node, value in zip(numbers, (other * factor - 1, other + 3), strict=True):
        number = env.create_symbol(env.hint(value), node.name, size=False)
        node.meta["val"] = sym_int(env, number)
        env.add_fact(Eq(number, value))
        result = graph.call_function(torch.ops.aten.mul.Tensor, (result, node))
        result.meta["val"] = torch.empty(4)
    graph.output((result,))
    return torch.fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("factor", [1, -1, 3])
def test_the_symbol_follows_from_a_number(factor: int, tmp_path: Path) -> None:
    gm = rewritten(factor)
    program = lower_graph(gm)
    assert [step.symbol.name for step in program.steps if isinstance(step, Define)] == ["s0"]
    compiled = compile_graph(gm, [torch.ones(4)], options=CodegenOptions(cache_dir=tmp_path, verify=True))
    for other in (7, 3, -2):
        first, second = factor * other - 1, other + 3
        (result,) = compiled(torch.ones(4), first, second)
        torch.testing.assert_close(result, torch.ones(4) * first * second)
