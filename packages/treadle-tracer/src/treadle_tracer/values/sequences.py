"""Tuples, lists, deques and slices.

Items are Values. Some are a `LazyValue`: an outside item that nothing has read. Whoever hands out an item realises it. The value of an
outside list is a copy: changes are reported to `tx.mutations` and replayed at the end.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Callable
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, NoReturn

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype, length_of_container, mro_of, name_in_messages
from treadle_tracer.computed_source import ComputedSource, item_text, list_item, tuple_item
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource, ConstSource
from treadle_tracer.tables import by_name, disjoint
from treadle_tracer.values.base import NONE, Constant, LazyValue, boolean
from treadle_tracer.values.class_lookup import MISSING, find_in_mro, has_special, lookup
from treadle_tracer.values.iteration import SequenceIterator
from treadle_tracer.values.value import NotConstant, Value
from treadle_tracer.values.varying import hint_of, place_of, varies

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class Sequence(Value):
    """Shared by tuples and lists: `items` is a real Python sequence of Values, `cls` the exact Python type."""

    __slots__ = ("cls", "items", "obj")

    def __init__(self, items: Any, cls: type, source: Source | None = None, obj: Any = None):
        self.source = source
        self.items = items
        self.cls = cls
        self.obj = obj

    def python_type(self) -> type:
        return self.cls

    def item(self, tx: TraceContext, index: int) -> Value:
        found = self.items[index]
        return found.force(tx) if found.__class__ is LazyValue else found

    def unpack(self, tx: TraceContext) -> list[Value]:
        return [item.force(tx) if item.__class__ is LazyValue else item for item in self.items]

    def truth(self, tx: TraceContext) -> bool:
        return len(self.items) > 0

    def length(self, tx: TraceContext) -> int:
        return len(self.items)

    def iterate(self, tx: TraceContext) -> Value:
        return SequenceIterator(self)

    def contains(self, tx: TraceContext, item: Value) -> bool:
        return any(tx.same_or_equal(own, item) for own in self.unpack(tx))

    def index_of(self, tx: TraceContext, key: Value) -> Any:
        """`key` as a Python index: int or slice of ints."""
        try:
            index = key.constant()
        except NotConstant:
            if not isinstance(key, SliceValue) and not has_special(tx, key.python_type(), "__index__"):
                self._refuse_index(tx, key.python_type())
            index = key.as_index(tx) if not isinstance(key, SliceValue) else key.as_slice(tx)
        if isinstance(index, type) and lookup(tx, type(index), "__index__") is not MISSING:
            index = key.as_index(tx)
        if not isinstance(index, (int, slice)):
            index_method = None if isinstance(index, type) else getattr(index, "__index__", None)
            if index_method is None:
                self._refuse_index(tx, type(index))
            index = index_method()
        if isinstance(index, slice):
            try:
                index.indices(0)
            except (TypeError, ValueError) as error:
                tx.raise_real(error)
        return index

    def _refuse_index(self, tx: TraceContext, cls: type) -> NoReturn:
        kind = next(base for base in _BAD_INDEX if issubclass(self.cls, base))
        tx.raise_exception(TypeError, _BAD_INDEX[kind].format(name_in_messages(cls)))

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        found = self._item_at_open_position(tx, key) if varies(key) else None
        if found is not None:
            return found
        index = self.index_of(tx, key)
        if isinstance(index, slice):
            return self.slice(index)
        try:
            return self.item(tx, index)
        except IndexError as error:
            is_deque = issubclass(self.cls, collections.deque)
            tx.raise_real(IndexError("deque index out of range") if is_deque else error)

    def _item_at_open_position(self, tx: TraceContext, key: Value) -> Value | None:
        """The item of a list or tuple from outside at a position that differs from call to call. None where the position is to be a
        constant: the trace has changed the list, or the position is out of range."""
        if self.obj is None or tx.mutations.is_mutated(self):
            return None
        read, place = _ITEM_AT.get(self.cls), place_of(tx, key)
        if read is None or place is None or key.python_type() is not int:
            return None
        position, length = hint_of(tx, key), len(self.obj)
        if not -length <= position < length:
            return None
        source = ConstSource(self.obj) if self.source is None else self.source
        return tx.wrap(self.obj[position], ComputedSource(read, (source, place), item_text))

    def slice(self, index: slice) -> Value:
        raise NotImplementedError

    def find(self, tx: TraceContext, args: list[Value]) -> int:
        low, high = (args[1].constant() if len(args) > 1 else 0), (args[2].constant() if len(args) > 2 else None)
        if not all(bound is None or is_subtype(type(bound), int) for bound in (low, high)):
            raise Unsupported("raises", f"a search from {low!r} to {high!r}")
        for position in range(*slice(low, high).indices(len(self.items))):
            if tx.same_or_equal(self.item(tx, position), args[0]):
                return position
        return -1

    def text_of_missing(self, item: Value) -> str:
        """What `index` says where the item is not found."""
        if issubclass(self.cls, tuple):
            return "tuple.index(x): x not in tuple"
        try:
            return f"{item.constant()!r} is not in {self.cls.__name__}"
        except NotConstant:
            raise Unsupported(
                "builtin-method", f"{self.cls.__name__}.index of {item.describe()}, which it lacks"
            ) from None

    def constant_items(self) -> list[Any]:
        return [
            (item.value if item.value is not None else _not_constant(item)).constant()
            if item.__class__ is LazyValue
            else item.constant()
            for item in self.items
        ]

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "count":
            return Constant(sum(tx.same_or_equal(item, args[0]) for item in self.unpack(tx)))
        if name == "index":
            position = self.find(tx, args)
            if position < 0:
                tx.raise_exception(ValueError, self.text_of_missing(args[0]))
            return Constant(position)
        raise Unsupported("builtin-method", f"{self.cls.__name__}.{name}")


def _not_constant(value: Value) -> Value:
    raise NotConstant(value)


_FIELD_DESCRIPTORS = (
    type(collections.namedtuple("Pair", "first second").first),  # type: ignore[attr-defined]
    types.MemberDescriptorType,  # of a structseq
)


_ITEM_AT: dict[type, Callable[[Any, Any], Any]] = {list: list_item, tuple: tuple_item}
_BAD_INDEX: dict[type, str] = {
    list: "list indices must be integers or slices, not {}",
    tuple: "tuple indices must be integers or slices, not {}",
    collections.deque: "sequence index must be integer, not '{}'",
}


class TupleValue(Sequence):
    """A tuple, `torch.Size`, named tuple or structseq (torch.return_types)."""

    __slots__ = ()

    def __init__(self, items: Any, cls: type = tuple, source: Source | None = None, obj: Any = None):
        super().__init__(items if type(items) is tuple else tuple(items), cls, source, obj)

    def constant(self) -> Any:
        items = self.constant_items()
        if self.cls is tuple:
            return tuple(items)
        if hasattr(self.cls, "_make"):
            return self.cls._make(items)
        return self.cls(items)

    def identity(self) -> Any:
        return self

    def hash_key(self, tx: TraceContext) -> Any:
        return tuple(item.hash_key(tx) for item in self.unpack(tx))

    def slice(self, index: slice) -> Value:
        # A slice of a torch.Size is a torch.Size, of a named tuple a tuple.
        cls = self.cls if self.cls.__name__ == "Size" else tuple
        items = self.items[index]
        is_whole = is_one_of(self.cls, (tuple,)) and len(items) == len(self.items) and index.step in (None, 1)
        return self if is_whole else TupleValue(items, cls)  # tupleobject.c, tuplesubscript

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        position = field_index(self.cls, name)
        if position is not None and type(lookup(tx, self.cls, name)) in _FIELD_DESCRIPTORS:
            return self.item(tx, position)
        return super().get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "numel" and self.cls.__name__ == "Size":
            return reduce(partial(tx.binary_op, "*"), self.unpack(tx), Constant(1))
        return super().builtin_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        if self.cls is tuple:
            for item in self.items:
                cg.value(item)
            cg.cb.build_tuple(len(self.items))
            return
        cg.cb.push_null()
        maker = getattr(self.cls, "_make", None)
        cg.const(self.cls if maker is None else maker)
        for item in self.items:
            cg.value(item)
        cg.cb.build_tuple(len(self.items))
        cg.cb.call(1)


class CodeTuple(TupleValue):
    """A tuple among the constants of a code object: the same object at every load, and after the trace."""

    __slots__ = ("loaded",)

    def __init__(self, items: list[Value], loaded: tuple[Any, ...]):
        super().__init__(items, obj=loaded)
        self.loaded = loaded

    def reconstruct(self, cg: Any) -> None:
        cg.const(self.loaded)


def field_names(cls: type) -> tuple[str, ...]:
    """Names of the positions of a named tuple or structseq class, () for other tuples; "" where one has no name (`os.stat_result[7]`)."""
    fields = find_in_mro(mro_of(cls), "_fields")[0]
    if isinstance(fields, tuple):
        return fields
    count, owner = find_in_mro(mro_of(cls), "n_sequence_fields")
    return () if owner is None else _names_in_structseq(cls, count)


@functools.cache
def _names_in_structseq(cls: type, count: int) -> tuple[str, ...]:
    try:
        probe = cls(range(getattr(cls, "n_fields")))  # a structseq takes any objects
    except TypeError:  # made by Python alone (`sys.flags`)
        raise Unsupported("builtin-call", f"a field of {cls.__name__}") from None
    members = [name for name, value in vars(cls).items() if type(value).__name__ == "member_descriptor"]
    by_index = {getattr(probe, name): name for name in members}
    return tuple(by_index.get(index, "") for index in range(count))


def field_index(cls: type, name: str) -> int | None:
    if cls is tuple:
        return None
    names = field_names(cls)
    return names.index(name) if name in names else None


def look_up_items(tx: TraceContext, value: Value) -> None:
    """Look up the items of a tuple from outside: only then its constant is known."""
    if isinstance(value, TupleValue):
        for item in value.unpack(tx):
            look_up_items(tx, item)


class ListValue(Sequence):
    """A list or deque. `owner` is the object of a subclass whose items these are, if any."""

    __slots__ = ("maxlen", "owner")

    def __init__(self, items: list[Any], cls: type = list, source: Source | None = None, obj: Any = None):
        super().__init__(items, cls, source, obj)
        self.maxlen: int | None = None
        self.owner: Value | None = None

    def constant(self) -> Any:
        if self.cls is not list:
            raise NotConstant(self)
        return self.constant_items()

    def is_constant(self) -> bool:
        return False

    def hash_key(self, tx: TraceContext) -> Any:
        return tx.raise_exception(TypeError, f"unhashable type: {name_in_messages(self.cls)!r}")

    def changed(self, tx: TraceContext) -> None:
        if self.source is not None or (self.owner is not None and self.owner.source is not None):
            tx.mutations.mutated(self.owner if self.owner is not None else self)

    def append(self, item: Value) -> None:
        """Put an item at the end; the caller reports the change."""
        self.items.append(item)

    def slice(self, index: slice) -> Value:
        if self.cls is not list:
            raise Unsupported("builtin-method", f"slice of {self.cls.__name__}")
        return ListValue(self.items[index])

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        index = self.index_of(tx, key)
        try:
            self.items[index] = value.unpack(tx) if isinstance(index, slice) else value
        except (IndexError, ValueError) as error:
            tx.raise_real(error)
        self.changed(tx)

    def del_item(self, tx: TraceContext, key: Value) -> None:
        index = self.index_of(tx, key)
        try:
            del self.items[index]
        except IndexError as error:
            tx.raise_real(error)
        self.changed(tx)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = (_DEQUE_METHODS if self.cls is collections.deque else _LIST_METHODS).get(name)
        if handler is None:
            return super().builtin_method(tx, name, args, kwargs)
        return handler(self, tx, args, kwargs)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "maxlen" and self.cls is collections.deque:
            return Constant(self.maxlen) if self.maxlen is not None else NONE
        return super().get_attr(tx, name)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        if self.cls is list:
            self.reconstruct_contents(cg)
            return
        cg.cb.push_null()
        cg.const(self.cls)
        self.reconstruct_contents(cg)
        cg.const(self.maxlen)
        cg.cb.call(2)

    def reconstruct_contents(self, cg: Any) -> None:
        """Push a fresh plain list of the items."""
        for item in self.items:
            cg.value(item)
        cg.cb.build_list(len(self.items))


def symbolic_length(tx: TraceContext, source: Source | None, length: int) -> Value | None:
    """The length of an outside list or dict as a symbol, if it has changed between calls."""
    if source is None or isinstance(source, ConstSource):
        return None
    place = ApplySource(source, length_of_container)
    return tx.wrap(length, place) if tx.symbols.is_dynamic_integer(place, length) else None


# ---- methods of lists and deques


def _append(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (item,) = args
    self.append(item)
    if self.maxlen is not None and len(self.items) > self.maxlen:
        del self.items[0]
    self.changed(tx)
    return NONE


def _appendleft(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    (item,) = args
    self.items.insert(0, item)
    if self.maxlen is not None and len(self.items) > self.maxlen:
        del self.items[-1]
    self.changed(tx)
    return NONE


def _extend(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for item in args[0].unpack(tx):
        _append(self, tx, [item], {})
    return NONE


def _insert(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.insert(args[0].as_index(tx), args[1])
    self.changed(tx)
    return NONE


def _extendleft(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    for item in args[0].unpack(tx):
        _appendleft(self, tx, [item], {})
    return NONE


def _rotate(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    steps = (args[0].as_index(tx) if args else 1) % max(len(self.items), 1)
    self.items[:] = self.items[-steps:] + self.items[:-steps] if steps else self.items
    self.changed(tx)
    return NONE


def _pop(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    index = args[0].as_index(tx) if args else -1
    try:
        item = self.item(tx, index)
    except IndexError:
        empty = "pop from empty list" if self.cls is list else "pop from an empty deque"
        tx.raise_real(IndexError("pop index out of range") if self.items else IndexError(empty))
    del self.items[index]
    self.changed(tx)
    return item


def _popleft(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return _pop(self, tx, [Constant(0)], {})


def _remove(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    position = self.find(tx, args)
    if position < 0:
        missing = "list.remove(x): x not in list" if self.cls is list else self.text_of_missing(args[0])
        tx.raise_exception(ValueError, missing)
    if position >= len(self.items):  # `__eq__` of an item has changed the list
        raise Unsupported("builtin-method", f"{self.describe()}.remove, which changes it")
    del self.items[position]
    self.changed(tx)
    return NONE


def _clear(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.clear()
    self.changed(tx)
    return NONE


def _copy(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = ListValue(list(self.items), self.cls)
    made.maxlen = self.maxlen
    return made


def _reverse(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items.reverse()
    self.changed(tx)
    return NONE


def _sort(self: ListValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.items[:] = sorted_values(tx, self.unpack(tx), kwargs.get("key", NONE), kwargs.get("reverse", NONE))
    self.changed(tx)
    return NONE


_ListMethod = Callable[[ListValue, "TraceContext", list[Value], dict[str, Value]], Value]
_SHARED: dict[str, _ListMethod] = by_name(
    ("append", _append),
    ("extend __iadd__", _extend),
    ("insert", _insert),
    ("pop", _pop),
    ("remove", _remove),
    ("clear", _clear),
    ("copy __copy__", _copy),
    ("reverse", _reverse),
)
_LIST_METHODS: dict[str, _ListMethod] = disjoint(_SHARED, by_name(("sort", _sort)))
_DEQUE_METHODS: dict[str, _ListMethod] = disjoint(
    _SHARED,
    by_name(
        ("appendleft", _appendleft),
        ("extendleft", _extendleft),
        ("rotate", _rotate),
        ("popleft", _popleft),
    ),
)


def sorted_values(tx: TraceContext, items: list[Value], key: Value, reverse: Value) -> list[Value]:
    """Items in the order of `sorted` by the traced `<`; stable, also when reversed."""
    keys = items if key.is_constant() and key.constant() is None else [key.call(tx, [item], {}) for item in items]

    def compare(a: int, b: int) -> int:
        if tx.compare("<", keys[a], keys[b]).truth(tx):
            return -1
        return 1 if tx.compare("<", keys[b], keys[a]).truth(tx) else 0

    backwards = reverse.truth(tx)
    order = sorted(range(len(items)), key=functools.cmp_to_key(compare), reverse=backwards)
    return [items[position] for position in order]


class SliceValue(Value):
    """A slice with at least one part that is no constant."""

    __slots__ = ("parts",)

    def __init__(self, start: Value, stop: Value, step: Value):
        self.source = None
        self.parts = (start, stop, step)

    def python_type(self) -> type:
        return slice

    def constant(self) -> Any:
        return slice(*(part.constant() for part in self.parts))

    def as_slice(self, tx: TraceContext) -> slice:
        """A slice of ints; makes dynamic numbers constants."""
        return slice(*(None if _is_none(part) else part.as_index(tx) for part in self.parts))

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return self.parts[("start", "stop", "step").index(name)]
        return super().get_attr(tx, name)

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(slice)
        for part in self.parts:
            cg.value(part)
        cg.cb.call(3)


def parts_of_slice(value: Value) -> TupleValue:
    """`(value.start, value.stop, value.step)` of a slice."""
    if isinstance(value, SliceValue):
        return TupleValue(list(value.parts))
    found = value.constant()
    return TupleValue([Constant(part) for part in (found.start, found.stop, found.step)])


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.constant() is None


def make_slice(parts: list[Value]) -> Value:
    """`slice(...)` of one to three values: a constant if all parts are."""
    if len(parts) == 1:
        parts = [NONE, parts[0]]
    start, stop, step = (*parts, NONE)[:3]
    made = SliceValue(start, stop, step)
    try:
        return Constant(made.constant())
    except NotConstant:
        return made


def compare_sequences(tx: TraceContext, operator: str, a: Sequence, b: Sequence) -> Value:
    """Lexicographic comparison of two lists or two tuples."""
    left, right = a.unpack(tx), b.unpack(tx)
    if operator in ("==", "!=") and len(left) != len(right):
        return boolean(operator == "!=")
    for x, y in zip(left, right, strict=False):
        if not tx.same_or_equal(x, y):
            if operator in ("==", "!="):
                return boolean(operator == "!=")
            return tx.compare(operator, x, y)
    return boolean(_LENGTH_ORDER[operator](len(left), len(right)))


_LENGTH_ORDER: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
