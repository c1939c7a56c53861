"""The calls that decisions on numbers of outside tensors are computed by, as programs over the numbers that they read.

    for p in parameters:
        p.step += 1
        if p.step > 5: ...      # one program (copy, += 1, > 5, bool) with one row for each parameter

Decisions that share results of calls are one program, which makes each call once. Programs that are equal but for the outside objects they
read are one program with several rows: it need not run for two rows that read equal numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from .made_calls import function_of

Place = tuple[str, int, str, int]
"""Where the program decides: file, line, function, position of the instruction."""

Line = tuple[str, int, str]
"""The same without the position, which is another one in a continuation."""


class Decision(NamedTuple):
    """One decision.

    place     where the program makes it
    results   the positions of the values that it reads
    read      from these values to the outcome: a bool, int or float
    outcome   what came out
    calls     the numbers of the calls that come before it, in order
    """

    place: Place
    results: tuple[int, ...]
    read: Callable[..., Any]
    outcome: Any
    calls: tuple[int, ...]

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
    """The calls of all decisions, recorded once. Values are numbered: outside objects from 0 up, results of calls from -1 down."""

    def __init__(self) -> None:
        self.made: list[Call] = []
        self._positions: dict[fx.Node, int] = {}

    def add(
        self, inputs: Mapping[fx.Node, int], nodes: Sequence[fx.Node], results: Sequence[fx.Node], writes: bool
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Record what the nodes call, in order. `inputs` gives the positions of those that stand for outside objects.

        Results are shared with earlier decisions, unless some of the calls write: then they work on copies. Gives the positions of the
        results, and the numbers of the calls that they need.
        """
        first = len(self.made)
        positions = {} if writes else self._positions
        for node, position in inputs.items():
            positions[node] = self._call(copy_of, (Position(position),), {}) if writes else position
        for node in nodes:
            if node not in positions:
                args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda given: Position(positions[given]))
                positions[node] = self._call(function_of(node), args, kwargs)
        if writes:
            needed = range(first, len(self.made))
        else:
            needed = sorted(-positions[node] - 1 for node in nodes)
        return tuple(positions[node] for node in results), tuple(needed)

    def _call(self, target: Any, args: Any, kwargs: Any) -> int:
        self.made.append(Call(target, tuple(args), dict(kwargs)))
        return -len(self.made)

    def forget_nodes(self) -> None:
        """The trace has ended. Nodes keep all of its graph alive."""
        self._positions = {}


def copy_of(value: Any) -> Any:
    """A tensor that may be written to in place of an outside one; a number is itself."""
    return value.clone() if isinstance(value, torch.Tensor) else value


class Row(NamedTuple):
    """What a program runs on: the positions of outside objects, and of the decisions among those of the trace, in order."""

    inputs: tuple[int, ...]
    decisions: tuple[int, ...]


@dataclass
class Program:
    """Calls in order, and the decisions on their results. Values are numbered as in `Calls`, the outside objects of a row from 0 up."""

    calls: tuple[Call, ...]
    decisions: tuple[Decision, ...]
    rows: list[Row] = field(default_factory=list)

    def compiled(self) -> Callable[..., int]:
        """A function of the objects of a row: the position of the first decision that comes out differently, or their number."""
        return _compiled(self, len(self.rows[0].inputs))


def programs_of(made: Sequence[Call], decisions: Sequence[Decision], kinds: Sequence[Any]) -> list[Program]:
    """The programs that compute these decisions. kinds: what distinguishes the outside objects apart from their numbers, by position."""
    found: dict[Any, Program] = {}
    for together in _connected(decisions):
        for part in _parts(made, decisions, together, kinds):
            numbers = sorted({number for position in part for number in decisions[position].calls})
            inputs, program = _renamed(made, numbers, [decisions[position] for position in part])
            known = found.setdefault(_key(program, inputs, kinds), program)
            known.rows.append(Row(inputs, tuple(part)))
    return list(found.values())


def key_of(made: Sequence[Call], decision: Decision, kinds: Sequence[Any]) -> Any:
    """Equal for decisions that come out the same for equal numbers."""
    inputs, program = _renamed(made, decision.calls, [decision])
    return _key(program, inputs, kinds)


def _connected(decisions: Sequence[Decision]) -> list[list[int]]:
    """The positions of decisions, those together that need the same call, directly or through others."""
    above = list(range(len(decisions)))  # a forest; the root of each tree is its first decision

    def root(position: int) -> int:
        while above[position] != position:
            above[position] = above[above[position]]
            position = above[position]
        return position

    first_with: dict[int, int] = {}
    for position, decision in enumerate(decisions):
        for number in decision.calls:
            a, b = root(first_with.setdefault(number, position)), root(position)
            above[max(a, b)] = min(a, b)
    groups: dict[int, list[int]] = {}
    for position in range(len(decisions)):
        groups.setdefault(root(position), []).append(position)
    return list(groups.values())


def _parts(
    made: Sequence[Call], decisions: Sequence[Decision], together: list[int], kinds: Sequence[Any]
) -> list[list[int]]:
    """One program for connected decisions, or one for each of them: whatever makes fewer calls where all rows read equal numbers."""
    if len(together) == 1:
        return [together]
    alone = {key_of(made, decisions[position], kinds): len(decisions[position].calls) for position in together}
    joint = len({number for position in together for number in decisions[position].calls})
    return [[position] for position in together] if sum(alone.values()) < joint else [together]


# ---- programs that do not name their outside objects


