"""Dictionaries and their views.

Entries are stored under the key's `hash_key`, a Python object that hashes and compares as the traced key does. An outside dict is
guarded lazily: a lookup guards its key; an operation that depends on all keys guards the tuple of keys.
"""

from __future__ import annotations

import collections
import enum
import operator
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import is_subtype, items_in_order, name_in_messages
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import DictKeySource, TupleItemSource
from treadle_tracer.tables import by_name
from treadle_tracer.values import ordered_dicts
from treadle_tracer.values.base import NONE, Constant, LazyValue, boolean
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.dict_writes import DictWrites
from treadle_tracer.values.iteration import DictIterator
from treadle_tracer.values.key_guards import guard_key_of, guard_keys_of, guard_open_key, item_source, open_item
from treadle_tracer.values.keys import asks_objects, check_keys, is_of_earlier_time
from treadle_tracer.values.outside_identity import settle_address
from treadle_tracer.values.sequences import TupleValue, symbolic_length
from treadle_tracer.values.tuple_keys import is_followed, read_items
from treadle_tracer.values.value import NotConstant, Raised, Value, call_special, special_method
from treadle_tracer.values.varying import VaryingKey, are_equal, varies

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class DictValue(Value):
    """A dict, OrderedDict, defaultdict or Counter. `entries` maps hash_key to (key, value); `owner` as in ListValue.

    stored         what the program has stored in an outside dict while its keys were not guarded
    writes         what is replayed
    has_open_keys  whether some key of the program is held as a `VaryingKey`
    """

    __slots__ = (
        "cls",
        "default_factory",
        "entries",
        "has_open_keys",
        "keys_guarded",
        "obj",
        "owner",
        "stored",
        "writes",
    )

    def __init__(self, entries: dict[Any, tuple[Value, Value]] | None = None, cls: type = dict):
        self.source: Source | None = None
        self.entries: dict[Any, tuple[Value, Value]] = {} if entries is None else entries
        self.cls = cls
        self.obj: Any = None
        self.owner: Value | None = None
        self.keys_guarded = True
        self.default_factory: Value | None = None
        self.stored: dict[Any, tuple[Value, Value]] = {}
        self.writes = DictWrites()
        self.has_open_keys = False

    @classmethod
    def outside(cls, tx: TraceContext, obj: dict[Any, Any], source: Source) -> DictValue:
        """The real dict `obj`. The caller has guarded its type, and nothing else is guarded yet."""
        made = cls({}, type(obj))
        made.source = source
        made.obj = obj
        made.keys_guarded = False
        for position, (key, item) in enumerate(items_in_order(obj)):
            key_value = wrap_key(tx, key, DictKeySource(source, position))
            made.entries[outside_hash_key(tx, key_value)] = (key_value, LazyValue(item, item_source(source, key)))
        return made

    def python_type(self) -> type:
        return self.cls

    def constant(self) -> Any:
        if not self.keys_guarded or self.cls is not dict or self.has_open_keys:
            raise NotConstant(self)
        if any(value.__class__ is LazyValue for _, value in self.entries.values()):
            raise NotConstant(self)
        return {key.constant(): value.constant() for key, value in self.entries.values()}

    def is_constant(self) -> bool:
        return False

    def as_dict(self, tx: TraceContext) -> DictValue:
        return self

    def hash_key(self, tx: TraceContext) -> Any:
        return tx.raise_exception(TypeError, f"unhashable type: {name_in_messages(self.cls)!r}")

    # ---- attributes: an OrderedDict has an instance dict

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        if self.cls is not collections.OrderedDict:
            super().set_attr(tx, name, value)
            return
        why_not = ordered_dicts.why_not_writable(tx, self, name)
        if why_not is not None:
            raise Unsupported("attribute-store", why_not)
        tx.mutations.store_attr(self, name, value)

    # ---- guards

    def guard_keys(self, tx: TraceContext) -> None:
        """Guard which keys there are and in which order."""
        if self._is_unread():
            self.keys_guarded = True
            self.close_keys(tx)  # where one stands depends on whether it was there
            guard_keys_of(tx, self.obj, self.source)

    # ---- keys

    def hashed(self, tx: TraceContext, key: Value) -> Any:
        """What `key` is stored under: its hash key, or that of an equal key if one of the two varies from call to call."""
        read_items(tx, key)
        is_open = varies(key) and key.python_type() in _OPEN_TYPES
        if not is_open and not self.has_open_keys:
            return key.hash_key(tx)
        own = self.entries if self.keys_guarded or self.source is None else self.stored
        if len(own) > _MOST_COMPARED or (is_open and not is_followed(tx, key, self.source is not None)):
            self.close_keys(tx)
            return key.hash_key(tx)
        for held, (other, _) in list(own.items()):
            if is_open or held.__class__ is VaryingKey:
                equal = are_equal(tx, key, other)
                if equal is None:
                    self.close_keys(tx)
                    return key.hash_key(tx)
                if equal:
                    return held
        if not is_open:
            return key.hash_key(tx)
        self.has_open_keys = True
        return VaryingKey()

    def close_keys(self, tx: TraceContext) -> None:
        """Make constants of the keys that vary."""
        if not self.has_open_keys:
            return
        self.has_open_keys = False
        for entries in (self.entries, self.stored):
            closed: dict[Any, tuple[Value, Value]] = {}
            for held, (key, value) in entries.items():
                plain = key.hash_key(tx) if held.__class__ is VaryingKey else held
                closed[plain] = (closed[plain][0] if plain in closed else key, value)
            entries.clear()
            entries.update(closed)
        self.writes.forget_places()

    def guard_key(self, tx: TraceContext, key: Value, hashed: Any) -> bool | None:
        """Guard whether `key` is there. The result tells, None where all keys are guarded or the program has stored it."""
        if self.obj is not None:
            settle_address(key)
        if self.keys_guarded or self.source is None or hashed in self.stored:
            return None
        if hashed.__class__ is VaryingKey:
            return guard_open_key(tx, self.source, self.obj, key)
        try:
            plain = key.constant()
        except NotConstant:
            self.guard_keys(tx)
            return None
        has = dict.__contains__(self.obj, plain)
        guard_key_of(tx, self.source, plain, has)
        return has

    def changed(self, tx: TraceContext) -> None:
        """The program has changed it in another way than by storing and deleting items."""
        self.writes.forget()
        self._mutated(tx)

    def _mutated(self, tx: TraceContext) -> None:
        if self.source is not None or (self.owner is not None and self.owner.source is not None):
            self.guard_keys(tx)
            tx.mutations.mutated(self.owner if self.owner is not None else self)

    def remove(self, tx: TraceContext, hashed: list[Any]) -> None:
        """Delete the items under these hash keys."""
        self._mutated(tx)
        for held in hashed:
            self.writes.delete(held, self.entries.pop(held)[0])

    def remove_last(self, tx: TraceContext) -> tuple[Value, Value]:
        """Delete the last item and return it."""
        self._mutated(tx)
        hashed, entry = self.entries.popitem()
        self.writes.pop_last(hashed)
        return entry

    # ---- reading

    def lookup(self, tx: TraceContext, key: Value) -> Value | None:
        """The item under `key`, realised, or None."""
        hashed = self.hashed(tx, key)
        has = self.guard_key(tx, key, hashed)
        entry = self.entries.get(hashed)
        if entry is None:
            return open_item(tx, self.source, self.obj, key) if has and hashed.__class__ is VaryingKey else None
        return entry[1].force(tx) if entry[1].__class__ is LazyValue else entry[1]

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        found = self.lookup(tx, key)
        if found is not None:
            return found
        if self.default_factory is not None:
            made = self.default_factory.call(tx, [], {})
            self.set_item(tx, key, made)
            return made
        if self.owner is not None:
            missing = special_method(tx, self.owner, "__missing__")
            if missing is not None:
                return missing.call(tx, [key], {})
        return tx.raise_exception_value(KeyError, [key])

    def contains(self, tx: TraceContext, item: Value) -> bool:
        hashed = self.hashed(tx, item)
        was_there = self.guard_key(tx, item, hashed)
        return hashed in self.entries or (hashed.__class__ is VaryingKey and was_there is True)

    def truth(self, tx: TraceContext) -> bool:
        if self._is_unread() and not self.stored:
            has_items = dict.__len__(self.obj) > 0
            tx.guards.add(self.source, "call", _HAS_ITEMS[has_items], f"bool({self.source.text}) is {has_items}")
            return has_items
        return self.length(tx) > 0

    def length(self, tx: TraceContext) -> int:
        if self.keys_guarded or self.source is None:
            return len(self.entries)
        added = self._count_added(tx)
        tx.guards.add(self.source, "len", dict.__len__(self.obj))
        return dict.__len__(self.obj) + added

    def length_value(self, tx: TraceContext) -> Value:
        if self._is_unread():
            added = self._count_added(tx)
            number = None if self.keys_guarded else symbolic_length(tx, self.source, dict.__len__(self.obj))
            if number is not None:
                return tx.binary_op("+", number, Constant(added)) if added else number
        return super().length_value(tx)

    def _count_added(self, tx: TraceContext) -> int:
        """How many of the keys that the program has stored were not there; guarded for each."""
        stored, self.stored = self.stored, {}
        try:
            return sum(not self.guard_key(tx, key, held) for held, (key, _) in stored.items())
        finally:
            self.stored = stored

    def key_values(self, tx: TraceContext) -> list[Value]:
        self.guard_keys(tx)
        return [key for key, _ in self.entries.values()]

    def unpack(self, tx: TraceContext) -> list[Value]:
        return self.key_values(tx)

    def items(self, tx: TraceContext) -> list[tuple[Value, Value]]:
        """(key, value) pairs, values realised."""
        self.guard_keys(tx)
        return [
            (key, value.force(tx) if value.__class__ is LazyValue else value)
            for key, value in list(self.entries.values())
        ]

    def iterate(self, tx: TraceContext) -> Value:
        return view_iterator(tx, self, "keys")

    def iterate_backwards(self, tx: TraceContext) -> Value:
        return view_iterator(tx, self, "keys", is_backwards=True)

    def raw_entries(self, tx: TraceContext) -> dict[Any, tuple[Value, Value]]:
        """Entries to copy into another dict; values may be lazy."""
        self.guard_keys(tx)
        self.close_keys(tx)
        for held, (key, _) in self.entries.items():
            if type(held) is int:
                key.hash_key(tx)  # it may be an address
        return self.entries

    # ---- writing

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        if self._is_unread() and not is_one_of(self.cls, (dict, collections.defaultdict)):
            self.guard_keys(tx)
        hashed = self.hashed(tx, key)
        if asks_objects(hashed):
            self.guard_keys(tx)
        if self._is_unread():
            tx.mutations.mutated(self)  # whether the key is there already makes no difference
            first = self.stored.get(hashed)
            self.stored[hashed] = (key if first is None else first[0], value)  # an equal key stays the first
        else:
            self._mutated(tx)
        self._store(hashed, key, value)

    def _is_unread(self) -> bool:
        """Whether nothing relies on which keys there are."""
        return not self.keys_guarded and self.source is not None

    def _store(self, hashed: Any, key: Value, value: Value) -> None:
        old = self.entries.get(hashed)
        self.entries[hashed] = (key if old is None else old[0], value)
        self.writes.store(hashed, key, value)

    def calls_to_replay(self) -> Any:
        if not is_one_of(self.cls, (dict, collections.defaultdict)):
            return None  # an OrderedDict keeps an order of its own
        return self.writes.to_replay(len(self.entries) + _MOST_SPARE_CALLS)

    def del_item(self, tx: TraceContext, key: Value) -> None:
        key = self.key_to_delete(tx, key)
        hashed = self.hashed(tx, key)
        self.guard_key(tx, key, hashed)
        if hashed not in self.entries:
            tx.raise_exception_value(KeyError, [key])
        self.remove(tx, [hashed])

    def key_to_delete(self, tx: TraceContext, key: Value) -> Value:
        """The key, a constant if it is one of an outside dict: which one is gone must be known."""
        if not varies(key) or self.keys_guarded or self.source is None:
            return key
        self.close_keys(tx)
        return tx.from_constant(key.hash_key(tx))

    def update_from(self, tx: TraceContext, other: Value) -> None:
        """`dict.update` with one positional argument."""
        mapping = other.as_dict(tx)
        if mapping is not None:
            self.merge(tx, dict(mapping.raw_entries(tx)))
        elif lookup(tx, other.python_type(), "keys") is not MISSING:
            for key in other.call_method(tx, "keys", [], {}).unpack(tx):
                self.put(tx, key, other.get_item(tx, key))
        else:
            for position, pair in enumerate(other.unpack(tx)):
                try:
                    key, value = _key_and_value(tx, pair, position)
                except Raised:
                    if is_subtype(self.cls, collections.OrderedDict):  # which unpacks in a way of its own
                        raise Unsupported("raises", f"{self.cls.__name__}.update of what are no pairs") from None
                    raise
                self.put(tx, key, value)

    def merge(self, tx: TraceContext, entries: dict[Any, tuple[Value, Value]]) -> None:
        """`dict.update` with a plain dict of these entries."""
        with (
            nullcontext()
            if ordered_dicts.redefines(tx, self, "__setitem__")
            else self.writes.update(DictValue(entries))
        ):
            for key, value in entries.values():
                self.put(tx, key, value)

    def put(self, tx: TraceContext, key: Value, value: Value) -> None:
        """`self[key] = value` in a method implemented in C."""
        if ordered_dicts.redefines(tx, self, "__setitem__"):
            call_special(tx, self.owner, "__setitem__", [key, value])  # type: ignore[arg-type]
        else:
            self.set_item(tx, key, value)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        handler = _DICT_METHODS.get(name)
        if handler is None:
            return super().builtin_method(tx, name, args, kwargs)
        if (reason := ordered_dicts.why_not_built_in(tx, self, name)) is not None:
            raise Unsupported("builtin-method", reason)
        return handler(self, tx, args, kwargs)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "default_factory" and issubclass(self.cls, collections.defaultdict):
            return self.default_factory or NONE
        if self.cls is collections.OrderedDict and (name == "__dict__" or lookup(tx, self.cls, name) is MISSING):
            found = ordered_dicts.read_attribute(tx, self, name)
            if found is not None:
                return found
        return super().get_attr(tx, name)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        if self.cls is dict:
            self.reconstruct_contents(cg)
            return
        cg.cb.push_null()
        cg.const(self.cls)
        if issubclass(self.cls, collections.defaultdict):
            cg.value(self.default_factory or NONE)
        self.reconstruct_contents(cg)
        cg.cb.call(2 if issubclass(self.cls, collections.defaultdict) else 1)
        if self.cls is collections.OrderedDict:
            ordered_dicts.reconstruct_attributes(self, cg)

    def reconstruct_contents(self, cg: Any) -> None:
        """Push a fresh plain dict of the entries. Raises Unsupported where a key has changed since it was hashed."""
        check_keys(self.entries, cg.mutations)
        for key, value in self.entries.values():
            cg.value(key)
            cg.value(value)
        cg.cb.build_map(len(self.entries))


