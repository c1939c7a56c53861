"""Tensors with a history of autograd that leave a graph in which the program has computed gradients.

    loss.backward(); return loss        eager's `loss` requires gradients, and its `backward()` says that the graph has been freed

The graph computes the number only. The replacement gives it a history that has been freed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from treadle_tracer.errors import Unsupported


def leaves_of(outputs: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """The leaves of autograd's graph below these tensors, each once, in the order of a walk from the first output."""
    yield from (output for output in outputs if output.grad_fn is None and output.requires_grad)
    for node in history_of(outputs):
        variable = getattr(node, "variable", None)  # of an AccumulateGrad
        if variable is not None:
            yield variable


def history_of(outputs: Sequence[torch.Tensor]) -> Iterator[Any]:
    """The nodes of autograd's graph below these tensors, each once, in the order of a walk from the first output."""
    pending: list[Any] = [output.grad_fn for output in reversed(outputs) if output.grad_fn is not None]
    seen: set[Any] = set()
    while pending:
        node = pending.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        pending += [following for following, _ in reversed(node.next_functions) if following is not None]


def history_at_exit(node: fx.Node, fake: torch.Tensor) -> tuple[fx.Node, Callable[..., Any] | None]:
    """The node to return for a tensor that leaves the graph, and a function that gives its value the history that eager's has.

    node: computes `fake`, in a graph that is not finished. None: the value is right as it is.
    """
    base = fake._base
    try:
        has_history = fake.grad_fn is not None
    except RuntimeError as error:  # a view that was made with gradients off, whose memory has been written to
        raise Unsupported("reconstruct", f"a view whose history PyTorch refuses: {error}") from error
    if not has_history and base is not None and base.requires_grad:
        return node, None  # a view of a leaf, made with gradients off, requires gradients as its base does
    if fake.requires_grad and not has_history:
        return _detached(node, fake), torch.Tensor.requires_grad_  # a leaf that the program has made
    calls = node.graph.find_nodes(op="call_function", target=torch.autograd.grad)
    if has_history and calls and _is_freed(fake):
        return _detached(node, fake), with_freed_history
    return node, None


def _detached(node: fx.Node, fake: torch.Tensor) -> fx.Node:
    detached = node.graph.call_method("detach", (node,))
    detached.meta.update(example_value=fake.detach(), stack_trace="")
    return detached


def _is_freed(fake: torch.Tensor) -> bool:
    """Whether no gradient of `fake` can be computed any more. Fake tensors lose their history as real ones do.

    A leaf gets its gradient from all paths to it, so it has none if one of them passes a freed node: `x` in ``x - x.logsumexp(0)``.
    """
    mode: Any = fake.fake_mode  # type: ignore[attr-defined]
    freed: list[Any] = []
    with mode:
        leaves = _leaf_nodes([fake.grad_fn], freed)
    return leaves <= _leaf_nodes(freed)


def _leaf_nodes(nodes: Sequence[Any], freed: list[Any] | None = None) -> set[Any]:
    """The nodes of leaves that gradients go on to from these nodes of autograd's graph.

    freed: gets the nodes whose saved tensors are gone, behind which the walk does not look.
    """
    pending, seen, leaves = list(nodes), set[Any](), set[Any]()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):  # an AccumulateGrad
            leaves.add(node)
        elif freed is not None and _has_lost_saved_tensors(node):
            freed.append(node)
        else:
            pending += [following for following, _ in node.next_functions]
    return leaves


def _has_lost_saved_tensors(node: Any) -> bool:
    """Whether a backward pass has freed what the node of autograd's graph has saved, so that another one raises there."""
    for name in _names_of_saved(type(node)):
        try:
            getattr(node, name)
        except RuntimeError as error:
            if "a second time" in str(error):
                return True
    return False


@functools.cache
def _names_of_saved(cls: type) -> tuple[str, ...]:
    """The attributes of a node that are saved tensors. Reading a saved size (`_saved_self_sym_numel`) would fix its symbol."""
    names = dir(cls)
    return tuple(
        name for name in names if name == "saved_tensors" or (name.startswith("_saved_") and f"_raw{name}" in names)
    )


FREED = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). Saved "
    "intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True if you need to "
    "backward through the graph a second time or if you need to access saved tensors after calling backward."
)
"""Eager's message."""


class FreedHistory(torch.autograd.Function):
    """The last node of a history whose saved tensors have been freed."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(FREED)


def with_freed_history(value: torch.Tensor) -> torch.Tensor:
    """The tensor with a `grad_fn` that raises what eager's raises. Called by replacement code."""
    with torch.enable_grad():
        return FreedHistory.apply(torch.empty(0, requires_grad=True), value)  # type: ignore[no-any-return]
