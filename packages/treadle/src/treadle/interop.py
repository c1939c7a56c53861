"""Backends of torch.compile under treadle's tracer: ``treadle.compile(model, backend="inductor")``.

This is the only module that imports torch's compiler. It is imported when such a backend is asked for. The other direction,
``torch.compile(model, backend="treadle")``, is `treadle.torch_backend`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.types import py_sym_types

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


# A dynamic graph keeps compiled graphs for at most this many combinations of sizes and numbers.
_MAX_VARIANTS = 64


def _for_each_size(backend: Callable[..., Any]) -> Callable[..., Any]:
    """A backend that compiles a dynamic graph with `backend` once per combination of sizes and numbers.

    PyTorch's backends know the symbols of PyTorch's own ShapeEnv only, and take any other number for a constant.
    """

    def compile_static(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
        if not any(map(_is_dynamic, gm.graph.find_nodes(op="placeholder"))):
            return backend(gm, example_inputs, **options)
        compiled: dict[Any, Callable[..., Any]] = {}
        lock = threading.Lock()

        def run(*args: Any) -> Any:
            key = tuple((a.shape, a.stride()) if isinstance(a, torch.Tensor) else (type(a), repr(a)) for a in args)
            with lock:
                found = compiled.get(key)
                if found is None:
                    if len(compiled) >= _MAX_VARIANTS:
                        compiled.clear()
                    found = compiled[key] = _compile_with_numbers(backend, gm, args, options)
            return found(*[a for a in args if isinstance(a, torch.Tensor)])

        return run

    compile_static.__name__ = getattr(backend, "__name__", "backend")
    return compile_static


def _is_dynamic(placeholder: fx.Node) -> bool:
    value = placeholder.meta.get("example_value")
    numbers = (*value.size(), *value.stride()) if isinstance(value, torch.Tensor) else (value,)
    return any(isinstance(number, py_sym_types) for number in numbers)


def _compile_with_numbers(
    backend: Callable[..., Any], gm: fx.GraphModule, args: Sequence[Any], options: Mapping[str, Any]
) -> Callable[..., Any]:
    """Compile the graph for these numbers. Outputs that are numbers bypass the backend, which may know tensors only."""
    graph = _with_numbers(gm, args)
    output = graph.output_node()
    results = list(output.args[0])  # type: ignore[arg-type]
    places = [k for k, result in enumerate(results) if isinstance(result, fx.Node)]
    output.args = (tuple(results[k] for k in places),)
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    compiled = backend(fx.GraphModule(gm, graph), tensors, **options) if places else None

    def run(*given: Any) -> Any:
        returned = list(results)
        for k, value in zip(places, compiled(*given) if compiled is not None else (), strict=True):
            returned[k] = value
        return tuple(returned)

    return run


def _with_numbers(gm: fx.GraphModule, args: Sequence[Any]) -> fx.Graph:
    """A copy of the graph where numbers among the arguments, sizes of arguments, and what is computed from them are constants."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    given = dict(zip(graph.find_nodes(op="placeholder"), args, strict=True))
    known = {node: value for node, value in given.items() if not isinstance(value, torch.Tensor)}
    for node in graph.nodes:
        if node.op == "placeholder":
            continue
        is_number = isinstance(node.meta.get("example_value"), py_sym_types)
        if node.target is torch.ops.aten.sym_size.int and node.args[0] in given:
            known[node] = given[node.args[0]].shape[node.args[1]]
        node.args, node.kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: known.get(n, n))
        if is_number and node.op == "call_function" and not node.all_input_nodes:
            known[node] = node.target(*node.args, **node.kwargs)
    for node in reversed(list(graph.nodes)):
        node.meta.pop("example_value", None)
        if node in known:
            graph.erase_node(node)
    return graph


def _inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph of treadle's tracer with TorchInductor, which makes a fake mode of its own: it does not know our ShapeEnv."""
    from torch._inductor.compile_fx import compile_fx

    for node in gm.graph.nodes:
        node.meta.pop("example_value", None)
    compiled: Any = compile_fx(gm, list(example_inputs), config_patches=dict(options) if options else None)
    return compiled
