"""Constants that are objects of classes made at run time: enum members, instances of subclasses of int, str and the like.

Such an object is compared by identity and used as a constant. Its attributes and the special methods of its class may change.
"""

from __future__ import annotations

import enum
import operator
import types
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import mro_of, namespace_of, own_dict
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource, OwnDictSource
from treadle_tracer.values.base import Constant
from treadle_tracer.values.class_lookup import (
    MISSING,
    class_may_change,
    find_in_mro,
    goes_before_instance,
    instance_dict_source,
    lookup,
)
from treadle_tracer.values.constants import is_trusted_function
from treadle_tracer.values.keys import KeyByEquality
from treadle_tracer.values.value import Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


class ConstantObject(Constant):
    """See the module. `obj` is the object, whose identity is guarded where it came from outside."""

    __slots__ = ()

    def describe(self) -> str:
        cls = type(self.obj)
        is_built_in = not isinstance(find_in_mro(mro_of(cls), "__repr__")[0], types.FunctionType)
        return (
            super().describe() if is_built_in else f"{cls.__qualname__} object"
        )  # a message runs no code of the program

    def hash_key(self, tx: TraceContext) -> Any:
        return KeyByEquality(tx, self) if has_python_method(tx, self, ("__hash__", "__eq__")) else self.obj

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        cls = type(self.obj)
        getter = lookup(tx, cls, "__getattribute__")
        if isinstance(getter, types.FunctionType):
            return tx.inline(tx.wrap_known(getter), [self, Constant(name)], {})
        raw = lookup(tx, cls, name)
        if raw is not MISSING and goes_before_instance(tx, raw):
            return self._bound(tx, raw, name)
        attributes = own_dict(self.obj)
        if attributes is not None:
            if name in attributes:
                return tx.wrap(attributes[name], instance_dict_source(tx, self.obj, ConstSource(self.obj), name))
            tx.guards.add(OwnDictSource(ConstSource(self.obj)), "lacks_key", name)
        if raw is not MISSING:
            return self._bound(tx, raw, name)
        fallback = lookup(tx, cls, "__getattr__")
        if isinstance(fallback, types.FunctionType):
            return tx.inline(tx.wrap_known(fallback), [self, Constant(name)], {})
        return tx.raise_exception(AttributeError, f"{cls.__name__!r} object has no attribute {name!r}")

    def _bound(self, tx: TraceContext, raw: Any, name: str) -> Value:
        if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            return tx.from_constant(raw.__get__(self.obj))  # of an immutable built-in base: `real`, `imag`
        return tx.bind(self, raw, name)

    def call_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.get_attr(tx, name).call(tx, args, kwargs)

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if lookup(tx, type(self.obj), "__call__") is MISSING:
            return super().call(tx, args, kwargs)
        return (
            call_special(tx, self, "__call__", args) if not kwargs else self.call_method(tx, "__call__", args, kwargs)
        )

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        method = _method_in_c(self.obj, name)
        return super().builtin_method(tx, name, args, kwargs) if method is None else tx.fold(method, args, kwargs)

    def truth(self, tx: TraceContext) -> bool:
        return Value.truth(self, tx) if has_python_method(tx, self, ("__bool__", "__len__")) else bool(self.obj)

    def length(self, tx: TraceContext) -> int:
        return Value.length(self, tx) if has_python_method(tx, self, ("__len__",)) else super().length(tx)

    def contains(self, tx: TraceContext, item: Value) -> bool:
        own = has_python_method(tx, self, ("__contains__", "__iter__"))
        return Value.contains(self, tx, item) if own else super().contains(tx, item)

    def iterate(self, tx: TraceContext) -> Value:
        return Value.iterate(self, tx) if has_python_method(tx, self, ("__iter__",)) else super().iterate(tx)

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        return (
            Value.get_item(self, tx, key)
            if has_python_method(tx, self, ("__getitem__",))
            else super().get_item(tx, key)
        )


