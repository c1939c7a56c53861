"""What is copied for a decomposed call that repeats is what its decomposition would have recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradient_oracle import run_operators
from joint_graphs import nodes_of
from torch import fx

from treadle_autograd import aot
from treadle_autograd.expansions import Expansions
from treadle_autograd.joint import trace_joint
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, fake_tensor

aten = torch.ops.aten


RULES = {
    op: torch._decomp.decomposition_table[op]
    for op in (
        aten.native_batch_norm_backward.default,
        aten.silu_backward.default,
        aten.hardswish_backward.default,
        aten.gelu_backward.default,
        aten.threshold_backward.default,
    )
}


def network(activation: Callable[..., Any], n_layers: int = 3) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """Batch norms with activations, pooled in between, and inputs: x [batch, channels, height, width], a weight per layer."""

    def forward(x: torch.Tensor, ws: Sequence[torch.Tensor]) -> torch.Tensor:
        for k in range(n_layers):
            x = activation(F.batch_norm(x, None, None, weight=ws[k], training=True)) + x
            if k == 1:
                x = F.avg_pool2d(x, 2)
        return x

    graph = fx.Graph()
    x, *ws = [graph.placeholder(f"x{k}") for k in range(n_layers + 1)]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    graph.output((forward(fx.Proxy(x, tracer), [fx.Proxy(w, tracer) for w in ws]).node,))  # type: ignore[attr-defined, arg-type]
    inputs = [torch.randn(2, 4, 8, 8, requires_grad=True), *[torch.rand(4, requires_grad=True) for _ in ws]]
    return fx.GraphModule(torch.nn.Module(), graph), inputs


@pytest.fixture
def copied(monkeypatch):
    """The number of nodes of each copy."""
    found: list[int] = []
    copy = Expansions.copied

    def watched(self, recorder, call):
        before = len(recorder.recorded.graph.nodes)
        result = copy(self, recorder, call)
        if result is not NotImplemented:
            found.append(len(recorder.recorded.graph.nodes) - before)
        return result

    monkeypatch.setattr(Expansions, "copied", watched)
    return found


@pytest.mark.parametrize("activation", [F.silu, F.hardswish, F.gelu, F.relu])
def test_the_joint_graph_is_that_without_copies(monkeypatch, copied, activation):
    gm, inputs = network(activation)
    one = trace_joint(gm, inputs, RULES, share=False)
    assert len(copied) >= 2 and max(copied) > 5
    monkeypatch.setattr(Expansions, "call_of", staticmethod(lambda *_: None))
    other = trace_joint(gm, inputs, RULES, share=False)
    assert one is not None and other is not None and nodes_of(one.graph) == nodes_of(other.graph)


def test_gradients_are_eagers(copied):
    gm, inputs = network(F.silu)
    compiled = aot(gm, inputs, forward=run_operators, decompositions=RULES, inference=False)
    mine = torch.autograd.grad(compiled(*inputs)[0].square().sum(), inputs)
    theirs = torch.autograd.grad(gm(*inputs)[0].square().sum(), inputs)
    assert copied
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b)


def joint_with_rule(rule):
    """The joint graph of two equal calls whose derivative is decomposed by `rule`."""
    gm = fx.symbolic_trace(lambda x: F.silu(F.silu(x)))
    return trace_joint(gm, (torch.randn(3, requires_grad=True),), {aten.silu_backward.default: rule}, share=False)


def test_a_rule_runs_once(copied):
    asked = []
    assert joint_with_rule(lambda grad, x: asked.append(x) or grad * x) is not None
    assert copied == [1] and len(asked) == 1


def test_results_that_share_memory_with_arguments_are_not_copied(copied):
    assert joint_with_rule(lambda grad, x: grad.view(3)) is not None
    assert copied == []


def test_what_a_rule_declines_is_not_kept(copied):
    asked = []
    assert joint_with_rule(lambda grad, x: asked.append(x) or NotImplemented) is not None
    assert copied == [] and len(asked) == 2


def test_other_metadata_is_another_call(copied):
    gm = fx.symbolic_trace(lambda x: F.silu(F.silu(x)[:, :2].t()))
    rules = {aten.silu_backward.default: lambda grad, x: grad * x}
    assert trace_joint(gm, (torch.randn(3, 3, requires_grad=True),), rules, share=False) is not None
    assert copied == []


def test_symbolic_sizes_are_not_copied(copied):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env))
    gm = fx.symbolic_trace(lambda x: F.silu(F.silu(x)))
    x = fake_tensor(mode, torch.randn(3), [env.create_symbol(3, "n")])
    next(iter(gm.graph.nodes)).meta["example_value"] = x.requires_grad_()
    rules = {aten.silu_backward.default: lambda grad, x: grad * x}
    assert trace_joint(gm, (torch.randn(3, requires_grad=True),), rules, share=False) is not None
    assert copied == []
