"""Treadle as a backend of torch.compile: ``torch.compile(model, backend="treadle")``.

PyTorch finds `treadle_backend` through the entry-point group ``torch_dynamo_backends``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .backends import codegen
from .bugs import run_in_eager
from .options import compile_options


def treadle_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Treadle's code generator as a backend of ``torch.compile``. `mode` and `options` as in `treadle.compile`.

    A graph with symbolic sizes of PyTorch's ShapeEnv runs in eager, because treadle has a shape engine of its own.
    """
    chosen = compile_options(False, None, mode, options, own_backend=True)
    if any(isinstance(value, torch.SymInt) for value in example_inputs) or any(
        isinstance(size, torch.SymInt)
        for value in example_inputs
        if isinstance(value, torch.Tensor)
        for size in value.size()
    ):
        return run_in_eager(
            gm, "torch.compile made sizes symbolic; use torch.compile(..., dynamic=False) with backend='treadle'"
        )
    for node in gm.graph.nodes:
        node.meta.pop("example_value", None)
    return codegen(chosen)(gm, _real(example_inputs))


def _real(example_inputs: Sequence[Any]) -> list[Any]:
    """Real tensors in place of fake ones, which torch.compile may pass. Only their metadata is read."""

    def real(value: Any) -> Any:
        if type(value).__name__ != "FakeTensor":
            return value
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)

    return [real(value) for value in example_inputs]
