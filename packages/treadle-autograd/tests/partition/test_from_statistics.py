"""Results of batch norms that backward computes from the statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradient_oracle import check
from joint_graphs import joint_of, leaf

from treadle_autograd import aot
from treadle_autograd.partition import classify, min_cut, split

NORM = torch.ops.aten.native_batch_norm.default


def block(activation: Callable[..., Any]) -> Callable[..., Any]:
    def f(x, w, gamma, beta, after):
        y = F.conv2d(x, w, padding=1)
        return (F.conv2d(activation(F.batch_norm(y, None, None, gamma, beta, True)), after).sin(),)

    return f


def inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    shapes = ((2, 3, 8, 6), (5, 3, 3, 3), (5,), (5,), (4, 5, 1, 1))
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


ACTIVATIONS = {
    "silu": F.silu,
    "silu_": lambda y: F.silu(y, inplace=True),
    "hardswish_": lambda y: F.hardswish(y, inplace=True),
    "gelu": F.gelu,
    "mish of a view": lambda y: F.mish(y.transpose(2, 3)).transpose(2, 3),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_eagers(name: str, layout: torch.memory_format) -> None:
    x, *parameters = inputs(torch.float64)
    check(block(ACTIVATIONS[name]), [x.contiguous(memory_format=layout), *parameters], rtol=1e-9, atol=1e-10)


def test_without_weight_or_bias() -> None:
    def f(x, w, gamma, beta):
        y = F.conv2d(x, w, padding=1)
        plain = F.silu(F.batch_norm(y, None, None, None, None, True))
        return F.silu(F.batch_norm(plain, None, None, gamma, None, True)), F.silu(
            F.batch_norm(y, None, None, None, beta, True)
        )

    check(f, inputs(torch.float64)[:4], rtol=1e-9, atol=1e-10)


def test_running_statistics_and_low_precision() -> None:
    def f(x, gamma, beta, mean, var):
        return (F.hardswish(F.batch_norm(x, mean.clone(), var.clone(), gamma, beta, True, 0.1)),)

    x = torch.randn(4, 5, 7).bfloat16()
    given = [x, torch.rand(5), torch.randn(5), torch.zeros(5), torch.ones(5)]
    check(f, given, [True, True, True, False, False], rtol=0.02, atol=0.02)


def saved_norms(function: Callable[..., Any], *given: torch.Tensor) -> list[int]:
    """Which results of batch norms are saved."""
    classes = classify(joint_of(function, *given))
    saved = min_cut(classes)
    split(classes, saved)
    return [node.args[1] for node in saved if node.all_input_nodes and node.all_input_nodes[0].target is NORM]


def test_the_result_is_not_saved_where_backward_reads_it() -> None:
    x, *parameters = (tensor.requires_grad_() for tensor in inputs())
    assert 0 not in saved_norms(block(F.hardswish), x, *parameters)
    assert 0 not in saved_norms(block(ACTIVATIONS["hardswish_"]), x, *parameters)


def test_what_only_operators_of_the_program_read_has_no_rule() -> None:
    x, *parameters = (tensor.requires_grad_() for tensor in inputs())
    assert not classify(joint_of(block(F.relu), x, *parameters)).from_statistics


def test_the_bias_may_change_before_backward_as_in_eager() -> None:
    def gradient(function: Callable[..., Any]) -> Any:
        x, w, gamma, beta, after = (t.clone().requires_grad_() for t in inputs(torch.float64))
        (out,) = function(x, w, gamma, beta, after)
        with torch.no_grad():
            beta.add_(3)
        return torch.autograd.grad(out.sum(), (x, w, gamma, beta))

    def graph(*given: torch.Tensor) -> Any:
        gm = torch.fx.symbolic_trace(block(F.hardswish))
        return aot(gm, given, forward=lambda made, examples: made.forward, inference=False)(*given)

    for mine, theirs in zip(gradient(graph), gradient(block(F.hardswish)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-10)


def test_leaf_sizes() -> None:
    assert 0 not in saved_norms(lambda x: F.hardswish(F.batch_norm(x, None, None, None, None, True)).sum(), leaf(4, 3))
