"""Callables made of Python code, bound methods, partials, cells, classes and Python modules."""

from __future__ import annotations

import enum
import functools
import types
import typing
from typing import TYPE_CHECKING, Any

from treadle_tracer.class_facts import is_subtype, name_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import (
    AttrSource,
    ConstSource,
    DictItemSource,
    GlobalsSource,
    TupleItemSource,
)
from treadle_tracer.values.base import NONE, ConcreteValue, Constant, LazyValue, Method, is_none
from treadle_tracer.values.cells import CellValue, wrap_cell
from treadle_tracer.values.class_lookup import (
    MISSING,
    find_in_mro,
    goes_before_instance,
    is_descriptor,
    lookup,
    lookup_with_owner,
)
from treadle_tracer.values.constant_objects import has_python_method
from treadle_tracer.values.constants import is_trusted_function
from treadle_tracer.values.instance_dict import InstanceDict
from treadle_tracer.values.mappings import dict_of
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tail_calls import tail_call
from treadle_tracer.values.value import Raised, Value, call_special

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


class FunctionValue(Value):
    """A Python function: an outside one (`obj`) or one made in the trace."""

    __slots__ = (
        "annotations",
        "closure",
        "code",
        "defaults",
        "globals",
        "in_root",
        "kwdefaults",
        "name",
        "obj",
        "qualname",
    )

    def __init__(self, code: types.CodeType, globals_: dict[str, Any], obj: Any = None, source: Source | None = None):
        self.source = source
        self.code = code
        self.globals = globals_
        self.obj = obj
        self.in_root = False  # made in the frame that is compiled: its globals are those of the call
        self.name: str = code.co_name
        self.qualname: str = code.co_qualname
        self.defaults: list[Value] = []
        self.kwdefaults: dict[str, Value] = {}
        self.closure: tuple[CellValue, ...] = ()
        self.annotations: dict[str, Value] = {}

    @classmethod
    def outside(cls, tx: TraceContext, obj: types.FunctionType, source: Source) -> FunctionValue:
        """A function that exists. Its code and which parameters have defaults are guarded; defaults and cells where they are read."""
        made = cls(obj.__code__, obj.__globals__, obj, source)
        tx.guards.add(source, "function_code", obj)
        made.name, made.qualname = obj.__name__, obj.__qualname__
        if obj.__defaults__:
            base = AttrSource(source, "__defaults__")
            made.defaults = [LazyValue(item, TupleItemSource(base, i)) for i, item in enumerate(obj.__defaults__)]
        if obj.__kwdefaults__:
            base = AttrSource(source, "__kwdefaults__")
            made.kwdefaults = {k: LazyValue(item, DictItemSource(base, k)) for k, item in obj.__kwdefaults__.items()}
        if obj.__closure__:
            base = AttrSource(source, "__closure__")
            made.closure = tuple(
                wrap_cell(tx, cell, TupleItemSource(base, i)) for i, cell in enumerate(obj.__closure__)
            )
        return made

    def python_type(self) -> type:
        return types.FunctionType

    def constant(self) -> Any:
        if self.obj is None:
            return super().constant()
        return self.obj

    def identity(self) -> Any:
        return self if self.obj is None else self.obj

    def hash_key(self, tx: TraceContext) -> Any:
        self.rely_on_identity(tx)
        return self.identity()

    def rely_on_identity(self, tx: TraceContext) -> None:
        """Guard which function it is, where only its code, closure and defaults have been guarded."""
        if self.obj is not None and self.source is not None and not isinstance(self.source, ConstSource):
            tx.guards.add(self.source, "is", self.obj)

    def describe(self) -> str:
        module = self.globals.get("__name__", "")
        return f"{module}.{self.qualname}" if module else self.qualname

    def truth(self, tx: TraceContext) -> bool:
        return True

    @tail_call
    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.inline(self, args, kwargs)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        stored = tx.mutations.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        special = {"__name__": self.name, "__qualname__": self.qualname, "__code__": self.code}.get(name)
        if special is not None:
            if self.source is not None and name != "__code__":
                tx.guards.add(AttrSource(self.source, name), "equals", special)
            return Constant(special)
        if name == "__get__":
            return Method(self, "__get__", types.FunctionType.__get__)
        if name == "__closure__" and self.closure:
            return TupleValue(list(self.closure))
        if self.obj is None:
            if name in _MADE_ATTRIBUTES:
                return self.made_attr(tx, name)
            return super().get_attr(tx, name)
        value = getattr(self.obj, name, MISSING)
        if value is MISSING:
            if self.source is not None and not is_trusted_function(self.obj):
                tx.guards.add(self.source, "lacks_attr", name)
            return tx.raise_exception(AttributeError, f"'function' object has no attribute {name!r}")
        if isinstance(value, types.MethodWrapperType):
            return Method(self, name, value)
        return tx.wrap(value, AttrSource(self.source, name))  # type: ignore[arg-type]

    def made_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "__defaults__":
            return TupleValue(self.defaults) if self.defaults else NONE
        if name == "__module__":
            return Constant(self.globals.get("__name__"))
        if name == "__doc__":
            first = self.code.co_consts[0] if self.code.co_consts else None
            return Constant(first if isinstance(first, str) else None)
        if name == "__dict__":
            return InstanceDict.of(tx, self)
        if name == "__annotations__":
            self.set_attr(tx, name, dict_of(self.annotations))  # one dict, which the program may write to
            return self.get_attr(tx, name)
        if name == "__kwdefaults__":
            if self.kwdefaults:
                raise Unsupported("attribute", f"{self.describe()}.{name}")
            return NONE
        return tx.raise_exception(AttributeError, f"'function' object has no attribute {name!r}")

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        if self.obj is None and name in ("__name__", "__qualname__") and value.is_constant():
            setattr(self, name.strip("_"), value.constant())
        elif name not in _CALLED_WITH:
            tx.mutations.store_attr(self, name, value)
        elif self.obj is not None or not self._replace_part(tx, name, value):
            raise Unsupported("attribute-store", f"{self.describe()}.{name}")

    def _replace_part(self, tx: TraceContext, name: str, value: Value) -> bool:
        """Change what a call of a function made in the trace uses; False where Python would refuse it, or the value is not known."""
        tx.mutations.begin_write()
        if name == "__defaults__" and (is_none(value) or isinstance(value, TupleValue)):
            self.defaults = [] if is_none(value) else value.unpack(tx)
            return True
        if name != "__code__" or not value.is_constant() or not isinstance(value.constant(), types.CodeType):
            return False
        if len(value.constant().co_freevars) != len(self.closure):
            return False
        self.code = value.constant()
        return True

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name == "__get__":
            if args[0].is_constant() and args[0].constant() is None:
                return self
            return BoundMethod(self, args[0])
        if name == "__call__":
            return self.call(tx, args, kwargs)
        return super().builtin_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
            return
        if self.obj is not None:
            cg.const(self.obj)
            return
        cg.cb.push_null()
        cg.const(_make_function)
        cg.const(self.code)
        if self.in_root:
            GlobalsSource().emit(
                cg.cb
            )  # several functions may share the code that is compiled, each with its own globals
        else:
            cg.const(self.globals)
        cg.const((self.name, self.qualname))
        # A cell may hold the function itself, so that cells are filled when the function is there.
        unfilled = [cell for cell in self.closure if cg.unfilled_cell(cell)]
        cg.cb.build_tuple(len(self.closure))
        cg.cb.call(4)
        cg.register(self)
        for cell in unfilled:
            cell.fill(cg)
        self.reconstruct_parts(cg)

    def reconstruct_parts(self, cg: Any) -> None:
        attrs = {name: value for name, value in cg.attrs_of(self).items() if isinstance(value, Value)}
        if not (self.defaults or self.kwdefaults or attrs):
            return
        cg.cb.push_null()
        cg.const(_set_function_parts)
        cg.value(self)
        for item in self.defaults:
            cg.value(item)
        cg.cb.build_tuple(len(self.defaults))
        for mapping in (self.kwdefaults, attrs):
            for name, item in mapping.items():
                cg.const(name)
                cg.value(item)
            cg.cb.build_map(len(mapping))
        cg.cb.call(4)
        cg.cb.pop_top()


