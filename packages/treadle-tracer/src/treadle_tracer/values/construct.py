"""Calling classes: built-in types by table, everything else by `__new__` and `__init__` as Python does it."""

from __future__ import annotations

import abc
import collections
import contextlib
import datetime
import enum
import functools
import random
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributions.utils as lazy_properties

from treadle_tracer.by_identity import IdentityDict, is_one_of
from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.class_facts import (
    flags_of,
    is_subtype,
    module_of,
    mro_of,
    namespace_of,
    partial_dict,
    stands_in_its_module,
)
from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ApplySource, AttrSource, ConstSource
from treadle_tracer.tables import disjoint
from treadle_tracer.values import numpy_numbers, tensor_numbers
from treadle_tracer.values.arity import why_not_callable_with
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import FALSE, NONE, Constant, boolean
from treadle_tracer.values.class_lookup import find_in_mro, has_special, is_named_tuple, lookup
from treadle_tracer.values.constant_objects import (
    IMMUTABLE_BASES,
    MadeConstantObject,
    new_immutable,
)
from treadle_tracer.values.constants import is_numpy_type
from treadle_tracer.values.containers import init_container
from treadle_tracer.values.exception_groups import new_group
from treadle_tracer.values.exceptions import initialise_exception, new_exception
from treadle_tracer.values.finalizers import MadeWithFinalizer
from treadle_tracer.values.functions import BoundMethod, ClassValue, PartialValue
from treadle_tracer.values.generic_alias import GenericAlias
from treadle_tracer.values.iterators import CLASS_ITERATORS
from treadle_tracer.values.locks import LOCK_CLASSES
from treadle_tracer.values.made_classes import MadeClass, metaclass_of, new_class
from treadle_tracer.values.made_natives import MAKERS, NativeObject, new_native
from treadle_tracer.values.mapping_proxy import MappingProxyValue
from treadle_tracer.values.mappings import DictValue
from treadle_tracer.values.native_values import NATIVE_CLASSES, made_native
from treadle_tracer.values.number_construction import number_constructor
from treadle_tracer.values.numpy_random import is_old_generator, new_numpy_generator
from treadle_tracer.values.objects import ObjectValue, SuperValue
from treadle_tracer.values.random_numbers import new_generator
from treadle_tracer.values.rules.table import rule_of
from treadle_tracer.values.sequences import ListValue, TupleValue, make_slice
from treadle_tracer.values.sets import SetValue, copy_set, is_plain_dict
from treadle_tracer.values.shadows import MadeDescriptor, descriptor_parts, register
from treadle_tracer.values.subclasses import subclasses_of
from treadle_tracer.values.symbolic_ranges import new_range
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.tensor_construction import (
    new_buffer,
    new_legacy_tensor,
    new_parameter,
    new_tensor,
    new_variable,
)
from treadle_tracer.values.tensor_subclasses import SubclassedTensor, new_subclassed
from treadle_tracer.values.text import to_str
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Value
from treadle_tracer.values.weak_references import new_reference

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Constructor = Callable[["TraceContext", "list[Value]", "dict[str, Value]"], Value]


