"""A `forward` compiler for the tests: runs the ATen graph operator by operator and checks what the contract promises of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from treadle_autograd import aot


def assert_functional(gm: fx.GraphModule) -> None:
    """Only OpOverloads without mutation (and symbolic arithmetic); outputs in storages of their own."""
    storages = [n.meta["val"].untyped_storage()._cdata for n in gm.graph.nodes if n.op == "placeholder"]
    for node in gm.graph.nodes:
        assert node.op in ("placeholder", "call_function", "output"), node.format_node()
        if isinstance(node.target, torch._ops.OpOverload):
            assert not node.target._schema.is_mutable, node.format_node()
        if node.op == "output":
            outputs = [n.meta["val"].untyped_storage()._cdata for n in node.args[0]]
            assert len(set(outputs)) == len(outputs)
            assert not set(outputs) & set(storages)


def run_aten(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    assert_functional(gm)
    (nodes,) = next(n for n in gm.graph.nodes if n.op == "output").args
    wanted = [(n.meta["val"].size(), n.meta["val"].stride()) for n in nodes]

    def run(*args: Any) -> Sequence[Any]:
        results = gm(*args)
        for result, (size, stride) in zip(results, wanted, strict=True):
            assert result.size() == size
            assert result.numel() == 0 or result.stride() == stride
        return results

    return run


def compile_traced(function: Callable[..., Any], example_inputs: Sequence[Any]) -> Any:
    """`aot` over ``fx.symbolic_trace(function)`` with `run_aten`; always returns what ``function`` returns, as a flat sequence."""
    return aot(fx.symbolic_trace(function), example_inputs, forward=run_aten)


def error_of(function: Callable[..., Any], *args: Any) -> tuple[type, str] | None:
    """Type and message of what the call raises, None if it returns."""
    try:
        function(*args)
    except Exception as error:
        return type(error), str(error)
    return None
