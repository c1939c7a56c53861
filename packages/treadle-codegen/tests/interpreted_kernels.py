"""Graphs of functions as Triton kernels: their text, once their values have been compared with eager's."""

from __future__ import annotations

from collections.abc import Callable

import torch
from aten_capture import capture

from treadle_codegen import compile_graph

Function = Callable[..., torch.Tensor]


def source_and_check(fn: Function, *inputs: torch.Tensor) -> str:
    """The unit's text; AssertionError where the first result differs from eager's."""
    run = compile_graph(capture(fn, list(inputs)), list(inputs))
    tolerance = 2e-2 if inputs[0].dtype in (torch.bfloat16, torch.float16) else 1e-5
    torch.testing.assert_close(run(*inputs)[0], fn(*inputs), rtol=tolerance, atol=tolerance)
    return run.source
