"""Values that hold nothing but a known Python object, and methods bound to values."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.class_lookup import MISSING
from treadle_tracer.values.constants import is_constant_object
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class Null(Value):
    """The NULL that stands on the operand stack beside callables."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(None)

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()


NULL = Null()


class LazyValue(Value):
    """An outside object that nothing has looked at yet, so that nothing is guarded. Lives in containers and locals only."""

    __slots__ = ("obj", "value")

    def __init__(self, obj: Any, source: Source):
        self.source = source
        self.obj = obj
        self.value: Value | None = None

    def force(self, tx: TraceContext) -> Value:
        if self.value is None:
            self.value = tx.wrap(self.obj, self.source)
        return self.value

    def python_type(self) -> type:
        return type(self.obj)

    def reconstruct(self, cg: Any) -> None:
        if self.value is not None:
            cg.value(self.value)
        else:
            super().reconstruct(cg)


def settled(value: Value) -> Value:
    """The value of a lazy one that has been evaluated."""
    while isinstance(value, LazyValue) and value.value is not None:
        value = value.value
    return value


_LEAST_ADDRESS = 1 << 16


class ConcreteValue(Value):
    """A value that is one known Python object: constants, classes, functions, modules. `obj` is that object."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None):
        self.source = source
        self.obj = obj

    def python_type(self) -> type:
        return type(self.obj)

    def constant(self) -> Any:
        return self.obj

    def is_constant(self) -> bool:
        return True

    def identity(self) -> Any:
        return self.obj

    def hash_key(self, tx: TraceContext) -> Any:
        if type(self.obj) is slice:  # hashable since Python 3.12
            try:
                hash(self.obj)
            except TypeError as error:
                tx.raise_real(error)
        elif type(self.obj) is int and self.obj > _LEAST_ADDRESS:
            tx.hashes_addresses = True
        return self.obj

    def as_index(self, tx: TraceContext) -> int:
        if hasattr(self.obj, "__index__"):
            return operator.index(self.obj)
        return super().as_index(tx)

    def describe(self) -> str:
        name = getattr(self.obj, "__qualname__", None)
        if not isinstance(name, str):
            return self.source.text if self.source is not None else repr(self.obj)[:80]
        module = getattr(self.obj, "__module__", None)
        return f"{module}.{name}" if module else name

    def reconstruct(self, cg: Any) -> None:
        cg.const(self.obj)


def is_none(value: Value | None) -> bool:
    """Whether it is the program's None."""
    return isinstance(value, Constant) and not value.is_computed and value.obj is None


