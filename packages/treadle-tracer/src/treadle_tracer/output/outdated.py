"""Calls that outdate their own trace: behind the call a guard of the trace does not hold any more.

    if p not in state:                      # guard: p is not a key of `state`
        state[p] = torch.zeros_like(p)      # it is one for the next call

An entry for such a call serves no call with the same objects. So the first step of an optimizer, and whatever fills a cache, are not worth
a compile until another call like them comes. Only what certainly breaks a guard counts: a trace not known to be outdated is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..by_identity import is_one_of
from ..class_facts import is_subtype
from ..decision_programs import number_key
from ..source import GlobalSource, GlobalsSource, ItemSource, ListItemSource, OwnDictSource, Source
from ..values.base import settled
from ..values.growing import OutsideList
from ..values.key_guards import HasKey, HasMember, SameKeys, SameSet, item_source
from ..values.mappings import DictValue
from ..values.outside_decisions import decision_after_writes
from ..values.outside_sets import OutsideSet
from ..values.sequences import ListValue
from ..values.sets import SetValue
from ..values.tensor import SymbolicValue, TensorValue
from ..values.value import NotConstant
from ..values.varying import VaryingKey, varies
from .mutations import DELETED

if TYPE_CHECKING:
    from ..trace.result import TraceResult
    from ..values.value import Value
    from .guards import Guard
    from .mutations import Mutations, Stored


def why_outdated(result: TraceResult, made_anew: Container[Source] = ()) -> str | None:
    """The guard that does not hold behind a call of this trace; None if none is known. The graph must not be finished.

    made_anew: where the next call has another list, dict or set.
    """
    if result.mutations:
        guards = _GuardsByPlace(result)
        for place, stored in _stores(result.mutations):
            broken = guards.broken_by_store(place, stored)
            if broken is not None:
                return broken.reason
        for container in map(settled, result.mutations.containers()):
            if container.source is not None and container.source in made_anew:
                continue
            broken = guards.broken_by_contents(container)
            if broken is not None:
                return broken.reason
    return decision_after_writes(result.graph, result.guards.decided)


def overwritten_numbers(result: TraceResult) -> set[Source]:
    """Where the trace takes an int or float for a constant and stores a number that varies: it will not be the same at the next call."""
    if not result.mutations:
        return set()
    guards = _GuardsByPlace(result)
    stores = [
        (guards.at(place), settled(stored)) for place, stored in _stores(result.mutations) if stored is not DELETED
    ]
    for container in map(settled, result.mutations.containers()):
        stores += [(guards.of(place), item) for place, item in _items_by_place(container)]
    return {
        guard.source
        for of_place, stored in stores
        for guard in (of_place if isinstance(stored, SymbolicValue) else ())
        if guard.op == "equals" and type(guard.arg) is stored.python_type() and is_one_of(type(guard.arg), (int, float))
    }


class Place(NamedTuple):
    """Where something is stored: under a name in a dict (the globals, or those of an object), or in a cell, whose contents have no name.
    Several kinds of sources find it."""

    holder: Source
    name: str | None = None


def _place_of(source: Source) -> Place:
    if isinstance(source, GlobalSource):
        return Place(source.globals_of or GlobalsSource(), source.name)
    name = getattr(source, "name", None)
    return Place(source) if source.base is None or name is None else Place(OwnDictSource(source.base), name)


def _stores(mutations: Mutations) -> Iterator[tuple[Place, Stored]]:
    """What the program stores outside, by place."""
    for obj, name, stored in mutations.attr_stores():
        owner = settled(obj).source
        if owner is not None:
            yield Place(OwnDictSource(owner), name), stored
    for globals_source, name, stored in mutations.global_stores():
        yield Place(globals_source or GlobalsSource(), name), stored
    for cell, stored in mutations.cell_stores():
        contents = getattr(settled(cell), "contents_source", None)
        if contents is not None:
            yield _place_of(contents), stored


class _GuardsByPlace:
    """The guards of a trace, by what they are about."""

    def __init__(self, result: TraceResult):
        self._of_place: dict[Place, list[Guard]] = {}
        self._of_source: dict[Source, list[Guard]] = {}
        for guard in result.guards:
            self._of_place.setdefault(_place_of(guard.source), []).append(guard)
            self._of_source.setdefault(guard.source, []).append(guard)

    def at(self, place: Place) -> Sequence[Guard]:
        """The guards on what is stored at a place."""
        return self._of_place.get(place, ())

    def of(self, source: Source) -> Sequence[Guard]:
        """The guards on what is at a source."""
        return self._of_source.get(source, ())

    def broken_by_store(self, place: Place, stored: Stored) -> Guard | None:
        """A guard that does not hold once this is stored at a place."""
        if stored is not DELETED:
            found = next((g for g in self.at(place) if _breaks(g, settled(stored))), None)
            if found is not None:
                return found
        return None if place.name is None else self._about_key(place.holder, place.name, stored is not DELETED)

    def _about_key(self, holder: Source, key: Any, present: bool) -> Guard | None:
        """A guard that does not hold if a mapping has a key, or lacks it."""
        wrong = "lacks_key" if present else "has_key"
        for guard in self.of(holder):
            if guard.op == wrong and type(guard.arg) is type(key) and guard.arg == key:
                return guard
            if isinstance(guard.arg, HasKey) and guard.arg.has is not present and guard.arg.is_about(key):
                return guard
        return None

    def broken_by_contents(self, container: Value) -> Guard | None:
        """A guard that does not hold once an outside container has these contents."""
        source, known = container.source, _CONTAINERS.get(type(container))
        if source is None or known is None:
            return None
        contents = known(container)
        if contents is None:
            return self._about_added(source, container)
        if len(contents) != len(getattr(container, "obj", contents)):
            for guard in self.of(source):
                if guard.op in ("len", "dict_keys") or isinstance(guard.arg, (SameKeys, SameSet)):
                    return guard
        elif type(container) is DictValue:
            return self._about_contents(source, contents) or self._about_order(source, list(contents))
        elif isinstance(container, ListValue):
            return self._about_positions(container)
        return self._about_contents(source, contents)

    def _about_contents(self, source: Source, contents: Mapping[Any, Value]) -> Guard | None:
        for key, value in contents.items():
            guards = self.of(item_source(source, key))
            broken = next((g for g in guards if _breaks(g, settled(value))), None) or self._about_key(source, key, True)
            if broken is not None:
                return broken
        return None

    def _about_order(self, source: Source, keys: Sequence[Any]) -> Guard | None:
        """A guard that does not hold once a dict has as many keys as before, these."""
        if not all(is_one_of(type(key), (*_PLAIN, VaryingKey)) for key in keys):
            return None
        exact = [number_key(key) for key in keys]  # a key that varies has been compared with those that were there
        for guard in self.of(source):
            if guard.op == "dict_keys" and exact != [number_key(k) for k in guard.arg]:
                return guard
        return None

    def _about_positions(self, container: Value) -> Guard | None:
        """A guard that does not hold once a list or deque has as many items as before, these."""
        at = dict(_items_by_place(container))
        for place, item in at.items():
            for guard in self.of(place):
                if _breaks(guard, item) or (guard.op == "same_object" and _are_apart(item, at.get(guard.arg))):
                    return guard
        return None

    def _about_added(self, source: Source, container: Value) -> Guard | None:
        """A guard that does not hold once an outside set has the members that the program has added."""
        added = [member.constant() for member in getattr(container, "added", ()) if not varies(member)]
        for guard in self.of(source):
            if isinstance(guard.arg, HasMember) and not guard.arg.has and guard.arg.member in added:
                return guard
        return None


def _items_by_place(container: Value) -> Iterator[tuple[Source, Value]]:
    """The items of an outside list, deque or dict, and where the next call finds them."""
    if container.source is None or getattr(container, "is_unread", False):
        return
    if type(container) is DictValue:
        for key, item in _entries(container).items():
            yield item_source(container.source, key), settled(item)
    elif isinstance(container, ListValue):
        place = ListItemSource if container.cls is list else ItemSource
        for position, item in enumerate(container.items):
            yield place(container.source, position), settled(item)


def _are_apart(one: Value, other: Value | None) -> bool:
    """Whether these are certainly two tensors: a trace has one value for each."""
    return one is not other and isinstance(one, TensorValue) and isinstance(other, TensorValue)


def _entries(container: Any) -> Mapping[Any, Value]:
    found: dict[Any, Value] = {}
    for held, (key, value) in container.entries.items():
        try:
            found[(held if held.__class__ is VaryingKey else object()) if varies(key) else key.constant()] = value
        except (NotConstant, TypeError):
            found[object()] = value
    return found


def _without_keys(items: Iterable[Value]) -> Mapping[Any, Value]:
    return {object(): item for item in items}


# How the contents of a changed container are known: key -> value; None where nothing is. What has no known key has one of its own.
_CONTAINERS: Mapping[type, Callable[[Any], Mapping[Any, Any] | None]] = {
    DictValue: _entries,
    ListValue: lambda container: _without_keys(container.items),
    OutsideList: lambda container: None if container.is_unread else _without_keys(container.items),
    OutsideSet: lambda container: None if container.is_unread else _without_keys(container.entries.values()),
    SetValue: lambda container: _without_keys(container.entries.values()),
}


# ---- whether a value breaks a guard on the place that it is stored at


def _breaks(guard: Guard, value: Value) -> bool:
    test = _BREAKS.get(guard.op)
    if test is None:
        return False
    try:
        return test(guard.arg, value)
    except NotImplementedError:  # the type of the value is not known
        return False


def _is_other_constant(expected: Any, value: Value) -> bool:
    if value.python_type() is not type(expected):
        return True
    if not (value.is_constant() and is_one_of(type(expected), _PLAIN)):
        return False
    found = value.constant()
    return type(found) is type(expected) and number_key(found) != number_key(expected)


_PLAIN = (bool, int, float, str, bytes)


def _is_other_object(expected: Any, value: Value) -> bool:
    if value.is_constant():
        return value.constant() is not expected
    return value.source is None  # the trace has made it


_BREAKS: Mapping[str, Callable[[Any, Value], bool]] = {
    "equals": _is_other_constant,
    "is": _is_other_object,
    "is_not": lambda expected, value: value.is_constant() and value.constant() is expected,
    "type_is": lambda expected, value: value.python_type() is not expected,
    "native_tensor": lambda expected, value: not is_subtype(value.python_type(), torch.Tensor),
}
