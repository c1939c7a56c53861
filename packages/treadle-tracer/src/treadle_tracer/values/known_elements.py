"""Elements of tensors that the program makes from constants: `torch.arange(2, 5).tolist()` is a constant of the trace."""

from __future__ import annotations

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
    known = known_elements(tx, result)
    return known.item() if known is not None and known.numel() == 1 else None


def known_elements(tx: TraceContext, result: fx.Node | None) -> torch.Tensor | None:
    """The present elements of a tensor that a node has given; None unless they, and all that is written to them, follow from constants.

    Symbols that `torch.tensor` was given become constants, which are guarded.
    """
    made = None if result is None else _made_until_now(tx, result)
    if result is None or made is None:
        return None
    return _elements(made, result, {number: int(number.meta["example_value"]) for number in made.numbers})


def holds_symbols(tx: TraceContext, result: fx.Node | None) -> bool:
    """Whether the elements of a tensor follow from constants and symbols that `torch.tensor` was given."""
    made = None if result is None else _made_until_now(tx, result)
    return made is not None and bool(made.numbers)


def number_in(tx: TraceContext, result: fx.Node | None) -> Any:
    """Like `known_number`. For a symbol that `torch.tensor` was given, and that has only been moved since then: its node."""
    made = None if result is None else _made_until_now(tx, result)
    if result is None or made is None:
        return None
    if not made.numbers or not all(map(_only_moves, made.calls)):
        return known_number(tx, result)
    places = dict(zip(range(_FIRST_PLACE, _FIRST_PLACE + len(made.numbers)), made.numbers, strict=True))
    elements = _elements(made, result, {number: place for place, number in places.items()})
    if elements is None or elements.numel() != 1:
        return None
    element = elements.item()
    return places.get(element, element)


class _Made(NamedTuple):
    """The calls that have made a tensor, in order, and the numbers that they are given: symbols of inputs."""

    calls: list[fx.Node]
    numbers: list[fx.Node]


def _elements(made: _Made, result: fx.Node, found: dict[fx.Node, Any]) -> torch.Tensor | None:
    """What a node gives, of these numbers."""
    try:
        with torch.no_grad():
            make_calls(made.calls, found)
            return found[result]  # type: ignore[no-any-return]
    except (RuntimeError, ValueError, IndexError, TypeError):
        return None  # the program raises it where it makes the call


def _made_until_now(tx: TraceContext, result: fx.Node) -> _Made | None:
    """All calls that the result depends on, and all that have written to the memory of these.

    None if one of them may not be made now, or depends on an input other than numbers that `torch.tensor` was given.
    """
    calls: set[fx.Node] = set()
    numbers: dict[fx.Node, None] = {}
    pending = [result]
    while pending:
        if not _add_calls_behind(pending, calls, numbers):
            return None
        memory: set[int] = set().union(*[storages(node.meta.get("example_value")) for node in calls])
        pending = [node for node in tx.graph.nodes if node not in calls and _may_write(node, memory)]
    given = {_filled_with(node) for node in calls if node.meta.get(_OF_NUMBER)}
    return _Made(sorted(calls), [*numbers]) if given.issuperset(numbers) else None


def _add_calls_behind(pending: list[fx.Node], calls: set[fx.Node], numbers: dict[fx.Node, None]) -> bool:
    """Add these calls and those that they depend on. False if one may not be made now, depends on an input, or they are too many."""
    while pending:
        node = pending.pop()
        if node in calls:
            continue
        if isinstance(node.meta.get("example_value"), torch.SymInt):
            numbers[node] = None
            continue
        if len(calls) >= _MOST_CALLS or not _may_be_made_now(node):
            return False
        calls.add(node)
        pending += node.all_input_nodes
    return True


# ---- tensors of symbols

_OF_NUMBER = "of_number"
_FIRST_PLACE = 2**62
"""Where a tensor was only moved, elements from here on tell which symbol stands there."""

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


def _only_moves(node: fx.Node) -> bool:
    """Whether a call moves integers, or makes some of its arguments."""
    if name_of(node.target) not in _MOVES:
        return False
    made = node.meta.get("example_value")
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
    record = operator_record(node.target)
    is_plain = only_computes(node) and not (record is not None and record.is_uninitialised)
    return is_plain and _has_few_elements(value)


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