def construct(tx: TraceContext, cls_value: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`cls(*args, **kwargs)`."""
    cls = cls_value.obj
    wrong = why_not_callable_with(cls, len(args), list(kwargs))
    if wrong is not None:
        return tx.raise_exception(TypeError, wrong)
    special = CONSTRUCTORS.get(cls)
    if special is not None:
        return special(tx, args, kwargs)
    rule = rule_of(cls)
    if rule is not None:
        return rule.apply(tx, args, kwargs)
    if is_old_generator(cls):
        return new_numpy_generator(cls, cls)(tx, args, kwargs)
    if is_subtype(type(cls), enum.EnumMeta):
        return tx.fold(cls, args, kwargs)
    if is_numpy_type(cls) and "generic" in (base.__name__ for base in cls.__mro__):
        return _new_numpy_scalar(tx, cls, args, kwargs)
    if module_of(cls) == "numpy" and stands_in_its_module(cls) and cls.__name__ in ("dtype", "finfo", "iinfo"):
        return tx.fold(cls, args, kwargs)
    if issubclass(cls, tuple) and cls is not tuple:
        return _construct_tuple(tx, cls_value, args, kwargs)
    if type(cls) is _TENSOR_TYPE and not kwargs:
        return new_legacy_tensor(tx, cls, args)
    meta_call = lookup(tx, type(cls), "__call__")
    if isinstance(meta_call, types.FunctionType) and not is_one_of(type(cls), _PLAIN_METACLASSES):
        return tx.inline(tx.wrap_known(meta_call), [cls_value, *args], kwargs)
    if isinstance(meta_call, type):  # a class is not bound: `dict` makes the instances of a TypedDict
        return tx.wrap_known(meta_call).call(tx, args, kwargs)
    return instantiate(tx, cls_value, args, kwargs)


_IS_ABSTRACT = 1 << 20  # Py_TPFLAGS_IS_ABSTRACT
_PLAIN_METACLASSES = (type, abc.ABCMeta)
_TENSOR_TYPE = type(torch.DoubleTensor)  # whose instances look like classes: torch.FloatTensor and its like


def instantiate(tx: TraceContext, cls_value: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`type.__call__`: `__new__`, then `__init__` if that gave an instance."""
    cls = cls_value.obj
    new = lookup(tx, cls, "__new__")
    if isinstance(new, (staticmethod, types.FunctionType)):  # assigned later, it is a plain function
        function = new.__func__ if isinstance(new, staticmethod) else new
        made = tx.wrap_known(function).call(tx, [cls_value, *args], kwargs)
        if isinstance(made, MadeClass) and isinstance(made.obj, cls):
            return _initialised_class(tx, made, args, kwargs)
        is_new = isinstance(made, (ObjectValue, MadeConstantObject, SubclassedTensor))
        if not is_new or not is_subtype(made.python_type(), cls):
            return made
    elif issubclass(cls, type):
        return _initialised_class(tx, new_class(tx, cls_value, args, kwargs), args, kwargs)
    else:
        made = allocate(tx, cls, args, kwargs)
    init = lookup(tx, cls, "__init__")
    if isinstance(init, types.FunctionType):
        tx.inline(tx.wrap_known(init), [made, *args], kwargs)
    elif isinstance(made, SubclassedTensor):
        pass  # `object.__init__` takes any arguments beside a `__new__`
    elif isinstance(made, MadeConstantObject):
        if kwargs:
            raise Unsupported("new-builtin-subclass", f"{cls.__qualname__} with named arguments")
    elif made.container is not None:
        init_container(tx, made.container, args, kwargs)
    elif issubclass(cls, BaseException):
        initialise_exception(tx, made, args, kwargs)
    elif (args or kwargs) and init is object.__init__:
        if not isinstance(new, (staticmethod, types.FunctionType)):
            tx.raise_exception(TypeError, f"{cls.__name__}() takes no arguments")
    return made


def _initialised_class(tx: TraceContext, made: Value, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The class after `__init__` of its metaclass."""
    init = lookup(tx, made.python_type(), "__init__")
    if isinstance(init, types.FunctionType):
        tx.inline(tx.wrap_known(init), [made, *args], kwargs)
    return made


def allocate(
    tx: TraceContext, cls: type, args: list[Value], kwargs: dict[str, Value] | None = None
) -> ObjectValue | MadeConstantObject | SubclassedTensor:
    """A new instance, as `__new__` of the built-in base makes it."""
    if issubclass(cls, torch.jit.ScriptModule):
        raise Unsupported("new-module", cls.__qualname__)
    if isinstance(lookup(tx, cls, "__del__"), types.FunctionType):
        raise MadeWithFinalizer(tx, cls)
    if issubclass(cls, BaseException):
        return new_group(tx, cls, args) if is_subtype(cls, BaseExceptionGroup) else new_exception(tx, cls, args)
    if issubclass(cls, functools.partial):
        return _new_partial(tx, cls, args, kwargs or {})
    if issubclass(cls, torch.Tensor):
        return new_subclassed(tx, cls, args, kwargs or {})
    if cls is weakref.KeyedRef:
        return new_reference(tx, args, kwargs or {}, cls)  # type: ignore[return-value]
    if issubclass(cls, tuple):
        items = TupleValue(args[0].unpack(tx) if args else ())
        made = ObjectValue(cls, container=items)
        made.new_args = [items]
        return made
    for base, make in _CONTAINERS.items():
        if issubclass(cls, base):
            made = ObjectValue(cls, container=make())
            made.container.owner = made  # type: ignore[union-attr]
            return made
    base = _solid_base(cls)
    if base is object and flags_of(cls) & _IS_ABSTRACT:
        tx.guards.add(AttrSource(ConstSource(cls), "__abstractmethods__"), "is", cls.__abstractmethods__)
        try:
            object.__new__(cls)
        except TypeError as error:
            tx.raise_real(error)
    if is_one_of(base, IMMUTABLE_BASES):
        return new_immutable(tx, cls, base, args)
    if base is not object:
        raise Unsupported("new-builtin-subclass", f"{cls.__qualname__} is a subclass of {base.__qualname__}")
    if issubclass(cls, torch.nn.Module):
        tx.symbols.dynamic.made.add(id(cls))
    return ObjectValue(cls)


_CONTAINERS: dict[type, Callable[[], Value]] = {
    collections.OrderedDict: lambda: DictValue({}, collections.OrderedDict),
    collections.defaultdict: lambda: DictValue({}, collections.defaultdict),
    dict: lambda: DictValue(),
    list: lambda: ListValue([]),
    set: lambda: SetValue(),
}


def _solid_base(cls: type) -> type:
    """The base implemented in C whose layout the instances have."""
    for base in mro_of(cls):
        if not flags_of(base) & (1 << 9):  # Py_TPFLAGS_HEAPTYPE: made by a class statement
            return base
        made_by = namespace_of(base).get("__new__")  # of a class made in C at run time, as pybind11's are
        if isinstance(made_by, types.BuiltinFunctionType) and made_by is not object.__new__:
            return base
    return object


def _construct_tuple(tx: TraceContext, cls_value: ClassValue, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A named tuple (its `__new__` is generated), or another subclass of tuple."""
    cls = cls_value.obj
    fields = find_in_mro(mro_of(cls), "_fields")[0]
    if not isinstance(fields, tuple):
        if cls is torch.Size:
            sizes = args[0].unpack(tx) if args else []
            if not all(is_subtype(size.python_type(), int) for size in sizes):
                raise Unsupported("raises", "torch.Size of what are no numbers")
            return TupleValue(sizes, torch.Size)
        if find_in_mro(mro_of(cls), "n_sequence_fields")[1] is not None:
            return TupleValue(args[0].unpack(tx), cls)
        return instantiate(tx, cls_value, args, kwargs)
    new = find_in_mro(mro_of(cls), "__new__")[0]
    new = new.__func__ if isinstance(new, staticmethod) else new
    is_made = isinstance(new, types.FunctionType) and new.__code__.co_names == ("_tuple_new",)
    if is_made:  # by collections.namedtuple
        try:
            new(cls, *[None] * len(args), **dict.fromkeys(kwargs))
        except TypeError as error:  # not these arguments
            tx.raise_real(error)
        defaults = find_in_mro(mro_of(cls), "_field_defaults")[0]
        items = list(args)
        for name in fields[len(args) :]:
            items.append(kwargs[name] if name in kwargs else tx.wrap_known(defaults[name]))
        return TupleValue(items, cls)
    if isinstance(new, types.FunctionType):  # torch's PackedSequence
        return instantiate(tx, cls_value, args, kwargs)
    raise Unsupported("new-builtin-subclass", f"{cls.__qualname__} has a __new__ of its own")


# ---- containers


def _new_dict(cls: type) -> _Constructor:
    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        made = DictValue({}, cls)
        init_container(tx, made, args, kwargs)
        return made

    return make


def _checked_limit(limit: Any) -> int | None:
    """The `maxlen` of a deque; raises what `collections.deque` raises for a wrong one."""
    return collections.deque(maxlen=limit).maxlen


def _new_deque(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = ListValue([], collections.deque)
    limit = kwargs.get("maxlen", args[1] if len(args) > 1 else NONE)
    made.maxlen = tx.fold(_checked_limit, [limit], {}).constant()
    items = kwargs.get("iterable", args[0] if args else None)
    if items is not None:
        made.builtin_method(tx, "extend", [items], {})
    return made


def _new_tuple(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        return TupleValue(())
    if isinstance(args[0], TupleValue) and args[0].cls is tuple:
        return args[0]
    return TupleValue(args[0].unpack(tx))


def _new_numpy_scalar(tx: TraceContext, cls: type, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs and isinstance(args[0], ArrayValue) and args[0].ndim == 0:
        return tx.array_method(ArrayValue(args[0].tensor, is_scalar=True), "astype", [tx.wrap_known(cls)], {})
    (number,) = numpy_numbers.plain_numbers(args) if len(args) == 1 and not kwargs else (NONE,)
    if isinstance(number, SymbolicValue) and not is_unbacked(tx, number):
        if number.python_type() is int and cls.__name__ == "float64":
            number = tx.wrap_known(float).call(tx, [number], {})
        if is_one_of(number.python_type(), (int, float)) and cls.__name__ == f"{number.python_type().__name__}64":
            return numpy_numbers.scalar_of(tx, cls, number)
    return tx.fold(cls, args, kwargs)


def _new_bool(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = tensor_numbers.truth_value(tx, args[0]) if args else FALSE
    return boolean(args[0].truth(tx)) if found is None else found


def _new_str(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs:
        return to_str(tx, args[0])
    return tx.fold(str, args, kwargs)


def _new_bytes(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs and isinstance(args[0], NativeObject) and args[0].compares:
        return Constant(bytes(args[0].real(tx)))
    return tx.fold(bytes, args, kwargs)


def _new_slice(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return make_slice(args)


def _new_range(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    found = None if kwargs else new_range(tx, args)
    return tx.fold(range, [Constant(arg.as_index(tx)) for arg in args], kwargs) if found is None else found


def _new_super(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2:
        return SuperValue.make(tx, *args)
    if args:
        raise Unsupported("call", "super() with one argument")
    return tx.frames[-1].implicit_super()


def _new_type(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs:
        return tx.wrap_known(args[0].python_type())
    meta = metaclass_of(tx, tx.wrap_known(type), args[1].unpack(tx)) if len(args) == 3 else tx.wrap_known(type)
    if meta.constant() is not type:
        return tx.construct(meta, args, kwargs)
    return new_class(tx, meta, args, kwargs)  # type: ignore[arg-type]


def _new_descriptor(cls: type) -> _Constructor:
    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        parts = descriptor_parts(cls, args, kwargs)
        if parts is None:
            raise Unsupported("new-builtin-subclass", f"{cls.__name__} of these arguments")
        return MadeDescriptor(cls, parts)

    return make


def _new_partial(tx: TraceContext, cls: type, args: list[Value], kwargs: dict[str, Value]) -> ObjectValue:
    """`functools.partial.__new__`"""
    if not args:
        tx.raise_exception(TypeError, "type 'partial' takes at least one argument")
    function, *bound = args
    if not has_special(tx, function.python_type(), "__call__"):
        tx.raise_exception(TypeError, "the first argument must be callable")
    part = _part_to_take_over(tx, function)
    if part is not None:
        bound, kwargs, function = [*part.args, *bound], {**part.keywords, **kwargs}, part.function
    return ObjectValue(cls, container=PartialValue(function, bound, dict(kwargs)))


def _part_to_take_over(tx: TraceContext, function: Value) -> PartialValue | None:
    """What a new partial of a partial takes over in its place: of one without attributes, before CPython 3.13 also called as partials are.

    As in CPython, Modules/_functoolsmodule.c, partial_new.
    """
    part = getattr(function, "container", None)
    if not isinstance(function, ObjectValue) or not isinstance(part, PartialValue):
        return None
    if MINOR < 13 and lookup(tx, function.cls, "__call__") is not functools.partial.__call__:
        return None
    has_attributes = any(owner is function for owner, _, _ in tx.mutations.attr_stores())
    if not has_attributes and function.obj is not None:
        has_attributes = partial_dict(function.obj) is not None
        assert function.source is not None
        tx.guards.add(ApplySource(function.source, partial_dict), "is_not" if has_attributes else "is", None)
    return None if has_attributes else part


def _new_module_type(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    function, instance = args
    return BoundMethod(function, instance)


def _new_function(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    raise Unsupported("call", "types.FunctionType")


def _new_type_variable(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A type variable is another one at every call: it cannot leave the trace."""
    made = GenericAlias(tx.fold(typing.TypeVar, args, kwargs).constant())
    register(tx, made.obj, None)
    tx.wrapped[id(made.obj)] = (made.obj, made)
    return made


def _folded(cls: Any) -> _Constructor:
    return lambda tx, args, kwargs: tx.fold(cls, args, kwargs)


def _new_set(cls: type) -> _Constructor:
    def make(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args and isinstance(args[0], SetValue):
            return args[0] if cls is args[0].cls is frozenset else copy_set(args[0], cls)
        made = SetValue.of(tx, args[0].unpack(tx) if args else [], cls)
        if args and is_plain_dict(args[0]) and made.real is not None:
            made.real = cls(dict.fromkeys(item.constant() for item in made.entries.values()))
        return made

    return make


def _new_list(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ListValue(args[0].unpack(tx) if args else [])


def _new_object(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ObjectValue(object)


def _new_mapping_proxy(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 1 or kwargs or args[0].as_dict(tx) is None:
        raise Unsupported("call", f"mappingproxy of {', '.join(arg.describe() for arg in args)}")
    return MappingProxyValue(args[0])


def _new_namespace(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    made = ObjectValue(types.SimpleNamespace)
    for name, value in kwargs.items():
        tx.mutations.store_attr(made, name, value)
    return made


def _new_null_context(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """A range of the profiler, which has no effect in a graph."""
    return tx.wrap_known(contextlib.nullcontext).call(tx, [], {})


_BUILT_IN: dict[Any, _Constructor] = {
    types.SimpleNamespace: _new_namespace,
    torch.autograd.profiler.record_function: _new_null_context,
    types.MappingProxyType: _new_mapping_proxy,
    torch.autograd.Variable: new_variable,
    dict: _new_dict(dict),
    collections.OrderedDict: _new_dict(collections.OrderedDict),
    collections.defaultdict: _new_dict(collections.defaultdict),
    collections.deque: _new_deque,
    list: _new_list,
    tuple: _new_tuple,
    set: _new_set(set),
    frozenset: _new_set(frozenset),
    int: number_constructor(int),
    float: number_constructor(float),
    complex: number_constructor(complex),
    bool: _new_bool,
    str: _new_str,
    bytes: _new_bytes,
    range: _new_range,
    slice: _new_slice,
    type: _new_type,
    super: _new_super,
    property: _new_descriptor(property),
    classmethod: _new_descriptor(classmethod),
    staticmethod: _new_descriptor(staticmethod),
    functools.cached_property: _new_descriptor(functools.cached_property),
    # What `getattr(type(distribution), "probs")` gives: distributions ask which of their parameters are lazy.
    lazy_properties._lazy_property_and_property: _new_descriptor(lazy_properties._lazy_property_and_property),
    object: _new_object,
    functools.partial: lambda tx, args, kwargs: _new_partial(tx, functools.partial, args, kwargs),
    types.MethodType: _new_module_type,
    types.FunctionType: _new_function,
    torch.device: _folded(torch.device),
    torch.finfo: _folded(torch.finfo),
    torch.iinfo: _folded(torch.iinfo),
    torch.nn.Parameter: new_parameter,
    torch.nn.Buffer: new_buffer,
    torch.Tensor: new_tensor,
    typing.TypeVar: _new_type_variable,
}
CONSTRUCTORS = IdentityDict(
    disjoint(
        _BUILT_IN,
        CLASS_ITERATORS,
        LOCK_CLASSES,
        {weakref.ref: new_reference, random.Random: new_generator},
        {maker: new_native(maker) for maker in MAKERS if isinstance(maker, type)},
        {cls: made_native(cls) for cls in NATIVE_CLASSES},
    )
)
"""Classes whose instances have a kind of their own."""


def method_of_class(
    tx: TraceContext, owner: ClassValue, name: str, args: list[Value], kwargs: dict[str, Value]
) -> Value:
    """A method implemented in C and bound to a class: `dict.fromkeys`, `object.__new__`, `type.mro` ..."""
    cls = owner.obj
    if name == "__call__":  # type.__call__, reached through super() in a metaclass
        return instantiate(tx, owner, args, kwargs)
    if name == "fromkeys" and issubclass(cls, dict):
        given = dict(zip(("iterable", "value"), args, strict=False)) | kwargs
        if len(args) > 2 or given.keys() - {"iterable", "value"} or "iterable" not in given:
            raise Unsupported("call", f"{owner.describe()}.fromkeys with other arguments")
        if kwargs and not issubclass(cls, collections.OrderedDict):
            tx.raise_exception(TypeError, "dict.fromkeys() takes no keyword arguments")
        made = construct(tx, owner, [], {})
        for key in given["iterable"].unpack(tx):
            made.set_item(tx, key, given.get("value", NONE))
        return made
    if name == "__subclasses__" and not args and not kwargs and not issubclass(cls, type):
        return subclasses_of(tx, owner)
    if name == "__init_subclass__":  # object's
        if args or kwargs:
            tx.raise_exception(TypeError, f"{cls.__name__}.__init_subclass__() takes no keyword arguments")
        return NONE
    if name == "__getattribute__" and len(args) == 1 and args[0].is_constant() and not kwargs:
        return owner.type_getattribute(tx, args[0].constant())
    if name == "__instancecheck__":
        return boolean(is_subtype(args[0].python_type(), cls))
    method = getattr(cls, name, None)
    if method is None:
        raise Unsupported("builtin-call", f"{owner.describe()}.{name}")
    rule = rule_of(method)
    if rule is not None:
        return rule.apply(tx, args, kwargs)
    if name in _PURE_CLASS_METHODS.get(cls, "").split() or name == "mro" or (name[:2] == "__" and name[-2:] == "__"):
        return tx.fold(method, args, kwargs)
    raise Unsupported("builtin-call", f"{owner.describe()}.{name}")


_PURE_CLASS_METHODS: IdentityDict[type, str] = IdentityDict(
    {
        int: "from_bytes",
        float: "fromhex",
        bytes: "fromhex",
        datetime.date: "fromordinal fromisoformat fromisocalendar",
    }
)
"""Class methods implemented in C whose results follow from their arguments."""


def call_new(tx: TraceContext, function: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`object.__new__(cls, ...)`, `dict.__new__(cls, ...)` and the like."""
    if not args:
        tx.raise_exception(TypeError, f"{function.__self__.__name__}.__new__(): not enough arguments")
    cls_value, *rest = args
    if not isinstance(cls_value, ClassValue):
        raise Unsupported("call", "__new__ of something that is no class")
    cls = cls_value.obj
    if function is type.__new__ and issubclass(cls, type):
        return new_class(tx, cls_value, rest, kwargs)
    wrong = _why_not_safe(function, cls)
    if wrong is not None:
        tx.raise_real(wrong)
    if function is object.__new__ and (rest or kwargs):
        _refuse_excess_arguments(tx, cls)
    if issubclass(cls, tuple) and (cls is torch.Size or is_named_tuple(cls)):
        return TupleValue(rest[0].unpack(tx) if rest else (), cls)
    if cls is tuple:
        return _new_tuple(tx, rest, kwargs)
    if is_one_of(cls, IMMUTABLE_BASES):
        return construct(tx, cls_value, rest, kwargs)
    return allocate(tx, cls, rest, kwargs)


def _refuse_excess_arguments(tx: TraceContext, cls: type) -> None:
    """Raise what `object.__new__` raises for arguments behind the class: they must be meant for an `__init__`."""
    if lookup(tx, cls, "__new__") is not object.__new__:
        tx.raise_exception(TypeError, "object.__new__() takes exactly one argument (the type to instantiate)")
    if lookup(tx, cls, "__init__") is object.__init__:
        tx.raise_exception(TypeError, f"{cls.__name__}() takes no arguments")


def _why_not_safe(function: Any, cls: type) -> TypeError | None:
    """What Python raises when `function`, the `__new__` of a type, is called for a class whose instances another type makes.

    It is the first type in the line of bases whose `__new__` is no Python function that makes them (Objects/typeobject.c, tp_new_wrapper).
    """
    maker: type | None = cls
    while maker is not None and not isinstance(maker.__new__, types.BuiltinFunctionType):
        maker = maker.__base__
    if maker is None or maker.__new__.__self__ is function.__self__:  # type: ignore[attr-defined]
        return None
    try:
        function(cls)
    except TypeError as error:
        return error
    raise Unsupported("call", f"{function.__self__.__qualname__}.__new__ of {cls.__qualname__}")
