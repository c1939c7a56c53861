"""Outside sets of which the trace knows no more than what the program has asked.

    seen.add(step)                  # another member on every call
    return x / len(seen)

Members that the trace adds are kept apart from those that are there at entry. Whatever else is asked guards all members.
"""

from __future__ import annotations

import types
import weakref
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentitySet
from treadle_tracer.class_facts import is_class
from treadle_tracer.computed_source import ComputedSource, contains_text, has_member
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import NONE, Constant
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.key_guards import HasMember, SameSet
from treadle_tracer.values.objects import IDENTITY_HASHES
from treadle_tracer.values.outside_identity import KnownIdentityNumber, OutsideIdentityNumber
from treadle_tracer.values.sequences import symbolic_length
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.value import Value
from treadle_tracer.values.varying import are_equal, hint_of, place_of, varies

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class OutsideSet(SetValue):
    """A real set or frozenset. `added` holds what the trace has added while its members are not guarded."""

    __slots__ = ("_entries", "_tx", "added")

    def __init__(self, tx: TraceContext, obj: Any, source: Source):
        self._tx = tx
        self._entries: dict[Any, Value] | None = None
        self.added: list[Value] = []
        super().__init__({}, type(obj), source)
        self._entries = None
        self.obj = self.real = obj

    @property
    def is_unread(self) -> bool:
        """Whether the members at entry are not guarded."""
        return self._entries is None

    @property
    def entries(self) -> dict[Any, Value]:  # type: ignore[override]
        """All members; guards those at entry."""
        if self._entries is None:
            assert self.source is not None
            text = f"{self.source.text} has the same {len(self.obj)} items"
            self._tx.guards.add(self.source, "call", SameSet(self.obj), text)
            members = [self._tx.wrap(item, ConstSource(item)) for item in self.obj]
            self._entries = {member.hash_key(self._tx): member for member in members}
            for member in self.added:
                self._entries.setdefault(member.hash_key(self._tx), member)
            if self.added:
                self.real = None
        return self._entries

    @entries.setter
    def entries(self, entries: dict[Any, Value] | None) -> None:
        self._entries = entries

    def contains(self, tx: TraceContext, item: Value) -> bool:
        item = _plain_number(item)
        if not self.is_unread or not self._is_plain(tx, item):
            return super().contains(tx, item)
        return self._is_added(tx, item) or self._was_there(tx, item)

    def length_value(self, tx: TraceContext) -> Value:
        number = symbolic_length(tx, self.source, len(self.obj)) if self.is_unread else None
        if number is None:
            return super().length_value(tx)
        added = sum(not self._was_there(tx, member) for member in self.added)
        return tx.binary_op("+", number, Constant(added)) if added else number

    def length(self, tx: TraceContext) -> int:
        if not self.is_unread:
            return super().length(tx)
        assert self.source is not None
        tx.guards.add(self.source, "len", len(self.obj))
        return len(self.obj) + sum(not self._was_there(tx, member) for member in self.added)

    def truth(self, tx: TraceContext) -> bool:
        return self.length(tx) > 0

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        args = list(map(_plain_number, args))
        is_open = name == "add" and self.cls is set and self.is_unread and len(args) == 1 and not kwargs
        if not is_open or not self._is_plain(tx, args[0]):
            return super().builtin_method(tx, name, args, kwargs)
        if not self._is_added(tx, args[0]):
            self.added.append(args[0])
        self.changed(tx, set.add, args, self.real)
        return NONE

    def _is_plain(self, tx: TraceContext, item: Value) -> bool:
        """Whether membership of the item follows from its value alone, and can be guarded."""
        if varies(item):
            return item.python_type() in (int, str) and place_of(tx, item) is not None
        return type(item) is Constant and item.python_type() in _PLAIN

    def _is_added(self, tx: TraceContext, item: Value) -> bool:
        return any(_are_equal(tx, item, member) for member in self.added)

    def _was_there(self, tx: TraceContext, item: Value) -> bool:
        """Whether the item was a member at entry, which is guarded."""
        assert self.source is not None
        place = place_of(tx, item)
        if place is not None:
            found = hint_of(tx, item) in self.obj
            tx.guards.add(ComputedSource(has_member, (self.source, place), contains_text), "is", found)
        else:
            member = item.constant()
            found = member in self.obj
            text = f"{member!r} {'in' if found else 'not in'} {self.source.text}"
            tx.guards.add(self.source, "call", HasMember(member, found), text)
        return found


_PLAIN = (int, bool, str, bytes, type(None))


def _plain_number(item: Value) -> Value:
    """The item, and of the address of an object the number itself, with which the members are compared."""
    return Constant(item.constant()) if isinstance(item, (KnownIdentityNumber, OutsideIdentityNumber)) else item


def _are_equal(tx: TraceContext, a: Value, b: Value) -> bool:
    if varies(a) or varies(b):
        return bool(are_equal(tx, a, b))
    return a.constant() == b.constant()


_FUNCTIONS = IdentitySet(
    {
        types.FunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
        torch._ops.OpOverload, torch._ops.OpOverloadPacket,
    }
)  # fmt: skip
"""Types of functions that are equal to themselves only."""


def is_known_member(item: Any) -> bool:
    """Whether what a set says about an item follows from the item's value or identity."""
    kind = type(item)
    if is_constant_object(item) or is_class(item) or is_live_reference(item) or kind in _FUNCTIONS:
        return True
    return kind is types.BuiltinFunctionType and type(item.__self__) in (types.ModuleType, type(None), type)


def is_live_reference(item: Any) -> bool:
    """Whether an item is a weak reference to an object that is there and is compared by its identity, as that of a `WeakSet`."""
    referent = item() if type(item) is weakref.ref else None
    cls = type(referent)
    return referent is not None and cls.__eq__ is object.__eq__ and cls.__hash__ in IDENTITY_HASHES
