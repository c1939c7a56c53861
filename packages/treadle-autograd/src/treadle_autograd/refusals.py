"""What cannot be compiled: graphs that have no functional form, and calls that torch refuses.

Torch's exceptions and our own bugs are told apart by type. Every call into torch goes through `call_torch`, which turns an exception of
torch into a `Refusal`. Any other exception of these types comes from our own code and is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

from treadle_shapes import ShapesError
from treadle_shapes.torch import enter_inference_mode, operator, unwrapped

from .errors import InternalError, Refusal, UnsupportedGraph

# Our own exceptions. They pass through torch's frames unchanged.
TYPED = (UnsupportedGraph, InternalError, ShapesError)

# Fake tensors raise these when a result depends on the values of a tensor.
_NEEDS_DATA = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)

# Torch raises these for a call that has no kernel, or that always fails.
_REFUSES = (RuntimeError, IndexError, ValueError, OverflowError, ZeroDivisionError)


def why_not_functional(gm: fx.GraphModule) -> str | None:
    """Why the graph has no functional form, as far as its nodes alone tell, those in bodies of transformed functions included."""
    nodes = [node for graph in graphs_of(gm.graph) for node in graph.nodes]
    for node in nodes:
        record = operator(node.target) if node.op in ("call_method", "call_function") else None
        if record is not None and record.why_not_functional is not None:
            name = node.target if node.op == "call_method" else getattr(node.target, "__name__", record.name)
            return f"{name} has no functional form: {record.why_not_functional}"
        if record is not None and record.casts_inside and torch._C._is_any_autocast_enabled():
            return f"{record.name} calls operators that autocast casts"
        if node.target is enter_inference_mode:
            return "it enters inference mode"
        if node.op == "call_module":
            return f"call_module nodes ({node.target}) are not part of the contract"
    return _why_not_written(nodes)


def graphs_of(graph: fx.Graph) -> Iterator[fx.Graph]:
    """The graph, and those of the functions that its transforms call, all levels of them."""
    yield graph
    for node in graph.nodes:
        for body in getattr(node.target, "calls", ()) if node.op == "call_function" else ():
            yield from graphs_of(body.graph.graph)


def _why_not_written(nodes: Sequence[fx.Node]) -> str | None:
    """Why a write to the memory of a view has no functional form."""
    found = [(node, operator(node.target)) for node in nodes if node.op in ("call_method", "call_function")]
    views = [(node, record) for node, record in found if record is not None and record.why_not_written is not None]
    if not views:
        return None
    writers = [node for node, record in found if record is not None and record.writes]
    written = {memory for node in writers for argument in node.all_input_nodes for memory in _memory(argument)}
    for node, record in views:
        if _memory(node) & written:
            assert record is not None
            return f"a write to the result of {record.family} has no functional form: {record.why_not_written}"
    return None


def _memory(node: fx.Node) -> set[int]:
    values = node.meta.get("example_value")
    tensors = values if isinstance(values, (tuple, list)) else (values,)
    plain = [unwrapped(tensor) for tensor in tensors if isinstance(tensor, torch.Tensor)]
    return {tensor.untyped_storage()._cdata for tensor in plain if tensor.layout is torch.strided}


def call_torch(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], line: Callable[[], str]
) -> Any:
    """``function(*args, **kwargs)``, a call into torch. `line` gives the user's line for the message of an error.

    Raises Refusal for what torch raises. Exceptions that come out of our own callbacks (`TYPED`) pass through.
    """
    try:
        return function(*args, **kwargs)
    except (*TYPED, RecursionError):  # a RecursionError is a RuntimeError
        raise
    except _NEEDS_DATA as error:
        raise Refusal(f"the values of a tensor are needed: {error}", line()) from error
    except _REFUSES as error:
        raise Refusal(f"torch has no functional form of an operator: {error}", line()) from error
