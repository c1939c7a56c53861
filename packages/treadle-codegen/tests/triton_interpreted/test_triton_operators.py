"""PyTorch's operator samples, as Triton kernels, run by its interpreter."""

from __future__ import annotations

from typing import Any

import operator_samples
import pytest
import torch
from aten_capture import capture
from torch.utils._pytree import tree_leaves

from treadle_codegen import CodegenOptions, compile_graph

OPERATORS = """
add amax argmax bitwise_not cat clamp constant_pad_nd cumsum diagonal div eq expand expm1 flip full gather index_put
index_select isnan log_softmax logaddexp masked_fill matmul mean nn.functional.adaptive_avg_pool2d nn.functional.batch_norm
nn.functional.embedding nn.functional.gelu nn.functional.group_norm nn.functional.layer_norm nn.functional.linear
nn.functional.max_pool2d nn.functional.pad permute pow prod remainder repeat reshape roll scatter select_scatter signbit
softmax sort split square sub sum tril unbind unfold var where zeros_like
""".split()
DTYPES = [torch.float32, torch.int64, torch.bool, torch.float16]
TOLERANCE = {torch.float16: 5e-3}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_agree_with_eager(name: str) -> None:
    for dtype in DTYPES:
        for function, tensors in operator_samples.samples(name, dtype, 2):
            check(function, tensors, TOLERANCE.get(dtype, 1e-5))


def check(function: Any, tensors: list[torch.Tensor], tolerance: float) -> None:
    gm = capture(function, tensors)
    if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes):
        return  # not a functional graph: the capture of these tests does not functionalise
    compiled = compile_graph(gm, tensors, options=CodegenOptions(verify=True))
    expected = tree_leaves(function(*tensors))
    for actual, wanted in zip(compiled(*tensors), expected, strict=True):
        assert actual.stride() == wanted.stride() or wanted.numel() == 0
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)


def test_these_tests_run_triton_kernels() -> None:
    compiled = compile_graph(capture(torch.relu, [torch.ones(3)]), [torch.ones(3)])
    assert "@jit" in compiled.source and "data_ptr" not in compiled.host_source


@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3), (3, 2, 0)])
def test_tensors_without_elements(shape: tuple[int, ...]) -> None:
    check(lambda x: (x * 2 + 1, x.sum(), x.sum(-1), x.sum(0), torch.cat([x, x])), [torch.randn(shape)], 1e-6)


def test_sums_over_nothing_in_several_dimensions() -> None:
    check(lambda x: x.permute(2, 0, 1).sum((1, 2)), [torch.randn(4, 0, 3)], 1e-6)
