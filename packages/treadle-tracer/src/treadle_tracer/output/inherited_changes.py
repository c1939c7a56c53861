"""What is known of a continuation's arguments: which sizes and numbers change, as symbols of the trace that breaks, and what is made anew.

    def f(x):              # x has had several lengths
        y = x * 2
        print(y.sum())     # break: the continuation is called with y, whose length is that of x
        return y + 1

Without this, each continuation is compiled for one size, and once more when the next call has another one. A size that depends on data
changes, too, whatever the frame's own arguments do. And what is passed on as it was given changes as earlier calls of the frame have shown.

A list, dict or set that the call has made is another one in the next call, whatever the continuation adds to it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from treadle_shapes.torch import raw_expr

from ..by_identity import IdentityDict
from ..source import DictItemSource, ListItemSource, LocalSource, Source, TupleItemSource
from ..values.base import NULL, Constant
from ..values.growing import OutsideList
from ..values.mappings import DictValue
from ..values.outside_sets import OutsideSet
from ..values.sequences import ListValue, TupleValue
from ..values.sets import SetValue
from ..values.tensor import SymbolicValue, TensorValue
from .breaking_instruction import result_names, untouched_slots
from .left_frames import CALL_SLOTS, Slot, kind_of, value_in

if TYPE_CHECKING:
    from ..trace.result import TraceResult
    from ..values.value import Value
    from .left_frames import Exit, LeftFrame
    from .resume import Break

Changes = dict[Source, dict[int, int]]  # as in `dynamic.DynamicSources`


class Inherited(NamedTuple):
    """What is known of the arguments of one continuation. made: places of lists, dicts and sets that each call makes anew."""

    changes: Changes
    made: set[Source]


# Containers within containers are looked into so deep, and no further than so many values.
_CONTAINERS = (ListValue, OutsideList, DictValue, SetValue, OutsideSet)
_DEPTH = 4
_MOST_VALUES = 1000


def inherited(
    leaving: Break, result: TraceResult, known: Mapping[Source, Mapping[int, int]], made: Container[Source]
) -> IdentityDict[CodeType, Inherited]:
    """What is known of the arguments of each continuation that may be called next. known: what changes in calls of the frame itself.

    made: as in `Inherited`, of the frame itself.
    """
    found = IdentityDict[CodeType, Inherited]()  # continuations of one place may be equal, and call others
    hints = {} if result.env is None else result.env.hints
    for exit_ in (*leaving.exits, *([] if leaving.on_exception is None else [leaving.on_exception])):
        changes = found.setdefault(exit_.target.code, Inherited({}, set())).changes
        changes.update({source: dict(known[source]) for source in _passed_on(exit_, known)})
        changes.update({place: {} for place in _counted(leaving, exit_)})
        for level, part in enumerate(_chain(exit_)):  # one may be called by Python, too
            budget = iter(range(_MOST_VALUES))
            changes, made_here = found.setdefault(part.target.code, Inherited({}, set()))
            changes.update({place: {} for place in _counters(leaving.frames[level:], part)})
            for source, value in _arguments(part, _below_call(leaving)):
                for place, item in _parts(source, value, budget, _DEPTH):
                    if isinstance(item, _CONTAINERS):
                        if item.source is None or item.source in made:
                            made_here.add(place)
                        continue
                    dims = _changing(item, hints)
                    if dims is not None:
                        before = changes.setdefault(place, {})
                        before.update({dim: max(size, before.get(dim, 0)) for dim, size in dims.items()})
    return found


def _chain(exit_: Exit) -> Iterator[Exit]:
    """A continuation and those that are called in turn."""
    yield exit_
    while exit_.inner is not None:
        exit_ = exit_.inner
        yield exit_


def _passed_on(exit_: Exit, known: Iterable[Source]) -> list[Source]:
    """What changes in the frame's own calls and is found at the same place by the continuation: arguments, and what they hold."""
    same = {place for place, slot in _places(exit_) if not isinstance(slot, str) and value_in(slot).source == place}
    return [source for source in known if source.root in same]


# Iterators whose items count the turns of a loop, and where in an item the number is.
_COUNTERS: tuple[tuple[type, Callable[[Source], Source]], ...] = (
    (type(iter(range(0))), lambda item: item),
    (enumerate, lambda item: TupleItemSource(item, 0)),
)


def _counted(leaving: Break, exit_: Exit) -> list[Source]:
    """Where the continuation that begins a turn of a loop is given the number of the turn: each turn has another one."""
    if kind_of(leaving.instruction) != "FOR_ITER":
        return []
    iterator = value_in(leaving.stack[-1]).python_type()
    numbers = [number for kind, number in _COUNTERS if iterator is kind]
    return [number(place) for number in numbers for place, slot in _places(exit_) if slot == "item"]


