"""Guards of the keys of dicts and the members of sets. They keep neither alive."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.class_facts import keys_in_order
from treadle_tracer.computed_source import ComputedSource, contains_text, dict_item, has_key, item_text
from treadle_tracer.source import ApplySource, DictKeySource, dict_item_source
from treadle_tracer.values.constants import CONSTANT_TYPES
from treadle_tracer.values.varying import hint_of, place_of
from treadle_tracer.weakly import is_referred_to_weakly, reference_to, referent

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext, Value

_MOST_BY_POSITION = 256  # the key at a position is found by counting


def guard_keys_of(tx: TraceContext, mapping: dict[Any, Any], source: Source) -> None:
    """Rely on which keys there are and in which order."""
    keys = tuple(keys_in_order(mapping))
    weak = [_holds_weakly(key) for key in keys]
    if not any(weak):
        tx.guards.add(source, "dict_keys", keys)
    elif len(keys) > _MOST_BY_POSITION or not all(is_referred_to_weakly(k) or type(k) in CONSTANT_TYPES for k in keys):
        tx.guards.add(source, "call", SameKeys(mapping), f"{source.text} has the same {len(keys)} keys")
    else:
        tx.guards.add(source, "len", len(keys))
        for position, (is_weak, key) in enumerate(zip(weak, keys, strict=True)):
            tx.guards.add(DictKeySource(source, position), "is" if is_weak or key is None else "equals", key)


def guard_key_of(tx: TraceContext, source: Source, key: Any, has: bool) -> None:
    """Rely on whether the dict at `source` has a key."""
    if _holds_weakly(key):
        text = f"{item_source(source, key).text} is {'there' if has else 'not there'}"
        tx.guards.add(source, "call", HasKey(key, has), text)
    else:
        tx.guards.add(source, "has_key" if has else "lacks_key", key)


def guard_open_key(tx: TraceContext, source: Source, mapping: dict[Any, Any], key: Value) -> bool:
    """Rely on whether the dict at `source` has a key that varies from call to call."""
    has = dict.__contains__(mapping, hint_of(tx, key))
    tx.guards.add(ComputedSource(has_key, (source, place_of(tx, key)), contains_text), "is", has)
    return has


def open_item(tx: TraceContext, source: Source | None, mapping: dict[Any, Any], key: Value) -> Value:
    """The item of an outside dict under a key that varies, which is there."""
    place = place_of(tx, key)
    return tx.wrap(dict.__getitem__(mapping, hint_of(tx, key)), ComputedSource(dict_item, (source, place), item_text))


def item_source(source: Source, key: Any) -> Source:
    """`dict.__getitem__(source, key)`, where the key, or what it holds as a tuple, is referred to weakly where that is possible."""
    if type(key) is tuple and _holds_weakly(key):
        return ApplySource(source, DictItemOf(key))
    return dict_item_source(source, key)


def _holds_weakly(key: Any) -> bool:
    """Whether the key can be referred to weakly, or something in it as a tuple."""
    return any(map(_holds_weakly, key)) if type(key) is tuple else is_referred_to_weakly(key)


def _exact(item: Any) -> Any:
    """Something that equals only the same item: by type, and for what is no constant by identity."""
    if type(item) is tuple:
        return (tuple, *map(_exact, item))
    if type(item) is float:
        return (float, item.hex())
    if is_one_of(type(item), (int, bool, str, bytes, type(None))):
        return (type(item), item)
    return id(item)


def _reference(item: Any) -> Any:
    """The item referred to weakly, also inside tuples; the item itself where that is not possible."""
    return tuple(map(_reference, item)) if type(item) is tuple else reference_to(item)


def _is_alive(reference: Any) -> bool:
    if type(reference) is tuple:
        return all(map(_is_alive, reference))
    return reference is None or referent(reference) is not None


class SameKeys:
    """Guard callable: a mapping has the recorded keys in the recorded order."""

    __slots__ = ("exact", "references")

    def __init__(self, mapping: Any):
        self.references = [
            _reference(key) for key in mapping
        ]  # an id is that of the recorded key only while the key lives
        self.exact = list(map(_exact, mapping))

    def __call__(self, value: Any) -> bool:
        same = len(value) == len(self.exact) and list(map(_exact, value)) == self.exact
        return same and all(map(_is_alive, self.references))


class SameSet:
    """Guard callable: a set has the recorded items."""

    __slots__ = ("exact", "references")

    def __init__(self, items: Any):
        self.references = [_reference(item) for item in items]
        self.exact = frozenset(map(_exact, items))

    def __call__(self, value: Any) -> bool:
        same = len(value) == len(self.exact) and frozenset(map(_exact, value)) == self.exact
        return same and all(map(_is_alive, self.references))


class HasMember:
    """Guard callable: whether a set has a member, an int, a string or the like, is as recorded."""

    __slots__ = ("has", "member")

    def __init__(self, member: Any, has: bool):
        self.member, self.has = member, has

    def __call__(self, value: Any) -> bool:
        return (self.member in value) is self.has


class HasKey:
    """Guard callable: whether a dict has a key is as recorded."""

    __slots__ = ("has", "reference")

    def __init__(self, key: Any, has: bool):
        self.reference, self.has = _reference(key), has

    def is_about(self, key: Any) -> bool:
        """Whether it is about this very key."""
        return _is_alive(self.reference) and _exact(_alive(self.reference)) == _exact(key)

    def __call__(self, value: Any) -> bool:
        return _is_alive(self.reference) and dict.__contains__(value, _alive(self.reference)) is self.has


class ItemOf:
    """`mapping[key]`, the key referred to weakly. Raises KeyError when it is gone."""

    __slots__ = ("reference",)

    def __init__(self, key: Any):
        self.reference = _reference(key)

    def __call__(self, mapping: Any) -> Any:
        if not _is_alive(self.reference):
            raise KeyError
        return self.get(mapping, _alive(self.reference))

    def __str__(self) -> str:
        return "item"

    @staticmethod
    def get(mapping: Any, key: Any) -> Any:
        """How the mapping is asked."""
        return mapping[key]


class DictItemOf(ItemOf):
    """As `ItemOf`, of a dict, whatever its class says about items."""

    __slots__ = ()
    get = staticmethod(dict.__getitem__)


def _alive(reference: Any) -> Any:
    return tuple(map(_alive, reference)) if type(reference) is tuple else referent(reference)
