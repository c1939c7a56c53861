"""The gradients that the caller of a backward pass has named: `torch.autograd.grad(loss, [w])`, `loss.backward(inputs=[w])`.

The engine tells only which nodes a pass goes through: through that of `h` for the gradient of `h` as well as for those of what `h` is
computed from. What was named stands in the frame of the function by which all of PyTorch enters the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch.autograd import graph
from torch.autograd.function import BackwardCFunction

_ENTRY: Any = getattr(graph, "_engine_run_backward", None)
_INPUTS = 3  # the place of what was named, behind gradients, retain_graph and create_graph, among the arguments that follow the outputs
_APPLY = [function.__code__ for name in ("apply", "apply_boxed") if (function := vars(BackwardCFunction).get(name))]


def named_inputs() -> Sequence[Any] | None:
    """The tensors and edges that the caller has named; there are none in a plain pass. Called from the backward pass of a custom function.

    None where that is not known: in the engine's own threads, or where another function than PyTorch's has entered the engine.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code not in _APPLY:
        frame = frame.f_back
    entry = None if frame is None else frame.f_back
    if entry is None or _ENTRY is None or entry.f_code is not _ENTRY.__code__:
        return None
    given = entry.f_locals.get("args", ())
    return given[_INPUTS] if len(given) > _INPUTS else None


def node_of(named: Any) -> Any:
    """The node in autograd's graph of what has been named; None for a leaf."""
    return named.grad_fn if isinstance(named, torch.Tensor) else named.node


keeps_graph: Callable[[], bool] = getattr(torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: True)
"""Whether the caller keeps the graph for another backward pass (`retain_graph`)."""

__all__ = ["keeps_graph", "named_inputs", "node_of"]
