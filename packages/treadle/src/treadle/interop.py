"""Backends of torch.compile under treadle's tracer: ``treadle.compile(model, backend="inductor")``.

The only module that touches torch's compiler, imported when such a backend is asked for. The other direction,
``torch.compile(model, backend="treadle")``, is `treadle.torch_backend`.
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
