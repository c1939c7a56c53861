"""Run a torch-level graph node by node on functional or plain fake tensors, as the tracer ran it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.types import py_sym_types

from treadle_shapes.torch import answer_size_obliviously, is_transforming, operator

from .masked_writes import as_choice
from .refusals import call_torch

_NUMBERS = (*py_sym_types, int, float)


def user_line(stack_trace: str | None) -> str:
    """The innermost ``File "...", line N`` of a stack trace as ``file:N``, or ""."""
    for line in reversed((stack_trace or "").splitlines()):
        text = line.strip()
        if text.startswith('File "') and ", line " in text:
            name, _, rest = text[len('File "') :].partition('", line ')
            return f"{name}:{rest.split(',')[0].strip()}"
    return ""


class Regions(Protocol):
    """Runs calls of a graph as one. by_first_node: the regions by the first of their calls."""

    by_first_node: Mapping[fx.Node, Any]

    def run(self, region: Any, values: Sequence[Any]) -> dict[fx.Node, Any] | None:
        """The results of all calls of `region`, `values` being those of its arguments; None: the calls run one by one."""


class GraphRunner(fx.Interpreter):
    """Runs `gm` with `attributes` as the values of its get_attr nodes. `run` returns the list of the output's items.

    run_call: called as ``run_call(node, args, kwargs)`` for every call; `call_node` does the call itself. regions: calls that run as one.
    kept: calls whose results are kept, in `results_kept`.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        attributes: Mapping[str, Any],
        run_call: Callable[[fx.Node, Any, Any], Any],
        regions: Regions | None = None,
        kept: Collection[fx.Node] = (),
    ) -> None:
        super().__init__(gm)
        self.extra_traceback = False  # exceptions keep their own messages
        self.attributes = attributes
        self.run_call = run_call
        self.regions = regions
        self._first_nodes = {} if regions is None else regions.by_first_node
        self._results: dict[fx.Node, Any] = {}  # of calls whose region has run
        self._kept = kept
        self.results_kept: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = self._run_node(n)
        if n in self._kept:
            self.results_kept[n] = result
        return result

    def _run_node(self, n: fx.Node) -> Any:
        if n.op == "get_attr":
            return self.attributes[str(n.target)]
        if n in self._first_nodes:
            self._run_region(self._first_nodes[n])
        if n in self._results:
            return self._results.pop(n)
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.op in ("call_function", "call_method"):
            return self.run_call(n, args, kwargs)
        return getattr(self, n.op)(n.target, args, kwargs)

    def _run_region(self, region: Any) -> None:
        assert self.regions is not None
        values = [self.attributes[str(a.target)] if a.op == "get_attr" else self.env[a] for a in region.arguments]
        self._results.update(self.regions.run(region, values) or {})

    def output(self, target: Any, args: Any, kwargs: Any) -> list[Any]:
        results = args[0]
        return list(results) if isinstance(results, (list, tuple)) else [results]


def is_number_call(node: fx.Node) -> bool:
    """Whether the node computes a number from numbers, so that the tracer's result is the result."""
    return (
        node.op == "call_function"
        and not isinstance(node.target, torch._ops.OpOverload)
        and isinstance(node.meta.get("example_value"), _NUMBERS)
        and bool(node.all_input_nodes)
        and all(isinstance(n.meta.get("example_value"), _NUMBERS) for n in node.all_input_nodes)
    )


def call_node(node: fx.Node, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Call the node's target. Numbers computed from numbers are the tracer's, and are not computed again.

    Raises Refusal for what torch raises.
    """
    if is_number_call(node):
        return node.meta["example_value"]
    function: Any = node.target
    record = operator(node.target)
    if record is not None and record.fake_function is not None:
        function = record.fake_function
    elif node.op == "call_method":
        function, args = getattr(args[0], str(node.target)), args[1:]
    elif record is not None and record.query_method is not None and is_transforming():
        # The operators that ask for sizes have no batching rules; the methods answer for batched tensors.
        function = getattr(torch.Tensor, record.query_method)
    else:
        function = as_choice(function, args)
    with answer_size_obliviously(mode.shape_env, node.target):  # as in the trace that made the graph
        return call_torch(function, args, kwargs, lambda: user_line(node.meta.get("stack_trace")))
