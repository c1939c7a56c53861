"""`types.MappingProxyType`: a view of a mapping through which it cannot be changed."""

from __future__ import annotations

import gc
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource, Source
from treadle_tracer.values.class_lookup import lookup
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_READS = frozenset(
    {"get", "keys", "values", "items", "copy", "__getitem__", "__contains__", "__iter__", "__len__", "__reversed__"}
)


class MappingProxyValue(Value):
    """A proxy of `mapping`: what is read is read there, at that moment."""

    __slots__ = ("mapping",)

    def __init__(self, mapping: Value, source: Source | None = None):
        self.mapping = mapping
        self.source = source

    def python_type(self) -> type:
        return types.MappingProxyType

    def hash_key(self, tx: TraceContext) -> Any:
        if lookup(tx, types.MappingProxyType, "__hash__") is None:
            return super().hash_key(tx)
        self.mapping.hash_key(tx)  # from Python 3.12 on, the mapping is hashed
        raise Unsupported("hash", self.describe())

    def as_dict(self, tx: TraceContext) -> Any:
        return self.mapping.as_dict(tx)

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        return self.mapping.get_item(tx, key)

    def contains(self, tx: TraceContext, item: Value) -> bool:
        return self.mapping.contains(tx, item)

    def iterate(self, tx: TraceContext) -> Value:
        return self.mapping.iterate(tx)

    def unpack(self, tx: TraceContext) -> list[Value]:
        return self.mapping.unpack(tx)

    def length(self, tx: TraceContext) -> int:
        return self.mapping.length(tx)

    def truth(self, tx: TraceContext) -> bool:
        return self.mapping.length(tx) > 0

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name not in _READS:
            raise Unsupported("builtin-method", f"mappingproxy.{name}")
        return self.mapping.call_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        cg.call_const(types.MappingProxyType, self.mapping)


class ClassNamespace(MappingProxyValue):
    """`cls.__dict__` of a class from outside, which the trace does not change: after writes to classes it is not read."""

    __slots__ = ("_names", "_tx")

    def __init__(self, tx: TraceContext, names: Value, source: Source):
        self._tx = tx
        super().__init__(names, source)

    @property
    def mapping(self) -> Value:  # type: ignore[override]
        """The names and what the class holds under them."""
        if self._tx.class_writes:
            raise Unsupported("class-store", "the dict of a class is read after a class was changed")
        return self._names

    @mapping.setter
    def mapping(self, names: Value) -> None:
        self._names = names


def wrap_mapping_proxy(tx: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of a proxy from outside."""
    mapping = behind(obj)
    tx.guards.add(source, "type_is", types.MappingProxyType)
    held = tx.wrap(mapping, ApplySource(source, behind))
    if type(mapping) is dict and "__module__" in mapping and "__doc__" in mapping:
        return ClassNamespace(tx, held, source)
    return MappingProxyValue(held, source)


def behind(proxy: Any) -> Any:
    """The mapping that a proxy shows (descrobject.c, mappingproxy_traverse)."""
    return gc.get_referents(proxy)[0]
