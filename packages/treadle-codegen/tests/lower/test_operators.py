"""Every lowering against eager, through the reference interpreter, on PyTorch's operator samples."""

from __future__ import annotations

from typing import Any

import operator_samples
import pytest
import torch
from aten_capture import capture
from torch.utils._pytree import tree_leaves

from treadle_codegen.interpret import interpret
from treadle_codegen.ir.loops import Extern, Program
from treadle_codegen.ir.text import format_program, parse_program
from treadle_codegen.ir.verify import verify
from treadle_codegen.lower import lower_graph

# Operators all of whose samples (in these dtypes) become loops, no extern call among them.
LOOPS_ONLY = """
abs acos acosh add addcdiv addcmul all amax amin any argmax argmin asin asinh atan atan2 atanh bitwise_and bitwise_not
bitwise_or bitwise_xor cat ceil clamp clone constant_pad_nd contiguous copysign cos cosh diagonal eq erf erfc
exp exp2 expand expm1 eye flatten flip fliplr flipud floor fmax fmin frac full full_like ge gt hypot isfinite isinf
isnan le lerp log log10 log1p log2 log_softmax logaddexp logical_and logical_not logical_or logical_xor logit lt masked_fill
 maximum mean minimum movedim mul ne neg nn.functional.elu nn.functional.gelu nn.functional.group_norm
nn.functional.hardsigmoid nn.functional.hardswish nn.functional.layer_norm nn.functional.leaky_relu
nn.functional.mish nn.functional.pixel_shuffle nn.functional.pixel_unshuffle nn.functional.prelu nn.functional.relu
nn.functional.relu6 nn.functional.silu nn.functional.softplus nn.functional.softshrink
nn.functional.tanhshrink nn.functional.threshold ones ones_like permute positive prod ravel reciprocal repeat reshape
roll rsqrt rsub select sigmoid sign sin sinh softmax split split_with_sizes sqrt square squeeze stack sub sum
t tan tanh tile transpose tril triu true_divide trunc unbind unflatten unsqueeze view where xlogy zeros
zeros_like
""".split()

# Operators with cases that go to ATen (integer division by tensors, boolean masks, odd windows ...).
MIXED = """
arange as_strided bitwise_left_shift div floor_divide fmod gather index_select linalg.vector_norm
sinc narrow_copy squeeze_copy count_nonzero slice_scatter select_scatter nan_to_num aminmax nn.functional.logsigmoid
max_pool2d_with_indices_backward native_batch_norm nn.functional.adaptive_avg_pool2d nn.functional.avg_pool2d
nn.functional.batch_norm nn.functional.embedding nn.functional.linear nn.functional.max_pool2d
nn.functional.pad matmul bmm addmm baddbmm pow remainder round scatter index_put cumsum sort to norm
clamp_max clamp_min logsumexp max min nn.functional.hardtanh signbit std std_mean unfold var var_mean
""".split()

DTYPES = [torch.float32, torch.int64, torch.bool, torch.uint8, torch.bfloat16]
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 5e-3}


def check(function: Any, tensors: list[torch.Tensor], tolerance: float) -> Program | None:
    """Lower, verify, print and read back, interpret, compare."""
    graph = capture(function, tensors)
    if any(isinstance(n.target, torch._ops.OpOverload) and n.target._schema.is_mutable for n in graph.graph.nodes):
        return None  # not a functional graph: the capture of these tests does not functionalise
    program = lower_graph(graph, tensors)
    assert verify(program) == []
    text = format_program(program)
    assert format_program(parse_program(text, program.constants)) == text
    expected = tree_leaves(function(*tensors))
    for actual, wanted in zip(interpret(program, tensors), expected, strict=True):
        assert actual.stride() == wanted.stride() or wanted.numel() == 0
        torch.testing.assert_close(actual, wanted, rtol=tolerance, atol=tolerance, equal_nan=True)
    return program


def check_operator(name: str, count: int) -> list[Program]:
    programs: list[Any] = []
    for dtype in DTYPES:
        for function, tensors in operator_samples.samples(name, dtype, count):
            programs.append(check(function, tensors, TOLERANCE.get(dtype, 1e-5)))
    programs = [program for program in programs if program is not None]
    assert programs, f"no samples of {name}"
    return programs


@pytest.mark.parametrize("name", [n for n in LOOPS_ONLY if n in operator_samples.OPERATORS])
def test_loops_agree_with_eager(name: str) -> None:
    for program in check_operator(name, 2):
        assert not [str(s.op) for s in program.steps if isinstance(s, Extern)]


@pytest.mark.parametrize("name", [n for n in MIXED if n in operator_samples.OPERATORS])
def test_loops_and_externs_agree_with_eager(name: str) -> None:
    check_operator(name, 3)


def test_names_of_operators_are_known() -> None:
    unknown = [n for n in [*LOOPS_ONLY, *MIXED] if n not in operator_samples.OPERATORS]
    assert unknown == []
