"""Nodes whose targets hold graphs of their own: custom autograd functions and transforms of `torch.func` (docs/contracts.md, section 3).

    %y = vmap([%x], [%w])               recorded: the operators that a batched run of the body consists of
    body: (a, w) -> (a @ w,)

The target is called with a function that runs a graph, so that calls of the body are carried out, and described, as those of the graph are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from treadle_shapes.torch import dispatch_keys_restored

from .graph_runner import GraphRunner, user_line
from .recorder import AtenRecorder
from .refusals import call_torch

RunCall = Callable[[fx.Node, Any, Any], Any]
RunBody = Callable[[fx.GraphModule, Sequence[Any]], Sequence[Any]]


def body_runner(recorder: AtenRecorder, run_call: RunCall) -> RunBody:
    """What runs the graph of a body while a trace is recorded."""

    def run_body(graph: fx.GraphModule, arguments: Sequence[Any]) -> Sequence[Any]:
        outer, function, inherited = recorder.meta, recorder.function, recorder.inherited
        recorder.inherited = {key: outer[key] for key in ("of_backward", "checkpoint") if key in outer}
        try:
            return GraphRunner(graph, {}, run_call).run(*arguments, enable_io_processing=False)
        finally:
            recorder.meta, recorder.function, recorder.inherited = outer, function, inherited

    return run_body


def is_function_transform(node: fx.Node) -> bool:
    """Whether the node calls a transform of `torch.func`."""
    return hasattr(node.target, "calls")


def call_function_transform(node: fx.Node, args: Any, run_body: RunBody) -> Any:
    """Carry out the node's call; `run_body` runs the graphs of the transformed function. Raises Refusal for what torch raises."""
    target: Any = node.target
    with dispatch_keys_restored():
        return call_torch(target, args, {"run": run_body}, lambda: user_line(node.meta.get("stack_trace")))
