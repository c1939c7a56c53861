"""Whether the functional graph of a program has the program's history when it runs under autograd (`rerun`).

    y = x + (x.round() - x).detach()                  it has: the value of `detach` has no history in either
    with torch.no_grad(): h.clamp_(min=1)             it has not: `h` keeps its history, the result of `clamp` has none

Functionalisation replaces a tensor that is written to by the result of an operator. So a history is lost where a write is not recorded
by autograd and a tensor with the same memory has one.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from treadle_shapes.torch import ElementUse, is_transforming, operator, unwrapped

_DETACH = torch.ops.aten.detach.default


class Histories:
    """Notes, while a graph runs on functional tensors, the memory of tensors that have a history and writes to it without one."""

    def __init__(self) -> None:
        self.lost: str | None = None
        # Storages themselves: the address of one that is gone may be another's.
        self._with_history: dict[int, torch.UntypedStorage] = {}
        self._written: list[tuple[str, torch.Tensor, int, Any]] = []
        self._unrecorded: list[tuple[str, torch.Tensor, int]] = []

    def before_call(
        self, node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any], changed: Sequence[torch.Tensor]
    ) -> None:
        """Look at `changed`, what the call of the traced graph's node may write to.

        Views of something changed are taken again before a call without gradients uses them: taken inside, they would have no history.
        """
        if not torch.is_grad_enabled() and not is_transforming():
            with torch.enable_grad():
                for tensor in _tensors((args, kwargs)):
                    if tensor.requires_grad:
                        torch._sync(tensor)
        for tensor in changed:
            is_recorded = torch.is_grad_enabled() and tensor.requires_grad
            if not is_recorded and tensor.untyped_storage()._cdata in self._with_history:
                if not (torch.is_grad_enabled() and _takes_history(args, kwargs)):
                    self._unrecorded.append((node.name, tensor, times_written(tensor)))
            if is_recorded:
                self._written.append((node.name, tensor, times_written(tensor), _root(tensor).grad_fn))
        found = operator(node.target)
        if found is not None and found.family == "as_strided_scatter" and torch.is_grad_enabled():
            self.lost = f"{node.name} has another derivative in eager than as a write"  # `rerun`

    def after_call(self, result: Any) -> None:
        """Note the memory of the call's results, and writes that autograd has not recorded (`logical_not_`, or any without gradients).

        Not every call of an operator that may write does so: `requires_grad_` and `t_` leave the elements as they are.
        """
        for name, tensor, times in self._unrecorded:
            if times_written(tensor) > times or not torch._is_functional_tensor(unwrapped(tensor)):
                self.lost = f"{name} changes a tensor that keeps its history"
        self._unrecorded.clear()
        for name, tensor, times, grad_fn in self._written:
            if _root(tensor).grad_fn is grad_fn and times_written(tensor) > times:
                self.lost = f"{name} changes a tensor that keeps its history"
        self._written.clear()
        for tensor in (result,) if isinstance(result, torch.Tensor) else _tensors(result):
            if tensor.requires_grad and not is_transforming():
                storage = tensor.untyped_storage()
                self._with_history[storage._cdata] = storage


def written(node: fx.Node, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that a call of the traced graph may write to, running statistics excepted; none inside of transforms."""
    found = operator(node.target)
    if is_transforming():
        return
    if found is not None and found.writes and args and isinstance(args[0], torch.Tensor):
        yield args[0]
    yield from _tensors(kwargs.get("out"))


def times_written(tensor: torch.Tensor) -> int:
    """How often the memory of a functional tensor has been written to. Operators that change sizes or strides only (`t_`) write nothing."""
    tensor = unwrapped(tensor)
    return torch._functionalize_mutation_counter(tensor) if torch._is_functional_tensor(tensor) else 0


def _root(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose function in autograd's graph a recorded write replaces."""
    return tensor._base if tensor._is_view() and tensor._base is not None else tensor


def _takes_history(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether autograd gives what is written to a history, because another argument has one."""
    return any(tensor.requires_grad for tensor in _tensors((args, kwargs)))


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if values is not None:
        yield from (value for value in pytree.tree_leaves(values) if isinstance(value, torch.Tensor))


def why_history_is_lost(
    graph: fx.Graph, primals: Container[int], histories: Histories, outputs: Sequence[fx.Node]
) -> str | None:
    """Why the recorded graph has another history than the program.

    primals: positions of the placeholders with gradients. outputs: nodes of results that require gradients, as far as their histories
    consist of operators.
    """
    if histories.lost is not None:
        return histories.lost
    with_history: set[fx.Node] = set()
    for place, node in enumerate(graph.nodes):
        if node.op == "placeholder":
            if place in primals:
                with_history.add(node)
        elif not with_history.isdisjoint(node.all_input_nodes):
            if node.meta.get("inside_call") and _depends_on_elements(node):
                return f"{node.name} is computed with gradients off inside a call"
            if not node.meta.get("no_grad") and node.target is not _DETACH and _may_have_history(node):
                with_history.add(node)
    without = next((node for node in outputs if node not in with_history), None)
    return None if without is None else f"{without.name} is computed by operators without a derivative"


def _may_have_history(node: fx.Node) -> bool:
    """Whether the node's results, or one of them, can require gradients."""
    value = node.meta.get("val")
    return not isinstance(value, torch.Tensor) or value.is_floating_point() or value.is_complex()


def _depends_on_elements(node: fx.Node) -> bool:
    """Whether the node has a result to differentiate that depends on its arguments' elements."""
    value, found = node.meta.get("val"), operator(node.target)
    is_number = isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())
    return not is_number and (found is None or found.element_use is not ElementUse.IGNORED)