def _method_in_c(obj: Any, name: str) -> Any:
    """What `super().upper()` finds in a method of a subclass of str that redefines `upper`; None where no method hides that in C."""
    mro = mro_of(type(obj))
    _, hides = find_in_mro(mro, name)
    if hides is None or not isinstance(namespace_of(hides)[name], types.FunctionType):
        return None
    for cls in mro:
        if isinstance(found := namespace_of(cls).get(name), (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return found.__get__(obj, type(obj))
    return None


class MadeConstantObject(ConstantObject):
    """An instance of a subclass of `base` (int, float, str, ...) that the trace has made: another object at every call."""

    __slots__ = ("plain",)
    is_computed = True

    def __init__(self, obj: Any, plain: Any):
        super().__init__(obj)
        self.plain = plain

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(_new_immutable)
        cg.const(type(self.obj))
        cg.const(self.plain)
        cg.cb.call(2)


def _new_immutable(cls: Any, plain: Any) -> Any:
    return type(plain).__new__(cls, plain)


def new_immutable(tx: TraceContext, cls: type, base: Any, args: list[Value]) -> Value:
    """What `base.__new__(cls, *args)` makes. Raises Unsupported where that is not known, or hashing it runs code of the program."""
    special = [lookup(tx, cls, name) for name in ("__eq__", "__hash__")]
    if not all(arg.is_constant() for arg in args) or any(isinstance(raw, types.FunctionType) for raw in special):
        raise Unsupported("new-builtin-subclass", f"{cls.__qualname__} is a subclass of {base.__qualname__}")
    try:
        plain = base.__new__(base, *(arg.constant() for arg in args))
    except (TypeError, ValueError) as error:
        tx.raise_real(error)
    obj = _new_immutable(cls, plain)
    made = MadeConstantObject(obj, plain)
    tx.wrapped[id(obj)] = (obj, made)
    tx.mutations.made[id(obj)] = (obj, made)
    tx.guards.leave_out(obj)
    return made


IMMUTABLE_BASES: tuple[type, ...] = (int, float, complex, str, bytes)


def has_python_method(tx: TraceContext, value: Value, names: tuple[str, ...]) -> bool:
    """Whether the program defines one of these special methods for a constant object, or for a class by its metaclass; registered."""
    cls = value.python_type()
    is_class = issubclass(cls, type) and cls is not type
    if not is_class and not isinstance(value, ConstantObject):
        return False
    found = [lookup(tx, cls, name) for name in names]
    return any(isinstance(raw, types.FunctionType) and not is_trusted_function(raw) for raw in found)


_SPECIAL = tuple(
    f"__{name}__"
    for name in (
        "eq ne lt le gt ge hash bool len iter contains getitem int float complex index str repr format bytes "
        "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul divmod rdivmod "
        "lshift rlshift rshift rrshift and rand or ror xor rxor neg pos abs invert round trunc floor ceil call"
    ).split()
)


_CALLED: dict[Any, tuple[str, ...]] = {
    operator.eq: ("__eq__",),
    operator.ne: ("__ne__", "__eq__"),  # object's `__ne__` asks `__eq__`
    operator.lt: ("__lt__", "__gt__"),
    operator.gt: ("__lt__", "__gt__"),
    operator.le: ("__le__", "__ge__"),
    operator.ge: ("__le__", "__ge__"),
    **{
        getattr(operator, name): (f"__{name.strip('_')}__", f"__r{name.strip('_')}__")
        for name in "add sub mul truediv floordiv pow lshift rshift and_ or_ xor".split()
    },
    **{getattr(operator, name): (f"__{name}__",) for name in ("neg", "pos", "invert")},
    # of text it calls what the format asks for
    operator.mod: tuple(f"__{name}__" for name in "mod rmod str repr format int float index getitem".split()),
    hash: ("__hash__",),
    len: ("__len__",),
}
"""The special methods of its operands that a function calls. Functions that are not here may call any."""


_OF_A_LOOKUP = ("__hash__", "__eq__", "__repr__")
"""By which an enum finds a member for a value, and names the value in its error."""


def _called_by(function: Any) -> tuple[str, ...]:
    if isinstance(function, enum.EnumMeta):
        return _OF_A_LOOKUP
    try:
        return _CALLED.get(function, _SPECIAL)
    except TypeError:  # it has no hash
        return _SPECIAL


def special_methods_are_built_in(tx: TraceContext, obj: Any, function: Any = None) -> bool:
    """Whether a call of a C function on a constant object runs no method of the program; registered for every special method asked for.

    function: that function, if it is known.
    """
    cls = type(obj)
    if not class_may_change(cls) or (cls is function and isinstance(cls, enum.EnumMeta)):  # a member is its own member
        return True
    special = _called_by(function)
    names = [name for name in special if name != "__call__"] if isinstance(obj, type) else special
    found = [lookup(tx, cls, name) for name in names]
    return not any(isinstance(raw, types.FunctionType) and not is_trusted_function(raw) for raw in found)
