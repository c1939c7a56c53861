"""Expected metadata: the sizes, strides and offsets that eager gives the outputs of a graph that changes tensors in place.

    y = x.t()                       eager keeps the strides of x.t()
    y.add_(1)          ==>          functional `add` may choose others
    return y

The functional graph cannot tell them, so the graph runs once more on plain fake tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_shapes import UnbackedError
from treadle_shapes.torch import refusing_plain_numbers, symbolic_dispatch, unwrapped

from .asserts import is_assert
from .bodies import call_function_transform, is_function_transform
from .errors import Refusal, UnsupportedGraph
from .functionalise import Layouts
from .graph_runner import GraphRunner, call_node, user_line
from .inner_gradients import is_gradient_call
from .layouts import same_layout, shares_elements, tensors_in
from .unbacked import shape_env_of, tracers_float, unify_symbols
from .wholes import in_order, wholes_of


def run_as_eager(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    attributes: Mapping[str, Any],
    functional: Layouts,
    mode: FakeTensorMode,
) -> tuple[list[Any], Sequence[Any]]:
    """Run `gm` on plain fake tensors of `mode`; returns the items of its output, and for each the tensor whose memory it is a part of,
    where `wholes_of` tells it.

    functional: sizes and strides of every node's result in the functional run.

    Raises UnsupportedGraph where a node's result has other strides than in the functional run, because the two programs may differ
    from there on. Raises it also where a tensor whose elements share memory is written to (``x.expand(..).fill_(7)``), because
    functionalisation would add up the writes.
    """
    shape_env = shape_env_of(mode)

    def run_body(graph: fx.GraphModule, values: Sequence[Any]) -> Sequence[Any]:
        return GraphRunner(graph, {}, run_call).run(*values, enable_io_processing=False)

    def run_call(node: fx.Node, args: Any, kwargs: Any) -> Any:
        if is_assert(node):
            return None
        if is_function_transform(node):
            return call_function_transform(node, args, run_body)
        tensors = map(unwrapped, tensors_in((args, kwargs)))
        overlapping = [(t, t._version) for t in tensors if shares_elements(t)]
        result = _call_like_eager(node, args, kwargs, mode)
        line = user_line(node.meta.get("stack_trace"))
        if shape_env is not None:
            unify_symbols(shape_env, node.meta.get("example_value"), result)
            result = tracers_float(node, result)
        if any(tensor._version != version for tensor, version in overlapping):
            raise UnsupportedGraph("a tensor whose elements share memory is written to", line)
        if isinstance(result, torch.Tensor) and node in functional:
            if not same_layout(functional[node], (tuple(result.size()), tuple(result.stride()))):
                raise UnsupportedGraph("an in-place operator keeps strides that its functional form does not", line)
        return result

    wholes = wholes_of(gm.graph)
    runner = GraphRunner(gm, attributes, run_call, kept=set(wholes.values()))
    outputs: list[Any] = runner.run(*arguments, enable_io_processing=False)
    return outputs, in_order(gm.graph, wholes, runner.results_kept, outputs)


def _call_like_eager(node: fx.Node, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Call the node's target with the composite kernels of C++, whose results alias what eager's alias (Python's `dropout` copies).

    Some of them take no symbolic sizes (`matmul` before torch 2.13), read them as plain numbers (`interpolate`), or ask for sizes that
    are known only at run time (`pad`). Then Python's kernels run.
    """
    if mode.shape_env is None:
        return call_node(node, args, kwargs, mode)
    shape_env = shape_env_of(mode)
    # A backward pass that fails half-way has freed what a second one needs.
    kept = {**kwargs, "retain_graph": True} if is_gradient_call(node) else kwargs
    try:
        with nullcontext() if shape_env is None else refusing_plain_numbers(shape_env.env):
            return call_node(node, args, kept, mode)
    except (Refusal, UnbackedError):
        pass
    with symbolic_dispatch():
        return call_node(node, args, kwargs, mode)
