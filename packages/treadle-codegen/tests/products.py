"""Compiling functions that multiply matrices, and how close their results must be to float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from aten_capture import capture

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph

Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor]


def compile_product(function: Function, given: Tensors, cache: Path, threads: int = 1) -> CompiledGraph:
    return compile_graph(
        capture(function, given), given, options=CodegenOptions(cache_dir=cache, threads=threads, verify=True)
    )


def random_factors(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> Tensors:
    torch.manual_seed(0)
    return tuple([torch.randn(shape).to(dtype) for shape in shapes])


def assert_as_close_as_eager(found: torch.Tensor, eager: torch.Tensor, exact: torch.Tensor, spacings: int = 1) -> None:
    """At most twice eager's error and so many spacings of the largest number; float64 is no closer to itself than eight."""
    assert found.dtype == eager.dtype and found.stride() == eager.stride()
    error, eager_error = [(x.double() - exact).abs().max() for x in (found, eager)]
    spacing = torch.finfo(found.dtype).eps * exact.abs().max()
    assert error <= 2 * eager_error + (8 if found.dtype == torch.float64 else spacings) * spacing