_MOST_SPARE_CALLS = 64  # from so many calls more than there are items, the items are stored instead
_OPEN_TYPES = (int, str, tuple, torch.Size)
_MOST_COMPARED = 16  # keys with which one that varies is compared
_HAS_ITEMS = {True: dict.__len__, False: lambda value: dict.__len__(value) == 0}


def wrap_key(tx: TraceContext, key: Any, source: Source) -> Value:
    """The Value of a dictionary key; the dict's key guard covers it. A tuple at another call may be another one that is equal."""
    if is_subtype(type(key), enum.Enum):
        return tx.from_constant(key)
    if is_constant_object(key):
        return Constant(key) if key is not None else NONE
    if type(key) is tuple:
        items = [wrap_key(tx, item, TupleItemSource(source, place)) for place, item in enumerate(key)]
        return TupleValue(items, source=source)
    return tx.wrap_known(key)


def outside_hash_key(tx: TraceContext, key: Value) -> Any:
    """The hash key of a key that stands in an outside dict. It had a hash when it was put there, and Python does not ask for it again."""
    if key.__class__ is Constant and type(key.constant()) is int:
        return key.constant()  # that it may be an address matters where it becomes a key of the trace's own
    try:
        found = key.hash_key(tx)
    except Raised as raised:
        raise Unsupported("hash", key.describe()) from raised
    if is_of_earlier_time(found):
        raise Unsupported("hash", key.describe())
    return found


