"""Attention with dropout on fake CUDA tensors becomes the kernel that eager takes for real ones.

PyTorch's builds for CPUs cannot differentiate fake CUDA tensors: what autograd makes of the operators is not tested here.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx
from torch.nn import functional as F

from treadle_autograd.contract import ViewOfFresh
from treadle_autograd.functional_trace import trace_inference
from treadle_shapes.torch import attention_backends, fake_mode


def attention_graph(size: int = 32, *, causal: bool = False, dropout: float = 0.1) -> list[fx.Node]:
    mode = fake_mode()
    graph = fx.Graph()
    with mode:
        fakes = [torch.empty(2, 64, 4, size, device="cuda").transpose(1, 2) for _ in range(3)]
    nodes = [graph.placeholder(name) for name in "qkv"]
    for node, fake in zip(nodes, fakes, strict=True):
        node.meta["example_value"] = fake
    options = {"dropout_p": dropout, "is_causal": causal}
    graph.output((graph.call_function(F.scaled_dot_product_attention, tuple(nodes), options),))
    trace = trace_inference(fx.GraphModule(torch.nn.Module(), graph), fakes, {})
    (found,) = trace.contract.outputs
    (output,) = trace.graph_module.graph.output_node().args[0]  # type: ignore[misc]
    shape = found.geometry.size if isinstance(found, ViewOfFresh) else output.meta["val"].shape
    assert tuple(shape) == (2, 4, 64, size)
    return [node for node in trace.graph_module.graph.nodes if node.op == "call_function"]


def targets(nodes: list[fx.Node]) -> list[str]:
    return [str(node.target) for node in nodes]


@pytest.mark.parametrize(("choice", "name"), [(1, "flash"), (2, "efficient"), (3, "cudnn")])
@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_eagers(monkeypatch: pytest.MonkeyPatch, choice: int, name: str, causal: bool) -> None:
    asked: list[Any] = []

    def choose(tensors: Any, needs_gradients: bool, dropout_p: float, is_causal: bool, *rest: Any) -> int:
        asked.append((tensors[0].stride(), needs_gradients, dropout_p, is_causal))
        return choice

    monkeypatch.setattr(attention_backends, "eager_choice", choose)
    nodes = attention_graph(causal=causal)
    assert asked[0] == ((8192, 32, 128, 1), False, 0.1, causal)
    (call,) = [node for node in nodes if str(node.target) == f"aten._scaled_dot_product_{name}_attention.default"]
    assert 0.1 in call.args and (not causal or True in call.args)
    assert not any("bmm" in target or "aten.native_dropout" in target for target in targets(nodes))


def test_sizes_that_flash_attention_pads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: 1)
    nodes = attention_graph(size=30)
    (call,) = [n for n in nodes if str(n.target) == "aten._scaled_dot_product_flash_attention.default"]
    query: Any = call.args[0]
    assert query.meta["val"].shape[-1] == 32 and call.kwargs["scale"] == pytest.approx(30**-0.5)


def test_without_dropout_or_where_the_choice_is_unknown_pytorch_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: None)
    assert "aten.native_dropout.default" in targets(attention_graph())
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: pytest.fail("asked without dropout"))
    attention_graph(dropout=0.0)


def test_tensors_on_the_cpu_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: pytest.fail("asked on the CPU"))
    x = torch.randn(2, 4, 8, 8)
    torch.manual_seed(0)
    mine = attention_backends.attention(x, x, x, None, 0.5)
    torch.manual_seed(0)
    assert torch.equal(mine, F.scaled_dot_product_attention(x, x, x, None, 0.5))
