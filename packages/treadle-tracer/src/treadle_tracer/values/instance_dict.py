"""`obj.__dict__` as a dict value: the instance's attributes with the trace's stores applied. Writes go to the attributes."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import mro_of, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AttrSource
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.class_lookup import MISSING, find_in_mro, instance_dict_source, is_data_descriptor, lookup
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


_SLOTS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class InstanceDict(DictValue):
    """See the module. There is one for an instance, as in Python, and it follows what the program does to the attributes.

    own    entries of the real dict of an outside instance
    live   all entries, brought up to date at every access; one dict, so that an iterator over it sees when its size changes
    stores the program's stores to attributes when that was done last
    """

    __slots__ = ("instance", "live", "mutations", "own", "stores")

    @classmethod
    def of(cls, tx: TraceContext, instance: Value) -> InstanceDict:
        known = tx.instance_dicts.get(id(instance))
        if known is None:
            known = tx.instance_dicts[id(instance)] = cls._made(tx, instance)
        assert isinstance(known, InstanceDict)
        return known

    @classmethod
    def _made(cls, tx: TraceContext, instance: Value) -> InstanceDict:
        made = cls({})
        made.instance, made.mutations = instance, tx.mutations
        obj = getattr(instance, "obj", None)
        if obj is not None:
            assert instance.source is not None
            made.source = AttrSource(instance.source, "__dict__")
            made.obj = obj.__dict__ if isinstance(obj, functools.partial) else own_dict(obj)  # the program asks for it
            made.keys_guarded = False
            for name, value in made.obj.items():
                made.own[name] = (
                    Constant(name),
                    LazyValue(value, instance_dict_source(tx, obj, instance.source, name)),
                )
        return made

    def __init__(self, entries: dict[Any, tuple[Value, Value]]):
        self.own: dict[Any, tuple[Value, Value]] = {}
        self.live: dict[Any, tuple[Value, Value]] = {}
        self.stores: list[Any] | None = None
        super().__init__(entries)

    @property
    def entries(self) -> dict[Any, tuple[Value, Value]]:  # type: ignore[override]
        """The attributes that there are now."""
        stores = list(self.mutations.attrs_of(self.instance).items())
        if stores == self.stores:
            return self.live
        self.stores = stores
        now, mro = dict(self.own), mro_of(self.instance.python_type())
        for name, value in stores:
            if isinstance(find_in_mro(mro, name)[0], _SLOTS):
                continue
            if isinstance(value, Value):
                now[name] = (Constant(name), value)
            else:
                now.pop(name, None)
        for name in [name for name in self.live if name not in now]:
            del self.live[name]
        self.live.update(now)
        if [*self.live] != [*now]:
            self.live.clear()
            self.live.update(now)
        return self.live

    @entries.setter
    def entries(self, entries: dict[Any, tuple[Value, Value]]) -> None:
        """The base class sets them; there are none but the attributes."""

    def hashed(self, tx: TraceContext, key: Value) -> Any:
        return key.hash_key(tx)  # names of attributes are constants

    def length(self, tx: TraceContext) -> int:
        if self.mutations.attrs_of(self.instance):
            self.guard_keys(tx)  # which of the names stored are new
        return super().length(tx)

    def length_value(self, tx: TraceContext) -> Value:
        return Constant(self.length(tx)) if self.mutations.attrs_of(self.instance) else super().length_value(tx)

    def named_items(self, tx: TraceContext) -> Iterator[tuple[str, Value]]:
        """(name, value) of all attributes."""
        for key, value in self.items(tx):
            yield key.constant(), value

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        if key.python_type() is not str:
            raise Unsupported("builtin-method", f"{self.instance.describe()}.__dict__ with a key that is no string")
        self.check_is_attribute(tx, key.constant())
        tx.mutations.store_attr(self.instance, key.constant(), value)

    def del_item(self, tx: TraceContext, key: Value) -> None:
        if self.lookup(tx, key) is None:
            tx.raise_exception_value(KeyError, [key])
        self.remove(tx, [key.hash_key(tx)])

    def remove(self, tx: TraceContext, names: list[Any]) -> None:
        for name in names:
            self.check_is_attribute(tx, name)
            tx.mutations.delete_attr(self.instance, name)

    def remove_last(self, tx: TraceContext) -> tuple[Value, Value]:
        name = next(reversed(self.entries))
        entry = self.entries[name]
        self.remove(tx, [name])
        return entry

    def check_is_attribute(self, tx: TraceContext, name: str) -> None:
        """Break where the item `name` and the attribute `name` are two things: a data descriptor of the class takes the attribute."""
        raw = lookup(tx, self.instance.python_type(), name)
        if raw is not MISSING and is_data_descriptor(tx, raw):
            raise Unsupported("builtin-method", f"{self.instance.describe()}.__dict__[{name!r}], which its class hides")

    def update_from(self, tx: TraceContext, other: Value) -> None:
        mapping = other.as_dict(tx)
        if mapping is None:
            raise Unsupported("builtin-method", "__dict__.update of something that is no dict")
        for key, value in mapping.items(tx):
            self.set_item(tx, key, value)

    def changed(self, tx: TraceContext) -> None:
        raise Unsupported("builtin-method", f"a change of {self.instance.describe()}.__dict__")

    def reconstruct(self, cg: Any) -> None:
        cg.value(self.instance)
        cg.cb.load_attr("__dict__")
