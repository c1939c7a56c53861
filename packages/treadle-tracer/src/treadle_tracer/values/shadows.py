"""Shadows: real objects that stand for values of the trace where Python itself has to work on them, as when a class is made.

The shadow of a constant or an outside object is that object. What the trace has made gets a new one: a function with the same code, a
descriptor around shadows, or a `Held`, of which nothing can be asked. `tx.wrapped` leads from a shadow back to its value, so that what a
lookup finds on a shadow class is the traced value. Shadows live only while a frame is compiled: nothing is guarded about them, and none
becomes a constant of replacement code (`Writes.made`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import mro_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import NONE, ConcreteValue, Constant, LazyValue
from treadle_tracer.values.class_lookup import find_in_mro
from treadle_tracer.values.functions import FunctionValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class Held:
    """The shadow of a value that is no descriptor and that Python needs to know nothing about."""

    def __repr__(self) -> str:
        raise Unsupported("repr", "an attribute of a class that is made in the trace")


class MadeDescriptor(Value):
    """`property(...)`, `classmethod(f)`, `staticmethod(f)` or `functools.cached_property(f)` that the trace has made of `parts`."""

    __slots__ = ("cls", "name", "parts")

    def __init__(self, cls: type, parts: list[Value]):
        self.source = None
        self.cls = cls
        self.parts = parts
        self.name: str | None = None  # what __set_name__ has told a cached_property

    def python_type(self) -> type:
        return self.cls

    def truth(self, tx: TraceContext) -> bool:
        return True

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        names = _PARTS if issubclass(self.cls, property) else ()
        if name in names:
            position = names.index(name)
            return self.parts[position] if position < len(self.parts) else NONE
        if name in ("__func__", "__wrapped__", "func"):
            return self.parts[0]
        return super().get_attr(tx, name)

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.parts[0].call(tx, args, kwargs) if self.cls is staticmethod else super().call(tx, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        position = {"getter": 0, "setter": 1, "deleter": 2}.get(name)
        if self.cls is not property or position is None:
            return super().builtin_method(tx, name, args, kwargs)
        parts = [*self.parts, NONE, NONE, NONE][:3]
        parts[position] = args[0]
        return MadeDescriptor(property, parts)

    def shadow(self, tx: TraceContext) -> Any:
        """A real descriptor around the shadows of the parts."""
        made = self.cls(*(shadow_of(tx, part) for part in self.parts))
        if self.name is not None:
            made.__set_name__(None, self.name)
        return made

    def reconstruct(self, cg: Any) -> None:
        cg.call_const(self.cls, *self.parts)
        if self.name is not None:
            cg.register(self)
            cg.call_const(_set_name, self, Constant(self.name))
            cg.cb.pop_top()


_PARTS = ("fget", "fset", "fdel")  # of a property


def descriptor_parts(cls: type, args: list[Value], kwargs: dict[str, Value]) -> list[Value] | None:
    """The arguments of a descriptor's class in order; None for a call with others."""
    if not kwargs and 1 <= len(args) <= (4 if cls is property else 1):
        return list(args)
    return None


def _set_name(descriptor: Any, name: str) -> None:
    descriptor.__set_name__(None, name)


def shadow_of(tx: TraceContext, value: Value) -> Any:
    """The shadow of a value: see the module. Raises Unsupported for a descriptor that cannot have one."""
    value = value.force(tx) if isinstance(value, LazyValue) else value
    if isinstance(value, ConcreteValue):
        return value.obj
    if isinstance(value, TupleValue) and value.source is None and value.is_constant():
        return value.constant()
    outside = None if isinstance(value, SymbolicValue) else getattr(value, "obj", None)
    if outside is not None:
        return outside
    for shadow, known in list(tx.mutations.made.values()):
        if known is value:
            return shadow
    return register(tx, _new_shadow(tx, value), value)


