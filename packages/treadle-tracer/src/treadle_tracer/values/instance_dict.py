"""`obj.__dict__` as a dict value: the instance's attributes with the trace's stores applied. Writes go to the attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import AttrSource
from treadle_tracer.values.base import Constant, LazyValue
from treadle_tracer.values.class_lookup import instance_dict_source
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class InstanceDict(DictValue):
    """See the module. `instance` is the object."""

    __slots__ = ("instance",)

    @classmethod
    def of(cls, tx: TraceContext, instance: Value) -> InstanceDict:
        made = cls({})
        made.instance = instance
        obj = getattr(instance, "obj", None)
        if obj is not None:
            assert instance.source is not None
            made.source = AttrSource(instance.source, "__dict__")
            made.obj = own_dict(obj)
            made.keys_guarded = False
            for name, value in made.obj.items():
                made.entries[name] = (
                    Constant(name),
                    LazyValue(value, instance_dict_source(tx, obj, instance.source, name)),
                )
        for name, value in tx.mutations.attrs_of(instance).items():
            if isinstance(value, Value):
                made.entries[name] = (Constant(name), value)
            else:
                made.entries.pop(name, None)
        return made

    def named_items(self, tx: TraceContext) -> Iterator[tuple[str, Value]]:
        """(name, value) of all attributes."""
        for key, value in self.items(tx):
            yield key.constant(), value

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        name = key.constant()
        tx.mutations.store_attr(self.instance, name, value)
        self.entries[name] = (key, value)

    def del_item(self, tx: TraceContext, key: Value) -> None:
        name = key.constant()
        if name not in self.entries:
            tx.raise_exception(KeyError, name)
        tx.mutations.delete_attr(self.instance, name)
        del self.entries[name]

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
