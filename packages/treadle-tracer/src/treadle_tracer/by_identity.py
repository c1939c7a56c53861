"""Dicts, sets and membership that ask `is`: the only ones for what may belong to the program.

A metaclass may define `__eq__` and `__hash__`, and so may the class of a callable. Python's dicts, sets, `in` and `index` then run code of
the program, which may have effects, raise, say that different classes are equal, or refuse to hash them.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


def identity_key(obj: Any) -> Any:
    """A key that runs no code of the program, equal for two references to one object. It is valid as long as the object is alive.

    Methods of built-in objects are made anew by every access to the attribute. They count by the object and the method.
    """
    kind = type(obj)
    if kind is type or kind is types.FunctionType:  # most
        return id(obj)
    if kind is types.BuiltinMethodType or kind is types.MethodWrapperType:
        return obj  # CPython compares what they are bound to by identity
    if kind is types.MethodType:
        return id(obj.__self__), identity_key(obj.__func__)
    return id(obj)


class IdentityDict(Generic[K, V]):
    """A dict that compares keys by identity. It keeps them alive."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Mapping[K, V] | IdentityDict[K, V] | Iterable[tuple[K, V]] = ()):
        pairs = entries.items() if isinstance(entries, (Mapping, IdentityDict)) else entries
        self._entries: dict[Any, tuple[K, V]] = {identity_key(key): (key, value) for key, value in pairs}

    def __getitem__(self, key: K) -> V:
        found = self._entries.get(identity_key(key))
        if found is None:
            raise KeyError("no such object")
        return found[1]

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[identity_key(key)] = (key, value)

    def __delitem__(self, key: K) -> None:
        del self._entries[identity_key(key)]

    def clear(self) -> None:
        """Forget all keys."""
        self._entries.clear()

    def __contains__(self, key: object) -> bool:
        return identity_key(key) in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self._entries.values())

    def items(self) -> Iterator[tuple[K, V]]:
        """(key, value) in the order of insertion."""
        return iter(self._entries.values())

    def values(self) -> Iterator[V]:
        """The values in the order of insertion."""
        return (value for _, value in self._entries.values())

    def get(self, key: Any, default: Any = None) -> Any:
        """The value of a key, or `default`."""
        found = self._entries.get(id(key) if type(key) is type else identity_key(key))
        return default if found is None else found[1]

    def setdefault(self, key: K, default: V) -> V:
        """The value of a key, which is `default` if there was none."""
        return self._entries.setdefault(identity_key(key), (key, default))[1]


class IdentitySet(Generic[K]):
    """A set, never changed, that compares members by identity."""

    __slots__ = ("_keys", "members")

    def __init__(self, members: Iterable[K]):
        self.members = tuple(members)
        self._keys = frozenset(map(identity_key, self.members))

    def __contains__(self, obj: object) -> bool:
        return (id(obj) if type(obj) is type else identity_key(obj)) in self._keys

    def __iter__(self) -> Iterator[K]:
        return iter(self.members)


def is_one_of(obj: object, members: Iterable[Any]) -> bool:
    """Whether one of a few objects is this one."""
    for member in members:  # noqa: SIM110 (a generator takes four times as long)
        if obj is member:
            return True
    return False


def unique(objects: Iterable[T]) -> list[T]:
    """The objects, each once, in order."""
    return [obj for obj, _ in IdentityDict((obj, None) for obj in objects).items()]


def classes_after(mro: tuple[type, ...], cls: type | None) -> tuple[type, ...]:
    """The part of an MRO behind a class; all of it for None. Raises ValueError if the class is not in it."""
    if cls is None:
        return mro
    for position, each in enumerate(mro):
        if each is cls:
            return mro[position + 1 :]
    raise ValueError(f"not a base of {type.__dict__['__qualname__'].__get__(mro[0])}")
