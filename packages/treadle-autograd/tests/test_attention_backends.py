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
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import attention_backends, fake_mode, fake_shape_env, sym_int


def attention_graph(
    size: int = 32, *, causal: bool = False, dropout: float = 0.1, mask: torch.dtype | None = None, keys: int = 64
) -> list[fx.Node]:
    mode = fake_mode()
    graph = fx.Graph()
    with mode:
        fakes = [torch.empty(2, length, 4, size, device="cuda").transpose(1, 2) for length in (64, keys, keys)]
        if mask is not None:
            fakes.append(torch.empty(2, 1, 64, keys, device="cuda", dtype=mask))
    nodes = [graph.placeholder(name) for name in "qkvm"[: len(fakes)]]
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

    def choose(call: attention_backends.Attention) -> int:
        asked.append((call.query.stride(), call.needs_gradients, call.dropout_p, call.is_causal))
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


@pytest.mark.parametrize("choice", [2, 3])
@pytest.mark.parametrize("mask", [torch.bool, torch.float32])
def test_kernels_take_masks_as_numbers_to_add(monkeypatch: pytest.MonkeyPatch, choice: int, mask: torch.dtype) -> None:
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: choice)
    name = {2: "efficient", 3: "cudnn"}[choice]
    for keys in (64, 61):
        nodes = attention_graph(mask=mask, keys=keys)
        (call,) = [n for n in nodes if str(n.target) == f"aten._scaled_dot_product_{name}_attention.default"]
        bias: Any = call.args[3]
        value = bias.meta["val"]
        assert value.dtype is torch.float32
        if choice == 2:
            assert value.shape == (2, 4, 64, keys) and all(step % 8 == 0 for step in value.stride()[:-1])


def test_eagers_products_are_taken_where_it_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: 0)
    for mask in (None, torch.bool, torch.float32):
        assert "aten.native_dropout.default" in targets(attention_graph(mask=mask))


def test_the_choice_holds_for_the_sizes_that_it_was_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another size of a head, one position, or other lengths of queries than of keys may have another kernel."""
    monkeypatch.setattr(attention_backends, "eager_choice", lambda *args: 2)
    env = ShapeEnv(duck_shape=False)
    symbols = [env.create_symbol(hint, name) for hint, name in ((3, "batch"), (16, "length"), (32, "size"))]
    with fake_mode(shape_env=fake_shape_env(env)):
        batch, length, size = (sym_int(env, symbol) for symbol in symbols)
        query = torch.empty(batch, 4, length, size, device="cuda")
        attention_backends.attention(query, query, query, None, 0.1)
    holds = env.compile_guards(symbols)
    assert holds(5, 9, 32)
    for batch, length, size in ((5, 9, 30), (5, 1, 32), (0, 9, 32), (70_000, 9, 32)):
        assert not holds(batch, length, size)


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
