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

from .made_calls import function_of
from .source import Source

Place = tuple[str, int, str, int]
"""Where the program decides: file, line, function, position of the instruction."""


class Decision(NamedTuple):
    """One decision.

    place     where the program makes it
    results   the positions of the values that it reads
    read      from these values to the outcome: a bool, int or float
    outcome   what came out
    end       how many calls come before it
    """

    place: Place
    results: tuple[int, ...]
    read: Callable[..., Any]
    outcome: Any
    end: int

    @property
    def is_choice(self) -> bool:
        """Whether it has two outcomes; a number may have any."""
        return type(self.outcome) is bool


class Position(NamedTuple):
    """Stands in the arguments of a call for the value at this position."""

    number: int


class Call(NamedTuple):
    """A call of a function, or of a method of the first argument if `target` is a str; its result is the next value."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Calls:
    """The calls that decisions are computed by. They are recorded once, and compiled to a function when they must be made again.

    Values are numbered: first the outside objects that the guard is given, by their positions, then the results of calls.
    """

    def __init__(self) -> None:
        self.made: list[Call] = []
        self._positions: dict[fx.Node, int] = {}

    def add(self, inputs: Mapping[fx.Node, int], nodes: Sequence[fx.Node], writes: bool) -> Mapping[fx.Node, int]:
        """Record what the nodes call, in order. `inputs` gives the positions of those that stand for outside objects.

        Results are shared with earlier decisions, unless some of the calls write: then they work on copies. Gives all positions.
        Positions of results are negative: -1 is the result of the first call.
        """
        positions = {} if writes else self._positions
        for node, position in inputs.items():
            positions[node] = self._call(copy_of, (Position(position),), {}) if writes else position
        for node in nodes:
            if node not in positions:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda given: Position(positions[given]))
                positions[node] = self._call(function_of(node), args, kwargs)
        return positions

    def _call(self, target: Any, args: Any, kwargs: Any) -> int:
        self.made.append(Call(target, tuple(args), dict(kwargs)))
        return -len(self.made)

    def forget_nodes(self) -> None:
        """The trace has ended. Nodes keep all of its graph alive."""
        self._positions = {}


class Decided:
    """Guard callable of the decisions of one trace. It is given the objects at `sources`: the leaves, then what must lie apart from them.

    apart: the graph writes to outside tensors before some decision. Then the tensors must share no memory, since a write to one would
    change another.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.decisions: list[Decision] = []
        self.calls = Calls()
        self.apart = False
        self._positions: dict[Source, int] = {}
        self._is_leaf: list[bool] = []
        self._seen: list[Any] | None = None
        self._first_changed: Callable[..., int] | None = None

    def position(self, source: Source, is_leaf: bool) -> int:
        """The position of the object at `source` among those that the guard is given."""
        found = self._positions.get(source)
        if found is None:
            found = self._positions[source] = len(self.sources)
            self.sources.append(source)
            self._is_leaf.append(is_leaf)
        self._is_leaf[found] = self._is_leaf[found] or is_leaf
        return found

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
        if self.first_changed(given) != len(self.decisions):
            return False
        self._seen = contents
        return True

    def first_changed(self, given: Sequence[Any]) -> int | None:
        """The position of the first decision that comes out differently for these objects; later ones may follow from it.

        The number of decisions if there is none; None if one cannot be made.
        """
        if self._first_changed is None:
            self.calls.forget_nodes()
            self._first_changed = _compiled(self)
        try:
            with torch.no_grad():
                return self._first_changed(*given)
        except _FAILURES:
            return None


# What the calls of a decision raise for other elements or sizes than those of the trace.
_FAILURES = (RuntimeError, ValueError, IndexError, TypeError, ArithmeticError, AttributeError)


def _compiled(decided: Decided) -> Callable[..., int]:
    """A function of the outside objects: `Decided.first_changed`, without what is caught there."""
    scope: dict[str, Any] = {}

    def name(obj: Any) -> str:
        scope[f"c{len(scope)}"] = obj
        return f"c{len(scope) - 1}"

    def text(arg: Any) -> str:
        if isinstance(arg, Position):
            return value(arg.number)
        if type(arg) is tuple or isinstance(arg, list):
            items = "".join(f"{text(item)}, " for item in arg)
            return f"({items})" if type(arg) is tuple else f"[{items}]"
        if type(arg) is slice:
            return f"slice({text(arg.start)}, {text(arg.stop)}, {text(arg.step)})"
        return repr(arg) if arg is None or type(arg) in (bool, int) else name(arg)

    lines = [f"def first_changed({', '.join(value(n) for n in range(len(decided.sources)))}):"]
    done = 0
    for position, decision in enumerate(decided.decisions):
        for number, call in enumerate(decided.calls.made[done : decision.end], start=done):
            args = [*map(text, call.args), *(f"{key}={text(arg)}" for key, arg in call.kwargs.items())]
            lines.append(f"    {value(-number - 1)} = {name(call.target)}({', '.join(args)})")
        done = decision.end
        read = f"{name(decision.read)}({', '.join(map(value, decision.results))})"
        expected = decision.outcome
        test = (
            f"{read} is not {expected}" if type(expected) is bool else f"not {name(_is_same)}({read}, {name(expected)})"
        )
        lines.append(f"    if {test}: return {position}")
    lines.append(f"    return {len(decided.decisions)}")
    exec(compile("\n".join(lines), __file__, "exec"), scope)
    return scope["first_changed"]


def value(position: int) -> str:
    """The name of the value at a position."""
    return f"g{position}" if position >= 0 else f"v{-position}"


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


def copy_of(value: Any) -> Any:
    """A tensor that may be written to in place of an outside one; a number is itself."""
    return value.clone() if isinstance(value, torch.Tensor) else value


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
