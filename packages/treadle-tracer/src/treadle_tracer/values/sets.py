"""Sets and frozensets.

The order in which a set iterates depends on its history. An outside set is guarded to iterate in the same order where the program asks for
it; a set of the trace's own has a real set beside it, to which the same happens. What the program does to an outside set is done again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.tables import by_name
from treadle_tracer.values.base import NONE, Constant, boolean
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.iteration import FixedIterator, IteratorValue
from treadle_tracer.values.keys import check_keys
from treadle_tracer.values.mappings import DictValue, DictView
from treadle_tracer.values.sequences import ListValue, Sequence, TupleValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


_SET_ITERATOR = type(iter(set[Any]()))


class SetValue(Value):
    """A set or frozenset. `entries` maps hash_key to the item.

    real: a real set that has the same items and the same history, and so iterates in the same order; None where there is none.
    popped: what has been popped. The set remembers where in its table the last of it was: what is popped next depends on that.
    is_changed: the set has had other items before.
    """

    __slots__ = ("calls", "cls", "entries", "is_changed", "obj", "owner", "popped", "real")

    def __init__(self, entries: dict[Any, Value] | None = None, cls: type = set, source: Source | None = None):
        self.source = source
        self.entries: dict[Any, Value] = {} if entries is None else entries
        self.cls = cls
        self.obj: Any = None
        self.owner: Value | None = None
        self.popped: list[Value] = []
        self.is_changed = False
        self.real: Any = None if self.entries else set()
        # The program's changes: of an outside set; of one that the program has made, all since it was empty where real sets cannot follow.
        self.calls: list[tuple[Any, tuple[Value, ...]]] = []

    @classmethod
    def of(cls, tx: TraceContext, items: list[Value], kind: type = set) -> SetValue:
        """The set of these items, added one by one."""
        made = cls(_members(tx, items), kind)
        made.real = kind(item.constant() for item in items) if all(item.is_constant() for item in items) else None
        return made

    def python_type(self) -> type:
        return self.cls

    def constant(self) -> Any:
        return self.cls(item.constant() for item in self.entries.values())

    def is_constant(self) -> bool:
        return False

    def hash_key(self, tx: TraceContext) -> Any:
        if self.cls is not frozenset:
            tx.raise_exception(TypeError, "unhashable type: 'set'")
        return frozenset(self.entries)

    def changed(self, tx: TraceContext, function: Callable[..., Any], args: list[Value], real: Any = None) -> None:
        """`function(self, *args)` has changed the items; `real` has the same history."""
        was_empty = not self.is_changed and self.real is not None and not self.real
        self.real = real
        self.is_changed = True
        if self.source is not None:
            tx.mutations.mutated(self)
            self.calls.append((function, tuple(_as_it_is(tx, arg) for arg in args)))
        elif real is None and (was_empty or self.calls):
            self.calls = _with_call(tx, self.calls, function, args)

    def calls_to_replay(self) -> Any:
        """The same calls as the program's: the order in which a set iterates depends on its history."""
        return self.calls

    def unpack(self, tx: TraceContext) -> list[Value]:
        """The items in the order of iteration, which is guarded."""
        if len(self.entries) < 2:
            return list(self.entries.values())
        if self.real is None:
            raise Unsupported("set-order", self.describe())
        if self.real is self.obj and self.source is not None and not isinstance(self.source, ConstSource):
            tx.guards.add(self.source, "call", _SameOrder(self.obj), f"{self.source.text} iterates in the same order")
        return [tx.from_constant(item) for item in self.real]

    def iterate(self, tx: TraceContext) -> Value:
        return SetIterator(self, self.unpack(tx))

    def length(self, tx: TraceContext) -> int:
        return len(self.entries)

    def truth(self, tx: TraceContext) -> bool:
        return len(self.entries) > 0

    def contains(self, tx: TraceContext, item: Value) -> bool:
        return _key_of_member(tx, item) in self.entries

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = _SET_METHODS.get(name)
        if handler is None:
            return super().builtin_method(tx, name, args, kwargs)
        return handler(self, tx, args)

    def combined(
        self, tx: TraceContext, operator: str, other: dict[Any, Value], cls: type | None = None, is_set: bool = True
    ) -> SetValue:
        """A new set, of the same class unless another is given: `|`, `&`, `-` or `^` of two sets of entries.

        Of items that are equal and not the same `&` keeps those of the smaller set, and of what is no set (setobject.c, set_intersection).
        """
        mine = self.entries
        kept, asked = (mine, other) if is_set and len(other) > len(mine) else (other, mine)
        chosen: dict[str, Callable[[], dict[Any, Value]]] = {
            "|": lambda: {**other, **mine},
            "&": lambda: {key: item for key, item in kept.items() if key in asked},
            "-": lambda: {key: item for key, item in mine.items() if key not in other},
            "^": lambda: {
                **{key: item for key, item in mine.items() if key not in other},
                **{key: item for key, item in other.items() if key not in mine},
            },
        }
        return SetValue(chosen[operator](), self.cls if cls is None else cls)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        if not self.has_order_of_its_items() and self.calls:
            self._reconstruct_by_calls(cg)
            return
        if not self.has_order_of_its_items() or (self.popped and self.is_changed):
            raise Unsupported("set-order", self.describe())
        if self.popped:
            cg.cb.call_constant(_emptied, self.popped, cg.value)
            return
        if self.cls is set:
            self.reconstruct_contents(cg)
            return
        cg.cb.push_null()
        cg.const(self.cls)
        self.reconstruct_contents(cg)
        cg.cb.call(1)

    def _reconstruct_by_calls(self, cg: Any) -> None:
        """Do to an empty set what the program has done: it iterates as the sets from outside that were added to it."""
        check_keys(self.entries, cg.mutations)
        args = [arg for _, args in self.calls for arg in args]
        if any(arg.source is not None and cg.mutations.is_mutated(arg) for arg in args):
            raise Unsupported("set-order", self.describe())
        cg.call_const(_made_by, *(TupleValue((Constant(function), *args)) for function, args in self.calls))

    def has_order_of_its_items(self) -> bool:
        """Whether a fresh set of the items is known to iterate as this one does. Objects hashed by address have no order of their own."""
        if len(self.entries) < 2 or not all(item.is_constant() for item in self.entries.values()):
            return True
        return self.real is not None and list(self.real) == list(self.constant())

    def reconstruct_contents(self, cg: Any) -> None:
        """Push a fresh plain set of the items. Raises Unsupported where one has changed since it was hashed."""
        check_keys(self.entries, cg.mutations)
        for item in self.entries.values():
            cg.value(item)
        cg.cb.build_set(len(self.entries))


