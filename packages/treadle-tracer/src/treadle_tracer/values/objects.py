"""Instances of classes. Attributes are found as Python finds them: MRO with data descriptors, instance dict, `__getattr__`.

Attributes that the trace has stored are kept in `tx.mutations`, for outside objects and for those made in the trace.
"""

from __future__ import annotations

import collections
import functools
import itertools
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentityDict, is_one_of
from treadle_tracer.class_facts import (
    has_instance_dict,
    is_subtype,
    is_thread_local,
    mro_of,
    name_in_messages,
    name_of_slotted,
    own_dict,
    partial_dict,
)
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource, ConstSource, SlotSource
from treadle_tracer.values.attribute_stores import PROPERTY, delete_attribute, store_attribute
from treadle_tracer.values.base import NONE, TRUE, Constant, Method, boolean
from treadle_tracer.values.class_lookup import (
    MISSING,
    class_may_change,
    find_in_mro,
    goes_before_instance,
    instance_dict_source,
    is_slot_of,
    lookup,
    lookup_owner,
    lookup_with_owner,
    own_dict_source,
)
from treadle_tracer.values.containers import init_container
from treadle_tracer.values.functions import BoundMethod, PartialValue
from treadle_tracer.values.instance_dict import InstanceDict
from treadle_tracer.values.iteration import ITEM_ITERATOR, HostIterator
from treadle_tracer.values.joined import is_same
from treadle_tracer.values.keys import KeyByEquality
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.native_values import call_native
from treadle_tracer.values.outputs import stream_method
from treadle_tracer.values.rebuilt_objects import FILLERS, emit_attributes, new_instance
from treadle_tracer.values.script_functions import call_script_function
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.tracebacks import RunTimeTraceback
from treadle_tracer.values.value import NEGATIVE_LENGTH, NotConstant, Raised, Value, call_special, checked_length

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext

_METHOD_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
)
IDENTITY_HASHES = (object.__hash__, BaseException.__hash__, torch.nn.Module.__hash__)
_SLOT_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)


