"""The text of an ATen graph with its values, for dumps and golden files."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx


def format_graph(graph: fx.Graph) -> str:
    """One line per node: its name, what it is, and the dtype, shape and strides of its value."""
    return "".join(f"{_line(node)}\n" for node in graph.nodes)


def _line(node: fx.Node) -> str:
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    value = _value(node.meta.get("val"))
    if node.op == "placeholder":
        given = node.meta.get("static_input")
        return f"{node.name} : {value} = {'input' if given is None or given is False else 'static'}"
    if node.op == "get_attr":
        return f"{node.name} : {value} = constant {node.target}"
    target = node.target if isinstance(node.target, torch._ops.OpOverload) else getattr(node.target, "__name__", "?")
    arguments = [_argument(a) for a in node.args] + [f"{k}={_argument(v)}" for k, v in node.kwargs.items()]
    return f"{node.name} : {value} = {target}({', '.join(arguments)})"


def _argument(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        left, right = "[]" if isinstance(value, list) else "()"
        return f"{left}{', '.join(map(_argument, value))}{right}"
    return repr(value)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(_value, value))})"
    if not isinstance(value, torch.Tensor):
        return type(value).__name__ if value is None else f"{type(value).__name__} {value}"
    dtype = str(value.dtype).removeprefix("torch.")
    layout = f" strides {list(value.stride())}" if value.layout is torch.strided else f" {value.layout}"
    return f"{dtype} {list(value.shape)}{layout}"
