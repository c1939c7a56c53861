"""Compiled gradients against eager's, for one call of a function: values, gradients, undefined gradients, aliasing of the results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from treadle_autograd import aot


def as_graph(function: Callable[..., Any], n_inputs: int, n_outputs: int) -> fx.GraphModule:
    """A graph of one call of `function`, which returns a sequence of `n_outputs` items."""
    graph = fx.Graph()
    node = graph.call_function(function, tuple(graph.placeholder(f"x{i}") for i in range(n_inputs)))
    graph.output(tuple(graph.call_function(operator.getitem, (node, i)) for i in range(n_outputs)))
    return fx.GraphModule(torch.nn.Module(), graph)


def run_operators(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """A compiler that compiles nothing, and checks that its graph is functional."""
    for node in gm.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node.format_node()
    return gm.forward


def leaves(tensors: Sequence[torch.Tensor], wanted: Sequence[bool]) -> list[torch.Tensor]:
    """Copies with the same strides, those that are wanted with gradients."""
    return [
        x.detach().clone(memory_format=torch.preserve_format).requires_grad_(need)
        for x, need in zip(tensors, wanted, strict=True)
    ]


def random_tangents(outputs: Sequence[Any], seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The outputs that gradients can flow into, and a random tangent for each."""
    generator = torch.Generator().manual_seed(seed)
    found = [x for x in outputs if isinstance(x, torch.Tensor) and x.requires_grad]
    return found, [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in found]


def gradients(
    function: Callable[..., Any], inputs: Sequence[torch.Tensor], seed: int = 0
) -> tuple[list[Any], list[Any]]:
    """Outputs, and the gradients of all inputs that want one."""
    torch.manual_seed(seed)
    outputs = list(function(*inputs))
    found, tangents = random_tangents(outputs, seed)
    wanted = [x for x in inputs if x.requires_grad]
    if not found or not wanted:
        return outputs, []
    return outputs, list(torch.autograd.grad(found, wanted, tangents, allow_unused=True))


def check(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    wanted: Sequence[bool] | None = None,
    *,
    rtol: float = 1e-5,
    atol: float = 1e-6,
    **options: Any,
) -> Any:
    """Compare one call and its gradients; `function` returns a flat sequence. Returns the compiled callable."""
    wanted = [x.is_floating_point() for x in inputs] if wanted is None else wanted
    theirs, theirs_gradients = gradients(function, leaves(inputs, wanted))
    gm = as_graph(function, len(inputs), len(theirs))
    compiled = aot(gm, leaves(inputs, wanted), inference=False, **{"forward": run_operators, **options})
    for _ in range(2):
        mine, mine_gradients = gradients(compiled, leaves(inputs, wanted))
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other, rtol, atol)
        assert [g is None for g in mine_gradients] == [g is None for g in theirs_gradients]
        for one, other in zip(mine_gradients, theirs_gradients, strict=True):
            if one is not None:
                torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)
    return compiled


def assert_same(one: Any, other: Any, rtol: float, atol: float) -> None:
    if not isinstance(other, torch.Tensor):
        assert one == other
        return
    torch.testing.assert_close(one.detach(), other.detach(), rtol=rtol, atol=atol, equal_nan=True)
    assert one.stride() == other.stride() and one.requires_grad == other.requires_grad