def register(tx: TraceContext, shadow: Any, value: Value | None) -> Any:
    """Make `shadow` one of the trace: it leads to `value`, and guards about it are left out. value None: Python has made it itself."""
    if value is not None:
        tx.wrapped[id(shadow)] = (shadow, value)
    tx.mutations.made[id(shadow)] = (shadow, value)
    tx.guards.leave_out(shadow)
    if isinstance(shadow, type):
        _OPEN.append(shadow)
    elif isinstance(shadow, Held):
        tx.guards.leave_out(Held)
    return shadow


_OPEN: list[type] = []
"""Shadow classes of the compile that is going on."""


class _Retired:
    pass


def retire_shadows() -> None:
    """At the end of a compile: let no shadow class show among the subclasses of its bases any more."""
    while _OPEN:
        with contextlib.suppress(TypeError):  # where the layout of another base remains
            type.__dict__["__bases__"].__set__(_OPEN.pop(), (_Retired,))


def register_generated(tx: TraceContext, cls: type) -> None:
    """Make what Python has put on a shadow class of its own (the methods of a dataclass) shadows, too."""
    for raw in list(vars(cls).values()):
        parts: list[Any] = [raw, *(getattr(raw, name, None) for name in ("fget", "__func__", "__wrapped__"))]
        if isinstance(raw, dict):
            parts += raw.values()
        for part in parts:
            known = id(part) in tx.mutations.made or id(part) in tx.wrapped
            if not known and isinstance(part, (types.FunctionType, property, dataclasses.Field, dict)):
                register(tx, part, None)


def _new_shadow(tx: TraceContext, value: Value) -> Any:
    if isinstance(value, FunctionValue):
        return _function(tx, value)
    if isinstance(value, MadeDescriptor):
        return value.shadow(tx)
    if isinstance(value, ObjectValue):
        return _instance(tx, value)
    return Held()


def _function(tx: TraceContext, value: FunctionValue) -> types.FunctionType:
    cells = tuple(types.CellType() for _ in value.closure)
    made = types.FunctionType(value.code, value.globals, value.name, None, cells)
    made.__qualname__ = value.qualname
    made.__defaults__ = tuple(shadow_of(tx, item) for item in value.defaults) or None
    made.__kwdefaults__ = {name: shadow_of(tx, item) for name, item in value.kwdefaults.items()} or None
    made.__annotations__ = {name: shadow_of(tx, item) for name, item in value.annotations.items()}
    for name, item in tx.mutations.attrs_of(value).items():
        if isinstance(item, Value):
            try:
                setattr(made, name, shadow_of(tx, item))
            except (TypeError, ValueError) as error:  # `__annotations__`, `__code__` and others take no shadows
                raise Unsupported("class-definition", f"{value.describe()}.{name}: {error}") from None
    return made


_COPIED = (dataclasses.Field, enum.auto)
"""Classes of the standard library whose instances Python reads when it makes a class: their shadows have shadows of the attributes."""


def _instance(tx: TraceContext, value: ObjectValue) -> Any:
    if issubclass(value.cls, _COPIED):
        made = object.__new__(value.cls)
        for name, item in tx.mutations.attrs_of(value).items():
            if isinstance(item, Value):
                setattr(made, name, shadow_of(tx, item))
        return made
    special = ("__get__", "__set__", "__delete__", "__set_name__")
    if all(find_in_mro(mro_of(value.cls), name)[1] is None for name in special):
        return Held()
    if find_in_mro(value.cls.__mro__, "__del__")[1] is not None or value.cls.__new__ is not object.__new__:
        raise Unsupported("class-definition", f"{value.describe()} as an attribute")
    return object.__new__(value.cls)


def shadow_dict(tx: TraceContext, value: DictValue) -> dict[Any, Any]:
    """The shadow of a dict whose items Python reads: annotations."""
    made = {key.constant(): shadow_of(tx, item) for key, item in value.items(tx)}
    return register(tx, made, value)