class Constant(ConcreteValue):
    """An immutable Python object compared by value: None, numbers, strings, dtypes, devices, enum members, ...

    It has a source where an equal object may be another one, so that the program gets back the very object that it has passed.
    is_computed: replacement code computes the object from other values, although the trace may use it as a constant.
    """

    __slots__ = ()
    is_computed = False

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
        else:
            cg.const(self.obj)

    def describe(self) -> str:
        text = repr(self.obj)
        return text if len(text) <= 60 else text[:57] + "..."

    def truth(self, tx: TraceContext) -> bool:
        return bool(self.obj)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        obj = self.obj
        try:
            attr = getattr(obj, name)
        except AttributeError as error:
            tx.raise_real(error)
        if isinstance(attr, BOUND_BUILTIN) and getattr(attr, "__self__", None) is obj:
            return Method(self, name, attr)
        return tx.wrap(attr, None if is_constant_object(attr) else ConstSource(attr, is_made=True))

    def call_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        attr = getattr(self.obj, name, MISSING)
        if isinstance(attr, BOUND_BUILTIN) and attr.__self__ is self.obj:
            return self.builtin_method(tx, name, args, kwargs)
        return self.get_attr(tx, name).call(tx, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in ("__enter__", "__exit__"):  # `with torch.device(...):` changes where tensors are made
            if isinstance(self.obj, torch.device):
                if name == "__enter__":
                    tx.modes.enter_device(tx, self)
                    return self
                tx.modes.pop(tx)
                return NONE
            raise Unsupported("global-state", f"{self.describe()}.{name}")
        args = [_plain_argument(tx, name, arg) for arg in args]
        return tx.fold(getattr(self.obj, name), args, kwargs)

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.raise_exception(TypeError, f"{type(self.obj).__name__!r} object is not callable")

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        cls = type(self.obj)
        if is_one_of(cls, _WITHOUT_ITEMS):  # whatever the key is, which need not be known
            return tx.raise_exception(TypeError, f"{cls.__name__!r} object is not subscriptable")
        return tx.fold(_subscript, [self, key], {})

    def set_item(self, tx: TraceContext, key: Value, value: Value) -> None:
        if type(self) is not Constant:
            super().set_item(tx, key, value)
            return
        try:
            self.obj[None] = None  # raises: the object is immutable
        except TypeError as error:
            tx.raise_real(error)

    def iterate(self, tx: TraceContext) -> Value:
        try:
            cls = type(iter(self.obj))
        except TypeError as error:
            tx.raise_real(error)
        items = self.obj if is_one_of(type(self.obj), (str, bytes, range, tuple)) else list(self.obj)
        return tx.fixed_iterator(self, items, cls)

    def length(self, tx: TraceContext) -> int:
        try:
            return len(self.obj)
        except (TypeError, OverflowError) as error:
            tx.raise_real(error)

    def contains(self, tx: TraceContext, item: Value) -> bool:
        return bool(tx.fold(_contains, [self, item], {}).constant())


def _plain_argument(tx: TraceContext, method: str, arg: Value) -> Value:
    """An argument of a method of a constant, with the items that the method reads."""
    if method == "join":
        return Constant(tuple(item.constant() for item in arg.unpack(tx)))
    table = arg.as_dict(tx) if method == "translate" else None
    if table is None or table.cls is not dict or table.owner is not None:
        return arg
    entries = table.raw_entries(tx).values()
    items = [item.force(tx) if isinstance(item, LazyValue) else item for _, item in entries]
    return Constant({key.constant(): item.constant() for (key, _), item in zip(entries, items, strict=True)})


_WITHOUT_ITEMS = (int, float, bool, complex, type(None), type(...))


def _subscript(obj: Any, key: Any) -> Any:
    return obj[key]


def _contains(obj: Any, item: Any) -> Any:
    return item in obj


BOUND_BUILTIN = (type([].append), type((1).__add__))  # builtin_function_or_method, method-wrapper

NONE = Constant(None)
TRUE = Constant(True)
FALSE = Constant(False)


def boolean(flag: bool) -> Constant:
    return TRUE if flag else FALSE


class Method(Value):
    """A built-in method bound to a value; `function` is the descriptor or bound method it was found as."""

    __slots__ = ("function", "name", "owner")

    def __init__(self, owner: Value, name: str, function: Any):
        self.source = None
        self.owner = owner
        self.name = name
        self.function = function

    def python_type(self) -> type:
        is_slot = isinstance(self.function, (types.WrapperDescriptorType, types.MethodWrapperType))
        return types.MethodWrapperType if is_slot else types.BuiltinMethodType

    def describe(self) -> str:
        return f"{self.owner.describe()}.{self.name}"

    def identity(self) -> Any:
        return self

    def hash_key(self, tx: TraceContext) -> Any:
        return (self.owner.hash_key(tx), self.name)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__qualname__", "__doc__", "__module__"):
            return tx.wrap(getattr(self.function, name, None), None)
        return super().get_attr(tx, name)

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.call_builtin_method(self.owner, self.name, self.function, args, kwargs)

    def truth(self, tx: TraceContext) -> bool:
        return True

    def reconstruct(self, cg: Any) -> None:
        bind = getattr(self.function, "__get__", None)
        if bind is None or isinstance(self.function, types.ClassMethodDescriptorType):
            cg.value(self.owner)
            cg.cb.load_attr(self.name)
            return
        cg.cb.push_null()  # binding the very descriptor: what super() finds is not what the attribute gives
        cg.const(_bound)
        cg.const(self.function)
        cg.value(self.owner)
        cg.cb.call(2)


def _bound(descriptor: Any, owner: Any) -> Any:
    """Run-time helper. CPython crashes where a method that wants its class (METH_METHOD) is bound without a type (method_get in
    Objects/descrobject.c)."""
    return descriptor.__get__(owner, type(owner))
