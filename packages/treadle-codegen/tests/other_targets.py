"""What the tests of targets other than C++ share: PyTorch's operator samples, and the suites of the other folders run once more."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import operator_samples
import torch
from aten_capture import capture
from torch.utils._pytree import tree_leaves

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph

TESTS = Path(__file__).parent

OPERATORS = """
add amax argmax bitwise_not cat clamp constant_pad_nd cumsum diagonal div eq expand expm1 flip full gather index_put
index_select isnan log_softmax logaddexp masked_fill matmul mean nn.functional.adaptive_avg_pool2d nn.functional.batch_norm
nn.functional.embedding nn.functional.gelu nn.functional.group_norm nn.functional.layer_norm nn.functional.linear
nn.functional.max_pool2d nn.functional.pad permute pow prod remainder repeat reshape roll scatter select_scatter signbit
softmax sort split square sub sum tril unbind unfold var where zeros_like
""".split()
DTYPES = [torch.float32, torch.int64, torch.bool, torch.float16]
TOLERANCE = {torch.float16: 5e-3}


def check_samples(name: str, seen: Callable[[CompiledGraph], None] = lambda compiled: None) -> None:
    """Compile PyTorch's samples of an operator and compare with eager; `seen` is shown every compiled graph."""
    for dtype in DTYPES:
        for function, tensors in operator_samples.samples(name, dtype, 2):
            compiled = check(function, tensors, TOLERANCE.get(dtype, 1e-5))
            if compiled is not None:
                seen(compiled)


def check(function: Any, tensors: list[torch.Tensor], tolerance: float) -> CompiledGraph | None:
    """Compare results and strides with eager; None for a graph that is not functional, which is not compiled."""
    gm = capture(function, tensors)
    if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in gm.graph.nodes):
        return None  # the capture of these tests does not functionalise
    compiled = compile_graph(gm, tensors, options=CodegenOptions(verify=True))
    expected = tree_leaves(function(*tensors))
    for actual, wanted in zip(compiled(*tensors), expected, strict=True):
        assert actual.stride() == wanted.stride() or wanted.numel() == 0
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    return compiled


def suites_again(suites: Mapping[str, str], prefix: str, without: Iterable[str]) -> dict[str, Any]:
    """The tests of modules that are loaded a second time, by names with the module's; `suites`: its name and its path."""
    found = {}
    for name, path in suites.items():
        spec = importlib.util.spec_from_file_location(f"{prefix}_{name}", TESTS / path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for test, function in vars(module).items():
            if test.startswith("test_") and test not in without:
                found[f"test_{name}_{test.removeprefix('test_')}"] = function
    return found
