"""Iterators of the library that the trace carries out: enumerate, zip, map, filter, reversed and itertools.

`enumerate`, `zip`, `map` and `filter` can leave the trace in the middle of their run: they are made again around their inner iterators.
The others cannot.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.iteration import HostIterator, IteratorValue, ReversedIterator
from treadle_tracer.values.sequences import ListValue, TupleValue
from treadle_tracer.values.value import Value, special_method

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Make = Callable[["TraceContext", "list[Value]", "dict[str, Value]"], Value]


class EnumerateIterator(IteratorValue):
    """`enumerate(inner, count)`."""

    __slots__ = ("count", "inner")

    def __init__(self, inner: Value, count: int):
        self.source = None
        self.inner = inner
        self.count = count

    def python_type(self) -> type:
        return enumerate

    def next(self, tx: TraceContext) -> Value | None:
        item = self.inner.next(tx)
        if item is None:
            return None
        self.count += 1
        return TupleValue((Constant(self.count - 1), item))

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(enumerate)
        cg.value(self.inner)
        cg.const(self.count)
        cg.cb.call(2)


class CombiningIterator(IteratorValue):
    """`zip(*inner)` (function None) or `map(function, *inner)`; `strict` is zip's."""

    __slots__ = ("cls", "function", "inner", "strict")

    def __init__(self, cls: type, function: Value | None, inner: list[Value], strict: bool = False):
        self.source = None
        self.cls = cls
        self.function = function
        self.inner = inner
        self.strict = strict

    def python_type(self) -> type:
        return self.cls

    def next(self, tx: TraceContext) -> Value | None:
        items: list[Value] = []
        for position, iterator in enumerate(self.inner):
            item = iterator.next(tx)
            if item is None:
                if self.strict:
                    self._check_lengths(tx, position)
                return None
            items.append(item)
        if not items:
            return None
        return TupleValue(items) if self.function is None else self.function.call(tx, items, {})

    def _check_lengths(self, tx: TraceContext, ended: int) -> None:
        longer = "argument 1" if ended == 1 else f"arguments 1-{ended}"
        if ended > 0:
            tx.raise_exception(ValueError, f"zip() argument {ended + 1} is shorter than {longer}")
        for position, iterator in enumerate(self.inner[1:], start=2):
            if iterator.next(tx) is not None:
                shorter = "argument 1" if position == 2 else f"arguments 1-{position - 1}"
                tx.raise_exception(ValueError, f"zip() argument {position} is longer than {shorter}")

    def reconstruct(self, cg: Any) -> None:
        if self.strict:
            raise Unsupported("reconstruct", "zip(strict=True) in the middle of its run")
        parts = [*([] if self.function is None else [self.function]), *self.inner]
        cg.cb.push_null()
        cg.const(self.cls)
        for part in parts:
            cg.value(part)
        cg.cb.call(len(parts))


class FilterIterator(IteratorValue):
    """`filter(function, inner)`."""

    __slots__ = ("function", "inner")

    def __init__(self, function: Value, inner: Value):
        self.source = None
        self.function = function
        self.inner = inner

    def python_type(self) -> type:
        return filter

    def next(self, tx: TraceContext) -> Value | None:
        keep_all = isinstance(self.function, Constant) and self.function.obj is None
        while (item := self.inner.next(tx)) is not None:
            if (item if keep_all else self.function.call(tx, [item], {})).truth(tx):
                return item
        return None

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(filter)
        cg.value(self.function)
        cg.value(self.inner)
        cg.cb.call(2)


