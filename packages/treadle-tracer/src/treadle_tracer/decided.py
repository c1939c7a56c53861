"""Decisions that a trace has made on numbers of outside tensors, and the guard that they come out the same at a later call.

    while t < t1: ...          # t, t1: tensors of one element on the CPU, from outside: the trace takes the path of this call

The guard reads the tensors. As long as their bytes are those of the last call that it accepted, nothing is computed. Else each decision is
computed again, by the calls that the graph makes for it. What the graph writes to an outside tensor before a decision is written to a copy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from .source import Source

Place = tuple[str, int, str, int]
"""Where the program decides: file, line, function, position of the instruction."""


class Decision(NamedTuple):
    """One decision.

    place     where the program makes it
    leaves    positions of the outside tensors and numbers that it depends on, among those of the `Decided`
    calls     the nodes that compute it, in order, each with its position among the values; those of the leaves come first
    results   the positions of the values that it reads
    read      from these values to the outcome: a bool, int or float
    outcome   what came out
    writes    some of the calls write to their arguments
    """

    place: Place
    leaves: tuple[int, ...]
    calls: tuple[Call, ...]
    results: tuple[int, ...]
    read: Callable[..., Any]
    outcome: Any
    writes: bool

    def computed(self, given: Sequence[Any]) -> Any:
        """The outcome for these outside objects. Raises what the calls raise."""
        values = [given[leaf] for leaf in self.leaves]
        if self.writes:
            values = [value.clone() if isinstance(value, torch.Tensor) else value for value in values]
        for call in self.calls:
            values.append(call.made(values))
        return self.read(*(values[position] for position in self.results))

    @property
    def is_choice(self) -> bool:
        """Whether it has two outcomes; a number may have any."""
        return type(self.outcome) is bool


class Position(NamedTuple):
    """Stands in the arguments of a call for the value at this position."""

    number: int


class Call(NamedTuple):
    """A call of a function, or of a method of the first argument if `target` is a str."""

    target: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, node: fx.Node, positions: Mapping[fx.Node, int]) -> Call:
        """The call that a node stands for, with positions in place of nodes."""
        args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda given: Position(positions[given]))
        target = getattr(torch.Tensor, node.target) if isinstance(node.target, str) else node.target
        return cls(target, tuple(args), dict(kwargs))

    def made(self, values: Sequence[Any]) -> Any:
        """The result."""
        args = [_filled(arg, values) for arg in self.args]
        kwargs = {name: _filled(arg, values) for name, arg in self.kwargs.items()}
        return self.target(*args, **kwargs)  # type: ignore[operator]


def _filled(arg: Any, values: Sequence[Any]) -> Any:
    kind = type(arg)
    if kind is Position:
        return values[arg.number]
    if kind is tuple or kind is list or kind is fx.immutable_collections.immutable_list:
        filled = [_filled(item, values) for item in arg]
        return tuple(filled) if kind is tuple else filled
    if kind is slice:
        return slice(*(_filled(part, values) for part in (arg.start, arg.stop, arg.step)))
    return arg


class Decided:
    """Guard callable of the decisions of one trace. It is given the objects at `sources`: the leaves, then what must lie apart from them.

    apart: the graph writes to outside tensors before some decision. Then the tensors must share no memory, since a write to one would
    change another.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.decisions: list[Decision] = []
        self.apart = False
        self._positions: dict[Source, int] = {}
        self._is_leaf: list[bool] = []
        self._seen: list[Any] | None = None

    def position(self, source: Source, is_leaf: bool) -> int:
        """The position of the object at `source` among those that the guard is given."""
        found = self._positions.get(source)
        if found is None:
            found = self._positions[source] = len(self.sources)
            self.sources.append(source)
            self._is_leaf.append(is_leaf)
        self._is_leaf[found] = self._is_leaf[found] or is_leaf
        return found

    def add(self, decision: Decision) -> None:
        """Rely on one more decision."""
        self.decisions.append(decision)

    @property
    def text(self) -> str:
        """The decisions, by the lines that make them."""
        lines = dict.fromkeys(f"{file}:{line}" for file, line, _, _ in (d.place for d in self.decisions))
        return f"what is decided at {', '.join(lines)} comes out the same"

    def __call__(self, *given: Any) -> bool:
        if self.apart and share_memory(given):
            return False
        contents = [_contents(value) for value, is_leaf in zip(given, self._is_leaf, strict=True) if is_leaf]
        if contents == self._seen:
            return True
        with torch.no_grad():
            for decision in self.decisions:
                if not _comes_out(decision, given):
                    return False
        self._seen = contents
        return True

    def first_changed(self, given: Sequence[Any]) -> int | None:
        """The position of the first decision that comes out differently for these objects. Later ones may follow from it.

        None if there is none, or one cannot be made.
        """
        with torch.no_grad():
            try:
                changed = (i for i, d in enumerate(self.decisions) if not _is_same(d.computed(given), d.outcome))
                return next(changed, None)
            except _FAILURES:
                return None


# What the calls of a decision raise for other elements or sizes than those of the trace.
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError, AttributeError)


def _comes_out(decision: Decision, given: Sequence[Any]) -> bool:
    try:
        return _is_same(decision.computed(given), decision.outcome)
    except _FAILURES:
        return False


def _is_same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and _number_key(found) == _number_key(expected)


def _number_key(number: Any) -> Any:
    """Equal for numbers that no program tells apart: nan is itself, 0.0 is not -0.0."""
    return number.hex() if type(number) is float else number


def _contents(value: Any) -> Any:
    """The bytes of a tensor on the CPU; a number with its type."""
    if not isinstance(value, torch.Tensor):
        return (type(value), _number_key(value))
    dense = value if value.is_contiguous() else value.contiguous()
    size = dense.nbytes
    return ctypes.string_at(dense.data_ptr(), size) if size else b""


def share_memory(given: Sequence[Any]) -> bool:
    """Whether two of these tensors have storages with memory in common. One without memory of its own counts as such."""
    ranges = []
    for value in given:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            size = storage.nbytes()
            if size:
                start = storage.data_ptr()
                ranges.append((start, start + size))
    ranges.sort()
    return any(start < end for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False))
