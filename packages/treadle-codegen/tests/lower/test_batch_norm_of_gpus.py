"""Batch norms as CUDA has them: their saved statistics have values also outside of training."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Extern
from treadle_codegen.lower import lower_graph

aten = torch.ops.aten


def graph_of(op: torch._ops.OpOverload, tensors: list[torch.Tensor], *, training: bool, results: int) -> fx.GraphModule:
    """A graph of one batch norm that returns its first `results` results, with the metadata that they have on a GPU."""
    mode, graph = FakeTensorMode(), fx.Graph()
    inputs = []
    for k, tensor in enumerate(tensors):
        inputs.append(graph.placeholder(f"arg{k}"))
        inputs[-1].meta["val"] = mode.from_tensor(tensor)
    norm = graph.call_function(op, (*inputs, training, 0.1, 1e-5))
    saved = [t.meta["val"] for t in inputs[3:5]]
    reserve = [mode.from_tensor(torch.empty(0, dtype=torch.uint8))] * (op is aten.cudnn_batch_norm.default)
    norm.meta["val"] = (inputs[0].meta["val"], *saved, *reserve)
    items = [graph.call_function(operator.getitem, (norm, k)) for k in range(results)]
    for k, item in enumerate(items):
        item.meta["val"] = norm.meta["val"][k]
    graph.output(tuple(items))
    return fx.GraphModule(torch.nn.Module(), graph)


@pytest.mark.parametrize("op", [aten.cudnn_batch_norm.default, aten.native_batch_norm.default])
def test_inference_is_a_loop(op: torch._ops.OpOverload) -> None:
    tensors = [torch.randn(2, 3, 4, 5), torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3)]
    program = lower_graph(graph_of(op, tensors, training=False, results=1), tensors)
    assert not any(isinstance(step, Extern) for step in program.steps)
    x, weight, bias, mean, var = tensors
    expected = torch.nn.functional.batch_norm(x, mean, var, weight, bias)
    torch.testing.assert_close(interpret(program, tensors)[0], expected)


def test_statistics_that_are_needed_come_from_the_operator() -> None:
    tensors = [torch.randn(2, 3, 4, 5), torch.randn(3), torch.randn(3), torch.randn(3), torch.rand(3)]
    for training, results in ((False, 2), (True, 1)):
        gm = graph_of(aten.cudnn_batch_norm.default, tensors, training=training, results=results)
        assert any(isinstance(step, Extern) for step in lower_graph(gm, tensors).steps)