def _counters(frames: Sequence[LeftFrame], exit_: Exit) -> Iterator[Source]:
    """Where a continuation in a loop finds ints that the turns of the loop count. frames: those that it is the rest of."""
    for frame, (part, places) in zip(frames, _with_places(exit_), strict=False):
        counted = _counted_in_loop(frame, part.target.start)
        for place, name, slot in zip(places, part.target.variables, part.locals, strict=False):
            if name in counted and isinstance(slot, Constant) and type(slot.obj) is int:
                yield place


def _counted_in_loop(frame: LeftFrame, index: int) -> set[str]:
    """The local variables that a loop around the instruction counts up or down by a constant (`n += 1`), or counts its turns with."""
    instructions = frame.model.instructions
    jumps = [(i.target, end) for end, i in enumerate(instructions) if end >= index and i.target is not None]
    starts = [(start, end) for start, end in jumps if start <= index]
    first = min((start for start, _ in starts), default=index)
    last = max((end for _, end in starts), default=index)
    counts_turns = any(
        value_in(value).python_type() is kind for value in frame.stack if value is not NULL for kind, _ in _COUNTERS
    )
    found = set[str]()
    for one, two, three, four in zip(*(instructions[first + n : last + n] for n in range(4)), strict=False):
        is_sum = three.opname == "BINARY_OP" and three.argval in ("+=", "-=", "+", "-")
        names = (one.opname, two.opname, four.opname)
        if is_sum and names == ("LOAD_FAST", "LOAD_CONST", "STORE_FAST") and one.argval == four.argval:
            found.add(str(one.argval))
        elif counts_turns and one.opname == "FOR_ITER":
            stored = three if two.opname == "UNPACK_SEQUENCE" else two
            if stored.opname == "STORE_FAST":
                found.add(str(stored.argval))
    return found


def _below_call(leaving: Break) -> dict[str, Value]:
    """What stands on the stack below a call that breaks, by the names that it is kept under while the call runs."""
    frame = leaving.innermost
    if frame.instruction.opname not in CALL_SLOTS:
        return {}
    kept = frame.stack[untouched_slots(frame) :]
    return {name: value_in(slot) for name, slot in zip(result_names(frame)[:-1], kept, strict=False)}


def _arguments(exit_: Exit, below_call: dict[str, Value]) -> Iterator[tuple[Source, Value]]:
    """The values of the trace that a continuation is called with."""
    for place, slot in _places(exit_):
        if not isinstance(slot, str):
            yield place, value_in(slot)
        elif slot in below_call:
            yield place, below_call[slot]


def _places(exit_: Exit) -> Iterator[tuple[Source, Slot]]:
    """Where a continuation finds what it is called with; what it calls in turn is given its arguments as a tuple."""
    for part, places in _with_places(exit_):
        yield from zip(places, part.slots(), strict=False)


def _with_places(exit_: Exit) -> Iterator[tuple[Exit, list[Source]]]:
    """A continuation and those that are called in turn, each with the places of its arguments, as the first one finds them."""
    places: list[Source] = [LocalSource(name) for name in exit_.target.code.co_varnames]
    for part in _chain(exit_):
        yield part, places
        if part.inner is not None:
            given = places[len(list(part.slots())) + 1]
            places = [TupleItemSource(given, n) for n in range(len(part.inner.target.code.co_varnames))]


def _parts(source: Source, value: Value, budget: Iterator[int], depth: int) -> Iterator[tuple[Source, Value]]:
    """A value and what it contains, each with its place. Attributes of objects are not looked at."""
    if next(budget, None) is None:
        return
    if isinstance(value, (TensorValue, SymbolicValue, *_CONTAINERS)):
        yield source, value
    for place, item in _items(source, value) if depth else ():
        yield from _parts(place, item, budget, depth - 1)


def _items(source: Source, value: Value) -> Iterator[tuple[Source, Value]]:
    if isinstance(value, TupleValue) or (isinstance(value, ListValue) and value.cls is list):
        kind = TupleItemSource if isinstance(value, TupleValue) else ListItemSource
        yield from ((kind(source, n), item) for n, item in enumerate(value.items))
    elif isinstance(value, DictValue):
        for key, item in value.entries.values():
            if isinstance(key, Constant) and type(key.obj) is str:
                yield DictItemSource(source, key.obj), item


def _changing(value: Value, hints: Any) -> dict[int, int] | None:
    """The dimensions of a tensor that change, {} for a number that does, None for what is constant."""
    if isinstance(value, SymbolicValue):
        return None if isinstance(value.sym, torch.SymBool) else {}
    assert isinstance(value, TensorValue)
    sizes = {dim: size for dim, size in enumerate(value.fake.shape) if not isinstance(size, int)}
    return {dim: _largest(size, hints) for dim, size in sizes.items()} or None


def _largest(size: torch.SymInt, hints: Any) -> int:
    """What a size is in this call, 0 where only the run tells."""
    if any(symbol not in hints for symbol in raw_expr(size).free_symbols):
        return 0
    hint = size.node.hint
    return hint if isinstance(hint, int) else 0


__all__ = ["Changes", "Inherited", "inherited"]