class SetIterator(FixedIterator):
    """`iter(owner)` of a set, which iterates in the order of `items`."""

    __slots__ = ("keys",)

    def __init__(self, owner: SetValue, items: list[Value]):
        super().__init__(owner, items, _SET_ITERATOR)
        self.keys = list(owner.entries)

    def next(self, tx: TraceContext) -> Value | None:
        """Raises RuntimeError when the set has changed its size, as Python's iterators do."""
        entries = self.owner.entries  # type: ignore[attr-defined]
        if self.position <= len(self.keys):
            if len(entries) != len(self.keys):
                tx.raise_exception(RuntimeError, "Set changed size during iteration")
            if list(entries) != self.keys:
                raise Unsupported("builtin-method", "iteration over a set whose items change")
        return super().next(tx)

    def reconstruct(self, cg: Any) -> None:
        if cg.mutations.is_mutated(self.owner) or list(self.owner.entries) != self.keys:  # type: ignore[attr-defined]
            raise Unsupported("reconstruct", "an iterator over a set that has changed")
        super().reconstruct(cg)


class _SameOrder:
    """Guard callable: a set iterates in the recorded order. That its items are the same is another guard."""

    def __init__(self, items: Any):
        self.items = list(items)

    def __call__(self, value: Any) -> bool:
        return list(value) == self.items


def entries_of(tx: TraceContext, value: Value) -> dict[Any, Value]:
    """The items of any iterable, by hash key."""
    if isinstance(value, SetValue):
        return value.entries
    return _members(tx, value.unpack(tx))


def _members(tx: TraceContext, items: list[Value]) -> dict[Any, Value]:
    """The items by hash key: of equal ones the first stays, as in Python."""
    members: dict[Any, Value] = {}
    for item in items:
        members.setdefault(item.hash_key(tx), item)
    return members