def dict_of(items: Mapping[str, Value]) -> DictValue:
    """A dict with these names as keys."""
    return DictValue({name: (Constant(name), value) for name, value in items.items()})


_DictMethod = Callable[[DictValue, "TraceContext", list[Value], dict[str, Value]], Value]


def _get(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = self.lookup(tx, args[0])
    return found if found is not None else (args[1] if len(args) > 1 else NONE)


def _setdefault(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = self.lookup(tx, args[0])
    if found is None:
        found = args[1] if len(args) > 1 else NONE
        self.put(tx, args[0], found)
    return found


def _pop(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    key = self.key_to_delete(tx, args[0])
    found = self.lookup(tx, key)
    if found is None:
        if len(args) > 1:
            return args[1]
        if "default" in kwargs:  # OrderedDict.pop
            return kwargs["default"]
        return tx.raise_exception_value(KeyError, [key])
    self.remove(tx, [self.hashed(tx, key)])
    return found


def _popitem(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.guard_keys(tx)
    if not self.entries:
        name = "" if is_subtype(self.cls, collections.OrderedDict) else "popitem(): "
        tx.raise_exception(KeyError, f"{name}dictionary is empty")
    if not kwargs.get("last", args[0] if args else boolean(True)).truth(tx):
        hashed = next(iter(self.entries))
        key, value = self.entries[hashed]
        self.remove(tx, [hashed])
    else:
        key, value = self.remove_last(tx)
    return TupleValue((key, value.force(tx) if isinstance(value, LazyValue) else value))


def _key_and_value(tx: TraceContext, pair: Value, position: int) -> tuple[Value, Value]:
    """The two items of a pair that `dict.update` is given at this position."""
    element = f"dictionary update sequence element #{position}"
    if all(lookup(tx, pair.python_type(), name) is MISSING for name in ("__iter__", "__getitem__")):
        tx.raise_exception(TypeError, f"cannot convert {element} to a sequence")
    items = pair.unpack(tx)
    if len(items) != 2:
        tx.raise_exception(ValueError, f"{element} has length {len(items)}; 2 is required")
    return items[0], items[1]


def _update(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if args:
        self.update_from(tx, args[0])
    if kwargs:
        self.merge(tx, {name: (Constant(name), value) for name, value in kwargs.items()})
    return NONE


def _clear(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.guard_keys(tx)
    self.remove(tx, list(self.entries))
    self.writes.clear()
    return NONE


def _copy(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = DictValue(dict(self.raw_entries(tx)), self.cls)
    made.default_factory = self.default_factory
    return made


def _move_to_end(self: DictValue, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    self.guard_keys(tx)
    hashed = self.hashed(tx, args[0])
    if hashed not in self.entries:
        tx.raise_exception_value(KeyError, [args[0]])
    entry = self.entries.pop(hashed)
    if kwargs.get("last", args[1] if len(args) > 1 else boolean(True)).truth(tx):
        self.entries[hashed] = entry
    else:
        rest = dict(self.entries)
        self.entries.clear()
        self.entries[hashed] = entry
        self.entries.update(rest)
    self.changed(tx)
    return NONE


_DICT_METHODS: dict[str, _DictMethod] = by_name(
    ("get", _get),
    ("setdefault", _setdefault),
    ("pop", _pop),
    ("popitem", _popitem),
    ("update __ior__", _update),
    ("clear", _clear),
    ("copy __copy__", _copy),
    ("move_to_end", _move_to_end),
    ("keys", lambda self, tx, args, kwargs: DictView(self, "keys")),
    ("values", lambda self, tx, args, kwargs: DictView(self, "values")),
    ("items", lambda self, tx, args, kwargs: DictView(self, "items")),
)

VIEW_TYPES: dict[type, dict[str, type]] = {
    cls: {kind: type(getattr(cls(), kind)()) for kind in ("keys", "values", "items")}
    for cls in (collections.OrderedDict, dict)
}
"""The types of views by the class of the dict and the method that gives the view."""
_VIEWS = {"keys": {}.keys(), "values": {}.values(), "items": {}.items()}
_ITERATOR_TYPES = {
    False: {kind: type(iter(view)) for kind, view in _VIEWS.items()},
    True: {kind: type(reversed(view)) for kind, view in _VIEWS.items()},
}
"""By whether they go backwards."""


class DictView(Value):
    """`d.keys()`, `d.values()` or `d.items()`; follows later changes of the dict."""

    __slots__ = ("kind", "mapping")

    def __init__(self, mapping: DictValue, kind: str):
        self.source = None
        self.mapping = mapping
        self.kind = kind

    def python_type(self) -> type:
        of_dict = collections.OrderedDict if is_subtype(self.mapping.python_type(), collections.OrderedDict) else dict
        return VIEW_TYPES[of_dict][self.kind]

    def unpack(self, tx: TraceContext) -> list[Value]:
        if self.kind == "keys":
            return self.mapping.key_values(tx)
        if self.kind == "values":
            return [value for _, value in self.mapping.items(tx)]
        return [TupleValue(pair) for pair in self.mapping.items(tx)]

    def iterate(self, tx: TraceContext) -> Value:
        return view_iterator(tx, self.mapping, self.kind)

    def iterate_backwards(self, tx: TraceContext) -> Value:
        return view_iterator(tx, self.mapping, self.kind, is_backwards=True)

    def length(self, tx: TraceContext) -> int:
        return self.mapping.length(tx)

    def truth(self, tx: TraceContext) -> bool:
        return self.length(tx) > 0

    def contains(self, tx: TraceContext, item: Value) -> bool:
        if self.kind == "keys":
            return self.mapping.contains(tx, item)
        if self.kind == "items":
            pair = getattr(item, "container", None) or item
            if not isinstance(pair, TupleValue) or len(pair.items) != 2:
                return False
            own_value = self.mapping.lookup(tx, pair.item(tx, 0))
            return own_value is not None and tx.same_or_equal(own_value, pair.item(tx, 1))
        return any(tx.same_or_equal(own, item) for own in self.unpack(tx))

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "isdisjoint":
            own, others = ({item.hash_key(tx) for item in items.unpack(tx)} for items in (self, args[0]))
            return boolean(own.isdisjoint(others))
        return super().builtin_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        cg.cb.push_null()
        cg.const(operator.methodcaller(self.kind))
        cg.value(self.mapping)
        cg.cb.call(1)


def view_iterator(tx: TraceContext, mapping: DictValue, kind: str, is_backwards: bool = False) -> Value:
    """An iterator that raises RuntimeError when the dict changes its size, as Python's does."""
    mapping.guard_keys(tx)
    is_ordered = is_subtype(mapping.python_type(), collections.OrderedDict)
    cls = _ODICT_ITERATOR if is_ordered else _ITERATOR_TYPES[is_backwards][kind]
    return DictIterator(mapping, kind, cls, _VIEW_ITEMS[kind], is_backwards)


_ODICT_ITERATOR = type(iter(collections.OrderedDict()))
_VIEW_ITEMS: dict[str, Callable[[Value, Value], Value]] = {
    "keys": lambda key, value: key,
    "values": lambda key, value: value,
    "items": lambda key, value: TupleValue((key, value)),
}
