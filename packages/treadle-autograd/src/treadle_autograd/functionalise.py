"""Run a torch-level graph under PyTorch's C++ functionalisation layer, so that only functional operators reach the recorder.

    def f(x):                           %x : placeholder
        y = x.view(2, 6)        ==>     %view = aten.view(%x, [2, 6]);  %add = aten.add(%view, 1)
        y.add_(1)                       %view_1 = aten.view(%add, [3, 4]);  %mul = aten.mul(%view_1, 2)
        return x * 2                    x is written back from %view_1

The layer (``torch._to_functional_tensor`` and the dispatch key Functionalize) replaces in-place operators by functional ones and
replays views of what they change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import fx

from treadle_shapes.torch import is_transforming, quick_checks, raw_expr, unwrapped

from .asserts import is_assert
from .bodies import body_runner, call_function_transform, is_function_transform
from .control_flow import call_control_flow, is_control_flow
from .custom_gradients import call_custom_gradient, is_custom_gradient, note_values_without_gradients
from .errors import UnsupportedGraph
from .graph_runner import GraphRunner, Regions, call_node
from .kept_layouts import KeptLayout
from .layouts import tensors_in
from .lost_histories import times_written, written
from .recorder import AtenRecorder
from .unbacked import tracers_float
from .watched_layouts import WatchedLayouts
from .wholes import in_order, wholes_of

Layouts = dict[fx.Node, tuple[tuple[Any, ...], tuple[Any, ...]]]


@dataclass
class FunctionalRun:
    """The result of `run_functional`.

    outputs: functional tensors and numbers. wholes: for each output the tensor whose memory it is a part of, where `wholes_of` tells
    it. mutated: whether anything was changed in place. layouts: sizes and strides of every
    node's result at the time it was made. watched: whether what was changed in place has kept its layout.
    """

    outputs: list[Any]
    wholes: Sequence[Any]
    mutated: bool
    layouts: Layouts
    watched: WatchedLayouts


class SharedCalls(Regions, Protocol):
    """Calls that run as one, with the layouts of their results, and whether they have changed anything in place.

    watched: what is told of the layouts of their arguments.
    """

    layouts: Layouts
    mutated: bool
    watched: WatchedLayouts


@contextmanager
def functionalisation() -> Iterator[None]:
    """The C++ functionalisation layer, with views replayed as views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        with quick_checks():
            yield
    finally:
        torch._disable_functionalization()


def grad_fn_of(wrapper: torch.Tensor) -> Any:
    """`wrapper.grad_fn`, asked outside `functionalisation`.

    Of a view whose memory was written through another view, autograd makes the node anew and calls the view operator again. That call
    must give a view here, too: without the layer it would give a copy, whose fake kernel knows no symbolic sizes.

    Raises UnsupportedGraph where autograd refuses to make the node anew: the view was made in no_grad, and its memory was written to by a
    recorded operator. Eager raises there, too, but only once something asks for the node.
    """
    with functionalisation():
        try:
            return wrapper.grad_fn
        except RuntimeError as refused:
            raise UnsupportedGraph(f"autograd refuses a view: {str(refused).split('.', 1)[0]}") from refused


def wrap(fake: torch.Tensor) -> torch.Tensor:
    """A functional tensor whose current value is `fake`."""
    return torch._to_functional_tensor(fake)