def _as_it_is(tx: TraceContext, value: Value) -> Value:
    """An argument of a method of sets that the rest of the program does not change."""
    if isinstance(value, SetValue):
        if value.source is not None and not isinstance(value.source, ConstSource):
            raise Unsupported("set-order", value.describe())
        return copy_set(value, value.cls)
    if isinstance(value, TupleValue):
        return value  # the very object may become a member
    return TupleValue(value.unpack(tx)) if isinstance(value, (Sequence, DictValue, DictView)) else value


def _with_call(
    tx: TraceContext, calls: list[tuple[Any, tuple[Value, ...]]], function: Callable[..., Any], args: list[Value]
) -> list[tuple[Any, tuple[Value, ...]]]:
    """The calls with one more; none where it cannot be made again."""
    taken = []
    for arg in args:
        is_outside = isinstance(arg, SetValue) and arg.source is not None
        if is_outside and tx.mutations.is_mutated(arg):
            return []
        taken.append(arg if is_outside else _as_it_is(tx, arg))
    return [*calls, (function, tuple(taken))]


def _made_by(*calls: Any) -> set[Any]:
    """A set after these calls."""
    made: set[Any] = set()
    for function, *args in calls:
        function(made, *args)
    return made


def replace_items(
    self: SetValue, tx: TraceContext, entries: dict[Any, Value], function: Callable[..., Any], args: list[Value]
) -> None:
    """Carry out `function(self, *args)`, after which a set has these items."""
    kept = dict(entries)
    real = self.real if self.source is None else None
    others = [_real_items(tx, arg) for arg in args]
    if real is None or None in others:
        real = None
    else:
        function(real, *others)
    self.entries.clear()
    self.entries.update(kept)
    self.changed(tx, function, args, real)


def _real_items(tx: TraceContext, value: Value) -> Any:
    """What a real set may be combined with in place of `value`; None where it is not known in which order it gives its items."""
    if isinstance(value, SetValue):
        return value.real if value.source is None else None
    is_dict = is_plain_dict(value)
    if not is_dict and not isinstance(value, (Sequence, DictView)):
        return None
    items = value.unpack(tx)
    if not all(item.is_constant() for item in items):
        return None
    constants = [item.constant() for item in items]
    return dict.fromkeys(constants) if is_dict else constants


def is_plain_dict(value: Value) -> bool:
    """Whether a set takes the items of `value` as those of a dict: it grows at once for all of them, and for others step by step."""
    return isinstance(value, DictValue) and value.python_type() is dict


def real_result(tx: TraceContext, value: SetValue, method: str, args: list[Value]) -> Any:
    """`value.real.method(...)` for a set of the trace's own, None where it is not known in which order items come."""
    known = [value.real if value.source is None else None, *(_real_items(tx, arg) for arg in args)]
    return None if any(items is None for items in known) else getattr(type(known[0]), method)(*known)


_METHOD_OF = {"|": "union", "&": "intersection", "-": "difference", "^": "symmetric_difference"}


def _combine(operator: str) -> Callable[[SetValue, TraceContext, list[Value]], Value]:
    def run(self: SetValue, tx: TraceContext, args: list[Value]) -> Value:
        result = self.combined(tx, "|", {})
        for other in args:
            result = result.combined(tx, operator, entries_of(tx, other), is_set=isinstance(other, SetValue))
        result.real = real_result(tx, self, _METHOD_OF[operator], args)
        return result

    return run


def _combine_in_place(operator: str, function: Any) -> Callable[[SetValue, TraceContext, list[Value]], Value]:
    def run(self: SetValue, tx: TraceContext, args: list[Value]) -> Value:
        args = _read_once(tx, args)
        entries = _combine(operator)(self, tx, args).entries  # type: ignore[attr-defined]
        replace_items(self, tx, entries, function, args)
        return NONE

    return run


def _read_once(tx: TraceContext, args: list[Value]) -> list[Value]:
    """The arguments; iterators, which can be read only once, as lists."""
    return [ListValue(arg.unpack(tx)) if isinstance(arg, IteratorValue) else arg for arg in args]


