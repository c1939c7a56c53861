"""Lookups on classes. Each registers what the trace relies on: that the MRO finds this very object, or finds nothing.

Everything that Python looks up on a type goes through `lookup`: attributes, special methods, descriptors, metaclasses. A lookup that
registers nothing is a wrong result waiting for a class to change.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, Protocol

from treadle_tracer.by_identity import classes_after, is_one_of
from treadle_tracer.class_facts import is_subtype, is_thread_local, mro_of, namespace_of, qualname_of
from treadle_tracer.guard_callables import GuardCallable
from treadle_tracer.source import (
    AttrSource,
    ConstSource,
    DictItemSource,
    HiddenDictSource,
    InstanceDictSource,
    OwnDictSource,
)
from treadle_tracer.weakly import class_may_change

if TYPE_CHECKING:
    from treadle_tracer.decided import Decided
    from treadle_tracer.source import Source


class Missing:
    """Type of `MISSING`, which stands for "no such thing" where None is a possible answer."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = Missing()


class Guards(Protocol):
    """The guards of a trace, for those who add some."""

    def add(self, source: Source, op: str, arg: Any = None, reason: str = "") -> None:
        """The trace relies on `op` holding for the object at `source`: see `output.guards`."""

    def add_lookup(self, cls: type, name: str, found: Any, owner: type | None, after: type | None) -> None:
        """The MRO of `cls` behind `after` finds `found` in `owner`; None: nowhere."""

    def add_mro(self, cls: type) -> None:
        """The bases of `cls` stay as they are."""

    def leave_out(self, obj: Any) -> None:
        """Guard nothing about an object that the trace has made."""

    def is_left_out(self, source: Source) -> bool:
        """Whether the source is, or is reached from, such an object."""
        ...

    def add_integer(self, source: Source, name: str) -> None:
        """The int at `source` is a symbol."""

    def add_float(self, source: Source, name: str) -> None:
        """The float at `source` is a symbol."""

    @property
    def decided(self) -> Decided:
        """What the trace has decided on numbers of outside tensors."""
        ...


class LooksUp(Protocol):
    """What `lookup` needs of a trace."""

    @property
    def guards(self) -> Guards:
        """The guards of the trace."""
        ...

    @property
    def lookup_cache(self) -> dict[tuple[int, str, int], tuple[Any, type | None, type, type | None]]:
        """(raw attribute, class that has it, class, class after which the lookup starts) by the ids of these two and the name.

        (MISSING, None, ...): nowhere.
        """
        ...

    @property
    def class_writes(self) -> dict[tuple[int, str], Any]:
        """What the program has set by (id of the class, name), MISSING where it has deleted: see `values.class_writes`."""
        ...


def find_in_mro(mro: tuple[type, ...], name: str) -> tuple[Any, type | None]:
    """(raw attribute, class that has it) or (MISSING, None). Registers nothing."""
    for cls in mro:
        found = namespace_of(cls).get(name, MISSING)
        if found is not MISSING:
            return found, cls
    return MISSING, None


def is_named_tuple(cls: type) -> bool:
    """Whether a subclass of tuple has names for its items."""
    return any(find_in_mro(mro_of(cls), name)[1] is not None for name in ("_fields", "n_sequence_fields"))


def own_dict_source(cls: type, source: Source) -> Source:
    """Where an instance of the class has its attributes."""
    return AttrSource(source, "__dict__") if is_thread_local(cls) else OwnDictSource(source)


def instance_dict_source(tx: LooksUp, obj: Any, source: Source, name: str) -> Source:
    """`obj.__dict__[name]`, past what the class of the object says about it."""
    cls = type(obj)
    if is_thread_local(cls):
        return DictItemSource(AttrSource(source, "__dict__"), name)
    is_plain = type(lookup(tx, cls, "__getattribute__")) is not types.FunctionType and is_one_of(
        type(lookup(tx, cls, "__dict__")), (types.GetSetDescriptorType, types.MemberDescriptorType)
    )
    return (InstanceDictSource if is_plain else HiddenDictSource)(source, name)