def _enumerate(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    start = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    return EnumerateIterator(kwargs.get("iterable", args[0] if args else NONE).iterate(tx), start.as_index(tx))


def _zip(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = kwargs["strict"].truth(tx) if "strict" in kwargs else False
    return CombiningIterator(zip, None, [arg.iterate(tx) for arg in args], strict)


def _map(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return CombiningIterator(map, args[0], [arg.iterate(tx) for arg in args[1:]])


def _filter(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return FilterIterator(args[0], args[1].iterate(tx))


def _reversed(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], (ListValue, TupleValue)):
        return ReversedIterator(args[0])
    from_class = special_method(tx, args[0], "__reversed__")
    if from_class is not None:
        return from_class.call(tx, [], {})
    length = args[0].length(tx)
    return tx.list_iterator([args[0].get_item(tx, Constant(position)) for position in range(length - 1, -1, -1)])


# ---- itertools


def _host(cls: type) -> Callable[[Callable[..., Iterator[Value]]], _Make]:
    def wrap(function: Callable[..., Iterator[Value]]) -> _Make:
        return lambda tx, args, kwargs: HostIterator(function(tx, args, kwargs), cls)

    return wrap


def _take(tx: TraceContext, value: Value) -> Iterator[Value]:
    iterator = value.iterate(tx)
    while (item := iterator.next(tx)) is not None:
        yield item


@_host(itertools.chain)
def _chain(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    for arg in args:
        yield from _take(tx, arg)


@_host(itertools.chain)
def chain_from_iterable(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    for inner in _take(tx, args[0]):
        yield from _take(tx, inner)


@_host(itertools.islice)
def _islice(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    bounds = [arg.constant() for arg in args[1:]]
    wanted = range(*slice(*bounds).indices(1 << 60))
    iterator, position = args[0].iterate(tx), 0
    for target in wanted:
        while position <= target:
            item = iterator.next(tx)
            if item is None:
                return
            position += 1
        yield item  # type: ignore[possibly-undefined]


@_host(itertools.count)
def _count(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    current = kwargs.get("start", args[0] if args else Constant(0))
    step = kwargs.get("step", args[1] if len(args) > 1 else Constant(1))
    while True:
        yield current
        current = tx.binary_op("+", current, step)


@_host(itertools.repeat)
def _repeat(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    times = kwargs.get("times", args[1] if len(args) > 1 else None)
    rounds: Any = itertools.count() if times is None else range(times.as_index(tx))
    for _ in rounds:
        yield args[0]


@_host(itertools.cycle)
def _cycle(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    seen = []
    for item in _take(tx, args[0]):
        seen.append(item)
        yield item
    while seen:
        yield from seen


@_host(itertools.product)
def _product(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    repeat = kwargs["repeat"].as_index(tx) if "repeat" in kwargs else 1
    for items in itertools.product(*(arg.unpack(tx) for arg in args), repeat=repeat):
        yield TupleValue(items)


@_host(itertools.accumulate)
def _accumulate(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    function = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    total = kwargs.get("initial", NONE)
    add = isinstance(function, Constant)
    started = not (isinstance(total, Constant) and total.obj is None)
    if started:
        yield total
    for item in _take(tx, args[0]):
        if not started:
            total, started = item, True
        else:
            total = tx.binary_op("+", total, item) if add else function.call(tx, [total, item], {})
        yield total


@_host(itertools.starmap)
def _starmap(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    for item in _take(tx, args[1]):
        yield args[0].call(tx, item.unpack(tx), {})


@_host(itertools.zip_longest)
def _zip_longest(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    fill = kwargs.get("fillvalue", NONE)
    iterators = [arg.iterate(tx) for arg in args]
    while True:
        items = [iterator.next(tx) for iterator in iterators]
        if all(item is None for item in items):
            return
        yield TupleValue([fill if item is None else item for item in items])


@_host(itertools.pairwise)
def _pairwise(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    before: Value | None = None
    for item in _take(tx, args[0]):
        if before is not None:
            yield TupleValue((before, item))
        before = item


@_host(itertools.takewhile)
def _takewhile(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    for item in _take(tx, args[1]):
        if not args[0].call(tx, [item], {}).truth(tx):
            return
        yield item


@_host(itertools.dropwhile)
def _dropwhile(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    dropping = True
    for item in _take(tx, args[1]):
        dropping = dropping and args[0].call(tx, [item], {}).truth(tx)
        if not dropping:
            yield item


@_host(itertools.compress)
def _compress(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    selectors = _take(tx, kwargs.get("selectors", args[1] if len(args) > 1 else NONE))
    for item, selector in zip(_take(tx, args[0]), selectors, strict=False):
        if selector.truth(tx):
            yield item


@_host(itertools.filterfalse)
def _filterfalse(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Iterator[Value]:
    plain = isinstance(args[0], Constant) and args[0].obj is None
    for item in _take(tx, args[1]):
        if not (item if plain else args[0].call(tx, [item], {})).truth(tx):
            yield item


def _selection(function: Callable[..., Iterator[Any]]) -> _Make:
    """permutations and combinations, which choose positions and never compare items."""

    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        items = args[0].unpack(tx)
        rest = [arg.as_index(tx) for arg in (*args[1:], *kwargs.values())]
        chosen: list[Value] = [TupleValue(group) for group in function(items, *rest)]
        return tx.list_iterator(chosen)

    return make


CLASS_ITERATORS: dict[Any, _Make] = {
    enumerate: _enumerate,
    zip: _zip,
    map: _map,
    filter: _filter,
    reversed: _reversed,
    itertools.chain: _chain,
    itertools.islice: _islice,
    itertools.count: _count,
    itertools.repeat: _repeat,
    itertools.cycle: _cycle,
    itertools.product: _product,
    itertools.accumulate: _accumulate,
    itertools.starmap: _starmap,
    itertools.zip_longest: _zip_longest,
    itertools.pairwise: _pairwise,
    itertools.takewhile: _takewhile,
    itertools.dropwhile: _dropwhile,
    itertools.compress: _compress,
    itertools.filterfalse: _filterfalse,
    itertools.permutations: _selection(itertools.permutations),
    itertools.combinations: _selection(itertools.combinations),
    itertools.combinations_with_replacement: _selection(itertools.combinations_with_replacement),
}
"""Iterator classes, by the class that is called."""
