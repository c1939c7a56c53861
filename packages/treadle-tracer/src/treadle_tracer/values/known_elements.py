"""Elements of tensors that the program makes from constants: `torch.arange(2, 5).tolist()` is a constant of the trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_shapes.torch import operator as operator_record
from treadle_tracer.made_calls import is_small, make_calls
from treadle_tracer.values.call_effects import name_of, only_computes, storages

if TYPE_CHECKING:
    from torch import fx

    from treadle_tracer.values.value import TraceContext

MOST_ELEMENTS = 1024
_MOST_CALLS = 64


def known_number(tx: TraceContext, result: fx.Node | None) -> Any:
    """The element of a tensor with one element, which a node gives, as a Python number; None where it is not known."""
    return _only_element(known_elements(tx, result))


def constant_number(tx: TraceContext, result: fx.Node | None) -> Any:
    """Like `known_number`, but None where the element follows from symbols."""
    return _only_element(constant_elements(tx, result))


def known_elements(tx: TraceContext, result: fx.Node | None) -> torch.Tensor | None:
    """The present elements of a tensor that a node has given; None unless they, and all that is written to them, follow from constants.

    Symbols that `torch.tensor` was given become constants, which are guarded.
    """
    made = made_until_now(tx, result)
    return None if made is None else _fixed_elements(made)


def constant_elements(tx: TraceContext, result: fx.Node | None) -> torch.Tensor | None:
    """Like `known_elements`, but None where these follow from symbols."""
    made = made_until_now(tx, result)
    return None if made is None or made.numbers else _fixed_elements(made)


def number_in(tx: TraceContext, result: fx.Node | None) -> Any:
    """Like `known_number`. For a symbol that `torch.tensor` was given, and that has only been moved since then: its node."""
    made = made_until_now(tx, result)
    if made is None:
        return None
    if made.numbers and all(_only_moves(call, made.numbers) for call in made.calls):
        # Told by their place among `numbers`, counted from two starts, symbols differ and constants do not. Neither is a place in a tensor
        # that is indexed by a symbol, from the second start.
        one, other = (_only_element(_elements(made, range(start, start + len(made.numbers)))) for start in _STARTS)
        if one is not None and other is not None:
            return one if one == other else made.numbers[one - _STARTS[0]]
    return _only_element(_fixed_elements(made))


def _only_element(elements: torch.Tensor | None) -> Any:
    return elements.item() if elements is not None and elements.numel() == 1 else None


class Made(NamedTuple):
    """The calls that have made what a node gives, in order, and the numbers that they are given: symbols of inputs."""

    result: fx.Node
    calls: list[fx.Node]
    numbers: list[fx.Node]


def _fixed_elements(made: Made) -> torch.Tensor | None:
    """The elements, with constants in place of symbols."""
    return _elements(made, [int(number.meta["example_value"]) for number in made.numbers])


def _elements(made: Made, numbers: Iterable[int]) -> torch.Tensor | None:
    """The elements where the symbols are these numbers."""
    found: dict[fx.Node, Any] = dict(zip(made.numbers, numbers, strict=True))
    try:
        with torch.no_grad():
            make_calls(made.calls, found)
            return found[made.result]  # type: ignore[no-any-return]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None  # the program raises it where it makes the call


def made_until_now(
    tx: TraceContext, result: fx.Node | None, may_be_made: Callable[[fx.Node], bool] | None = None
) -> Made | None:
    """All calls that the result depends on, and all that have written to the memory of these.

    None if one of them may not be made now, or depends on an input other than numbers that `torch.tensor` was given. may_be_made: whether
    a call may be made now, its arguments given; calls of few elements that only compute, or write, if it is not given.
    """
    may_be_made = may_be_made or _may_be_made_now
    if result is None:
        return None
    calls: set[fx.Node] = set()
    numbers: dict[fx.Node, None] = {}
    pending = [result]
    while pending:
        if not _add_calls_behind(pending, calls, numbers, may_be_made):
            return None
        memory: set[int] = set().union(*[storages(node.meta.get("example_value")) for node in calls])
        pending = [node for node in tx.graph.nodes if node not in calls and _may_write(node, memory)]
    given = {_filled_with(node) for node in calls if node.meta.get(_OF_NUMBER)}
    return Made(result, sorted(calls), [*numbers]) if given.issuperset(numbers) else None


def _add_calls_behind(
    pending: list[fx.Node],
    calls: set[fx.Node],
    numbers: dict[fx.Node, None],
    may_be_made: Callable[[fx.Node], bool],
) -> bool:
    """Add these calls and those that they depend on. False if one may not be made now, depends on an input, or they are too many."""
    while pending:
        node = pending.pop()
        if node in calls:
            continue
        if isinstance(node.meta.get("example_value"), torch.SymInt):
            numbers[node] = None
            continue
        if len(calls) >= _MOST_CALLS or not may_be_made(node):
            return False
        calls.add(node)
        pending += node.all_input_nodes
    return True


# ---- tensors of symbols

_OF_NUMBER = "of_number"
_STARTS = (0, 2**32)

_MOVES = frozenset(
    "full tensor stack cat reshape view flatten unsqueeze squeeze getitem __getitem__ setitem __setitem__ select unbind split chunk "
    "narrow expand permute transpose t repeat tile flip clone detach contiguous copy_".split()
)


def mark_number(node: fx.Node | None) -> None:
    """Tell that `torch.full` makes a tensor of a number that the program has given to `torch.tensor`."""
    if node is not None:
        node.meta[_OF_NUMBER] = True


def _filled_with(node: fx.Node) -> Any:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("fill_value")


def _only_moves(call: fx.Node, numbers: list[fx.Node]) -> bool:
    """Whether a call moves integers, or makes a tensor of constants or of one of the numbers."""
    if name_of(call.target) not in _MOVES or (
        _OF_NUMBER not in call.meta and set(numbers).intersection(call.all_input_nodes)
    ):
        return False
    made = call.meta.get("example_value")
    tensors = made if isinstance(made, (tuple, list)) else [made]
    return all(
        tensor is None or (isinstance(tensor, torch.Tensor) and tensor.dtype is torch.int64) for tensor in tensors
    )


# ---- calls


_WRITES = frozenset(
    "iadd isub imul itruediv ifloordiv imod add_ sub_ mul_ div_ clamp_ neg_ abs_ round_ floor_ ceil_ copy_ fill_ zero_ setitem "
    "__setitem__".split()
)
"""Calls that write to an argument and may be made apart from the graph, on tensors made anew."""


def _may_be_made_now(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    value = node.meta.get("example_value")
    if name_of(node.target) in _WRITES:
        return value is None or _has_few_elements(value)
    return follows_from_arguments(node) and _has_few_elements(value)


def follows_from_arguments(node: fx.Node) -> bool:
    """Whether a call gives the same elements whenever it is made with the same arguments, and does nothing else."""
    record = operator_record(node.target)
    return only_computes(node) and not (record is not None and record.is_uninitialised)


def _has_few_elements(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(_has_few_elements(item) for item in value)
    if not isinstance(value, torch.Tensor):
        return isinstance(value, (bool, int, float, torch.Size))
    return is_small(value, MOST_ELEMENTS) and not value.requires_grad


def _may_write(node: fx.Node, memory: set[int]) -> bool:
    """Whether a node may write to this memory."""
    if not any(storages(given.meta.get("example_value")) & memory for given in node.all_input_nodes):
        return False
    return node.op == "output" or not only_computes(node)