def class_attribute_source(tx: LooksUp, owner: type, name: str) -> Source:
    """Where a class dict holds an attribute, whatever descriptor it is."""
    return instance_dict_source(tx, owner, ConstSource(owner), name)


def lookup(tx: LooksUp, cls: type, name: str) -> Any:
    """The raw attribute found on the type, or MISSING; registered."""
    return lookup_with_owner(tx, cls, name)[0]


def lookup_with_owner(tx: LooksUp, cls: type, name: str, after: type | None = None) -> tuple[Any, type | None]:
    """(raw attribute, class that has it) or (MISSING, None); registered. `after`: search the MRO behind this class, as `super` does."""
    if tx.class_writes:
        written = _find_written(tx, cls, name, after)
        if written is not None:
            return written
    cache = tx.lookup_cache
    key = (id(cls), name, id(after))
    cached = cache.get(key)
    if cached is None:
        raw, owner = find_in_mro(classes_after(mro_of(cls), after), name)
        cache[key] = raw, owner, cls, after
        if class_may_change(cls):
            tx.guards.add_lookup(cls, name, raw, owner, after)
        return raw, owner
    return cached[:2]


def _find_written(tx: LooksUp, cls: type, name: str, after: type | None) -> tuple[Any, type | None] | None:
    """What the program has set, or finds behind what it has deleted; None where the lookup ends in a class before that."""
    mro = classes_after(mro_of(cls), after)
    for position, owner in enumerate(mro):
        raw = tx.class_writes.get((id(owner), name))
        if raw is not None:
            for earlier in filter(class_may_change, mro[:position]):
                tx.guards.add(
                    ConstSource(earlier), "call", Lacks(name), f"{qualname_of(earlier)} has no {name} of its own"
                )
            return lookup_with_owner(tx, cls, name, owner) if raw is MISSING else (raw, owner)
        if name in namespace_of(owner):
            break
    return None


class Lacks(GuardCallable):
    """A class has no attribute of this name of its own, whatever its bases have."""

    __slots__ = ()

    def __call__(self, cls: type) -> bool:
        return self.question not in namespace_of(cls)


def has_special(tx: LooksUp, cls: type, *names: str) -> bool:
    """Whether a class has one of these special methods. None in its place says that it has none; registered."""
    return any(raw is not MISSING and raw is not None for raw in (lookup(tx, cls, name) for name in names))


def lookup_owner(tx: LooksUp, cls: type, name: str) -> type | None:
    """The class in the MRO that has the attribute, or None."""
    return lookup_with_owner(tx, cls, name)[1]


def instance_may_change_class(cls: type) -> bool:
    """Whether `__class__` of an instance of the class can be assigned."""
    return class_may_change(cls) or is_subtype(cls, types.ModuleType)


def is_slot_of(raw: Any, name: str) -> bool:
    """Whether a special method is the one that a class implemented in C has under this name, such as `object.__setattr__`.

    A class may give a method of another name (`__setattr__ = dict.__setitem__`).
    """
    return isinstance(raw, types.WrapperDescriptorType) and raw.__name__ == name


def is_data_descriptor(tx: LooksUp, raw: Any) -> bool:
    """Whether a raw class attribute takes what is stored under its name, in place of the instance dict."""
    cls = type(raw)
    return lookup(tx, cls, "__set__") is not MISSING or lookup(tx, cls, "__delete__") is not MISSING


def goes_before_instance(tx: LooksUp, raw: Any) -> bool:
    """Whether a raw class attribute is read, in place of the instance dict."""
    return is_data_descriptor(tx, raw) and lookup(tx, type(raw), "__get__") is not MISSING


def is_descriptor(raw: Any) -> bool:
    """Whether reading a class attribute through an instance or class gives something else than the attribute."""
    return find_in_mro(mro_of(type(raw)), "__get__")[1] is not None
