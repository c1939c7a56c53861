"""Torch's switches (grad mode and the like) after a graph that has failed half-way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def restoring_switches(compiled: Callable[..., Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """`compiled`, for a graph that switches grad mode and the like and switches back at its end: switch back also when it raises."""
    final: dict[Any, tuple[Any, ...]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.meta.get("example_value") is None and not node.users:
            if getattr(node.target, "__name__", "").lstrip("_").startswith("set_"):
                final[node.target, node.args[:-1]] = node.args
    if not final:
        return compiled

    def run(*args: Any) -> Any:
        try:
            return compiled(*args)
        except BaseException:
            for (setter, _), given in final.items():
                setter(*given)
            raise

    return run
