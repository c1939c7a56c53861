"""Backends of torch.compile under treadle's tracer: ``treadle.compile(model, backend="inductor")``.

The only module that touches torch's compiler, imported when such a backend is asked for. The other direction,
``torch.compile(model, backend="treadle")``, is `treadle.torch_backend`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from .errors import UnknownName


def pytorch_backend(name: str) -> Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]]:
    """A backend registered with torch.compile, by name. Raises UnknownName."""
    from torch._dynamo.backends.registry import list_backends, lookup_backend
    from torch._dynamo.exc import InvalidBackend

    if name == "inductor":
        return _for_each_size(_inductor)
    try:
        return _for_each_size(lookup_backend(name))
    except InvalidBackend:
        raise UnknownName(f"torch.compile has no backend {name!r}; it has: {', '.join(list_backends())}") from None


# Compiled graphs of a dynamic one are kept for so many combinations of sizes and numbers.
_KEPT = 64


def _for_each_size(backend: Callable[..., Any]) -> Callable[..., Any]:
    """The backend, asked anew for every combination of sizes and numbers where the graph leaves them open: PyTorch's backends
    know symbols of PyTorch's own ShapeEnv only, and take any other number for a constant."""

    def compile_static(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        if not any(map(_is_open, gm.graph.find_nodes(op="placeholder"))):
            return backend(gm, example_inputs, **options)
        compiled: dict[Any, Callable[..., Any]] = {}
        lock = threading.Lock()

        def run(*args: Any) -> Any:
            key = tuple((a.shape, a.stride()) if isinstance(a, torch.Tensor) else (type(a), repr(a)) for a in args)
            with lock:
                found = compiled.get(key)
                if found is None:
                    if len(compiled) >= _KEPT:
                        compiled.clear()
                    static = _with_numbers(gm, args)
                    found = compiled[key] = backend(static, [a for a in args if isinstance(a, torch.Tensor)], **options)
            return found(*[a for a in args if isinstance(a, torch.Tensor)])

        return run

    compile_static.__name__ = getattr(backend, "__name__", "backend")
    return compile_static


def _is_open(placeholder: fx.Node) -> bool:
    value = placeholder.meta.get("example_value")
    numbers = (*value.size(), *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) for number in numbers)


def _with_numbers(gm: fx.GraphModule, args: Sequence[Any]) -> fx.GraphModule:
    """A copy of the graph in which the arguments that are numbers are constants, and no longer arguments."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    for node, value in zip(list(graph.find_nodes(op="placeholder")), args, strict=True):
        node.meta.pop("example_value", None)
        if not isinstance(value, torch.Tensor):
            for user in list(node.users):
                user.args, user.kwargs = fx.node.map_arg(
                    (user.args, user.kwargs), lambda n, node=node, value=value: value if n is node else n
                )
            graph.erase_node(node)
    for node in graph.nodes:
        node.meta.pop("example_value", None)
    return fx.GraphModule(gm, graph)


def _inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """TorchInductor on a graph of Treadle's tracer. It is given a fake mode of its own: ours has no ShapeEnv that it knows."""
    from torch._inductor.compile_fx import compile_fx

    for node in gm.graph.nodes:
        node.meta.pop("example_value", None)
    compiled: Any = compile_fx(gm, list(example_inputs), config_patches=dict(options) if options else None)
    return compiled
