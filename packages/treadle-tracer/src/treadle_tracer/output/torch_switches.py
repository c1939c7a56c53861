"""Torch's switches (grad mode and the like) after a graph that has failed half-way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from treadle_shapes.torch import enter_inference_mode, inference_mode_depth, leave_inference_modes


def restoring_switches(compiled: Callable[..., Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """`compiled`, for a graph that switches grad mode and the like and switches back at its end: switch back also when it raises."""
    final: dict[Any, tuple[Any, ...]] = {}
    for node in gm.graph.nodes:
        if node.op == "call_function" and node.meta.get("example_value") is None and not node.users:
            if getattr(node.target, "__name__", "").lstrip("_").startswith("set_"):
                final[node.target, node.args[:-1]] = node.args
    enters = any(node.target is enter_inference_mode for node in gm.graph.nodes)
    if not final and not enters:
        return compiled

    if enters:  # it restores grad mode at its end, whatever has been set inside
        final = {key: given for key, given in final.items() if key[0] is not torch._C._set_grad_enabled}

    def run(*args: Any) -> Any:
        grad = torch.is_grad_enabled() if enters else None
        depth = inference_mode_depth()
        try:
            return compiled(*args)
        except BaseException:
            leave_inference_modes(depth)
            for (setter, _), given in final.items():
                setter(*given)
            if grad is not None:
                torch._C._set_grad_enabled(grad)
            raise

    return run