# Attributes that a call uses.
_CALLED_WITH = frozenset("__code__ __defaults__ __kwdefaults__".split())
_MADE_ATTRIBUTES = frozenset(
    "__doc__ __defaults__ __kwdefaults__ __wrapped__ __dict__ __module__ __annotations__ __type_params__".split()
)


def _make_function(
    code: types.CodeType, globals_: dict[str, Any], names: tuple[str, str], cells: tuple[Any, ...]
) -> Any:
    made = types.FunctionType(code, globals_, names[0], None, cells or None)
    made.__qualname__ = names[1]
    return made


def _set_function_parts(
    function: Any, defaults: tuple[Any, ...], kwdefaults: dict[str, Any], attrs: dict[str, Any]
) -> None:
    function.__defaults__ = defaults or None
    function.__kwdefaults__ = kwdefaults or None
    for name, value in attrs.items():
        setattr(function, name, value)


class BoundMethod(Value):
    """A Python callable bound to its first argument."""

    __slots__ = ("function", "instance")

    def __init__(self, function: Value, instance: Value, source: Source | None = None):
        self.source = source
        self.function = function
        self.instance = instance

    def python_type(self) -> type:
        return types.MethodType

    def describe(self) -> str:
        return f"{self.function.describe()} of {self.instance.describe()}"

    def hash_key(self, tx: TraceContext) -> Any:
        return ("method", self.function.hash_key(tx), self.instance.identity())

    def truth(self, tx: TraceContext) -> bool:
        return True

    @tail_call
    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.function.call(tx, [self.instance, *args], kwargs)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name == "__self__":
            return self.instance
        if name == "__func__":
            return self.function
        return self.function.get_attr(tx, name)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            super().reconstruct(cg)
            return
        cg.cb.push_null()
        cg.const(types.MethodType)
        cg.value(self.function)
        cg.value(self.instance)
        cg.cb.call(2)


