"""Expected metadata: the sizes, strides and offsets that eager gives the outputs of a graph that changes tensors in place.

    y = x.t()                       eager keeps the strides of x.t()
    y.add_(1)          ==>          functional `add` may choose others
    return y

The functional graph cannot tell them, so the graph runs once more on plain fake tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from treadle_shapes.expr import as_powers
from treadle_shapes.torch import env_of, raw_expr, symbolic_dispatch, unwrapped

from .asserts import is_assert
from .bodies import call_function_transform, is_function_transform
from .errors import Refusal, UnsupportedGraph
from .functionalise import Layouts
from .graph_runner import GraphRunner, call_node, user_line
from .layouts import same_layout
from .unbacked import shape_env_of, tracers_float, unify_symbols


def run_as_eager(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    attributes: Mapping[str, Any],
    functional: Layouts,
    mode: FakeTensorMode,
) -> list[Any]:
    """Run `gm` on plain fake tensors of `mode`; returns the items of its output.

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
        tensors = map(unwrapped, _tensors_in((args, kwargs)))
        overlapping = [(t, t._version) for t in tensors if _shares_elements(t)]
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

    return GraphRunner(gm, attributes, run_call).run(*arguments, enable_io_processing=False)


def _call_like_eager(node: fx.Node, args: Any, kwargs: Any, mode: FakeTensorMode) -> Any:
    """Call the node's target with the composite kernels of C++, whose results alias what eager's alias (Python's `dropout` copies).

    Some of them take no symbolic sizes (`matmul` before torch 2.13). Then Python's kernels run.
    """
    try:
        return call_node(node, args, kwargs, mode)
    except Refusal:
        if mode.shape_env is None:
            raise
    with symbolic_dispatch():
        return call_node(node, args, kwargs, mode)


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors_in(tuple(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _shares_elements(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory. A symbolic size counts as more than 1, because a question about it would be a guard."""
    if tensor.layout != torch.strided:
        return False
    sizes_and_strides = zip(tensor.size(), tensor.stride(), strict=True)
    return any(
        (isinstance(size, torch.SymInt) or size != 1) and not _is_made_of_sizes(stride, tensor.size()) and stride == 0
        for size, stride in sizes_and_strides
    )


def _is_made_of_sizes(stride: Any, sizes: Sequence[Any]) -> bool:
    """Whether a stride that only the run of the graph can tell is a product of sizes: it is 0 only where the tensor has no elements."""
    env = env_of(stride)
    if env is None or not env.is_unbacked(raw_expr(stride)):
        return False
    factors = {base for size in sizes if isinstance(size, torch.SymInt) for base in as_powers(raw_expr(size))}
    return factors >= set(as_powers(raw_expr(stride)))