def _update_set(self: SetValue, tx: TraceContext, args: list[Value]) -> Value:
    args = _read_once(tx, args)
    replace_items(self, tx, _combine("|")(self, tx, args).entries, set.update, args)  # type: ignore[attr-defined]
    return NONE


def _key_of_member(tx: TraceContext, item: Value) -> Any:
    """Under which key `in`, `discard` and `remove` look for an item: a set stands for a frozenset (setobject.c, set_contains)."""
    container = getattr(item, "container", None) or item
    if isinstance(container, SetValue) and lookup(tx, item.python_type(), "__hash__") is None:
        return frozenset(container.entries)
    return item.hash_key(tx)


def _discard(self: SetValue, tx: TraceContext, args: list[Value], *, must: bool = False) -> Value:
    if self.entries.pop(_key_of_member(tx, args[0]), None) is None and must:
        tx.raise_exception_value(KeyError, [args[0]])
    self.changed(tx, set.discard, args, _follow(self, set.discard, args[0]))
    return NONE


def _add(self: SetValue, tx: TraceContext, args: list[Value]) -> Value:
    self.entries.setdefault(args[0].hash_key(tx), args[0])
    self.changed(tx, set.add, args, _follow(self, set.add, args[0]))
    return NONE


def _pop(self: SetValue, tx: TraceContext, args: list[Value]) -> Value:
    """The only item, or the one that a real set with the same history gives."""
    if not self.entries:
        tx.raise_exception(KeyError, "pop from an empty set")
    if len(self.entries) == 1:
        (item,) = self.entries.values()
        had_others = self.is_changed
        replace_items(self, tx, {}, set.pop, [])
        self.is_changed = had_others
    elif self.source is None and self.real is not None and all(item.is_constant() for item in self.entries.values()):
        item = self.entries.pop(tx.from_constant(self.real.pop()).hash_key(tx))
        self.is_changed = True
    else:
        raise Unsupported("set-order", self.describe())
    if self.source is None:
        self.popped.append(item)
    return item


def _emptied(item: Any) -> set[Any]:
    """A set after its only item has been popped."""
    found = {item}
    found.pop()
    return found


def copy_set(value: SetValue, cls: type) -> SetValue:
    """`cls(value)`. The table of a copy depends on that of the original, which is not known of an outside set."""
    made = SetValue(dict(value.entries), cls)
    made.real = cls(value.real) if value.real is not None and value.source is None else None
    if value.source is not None and cls is set:
        made.calls = [(set.update, (value,))]
    return made


def _clear_set(self: SetValue, tx: TraceContext, args: list[Value]) -> Value:
    replace_items(self, tx, {}, set.clear, [])
    return NONE


def _follow(self: SetValue, method: Callable[[Any, Any], Any], item: Value) -> Any:
    """`self.real` after the same call, if it is a set of the trace's own and the item is a constant."""
    if self.source is not None or self.real is None or not item.is_constant():
        return None
    method(self.real, item.constant())
    return self.real


_SET_METHODS: dict[str, Callable[[SetValue, TraceContext, list[Value]], Value]] = by_name(
    ("add", _add),
    ("discard", _discard),
    ("remove", lambda self, tx, args: _discard(self, tx, args, must=True)),
    ("clear", _clear_set),
    ("pop", _pop),
    ("copy", lambda self, tx, args: self if self.cls is frozenset else copy_set(self, self.cls)),
    ("union", _combine("|")),
    ("intersection", _combine("&")),
    ("difference", _combine("-")),
    ("symmetric_difference", _combine("^")),
    ("update", _update_set),
    ("intersection_update", _combine_in_place("&", set.intersection_update)),
    ("difference_update", _combine_in_place("-", set.difference_update)),
    ("symmetric_difference_update", _combine_in_place("^", set.symmetric_difference_update)),
    ("issubset", lambda self, tx, args: boolean(self.entries.keys() <= entries_of(tx, args[0]).keys())),
    ("issuperset", lambda self, tx, args: boolean(self.entries.keys() >= entries_of(tx, args[0]).keys())),
    ("isdisjoint", lambda self, tx, args: boolean(self.entries.keys().isdisjoint(entries_of(tx, args[0]).keys()))),
)