class PartialValue(Value):
    """The built-in part of an instance of functools.partial: `functools.partial(function, *args, **keywords)`."""

    __slots__ = ("args", "function", "keywords")

    def __init__(self, function: Value, args: list[Value], keywords: dict[str, Value]):
        self.source = None
        self.function = function
        self.args = args
        self.keywords = keywords

    def python_type(self) -> type:
        return functools.partial

    @tail_call
    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        bound = [item.force(tx) if isinstance(item, LazyValue) else item for item in self.args]
        keywords = {k: item.force(tx) if isinstance(item, LazyValue) else item for k, item in self.keywords.items()}
        return self.function.call(tx, [*bound, *args], {**keywords, **kwargs})

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return self.call(tx, args, kwargs) if name == "__call__" else super().builtin_method(tx, name, args, kwargs)

    def member(self, name: str) -> Value | None:
        """What a member descriptor of functools.partial gives; None if it has none of that name."""
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(self.args)
        return dict_of(self.keywords) if name == "keywords" else None

    def emit_new(self, cg: Any, cls: type) -> None:
        """Push a new instance of the class."""
        cg.cb.push_null()
        cg.const(_make_partial)
        cg.const(cls)
        cg.value(self.function)
        for item in self.args:
            cg.value(item)
        cg.cb.build_tuple(len(self.args))
        for name, item in self.keywords.items():
            cg.const(name)
            cg.value(item)
        cg.cb.build_map(len(self.keywords))
        cg.cb.call(4)


