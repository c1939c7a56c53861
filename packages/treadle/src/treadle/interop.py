"""Treadle and PyTorch's own compiler side by side: each other's backends. The only module that touches torch's compiler.

``torch.compile(model, backend="treadle")`` finds `treadle_backend` through the entry-point group ``torch_dynamo_backends``;
``treadle.compile(model, backend="inductor")`` comes to `pytorch_backend`. Nothing here is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from .errors import UnknownName


def pytorch_backend(name: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend registered with torch.compile, by name. Raises UnknownName."""
    from torch._dynamo.backends.registry import list_backends, lookup_backend
    from torch._dynamo.exc import InvalidBackend

    if name == "inductor":
        return _inductor
    try:
        found: Any = lookup_backend(name)
        return found
    except InvalidBackend:
        raise UnknownName(f"torch.compile has no backend {name!r}; it has: {', '.join(list_backends())}") from None


def _inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """TorchInductor on a graph of Treadle's tracer. It is given a fake mode of its own: ours has no ShapeEnv that it knows."""
    from torch._inductor.compile_fx import compile_fx

    for node in gm.graph.nodes:
        node.meta.pop("example_value", None)
    compiled: Any = compile_fx(gm, list(example_inputs), config_patches=dict(options) if options else None)
    return compiled


def treadle_backend(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Treadle's code generator as a backend of ``torch.compile``. `mode` and `options` as in `treadle.compile`.

    A graph whose sizes are symbolic in PyTorch's ShapeEnv is run in eager: treadle's shapes are its own.
    """
    import torch

    from .backends import codegen
    from .bugs import run_in_eager
    from .options import compile_options

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
    """Tensors with data: torch.compile may hand over fake ones, of which only sizes and types are ever read."""
    import torch

    def real(value: Any) -> Any:
        if type(value).__name__ != "FakeTensor":
            return value
        with torch._C._DisableTorchDispatch():
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device)

    return [real(value) for value in example_inputs]
