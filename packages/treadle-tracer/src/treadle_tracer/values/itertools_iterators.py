"""The iterators of `itertools`. Each can leave the trace in the middle of its run: it is made again around what is left of its inputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, Constant, is_none
from treadle_tracer.values.iteration import IteratorValue, advanced
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Args = list[Value]
_Kwargs = dict[str, Value]
_Make = Callable[["TraceContext", _Args, _Kwargs], Value]


class LibraryIterator(IteratorValue):
    """Base: `parts` gives a function and its arguments, which make the real iterator in the state of this one."""

    __slots__ = ()
    cls: type

    def __init__(self) -> None:
        self.source = None

    def python_type(self) -> type:
        return self.cls

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        raise NotImplementedError

    def reconstruct(self, cg: Any) -> None:
        function, values = self.parts()
        cg.call_const(function, *values)


class _Chain(LibraryIterator):
    """`rest` iterates over the iterables that come after `current`."""

    __slots__ = ("current", "rest")
    cls = itertools.chain

    def __init__(self, rest: Value):
        super().__init__()
        self.rest: Value | None = rest
        self.current: Value | None = None

    def next(self, tx: TraceContext) -> Value | None:
        while self.rest is not None:
            if self.current is None:
                iterable = self.rest.next(tx)
                if iterable is None:
                    self.rest = None
                    break
                self.current = iterable.iterate(tx)
            item = self.current.next(tx)
            if item is not None:
                return item
            self.current = None
        return None

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.rest is None:
            return itertools.chain, []
        if self.current is None:
            return itertools.chain.from_iterable, [self.rest]
        return _chain_from_the_middle, [self.current, self.rest]


def _chain_from_the_middle(current: Any, rest: Any) -> Any:
    return itertools.chain.from_iterable(itertools.chain((current,), rest))


def _chain(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    return _Chain(TupleValue(list(args)).iterate(tx))


def chain_from_iterable(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    """`itertools.chain.from_iterable`"""
    if len(args) != 1 or kwargs:
        raise Unsupported("builtin-call", "chain.from_iterable with other arguments")
    return _Chain(args[0].iterate(tx))


class _Slice(LibraryIterator):
    """The next `skip` items are dropped, then one is given out; `left` items of the input may still be read (None: all)."""

    __slots__ = ("inner", "left", "skip", "step")
    cls = itertools.islice

    def __init__(self, inner: Value, start: int, stop: int | None, step: int):
        super().__init__()
        self.inner, self.skip, self.left, self.step = inner, start, stop, step

    def next(self, tx: TraceContext) -> Value | None:
        while self.skip:
            if self._take(tx) is None:
                return None
            self.skip -= 1
        item = None if self.left == 0 else self._take(tx)
        if item is not None:
            self.skip = self.step - 1 if self.left is None else min(self.step - 1, self.left)
        return item

    def _take(self, tx: TraceContext) -> Value | None:
        item = self.inner.next(tx)
        if item is None:
            self.left = self.skip = 0
        elif self.left is not None:
            self.left -= 1
        return item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.left == 0:
            return _exhausted_slice, []
        stop = NONE if self.left is None else Constant(self.left)
        return itertools.islice, [self.inner, Constant(self.skip), stop, Constant(self.step)]


def _exhausted_slice() -> Any:
    return itertools.islice((), 0)


def _islice(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    bounds = [None if is_none(arg) else arg.as_index(tx) for arg in args[1:]]
    try:
        itertools.islice((), *bounds)
    except (ValueError, TypeError) as error:
        tx.raise_real(error)
    start, stop, step = (None, *bounds, None) if len(bounds) == 1 else (*bounds, None)[:3]
    start = start or 0
    return _Slice(args[0].iterate(tx), start, None if stop is None else max(stop, start), step or 1)


class _Count(LibraryIterator):
    __slots__ = ("current", "step")
    cls = itertools.count

    def __init__(self, current: Value, step: Value):
        super().__init__()
        self.current, self.step = current, step

    def next(self, tx: TraceContext) -> Value | None:
        item = self.current
        self.current = tx.binary_op("+", item, self.step)
        return item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return itertools.count, [self.current, self.step]


def _count(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    start = kwargs.get("start", args[0] if args else Constant(0))
    return _Count(start, kwargs.get("step", args[1] if len(args) > 1 else Constant(1)))


class _Repeat(LibraryIterator):
    __slots__ = ("item", "left")
    cls = itertools.repeat

    def __init__(self, item: Value, left: int | None):
        super().__init__()
        self.item, self.left = item, left

    def next(self, tx: TraceContext) -> Value | None:
        if self.left is not None:
            if self.left <= 0:
                return None
            self.left -= 1
        return self.item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return itertools.repeat, [self.item, *([] if self.left is None else [Constant(self.left)])]


def _repeat(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    times = kwargs.get("times", args[1] if len(args) > 1 else None)
    return _Repeat(kwargs.get("object", args[0] if args else NONE), None if times is None else times.as_index(tx))


class _Cycle(LibraryIterator):
    """`inner` is None from the second round on."""

    __slots__ = ("inner", "position", "seen")
    cls = itertools.cycle

    def __init__(self, inner: Value):
        super().__init__()
        self.inner: Value | None = inner
        self.seen: list[Value] = []
        self.position = 0

    def next(self, tx: TraceContext) -> Value | None:
        if self.inner is not None:
            item = self.inner.next(tx)
            if item is not None:
                self.seen.append(item)
                return item
            self.inner = None
        if not self.seen:
            return None
        item = self.seen[self.position]
        self.position = (self.position + 1) % len(self.seen)
        return item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.inner is not None:
            return _cycle_from_the_middle, [self.inner, *self.seen]
        return _cycle_of, [*self.seen[self.position :], *self.seen[: self.position]]


def _cycle_of(*items: Any) -> Any:
    return itertools.cycle(items)


def _cycle_from_the_middle(inner: Any, *seen: Any) -> Any:
    return advanced(itertools.cycle(itertools.chain(seen, inner)), len(seen))


class _Selection(LibraryIterator):
    """product, permutations and combinations: they choose positions and never look at items. `position` groups have been given out."""

    __slots__ = ("cls", "groups", "inputs", "position", "sizes")

    def __init__(self, cls: Any, inputs: list[list[Value]], sizes: list[int]):
        super().__init__()
        self.cls = cls
        self.inputs = inputs
        self.sizes = sizes
        self.position = 0
        self.groups: Any = _select(cls, sizes, inputs)

    def next(self, tx: TraceContext) -> Value | None:
        group = next(self.groups, None)
        self.position += group is not None
        return None if group is None else TupleValue(group)

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        sizes = TupleValue([Constant(size) for size in self.sizes])
        return _selection_at, [Constant(self.cls), sizes, Constant(self.position), *map(TupleValue, self.inputs)]


def _select(cls: Any, sizes: Iterable[int], inputs: Iterable[Any]) -> Any:
    return itertools.product(*inputs, repeat=next(iter(sizes))) if cls is itertools.product else cls(*inputs, *sizes)


def _selection_at(cls: Any, sizes: tuple[int, ...], position: int, *inputs: Any) -> Any:
    return advanced(_select(cls, sizes, inputs), position)


def _product(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    repeat = kwargs["repeat"].as_index(tx) if "repeat" in kwargs else 1
    return _make_selection(tx, itertools.product, [arg.unpack(tx) for arg in args], [repeat])


def _selection(cls: Any) -> _Make:
    def make(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
        items = args[0] if args else kwargs["iterable"]
        size = args[1] if len(args) > 1 else kwargs.get("r", NONE)
        is_full = cls is itertools.permutations and is_none(size)
        return _make_selection(tx, cls, [items.unpack(tx)], [] if is_full else [size.as_index(tx)])

    return make


def _make_selection(tx: TraceContext, cls: Any, inputs: list[list[Value]], sizes: list[int]) -> Value:
    try:
        return _Selection(cls, inputs, sizes)
    except (ValueError, OverflowError) as error:  # a size is negative or too large
        tx.raise_real(error)


class _Accumulate(LibraryIterator):
    """`total` is None before the first item; `pending`: it has not been given out yet (`initial`)."""

    __slots__ = ("function", "inner", "pending", "total")
    cls = itertools.accumulate

    def __init__(self, inner: Value, function: Value, initial: Value | None):
        super().__init__()
        self.inner, self.function, self.total = inner, function, initial
        self.pending = initial is not None

    def next(self, tx: TraceContext) -> Value | None:
        if self.pending:
            self.pending = False
            return self.total
        item = self.inner.next(tx)
        if item is None:
            return None
        if self.total is None:
            self.total = item
        elif is_none(self.function):
            self.total = tx.binary_op("+", self.total, item)
        else:
            self.total = self.function.call(tx, [self.total, item], {})
        return self.total

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.total is None:
            return itertools.accumulate, [self.inner, self.function]
        if is_none(self.total):  # as the argument `initial` it would mean that none is given
            raise Unsupported("reconstruct", "an itertools.accumulate whose total is None")
        return _accumulate_from, [self.inner, self.function, self.total, Constant(0 if self.pending else 1)]


def _accumulate_from(inner: Any, function: Any, total: Any, given_out: int) -> Any:
    return advanced(itertools.accumulate(inner, function, initial=total), given_out)


def _accumulate(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    function = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    initial = kwargs.get("initial", NONE)
    return _Accumulate(
        kwargs.get("iterable", args[0] if args else NONE).iterate(tx), function, None if is_none(initial) else initial
    )


class _StarMap(LibraryIterator):
    __slots__ = ("function", "inner")
    cls = itertools.starmap

    def __init__(self, function: Value, inner: Value):
        super().__init__()
        self.function, self.inner = function, inner

    def next(self, tx: TraceContext) -> Value | None:
        item = self.inner.next(tx)
        return None if item is None else self.function.call(tx, item.unpack(tx), {})

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return itertools.starmap, [self.function, self.inner]


class _ZipLongest(LibraryIterator):
    """Inputs that are at their end are None."""

    __slots__ = ("fill", "inner")
    cls = itertools.zip_longest

    def __init__(self, inner: list[Value], fill: Value):
        super().__init__()
        self.inner: list[Value | None] = [*inner]
        self.fill = fill

    def next(self, tx: TraceContext) -> Value | None:
        items: list[Value] = []
        for position, iterator in enumerate(self.inner):
            item = None if iterator is None else iterator.next(tx)
            if item is None:
                self.inner[position] = None
                if all(other is None for other in self.inner):
                    return None
            items.append(self.fill if item is None else item)
        return TupleValue(items) if items else None

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        ended: Value = TupleValue([])
        return _zip_longest_of, [self.fill, *(ended if iterator is None else iterator for iterator in self.inner)]


def _zip_longest_of(fill: Any, *inner: Any) -> Any:
    return itertools.zip_longest(*inner, fillvalue=fill)


class _Pairwise(LibraryIterator):
    __slots__ = ("before", "inner")
    cls = itertools.pairwise

    def __init__(self, inner: Value):
        super().__init__()
        self.inner = inner
        self.before: Value | None = None

    def next(self, tx: TraceContext) -> Value | None:
        before = self.before if self.before is not None else self.inner.next(tx)
        item = None if before is None else self.inner.next(tx)
        self.before = item
        return None if before is None or item is None else TupleValue((before, item))

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.before is None:
            return itertools.pairwise, [self.inner]
        return _pairwise_after, [self.inner, self.before]


def _pairwise_after(inner: Any, before: Any) -> Any:
    return itertools.pairwise(itertools.chain((before,), inner))


class _TakeWhile(LibraryIterator):
    __slots__ = ("function", "inner", "stopped")
    cls = itertools.takewhile

    def __init__(self, function: Value, inner: Value):
        super().__init__()
        self.function, self.inner, self.stopped = function, inner, False

    def next(self, tx: TraceContext) -> Value | None:
        item = None if self.stopped else self.inner.next(tx)
        if item is None or self.function.call(tx, [item], {}).truth(tx):
            return item
        self.stopped = True
        return None

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return itertools.takewhile, [self.function, TupleValue([]) if self.stopped else self.inner]


class _DropWhile(LibraryIterator):
    __slots__ = ("dropping", "function", "inner")
    cls = itertools.dropwhile

    def __init__(self, function: Value, inner: Value):
        super().__init__()
        self.function, self.inner, self.dropping = function, inner, True

    def next(self, tx: TraceContext) -> Value | None:
        while (item := self.inner.next(tx)) is not None and self.dropping:
            self.dropping = self.function.call(tx, [item], {}).truth(tx)
            if not self.dropping:
                break
        return item

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        if self.dropping:
            return itertools.dropwhile, [self.function, self.inner]
        return _dropwhile_after, [self.inner]


def _dropwhile_after(inner: Any) -> Any:
    """A dropwhile that drops nothing more."""
    return advanced(itertools.dropwhile(bool, itertools.chain((False,), inner)), 1)


class _Compress(LibraryIterator):
    __slots__ = ("inner", "selectors")
    cls = itertools.compress

    def __init__(self, inner: Value, selectors: Value):
        super().__init__()
        self.inner, self.selectors = inner, selectors

    def next(self, tx: TraceContext) -> Value | None:
        while (item := self.inner.next(tx)) is not None:
            selector = self.selectors.next(tx)
            if selector is None:
                return None
            if selector.truth(tx):
                return item
        return None

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return itertools.compress, [self.inner, self.selectors]


class _FilterFalse(LibraryIterator):
    __slots__ = ("function", "inner")
    cls = itertools.filterfalse

    def __init__(self, function: Value, inner: Value):
        super().__init__()
        self.function, self.inner = function, inner

    def next(self, tx: TraceContext) -> Value | None:
        while (item := self.inner.next(tx)) is not None:
            if not (item if is_none(self.function) else self.function.call(tx, [item], {})).truth(tx):
                return item
        return None

    def parts(self) -> tuple[Callable[..., Any], list[Value]]:
        return itertools.filterfalse, [self.function, self.inner]


def _zip_longest(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    return _ZipLongest([arg.iterate(tx) for arg in args], kwargs.get("fillvalue", NONE))


def _compress(tx: TraceContext, args: _Args, kwargs: _Kwargs) -> Value:
    inputs = [*args, *(kwargs[name] for name in ("data", "selectors") if name in kwargs)]
    return _Compress(inputs[0].iterate(tx), inputs[1].iterate(tx))


def _over_second(kind: Callable[[Value, Value], Value]) -> _Make:
    return lambda tx, args, kwargs: kind(args[0], args[1].iterate(tx))


def _over_first(kind: Callable[[Value], Value]) -> _Make:
    return lambda tx, args, kwargs: kind(args[0].iterate(tx))


ITERTOOLS: dict[Any, _Make] = {
    itertools.chain: _chain,
    itertools.islice: _islice,
    itertools.count: _count,
    itertools.repeat: _repeat,
    itertools.cycle: _over_first(_Cycle),
    itertools.product: _product,
    itertools.accumulate: _accumulate,
    itertools.starmap: _over_second(_StarMap),
    itertools.zip_longest: _zip_longest,
    itertools.pairwise: _over_first(_Pairwise),
    itertools.takewhile: _over_second(_TakeWhile),
    itertools.dropwhile: _over_second(_DropWhile),
    itertools.compress: _compress,
    itertools.filterfalse: _over_second(_FilterFalse),
    itertools.permutations: _selection(itertools.permutations),
    itertools.combinations: _selection(itertools.combinations),
    itertools.combinations_with_replacement: _selection(itertools.combinations_with_replacement),
}
"""Iterator classes of `itertools`, by the class that is called."""