def _renamed(
    made: Sequence[Call], numbers: Sequence[int], decisions: Sequence[Decision]
) -> tuple[tuple[int, ...], Program]:
    """The outside objects that calls and decisions need, and a program of them whose values are numbered on their own."""
    inputs: dict[int, int] = {}
    results = {-number - 1: -order - 1 for order, number in enumerate(numbers)}

    def renamed(arg: Any) -> Any:
        if type(arg) is Position:
            number = arg.number
            return Position(results[number] if number < 0 else inputs.setdefault(number, len(inputs)))
        if type(arg) is slice:
            return slice(*map(renamed, (arg.start, arg.stop, arg.step)))
        if type(arg) is tuple or isinstance(arg, list):
            return type(arg)(map(renamed, arg)) if type(arg) is tuple else [renamed(item) for item in arg]
        return {key: renamed(item) for key, item in arg.items()} if isinstance(arg, dict) else arg

    calls = tuple(
        Call(call.target, renamed(call.args), renamed(dict(call.kwargs))) for call in map(made.__getitem__, numbers)
    )
    own = [
        decision._replace(
            results=tuple(renamed(Position(number)).number for number in decision.results),
            calls=tuple(-results[-number - 1] - 1 for number in decision.calls),
        )
        for decision in decisions
    ]
    return tuple(inputs), Program(calls, tuple(own))


def _key(program: Program, inputs: Sequence[int], kinds: Sequence[Any]) -> Any:
    calls = tuple((id(call.target), constant_key(call.args), constant_key(call.kwargs)) for call in program.calls)
    decisions = tuple(
        (d.results, getattr(d.read, "key", id(d.read)), constant_key(d.outcome), d.calls) for d in program.decisions
    )
    return calls, decisions, tuple(kinds[position] for position in inputs)


_BY_VALUE = frozenset(
    (bool, int, str, type(None), Position, torch.dtype, torch.device, torch.layout, torch.memory_format)
)


def constant_key(arg: Any) -> Any:
    """Equal for arguments with which a call does the same. What is not known to be compared by its value is compared by identity."""
    kind = type(arg)
    if kind in _BY_VALUE:
        return (kind, arg)
    if kind is float:
        return (kind, number_key(arg))
    if kind is tuple or isinstance(arg, list):
        return (kind, *map(constant_key, arg))
    if kind is slice:
        return (kind, *map(constant_key, (arg.start, arg.stop, arg.step)))
    if isinstance(arg, dict):
        return (kind, *((key, constant_key(item)) for key, item in arg.items()))
    return id(arg)


def number_key(number: Any) -> Any:
    """Equal for numbers that no program tells apart: nan is itself, 0.0 is not -0.0."""
    return number.hex() if type(number) is float else number


# ---- Python code


def _compiled(program: Program, n_inputs: int) -> Callable[..., int]:
    scope: dict[str, Any] = {}

    def name(obj: Any) -> str:
        scope[f"c{len(scope)}"] = obj
        return f"c{len(scope) - 1}"

    def text(arg: Any) -> str:
        if isinstance(arg, Position):
            return name_of_value(arg.number)
        if type(arg) is tuple or isinstance(arg, list):
            items = "".join(f"{text(item)}, " for item in arg)
            return f"({items})" if type(arg) is tuple else f"[{items}]"
        if type(arg) is slice:
            return f"slice({text(arg.start)}, {text(arg.stop)}, {text(arg.step)})"
        if isinstance(arg, dict):
            return f"{{{', '.join(f'{key!r}: {text(item)}' for key, item in arg.items())}}}"
        return repr(arg) if arg is None or type(arg) in (bool, int) else name(arg)

    lines = []
    for number, call in enumerate(program.calls):
        args = [*map(text, call.args), *([f"**{text(call.kwargs)}"] if call.kwargs else [])]
        lines.append([f"{name_of_value(-number - 1)} = {name(call.target)}({', '.join(args)})"])
    return compiled_text(program, n_inputs, lines, scope)  # type: ignore[return-value]


def compiled_text(
    program: Program, n_inputs: int, calls: Sequence[Sequence[str]], scope: dict[str, Any] | None = None
) -> Callable[..., int | None]:
    """A function of the objects of a row: the position of the first decision that comes out differently, or their number.

    calls: the lines of each call of the program; scope: what they name.
    """
    scope = {} if scope is None else scope

    def name(obj: Any) -> str:
        scope[f"c{len(scope)}"] = obj
        return f"c{len(scope) - 1}"

    lines = [f"def first_changed({', '.join(map(name_of_value, range(n_inputs)))}):"]
    done = 0
    for position, decision in enumerate(program.decisions):
        end = max(decision.calls, default=-1) + 1
        lines += [f"    {line}" for call in calls[done:end] for line in call]
        done = max(done, end)
        lines += [f"    if {_test(decision, name)}:", f"        return {position}"]
    lines.append(f"    return {len(program.decisions)}")
    exec(compile("\n".join(lines), __file__, "exec"), scope)
    return scope["first_changed"]  # type: ignore[no-any-return]


def _test(decision: Decision, name: Callable[[Any], str]) -> str:
    """Whether a decision comes out differently, as Python."""
    read = f"{name(decision.read)}({', '.join(map(name_of_value, decision.results))})"
    expected = decision.outcome
    if type(expected) is bool:
        return f"{read} is not {expected}"
    return f"not {name(_is_same)}({read}, {name(expected)})"


def name_of_value(position: int) -> str:
    """The name of the value at a position."""
    return f"g{position}" if position >= 0 else f"v{-position}"


def _is_same(found: Any, expected: Any) -> bool:
    return type(found) is type(expected) and number_key(found) == number_key(expected)