class ObjectValue(Value):
    """An instance of a class. `obj` is the outside object, None for one made in the trace.

    `container` is the built-in part of an instance of a dict, list, set or tuple subclass. `new_args` are the arguments of `__new__` of
    the built-in base.
    """

    __slots__ = ("cls", "container", "new_args", "obj")

    def __init__(self, cls: type, obj: Any = None, source: Source | None = None, container: Value | None = None):
        self.source = source
        self.cls = cls
        self.obj = obj
        self.container = container
        self.new_args: list[Value] = []

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> Any:
        return self if self.obj is None else self.obj

    def hash_key(self, tx: TraceContext) -> Any:
        hasher, equal = lookup(tx, self.cls, "__hash__"), lookup(tx, self.cls, "__eq__")
        if hasher is None:
            tx.raise_exception(TypeError, f"unhashable type: {name_in_messages(self.cls)!r}")
        by_identity = hasher in IDENTITY_HASHES and equal is object.__eq__
        if by_identity:
            if self.obj is None:
                return self
            tx.hashed[id(self.obj)] = self
            return self.obj
        if isinstance(hasher, types.FunctionType) and (self.obj is None or self.source is not None):
            return KeyByEquality(tx, self, is_outside=self.obj is not None)
        is_fixed = not isinstance(hasher, types.FunctionType) and not class_may_change(self.cls)
        if self.obj is None or self.source is None or not is_fixed:
            raise Unsupported("hash", self.describe())
        tx.guards.add(self.source, "is", self.obj)
        return self.obj

    def is_known_object(self, tx: TraceContext) -> bool:
        """Whether the identity of the object is guarded."""
        return isinstance(self.source, ConstSource)

    def as_dict(self, tx: TraceContext) -> DictValue | None:
        if not isinstance(self.container, DictValue):
            return None
        overrides = (lookup(tx, self.cls, name) for name in ("keys", "__getitem__", "__iter__"))
        return None if any(isinstance(raw, types.FunctionType) for raw in overrides) else self.container

    def describe(self) -> str:
        return self.source.text if self.source is not None else f"a {self.cls.__module__}.{self.cls.__qualname__}"

    # ---- attributes

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        getter = lookup(tx, self.cls, "__getattribute__")
        if not is_slot_of(getter, "__getattribute__"):
            try:
                return tx.bind(self, getter, "__getattribute__").call(tx, [Constant(name)], {})
            except Raised as raised:
                return self.fallback_attr(tx, name, raised)
        return self.generic_attr(tx, name)

    def generic_attr(self, tx: TraceContext, name: str) -> Value:
        """`object.__getattribute__` and then `__getattr__`."""
        found = self.plain_attr(tx, name)
        if found is not None:
            return found
        return self.fallback_attr(tx, name, None)

    def fallback_attr(self, tx: TraceContext, name: str, raised: Raised | None) -> Value:
        """`__getattr__` of the class, or the AttributeError."""
        if raised is not None and not issubclass(raised.value.python_type(), AttributeError):
            raise raised
        getattr_ = lookup(tx, self.cls, "__getattr__")
        if getattr_ is not MISSING:
            return tx.bind(self, getattr_, "__getattr__").call(tx, [Constant(name)], {})
        if raised is not None:
            raise raised
        return tx.raise_exception(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")

    def plain_attr(self, tx: TraceContext, name: str) -> Value | None:
        """The result of `object.__getattribute__`, or None where it raises AttributeError."""
        raw = lookup(tx, self.cls, name)
        if name == "__class__" and raw is _CLASS_OF_INSTANCE:
            return tx.wrap(self.cls, ConstSource(self.cls))
        if raw is not MISSING and goes_before_instance(tx, raw):
            return self.bind_raw(tx, raw, name)
        own = self.own_attr(tx, name)
        if own is not None:
            return own
        if raw is MISSING:
            return None
        return self.bind_raw(tx, raw, name)

    def own_attr(self, tx: TraceContext, name: str) -> Value | None:
        """The attribute in the instance dict, or None."""
        if name == "data" and tx.weak_references:
            tx.check_weak_container(self)
        stored = tx.mutations.load_attr(self, name)
        if stored is not None:
            return stored if isinstance(stored, Value) else None
        if self.obj is None:
            return InstanceDict.of(tx, self) if name == "__dict__" and self.has_dict() else None
        if name == "__dict__" and is_thread_local(self.cls):  # `local` has no descriptor for it
            return InstanceDict.of(tx, self)
        attrs = own_dict(self.obj)
        if attrs is None and isinstance(self.container, PartialValue) and self.source is not None:
            tx.guards.add(ApplySource(self.source, partial_dict), "is", None)
        if attrs is None:
            return None
        if name in attrs:
            assert self.source is not None
            return tx.wrap(attrs[name], instance_dict_source(tx, self.obj, self.source, name))
        if self.source is not None:
            tx.guards.add(own_dict_source(self.cls, self.source), "lacks_key", name)
        return None

    def bind_raw(self, tx: TraceContext, raw: Any, name: str, found_in: type | None = None) -> Value:
        """`raw.__get__(self, type(self))`; `found_in`: see `bind`."""
        if not isinstance(raw, _SLOT_DESCRIPTORS):
            return tx.bind(self, raw, name, found_in)
        return self.slot_attr(tx, raw, name)

    def slot_attr(self, tx: TraceContext, raw: Any, name: str) -> Value:
        """A `__slots__` member or an attribute of a C type."""
        found = self.load_slot(tx, raw, name)
        if found is None:
            tx.raise_exception(AttributeError, f"{name_of_slotted(self.cls)!r} object has no attribute {name!r}")
        return found

    def load_slot(self, tx: TraceContext, raw: Any, name: str) -> Value | None:
        """`slot_attr`, or None where it is not set."""
        stored = tx.mutations.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        if name == "__dict__":
            return InstanceDict.of(tx, self)
        if self.obj is not None and stored is None:
            assert self.source is not None
            try:
                return tx.wrap(raw.__get__(self.obj, self.cls), SlotSource(self.source, raw))
            except AttributeError:
                tx.guards.add(self.source, "unset", raw)
        return self.made_slot(tx, raw, name) if self.obj is None else None

    def made_slot(self, tx: TraceContext, raw: Any, name: str) -> Value | None:
        """`load_slot` of an instance that the trace has made, where the program has stored nothing."""
        if name == "__weakref__":  # the reference to the object that has no callback, if there is one
            if any(reference.target is self for reference in tx.weak_references):
                raise Unsupported("weak-reference", self.describe())
            _, reference = tx.wrapped.get(id(self), (self, NONE))
            return reference
        if name == "default_factory" and isinstance(self.container, DictValue):
            return self.container.default_factory or NONE
        is_member = isinstance(self.container, PartialValue) and raw is vars(functools.partial).get(name)
        return self.container.member(name) if is_member else None  # type: ignore[union-attr]

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        setter = lookup(tx, self.cls, "__setattr__")
        if is_slot_of(setter, "__setattr__"):
            store_attribute(tx, self, name, value)
        else:
            tx.bind(self, setter, "__setattr__").call(tx, [Constant(name), value], {})

    def realise_dict_item(self, tx: TraceContext, name: str) -> None:
        """Called before a store. A store does not depend on the present value, so nothing is guarded."""

    def has_dict(self) -> bool:
        return has_instance_dict(self.cls) or is_thread_local(self.cls)

    def del_attr(self, tx: TraceContext, name: str) -> None:
        deleter = lookup(tx, self.cls, "__delattr__")
        if is_slot_of(deleter, "__delattr__"):
            delete_attribute(tx, self, name)
        else:
            tx.bind(self, deleter, "__delattr__").call(tx, [Constant(name)], {})

    # ---- protocols: the class's own methods first, then the built-in part

    def iterate(self, tx: TraceContext) -> Value:
        """`iter(self)` through `__iter__`, or through `__getitem__` with 0, 1, 2 ..."""
        if lookup(tx, self.cls, "__iter__") is MISSING and lookup(tx, self.cls, "__getitem__") is not MISSING:
            return HostIterator(self._items_by_index(tx), ITEM_ITERATOR)
        return super().iterate(tx)

    def _items_by_index(self, tx: TraceContext) -> Iterator[Value]:
        for position in itertools.count():
            try:
                item = self.get_item(tx, Constant(position))
            except Raised as raised:
                if issubclass(raised.value.python_type(), (IndexError, StopIteration)):
                    return
                raise
            yield item

    def length_value(self, tx: TraceContext) -> Value:
        answer = call_special(tx, self, "__len__", [])
        if not isinstance(answer, SymbolicValue) or answer.python_type() is not int:
            return Constant(checked_length(tx, answer))
        if tx.compare("<", answer, Constant(0)).truth(tx):
            tx.raise_exception(ValueError, NEGATIVE_LENGTH)
        return answer

    def as_index(self, tx: TraceContext) -> int:
        return call_special(tx, self, "__index__", []).as_index(tx)

    @tail_call
    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if self.obj is not None and _is_plain_reference(self.cls):
            assert self.source is not None
            return tx.wrap(self.obj(), ApplySource(self.source, _referent))
        if self.obj is not None and is_subtype(self.cls, torch.jit.ScriptFunction):
            return call_script_function(tx, self, self.obj, args, kwargs)
        raw = lookup(tx, self.cls, "__call__")
        if raw is MISSING:
            return tx.raise_exception(TypeError, f"{self.cls.__name__!r} object is not callable")
        return tx.bind(self, raw, "__call__").call(tx, args, kwargs)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        native = call_native(tx, self, name, args, kwargs)
        if native is not None:
            return native
        if name == "__init__" and self.container is not None and (args or kwargs):
            init_container(tx, self.container, args, kwargs)
            return NONE
        if self.container is None and name in _ORDERINGS:
            return Constant(NotImplemented)
        handler = _OBJECT_METHODS.get(name)
        if handler is not None:
            return handler(self, tx, args)
        if self.container is not None:
            return tx.call_builtin_method(self.container, name, None, args, kwargs)
        written = stream_method(tx, self, name, args, kwargs)
        if written is not None:
            return written
        raise Unsupported("builtin-method", f"{self.cls.__name__}.{name}")

    def constant(self) -> Any:
        raise NotConstant(self)

    # ---- out of the trace

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        self.emit_new(cg)
        cg.register(self)
        attrs = {name: value for name, value in cg.attrs_of(self).items() if _has_object(value)}
        factory = getattr(self.container, "default_factory", None)
        if factory is not None:
            attrs.setdefault("default_factory", factory)
        if attrs:
            emit_attributes(cg, self, attrs)
        if self.container is not None and not isinstance(self.container.python_type(), tuple):
            self.reconstruct_container(cg)

    def emit_new(self, cg: Any) -> None:
        """Push a new instance without attributes and contents."""
        if isinstance(self.container, PartialValue):
            self.container.emit_new(cg, self.cls)
            return
        cg.cb.push_null()
        cg.const(new_instance)
        cg.const(self.cls)
        for value in self.new_args:
            cg.value(value)
        cg.cb.call(1 + len(self.new_args))

    def reconstruct_container(self, cg: Any) -> None:
        fill = next((fill for base, fill in FILLERS.items() if issubclass(self.cls, base)), None)
        if fill is None:
            return
        cg.cb.push_null()
        cg.const(fill)
        cg.value(self)
        self.container.reconstruct_contents(cg)  # type: ignore[union-attr]
        cg.cb.call(2)
        cg.cb.pop_top()

    def reconstruct_contents(self, cg: Any) -> None:
        """Push fresh contents of the built-in part, to replay a change of an outside instance."""
        self.container.reconstruct_contents(cg)  # type: ignore[union-attr]


def _has_object(stored: Any) -> bool:
    """Whether a store gives an attribute: it is no deletion, and no traceback, of which an exception that is raised gets its own."""
    return isinstance(stored, Value) and not isinstance(stored, RunTimeTraceback)


_PLAIN_CALLS = (weakref.ReferenceType.__call__, weakref.WeakMethod.__call__)


def _is_plain_reference(cls: type) -> bool:
    """Whether a call of an instance gives what it refers to, and runs no code of the program."""
    is_reference = is_subtype(cls, weakref.ReferenceType)
    return is_reference and is_one_of(find_in_mro(mro_of(cls), "__call__")[0], _PLAIN_CALLS)


def _referent(reference: Any) -> Any:
    if not _is_plain_reference(type(reference)):
        raise TypeError("no weak reference")
    return reference()


def _object_repr(self: ObjectValue, tx: TraceContext, args: list[Value]) -> Value:
    raise Unsupported("repr", self.describe())


def _object_hash(self: ObjectValue, tx: TraceContext, args: list[Value]) -> Value:
    if self.obj is None or self.source is None:
        raise Unsupported("hash", self.describe())
    tx.guards.add(self.source, "is", self.obj)
    return Constant(hash(self.obj))


def object_equal(tx: TraceContext, a: ObjectValue, b: Value) -> Value:
    """`object.__eq__`; of a dict or list subclass: of its contents."""
    if is_same(tx, a, b):
        return TRUE
    if a.container is not None:
        other = b.container if isinstance(b, ObjectValue) and b.container is not None else b
        return tx.compare("==", a.container, other)
    if (
        a.obj is not None
        and isinstance(b, ObjectValue)
        and b.obj is not None
        and type(a.obj).__eq__ is not object.__eq__
    ):
        raise Unsupported("call", f"{a.describe()} == {b.describe()}")
    return Constant(NotImplemented)


_ORDERINGS = ("__lt__", "__le__", "__gt__", "__ge__")  # of `object`

_OBJECT_METHODS: dict[str, Callable[[ObjectValue, Any, list[Value]], Value]] = {
    "__init__": lambda self, tx, args: NONE,
    "__post_init__": lambda self, tx, args: NONE,
    "__getattribute__": lambda self, tx, args: _getattribute(self, tx, args[0].constant()),
    "__setattr__": lambda self, tx, args: _returns_none(store_attribute(tx, self, args[0].constant(), args[1])),
    "__delattr__": lambda self, tx, args: _returns_none(delete_attribute(tx, self, args[0].constant())),
    "__hash__": _object_hash,
    "__repr__": _object_repr,
    "__eq__": lambda self, tx, args: object_equal(tx, self, args[0]),
    "__ne__": lambda self, tx, args: boolean(not object_equal(tx, self, args[0]).truth(tx)),
}


def _returns_none(_: None) -> Value:
    return NONE


def _getattribute(self: ObjectValue, tx: Any, name: str) -> Value:
    found = self.plain_attr(tx, name)
    if found is None:
        return tx.raise_exception(AttributeError, f"{self.cls.__name__!r} object has no attribute {name!r}")
    return found


# ---- binding an attribute found on a class to an instance


def _owner_of(tx: TraceContext, cls: type, name: str) -> type:
    owner = lookup_owner(tx, cls, name)
    return cls if owner is None else owner


def bind(tx: TraceContext, owner: Value, raw: Any, name: str, found_in: type | None = None) -> Value:
    """`raw.__get__(owner, type(owner))` for a raw attribute of the owner's type.

    found_in: the class that has it, if that is not the first one in the MRO that has the name.
    """
    binder = _BINDERS.get(type(raw))
    if binder is not None:
        return binder(tx, owner, raw, name)
    getter = lookup(tx, type(raw), "__get__")
    if getter is MISSING:
        return tx.class_attribute(raw, found_in or _owner_of(tx, owner.python_type(), name), name)
    if getter is PROPERTY["__get__"]:  # of a subclass that leaves it as it is
        return _bind_property(tx, owner, raw, name)
    if isinstance(getter, types.FunctionType):
        descriptor = tx.wrap_known(raw)
        cls = tx.wrap(owner.python_type(), ConstSource(owner.python_type()))
        return tx.inline(tx.wrap_known(getter), [descriptor, owner, cls], {})
    raise Unsupported("descriptor", f"{type(raw).__name__} {name}")


def _bind_function(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    return BoundMethod(tx.wrap_known(raw), owner)


def _bind_property(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    if raw.fget is None:
        tx.raise_exception(AttributeError, f"property {name!r} has no getter")
    return tx.wrap_known(raw.fget).call(tx, [owner], {})


def _bind_classmethod(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    cls = owner.python_type()
    return BoundMethod(tx.wrap_known(raw.__func__), tx.wrap(cls, ConstSource(cls)))


def _bind_cached_property(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    value = tx.wrap_known(raw.func).call(tx, [owner], {})
    tx.mutations.store_attr(owner, raw.attrname, value)
    return value


def _bind_builtin(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    """A method implemented in C under its own name, whatever the class calls it: `__getattr__ = dict.get`."""
    return Method(owner, raw.__name__, raw)


def _bind_slot(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    if isinstance(owner, ObjectValue):
        return owner.slot_attr(tx, raw, name)
    if name == "__class__":
        return tx.wrap(owner.python_type(), ConstSource(owner.python_type()))
    raise Unsupported("attribute", f"{owner.describe()}.{name}")


def _bind_field(tx: TraceContext, owner: Value, raw: Any, name: str) -> Value:
    """A field of a named tuple whose class has more than fields."""
    if not isinstance(owner, ObjectValue) or not isinstance(owner.container, TupleValue):
        raise Unsupported("descriptor", f"{type(raw).__name__} {name}")
    return owner.container.item(tx, raw.__reduce__()[1][0])


_BINDERS: IdentityDict[type, Callable[[Any, Value, Any, str], Value]] = IdentityDict(
    {
        types.FunctionType: _bind_function,
        property: _bind_property,
        classmethod: _bind_classmethod,
        staticmethod: lambda tx, owner, raw, name: tx.wrap_known(raw.__func__),
        functools.cached_property: _bind_cached_property,
        functools._lru_cache_wrapper: lambda tx, owner, raw, name: BoundMethod(tx.wrap_known(raw), owner),
        types.GetSetDescriptorType: _bind_slot,
        types.MemberDescriptorType: _bind_slot,
        type(collections.namedtuple("_Pair", "first second").first): _bind_field,  # type: ignore[attr-defined]
        types.MethodDescriptorType: _bind_builtin,
        types.WrapperDescriptorType: _bind_builtin,
        types.ClassMethodDescriptorType: lambda tx, owner, raw, name: Method(
            tx.wrap(owner.python_type(), ConstSource(owner.python_type())), name, raw
        ),
        types.BuiltinFunctionType: lambda tx, owner, raw, name: tx.wrap_known(raw),
        type(None): lambda tx, owner, raw, name: NONE,
    }
)


_CLASS_OF_INSTANCE = object.__dict__["__class__"]


class SuperValue(Value):
    """`super(cls, obj)`."""

    __slots__ = ("cls", "instance")

    def __init__(self, cls: type, instance: Value):
        self.source = None
        self.cls = cls
        self.instance = instance

    @classmethod
    def make(cls, tx: TraceContext, first: Value, instance: Value) -> Value:
        """`super(first, instance)`, with Python's exceptions for arguments that do not fit (Objects/typeobject.c, supercheck)."""
        if not issubclass(first.python_type(), type):
            kind = first.python_type().__name__
            return tx.raise_exception(TypeError, f"super() argument 1 must be a type, not {kind}")
        base, given = first.constant(), instance.python_type()
        if given is type(None):
            raise Unsupported("call", "super() that is not bound")
        is_class = issubclass(given, type)
        if is_subtype(given, base) or (is_class and is_subtype(instance.constant(), base)):
            return cls(base, instance)
        what = f"type {instance.constant().__name__}" if is_class else f"instance of {given.__name__}"
        text = f"obj ({what}) is not an instance or subtype of type ({base.__name__})."
        if sys.version_info < (3, 13):
            text = "obj must be an instance or subtype of type"
        return tx.raise_exception(TypeError, f"super(type, obj): {text}")

    def python_type(self) -> type:
        return super

    def start(self) -> type:
        """The class in whose MRO is searched: the instance's, or in a class method the instance itself."""
        instance_type = self.instance.python_type()
        return instance_type if is_subtype(instance_type, self.cls) else self.instance.constant()

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        raw, owner = lookup_with_owner(tx, self.start(), name, self.cls)
        if owner is None:
            return tx.raise_exception(AttributeError, f"'super' object has no attribute {name!r}")
        if not is_subtype(self.instance.python_type(), self.cls):
            return self.class_attr(tx, raw, owner, name)
        if isinstance(self.instance, ObjectValue):
            return self.instance.bind_raw(tx, raw, name, owner)
        return bind(tx, self.instance, raw, name, owner)

    def class_attr(self, tx: TraceContext, raw: Any, owner: type, name: str) -> Value:
        """In a class method: functions stay plain, class methods are bound to the class."""
        if isinstance(raw, classmethod):
            return BoundMethod(tx.wrap_known(raw.__func__), self.instance)
        if isinstance(raw, staticmethod):
            return tx.wrap_known(raw.__func__)
        if isinstance(raw, types.ClassMethodDescriptorType):
            return Method(self.instance, name, raw)
        getter = lookup(tx, type(raw), "__get__")
        if getter is MISSING and class_may_change(owner):
            return tx.class_attribute(raw, owner, name)
        if isinstance(getter, types.FunctionType):
            return tx.inline(tx.wrap_known(getter), [tx.wrap_known(raw), NONE, self.instance], {})
        return tx.wrap_known(raw)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        raise Unsupported("attribute-store", "super()")

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(super)
        cg.const(self.cls)
        cg.value(self.instance)
        cg.cb.call(2)