def _make_partial(cls: type, function: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    return functools.partial.__new__(cls, function, *args, **keywords)


class ClassValue(ConcreteValue):
    """A class. Calling it makes an instance: see `values.construct`."""

    __slots__ = ()

    def truth(self, tx: TraceContext) -> bool:
        return True if type(self.obj) is type else super().truth(tx)

    def hash_key(self, tx: TraceContext) -> Any:
        if type(self.obj) is not type and has_python_method(tx, self, ("__hash__", "__eq__")):
            raise Unsupported("hash", self.describe())  # guards about two classes that are equal would be one
        return self.obj

    def call(self, tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.construct(self, args, kwargs)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        stored = tx.mutations.load_attr(self, name)
        if isinstance(stored, Value):
            return stored
        meta: type = type(self.obj)
        getter = lookup(tx, meta, "__getattribute__")
        try:
            if isinstance(getter, types.FunctionType):
                return tx.inline(tx.wrap_known(getter), [self, Constant(name)], {})
            return self.type_getattribute(tx, name)
        except Raised as raised:
            fallback = lookup(tx, meta, "__getattr__")
            is_missing = is_subtype(raised.value.python_type(), AttributeError)
            if not is_missing or not isinstance(fallback, types.FunctionType):
                raise
            return tx.inline(tx.wrap_known(fallback), [self, Constant(name)], {})

    def type_getattribute(self, tx: TraceContext, name: str) -> Value:
        """`type.__getattribute__(cls, name)`"""
        cls, meta = self.obj, type(self.obj)
        if name == "__class__":
            return tx.wrap_known(meta)
        members = find_in_mro((cls,), "_member_map_")[0] if is_subtype(meta, enum.EnumMeta) else ()
        if type(members) is dict and name in members:
            tx.guards.add(DictItemSource(ConstSource(members), name), "is", members[name])
            return tx.from_constant(members[name])
        meta_raw, meta_owner = lookup_with_owner(tx, meta, name)
        if meta_owner is not None and goes_before_instance(tx, meta_raw):
            return self.meta_attr(tx, meta_raw, meta_owner, name)
        raw, owner = lookup_with_owner(tx, cls, name)
        if owner is not None:
            return self.own_attr(tx, raw, owner, name)
        if meta_owner is not None:
            return self.meta_attr(tx, meta_raw, meta_owner, name)
        return tx.raise_exception(AttributeError, f"type object {name_of(cls)!r} has no attribute {name!r}")

    def own_attr(self, tx: TraceContext, raw: Any, owner: type, name: str) -> Value:
        """An attribute in the MRO of the class: what `raw.__get__(None, cls)` gives."""
        if isinstance(raw, classmethod):
            return BoundMethod(tx.wrap_known(raw.__func__), self)
        if isinstance(raw, staticmethod):
            return tx.wrap_known(raw.__func__)
        if isinstance(raw, types.ClassMethodDescriptorType):
            return Method(self, name, raw)
        if isinstance(raw, types.FunctionType):
            return tx.wrap_known(raw)
        getter = lookup(tx, type(raw), "__get__")
        if isinstance(getter, types.FunctionType):
            return tx.inline(tx.wrap_known(getter), [tx.wrap_known(raw), NONE, self], {})
        if is_descriptor(raw):
            value = getattr(self.obj, name)
            return tx.wrap(value, ConstSource(value, is_made=True))
        return tx.class_attribute(raw, owner, name)

    def meta_attr(self, tx: TraceContext, raw: Any, owner: type, name: str) -> Value:
        if isinstance(raw, types.FunctionType):
            return BoundMethod(tx.wrap_known(raw), self)
        if isinstance(raw, property):
            return tx.wrap_known(raw.fget).call(tx, [self], {})
        if isinstance(raw, (types.MethodDescriptorType, types.WrapperDescriptorType)):
            return Method(self, name, raw)
        if isinstance(raw, (types.GetSetDescriptorType, types.MemberDescriptorType)):
            if name == "__dict__" and tx.class_writes:
                raise Unsupported("class-store", f"the dict of {self.describe()} after a class was changed")
            try:
                found = getattr(self.obj, name)
            except AttributeError as error:  # __abstractmethods__ of a class that is not abstract
                tx.guards.add(ConstSource(self.obj), "lacks_attr", name)
                tx.raise_real(error)
            return tx.wrap(found, AttrSource(ConstSource(self.obj), name))
        if lookup(tx, type(raw), "__get__") is MISSING:
            return tx.class_attribute(raw, owner, name)
        raise Unsupported("descriptor", f"{type(raw).__name__} {name} of a metaclass")

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        tx.store_class_attribute(self, name, value)

    def del_attr(self, tx: TraceContext, name: str) -> None:
        tx.delete_class_attribute(self, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return tx.class_method(self, name, args, kwargs)

    def get_item(self, tx: TraceContext, key: Value) -> Value:
        meta: type = type(self.obj)
        raw = lookup(tx, meta, "__getitem__")
        if (
            raw is enum.EnumMeta.__getitem__
        ):  # of the class it asks nothing but its members, whatever else its metaclass defines
            return tx.fold(functools.partial(_subscript_class, self.obj), [key], {})
        if raw is not MISSING:
            return tx.bind(self, raw, "__getitem__").call(tx, [key], {})
        own = lookup(tx, self.obj, "__class_getitem__")  # that there is none counts, too
        function = getattr(own, "__func__", own)
        if isinstance(function, types.FunctionType) and function.__globals__ is not vars(typing):
            return self.get_attr(tx, "__class_getitem__").call(tx, [key], {})
        return tx.fold(_subscript_class, [self, key], {})

    def iterate(self, tx: TraceContext) -> Value:
        if isinstance(self.obj, enum.EnumMeta):
            try:
                members = list(self.obj)
            except TypeError:  # a class made in the trace that is no enum in full
                raise Unsupported("class-definition", f"the members of {self.describe()}") from None
            return tx.list_iterator([tx.from_constant(member) for member in members])
        return super().iterate(tx)

    def length(self, tx: TraceContext) -> int:
        if lookup(tx, type(self.obj), "__len__") is enum.EnumMeta.__len__:
            return len(self.obj)
        return super().length(tx)

    def as_index(self, tx: TraceContext) -> int:
        if lookup(tx, type(self.obj), "__index__") is not MISSING:
            return call_special(tx, self, "__index__", []).as_index(tx)
        return Value.as_index(self, tx)

    def contains(self, tx: TraceContext, item: Value) -> bool:
        if lookup(tx, type(self.obj), "__contains__") is enum.EnumMeta.__contains__:
            return bool(tx.fold(_in_class, [self, item], {}).constant())
        return super().contains(tx, item)


def _subscript_class(cls: Any, key: Any) -> Any:
    return cls[key]


def _in_class(cls: Any, item: Any) -> bool:
    return item in cls


class ModuleObject(ConcreteValue):
    """A Python module. Its attributes are read from the real module and guarded."""

    __slots__ = ()

    def truth(self, tx: TraceContext) -> bool:
        return True

    def describe(self) -> str:
        return self.obj.__name__

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        return tx.module_attr(self, name)

    def set_attr(self, tx: TraceContext, name: str, value: Value) -> None:
        tx.store_global(vars(self.obj), name, value)
