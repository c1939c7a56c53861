"""Products of 16-bit numbers in float32: at least as close to the exact result as eager's, in eager's dtype and layout."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from aten_capture import capture

from treadle_codegen import compile_graph
from treadle_codegen.options import CodegenOptions
from treadle_codegen.rewrite.pipeline import EarlyRewrite, rewrite_early
from treadle_codegen.targets.cpp import wide_products
from treadle_codegen.targets.cpp.wide_products import compute_in_float32, is_slow_product

HALF = torch.float16


@pytest.fixture(autouse=True)
def a_processor_without_such_products(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wide_products, "slow_dtypes", lambda: frozenset((torch.float16, torch.bfloat16)))


def made(*shape: int, dtype: torch.dtype = HALF) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "linear": (lambda x, w, b: F.gelu(F.linear(x, w, b)), (made(50, 16), made(8, 16), made(8))),
    "chain": (lambda x, w: (x @ w).relu() @ w, (made(40, 8), made(8, 8))),
    "addmm with factors": (lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), (made(8), made(9, 6), made(6, 8))),
    "bmm": (lambda x, y: torch.bmm(x, y.transpose(1, 2)), (made(3, 8, 5), made(3, 6, 5))),
    "bfloat16": (lambda x, y: x @ y, (made(14, 5, dtype=torch.bfloat16), made(5, 6, dtype=torch.bfloat16))),
    "convolution": (lambda x, w, b: F.conv2d(x, w, b, padding=1), (made(2, 3, 9, 9), made(4, 3, 3, 3), made(4))),
    "one-dimensional convolution": (lambda x, w: F.conv1d(x, w), (made(2, 3, 19), made(4, 3, 3))),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k), (made(2, 3, 8, 8), made(2, 3, 9, 8))),
    "masked attention": (
        lambda q, k, m: F.scaled_dot_product_attention(q, k, k, m),
        (made(2, 3, 8, 8), made(2, 3, 9, 8), made(8, 9)),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_results_are_close_to_the_exact_ones(case: str) -> None:
    function, tensors = CASES[case]
    graph = capture(function, tensors)
    expected, exact = function(*tensors), function(*[t.double() for t in tensors])
    (found,) = compile_graph(graph, tensors, options=CodegenOptions(verify=True))(*tensors)
    assert found.dtype == expected.dtype and found.stride() == expected.stride()
    own, eagers = [(r.double() - exact).abs().max().item() for r in (found, expected)]
    unit = torch.finfo(found.dtype).eps * exact.abs().max().item()
    assert own <= eagers + unit


@pytest.mark.parametrize("case", CASES)
def test_every_product_is_computed_in_float32(case: str) -> None:
    function, tensors = CASES[case]
    problems: list[str] = []
    rewrites = [EarlyRewrite(compute_in_float32, is_slow_product)]
    new = rewrite_early(capture(function, tensors), rewrites, lambda name, text, found: problems.extend(found()))
    assert problems == []
    assert not any(map(is_slow_product, new.graph.nodes))


def test_few_rows_stay_in_their_dtype() -> None:
    tensors = (made(1, 16), made(16, 8))
    graph = capture(operator.matmul, tensors)
    assert rewrite_early(graph, [EarlyRewrite(compute_in_float32, is_slow_product)]) is graph


def test_weights_are_converted_once() -> None:
    layer = torch.nn.Linear(16, 8).to(HALF)
    tensors = (layer.weight.detach(), layer.bias.detach(), made(10, 16))
    graph = capture(lambda w, b, x: F.linear(x, w, b), tensors)
    for node, tensor in zip([n for n in graph.graph.nodes if n.op == "placeholder"][:2], tensors, strict=False):
        node.meta["static_input"] = tensor
    compiled = compile_graph(graph, tensors, options=CodegenOptions(verify=True))
    for _ in range(2):
        torch.testing.assert_close(compiled(*tensors)[0], F.linear(tensors[2], *tensors[:2]), rtol=2e-3, atol=2e-3)
        tensors[0].mul_(2)


def test_float32_graphs_stay_as_they_are() -> None:
    tensors = (torch.randn(4, 5), torch.randn(5, 6))
    graph = capture(operator.matmul, tensors)
    assert rewrite_early(graph, [EarlyRewrite(compute_in_float32, is_slow_product)]) is graph


def test_overflow_is_infinite_as_in_eager() -> None:
    x = torch.full((2, 64), 60000.0, dtype=HALF)
    graph = capture(lambda x: x @ x.t(), (x,))
    assert torch.equal(compile_graph(graph, (x,))(x)[0], torch.full((2, 2), float("inf"), dtype=HALF))


@pytest.mark.parametrize("case", ["linear", "chain", "bmm"])
def test_a_compile_inside_of_autocast_adds_no_casts(case: str) -> None:
    """Autocast made float16 of what was to be computed in float32, and the kernel wrote float32 into a tensor of float16."""
    function, tensors = CASES[case]
    graph = capture(function, tensors)
    with torch.autocast("cpu", dtype=HALF):
        (found,) = compile_graph(graph, tensors, options=CodegenOptions(verify=True))(*tensors)
    torch.testing.assert_close(found, function(*tensors))
