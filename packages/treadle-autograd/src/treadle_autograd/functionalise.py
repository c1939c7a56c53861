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
from typing import Any

import torch
from torch import fx

from treadle_shapes.torch import raw_expr

from .asserts import is_assert
from .errors import UnsupportedGraph
from .graph_runner import GraphRunner, call_node
from .recorder import AtenRecorder
from .unbacked import tracers_float

Layouts = dict[fx.Node, tuple[tuple[Any, ...], tuple[Any, ...]]]


@dataclass
class FunctionalRun:
    """The result of `run_functional`.

    outputs: functional tensors and numbers. mutated: whether anything was changed in place. has_eager_strides: whether every functional
    operator that replaced an in-place one has given the strides that were there. layouts: sizes and strides of every node's result at
    the time it was made.
    """

    outputs: list[Any]
    mutated: bool
    has_eager_strides: bool
    layouts: Layouts


@contextmanager
def functionalisation() -> Iterator[None]:
    """The C++ functionalisation layer, with views replayed as views."""
    torch._enable_functionalization(reapply_views=True)
    try:
        yield
    finally:
        torch._disable_functionalization()


def wrap(fake: torch.Tensor) -> torch.Tensor:
    """A functional tensor whose current value is `fake`."""
    return torch._to_functional_tensor(fake)


def unwrap(wrapper: torch.Tensor) -> torch.Tensor:
    """The current value of a functional tensor, with pending writes through other views applied."""
    torch._sync(wrapper)
    return torch._from_functional_tensor(wrapper)


def run_functional(
    gm: fx.GraphModule, arguments: Sequence[Any], attributes: Mapping[str, Any], recorder: AtenRecorder
) -> FunctionalRun:
    """Run `gm` on functional tensors and keep `recorder` informed of the current node. Placeholders take `arguments` in order.

    Raises UnsupportedGraph for what has no functional form.
    """
    holders = [value for value in (*arguments, *attributes.values()) if isinstance(value, torch.Tensor)]
    layouts: Layouts = {}
    changes = _Changes()
    recorder.traced_asserts = set(_conditions_of_asserts(gm.graph))

    def run_call(node: fx.Node, args: Any, kwargs: Any) -> Any:
        recorder.meta = {key: node.meta[key] for key in ("stack_trace", "checkpoint") if node.meta.get(key) is not None}
        recorder.function = node.target
        if is_assert(node):
            recorder.add_assert(raw_expr(args[0]), args[1])
            return None
        result = call_node(node, args, kwargs, recorder.mode)
        recorder.finish_call(node.meta.get("example_value"), result)
        result = tracers_float(node, result)
        if recorder.stat_updates:
            for holder in _flush_stat_updates(recorder, holders):
                changes.note(holder, is_whole=True)
        if isinstance(result, torch.Tensor):
            layouts[node] = tuple(result.size()), tuple(result.stride())
            changes.note(result, is_whole=len(args) > 0 and result is args[0])
        return result

    outputs = GraphRunner(gm, attributes, run_call).run(*arguments, enable_io_processing=False)
    for tensor in [*holders, *filter(torch.is_tensor, outputs)]:
        changes.note(tensor, is_whole=False)
    return FunctionalRun(outputs, changes.any, changes.keep_strides, layouts)


class _Changes:
    """What is known of changes in place: whether there were any, and whether all tensors have eager's strides after them."""

    def __init__(self) -> None:
        self.any = False
        self.keep_strides = True
        self._counts: dict[int, int] = {}  # storage -> changes that have been looked at

    def note(self, tensor: torch.Tensor, *, is_whole: bool) -> None:
        """Look at a tensor that may have been changed since. is_whole: if so, then as a whole, by the call that has just returned it."""
        if not torch._is_functional_tensor(tensor):
            return
        count = torch._functionalize_mutation_counter(tensor)
        storage = tensor.untyped_storage()._cdata
        known = self._counts.get(storage, 0)
        if count == known:
            return
        self.any = True
        self._counts[storage] = count
        if count > known + 1 or not is_whole or tensor._base is not None:
            self.keep_strides = False
        elif tuple(tensor.stride()) != tuple(torch._from_functional_tensor(tensor).stride()):
            self.keep_strides = False


def _conditions_of_asserts(graph: fx.Graph) -> Iterator[Any]:
    """The conditions that the tracer's asserts check and that are not decided yet."""
    for node in filter(is_assert, graph.nodes):
        condition = node.args[0]
        value = condition.meta.get("example_value") if isinstance(condition, fx.Node) else None
        if isinstance(value, torch.SymBool):
            yield raw_expr(value)


def _flush_stat_updates(recorder: AtenRecorder, wrappers: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Store running statistics that were computed below the functionalisation layer in the functional tensors that hold them, which are
    returned."""
    changed = []
    holders = {id(torch._from_functional_tensor(w)): w for w in wrappers}
    for old, new in recorder.stat_updates:
        holder = holders.get(id(old))
        if holder is None:
            raise UnsupportedGraph("batch norm updates statistics that are not an input of the graph", recorder.line())
        torch._functionalize_replace(holder, new)
        torch._functionalize_commit_update(holder)
        torch._sync(holder)
        changed.append(holder)
    recorder.stat_updates.clear()
    return changed