def unwrap(wrapper: torch.Tensor) -> torch.Tensor:
    """The current value of a functional tensor, with pending writes through other views applied."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


def run_functional(
    gm: fx.GraphModule,
    arguments: Sequence[Any],
    attributes: Mapping[str, Any],
    recorder: AtenRecorder,
    regions: SharedCalls | None = None,
) -> FunctionalRun:
    """Run `gm` on functional tensors and keep `recorder` informed of the current node. Placeholders take `arguments` in order.

    regions: calls that run as one; what it runs, it records itself.

    Raises UnsupportedGraph for what has no functional form.
    """
    holders = [value for value in (*arguments, *attributes.values()) if isinstance(value, torch.Tensor)]
    calls = _FunctionalCalls(gm.graph, recorder, holders)
    if regions is not None:
        regions.watched = calls.watched
    recorder.traced_asserts = set(_conditions_of_asserts(gm.graph))
    wholes = wholes_of(gm.graph)
    runner = GraphRunner(gm, attributes, calls.run, regions, set(wholes.values()))
    outputs = runner.run(*arguments, enable_io_processing=False)
    mutated = calls.mutated or any(is_changed(tensor) for tensor in holders)
    if regions is not None:
        calls.layouts.update(regions.layouts)
        mutated = mutated or regions.mutated
    kept = in_order(gm.graph, wholes, runner.results_kept, outputs)
    return FunctionalRun(outputs, kept, mutated, calls.layouts, calls.watched)


class _FunctionalCalls:
    """Runs the calls of one graph on functional tensors.

    mutated: whether a call has changed a tensor in place. layouts, watched: see `FunctionalRun`.
    """

    def __init__(self, graph: fx.Graph, recorder: AtenRecorder, holders: Sequence[torch.Tensor]) -> None:
        """holders: the tensors that the graph is given."""
        self.mutated = False
        self.layouts: Layouts = {}
        self.watched = WatchedLayouts()
        self.watched.before_call(holders, {})
        self._recorder = recorder
        self._holders = holders
        self._by_value: dict[int, torch.Tensor] = {}
        self._has_dirty = recorder.for_training and any(getattr(node.target, "dirty", ()) for node in graph.nodes)

    def run(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        """The result of a call, which the recorder takes down."""
        recorder = self._recorder
        own = {key: node.meta[key] for key in ("stack_trace", "checkpoint", "call") if node.meta.get(key) is not None}
        recorder.meta = {**recorder.inherited, **own}
        recorder.function = node.target
        recorder.calls_with_gradients = torch.is_grad_enabled()
        if is_assert(node):
            recorder.add_assert(raw_expr(args[0]), args[1])
            return None
        if is_custom_gradient(node) or is_control_flow(node) or is_function_transform(node):
            self.watched.moved = "a call runs a body of its own"
        if is_custom_gradient(node):
            return call_custom_gradient(node, args, recorder, self.run)
        if is_control_flow(node):
            return call_control_flow(node, args, recorder)
        if is_function_transform(node):
            return call_function_transform(node, args, body_runner(recorder, self.run))
        return self._run_operator(node, args, kwargs)

    def _run_operator(self, node: fx.Node, args: Any, kwargs: Any) -> Any:
        recorder = self._recorder
        if self._has_dirty and not is_transforming():
            note_values_without_gradients(args, kwargs, recorder)
        changed = [*written(node, args, kwargs)]
        if recorder.for_training:
            recorder.histories.before_call(node, args, kwargs, changed)
        given = [(tensor, times_written(tensor)) for tensor in tensors_in(kwargs.get("out"))]
        arguments = self.watched.before_call(args, kwargs)
        layouts_before = [layout for tensor in changed if (layout := KeptLayout.of(tensor))]
        result = call_node(node, args, kwargs, recorder.mode)
        if any(times_written(tensor) == times for tensor, times in given) and not is_transforming():
            raise UnsupportedGraph("a call writes to `out=` where functionalisation does not see it", recorder.line())
        for layout in layouts_before:
            layout.restore()
        if recorder.for_training:
            recorder.histories.after_call(result)
        recorder.finish_call(node.meta.get("example_value"), result)
        result = tracers_float(node, result)
        if recorder.stat_updates:
            _flush_stat_updates(recorder, self._holders, self._by_value)
            self.mutated = True
        self.watched.after_call(arguments, result)
        if isinstance(result, torch.Tensor):
            if result.layout == torch.strided or result.layout == torch.sparse_coo:  # compressed ones have no strides
                self.layouts[node] = tuple(result.size()), tuple(result.stride())
            self.mutated = self.mutated or is_changed(result)
        return result


def _conditions_of_asserts(graph: fx.Graph) -> Iterator[Any]:
    """The conditions that the tracer's asserts check and that are not decided yet."""
    for node in filter(is_assert, graph.nodes):
        condition = node.args[0]
        value = condition.meta.get("example_value") if isinstance(condition, fx.Node) else None
        if isinstance(value, torch.SymBool):
            yield raw_expr(value)


def is_changed(tensor: torch.Tensor) -> bool:
    """Whether the memory of a functional tensor has been written to."""
    tensor = unwrapped(tensor)
    return torch._is_functional_tensor(tensor) and torch._functionalize_mutation_counter(tensor) > 0


def _flush_stat_updates(
    recorder: AtenRecorder, wrappers: Iterable[torch.Tensor], by_value: dict[int, torch.Tensor]
) -> None:
    """Store running statistics that were computed below the functionalisation layer in the functional tensors that hold them.

    by_value: what is known of which wrapper holds which value; a network of batch norms asks for each of them.
    """
    for old, new in recorder.stat_updates:
        holder = by_value.pop(id(old), None)
        if holder is None or torch._from_functional_tensor(holder) is not old:
            by_value.update((id(torch._from_functional_tensor(w)), w) for w in wrappers)
            holder = by_value.pop(id(old), None)
        if holder is None:
            raise UnsupportedGraph("batch norm updates statistics that are not an input of the graph", recorder.line())
        torch._functionalize_replace(holder, new)
        torch._functionalize_commit_update(holder)
        torch._sync(holder)
    recorder.stat_updates.clear()
