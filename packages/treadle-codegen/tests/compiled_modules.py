"""Modules compiled for tests, with their parameters as static inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from aten_capture import capture
from torch import nn

from treadle_codegen import CodegenOptions, CompiledGraph, compile_graph


def compile_module(
    module: nn.Module, x: torch.Tensor, cache: Path, **options: Any
) -> tuple[CompiledGraph, list[torch.Tensor]]:
    """The module's evaluation graph with its parameters as static inputs: (compiled, parameters in order)."""
    state = dict(module.named_parameters()) | dict(module.named_buffers())
    names = list(state)

    def run(*args: torch.Tensor) -> Any:
        return torch.func.functional_call(module, dict(zip(names, args, strict=False)), (args[-1],))

    tensors = [*state.values()]
    with torch.no_grad():
        gm = capture(run, [*tensors, x])
    for node in list(gm.graph.nodes)[: len(names)]:
        node.meta["static_input"] = True
    return compile_graph(
        gm, [*tensors, x], options=CodegenOptions(cache_dir=cache, threads=1, verify=True, **options)
    ), tensors
