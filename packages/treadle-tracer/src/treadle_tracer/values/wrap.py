"""The Value of an outside object, with the guards that its kind relies on: a table from type to kind."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import inspect
import itertools
import random
import reprlib
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.by_identity import IdentityDict, is_one_of
from treadle_tracer.class_facts import defining_package, has_instance_dict, is_class, is_subtype, own_dict, qualname_of
from treadle_tracer.dynamic import is_drawn
from treadle_tracer.errors import Unsupported, without_frames
from treadle_tracer.source import (
    ApplySource,
    AttrSource,
    ConstSource,
    DictItemSource,
    ItemSource,
    ListItemSource,
    LocalSource,
    SlotSource,
    Source,
    TupleItemSource,
)
from treadle_tracer.values import control_flow
from treadle_tracer.values.arrays import constant_array, wrap_array
from treadle_tracer.values.base import FALSE, NONE, TRUE, ConcreteValue, Constant, LazyValue, Method
from treadle_tracer.values.callables import CallableValue, DisabledFunction
from treadle_tracer.values.class_lookup import find_in_mro, is_named_tuple, lookup
from treadle_tracer.values.constant_objects import ConstantObject
from treadle_tracer.values.constants import (
    CONSTANT_TYPES,
    is_numpy_dtype,
    is_numpy_scalar,
    is_numpy_type,
    may_be_another,
)
from treadle_tracer.values.context_variables import wrap_context_variable
from treadle_tracer.values.dispatch import DISPATCH_CODE, Dispatch
from treadle_tracer.values.dispatched_tensors import is_dispatched, wrap_dispatched
from treadle_tracer.values.exceptions import exception_of
from treadle_tracer.values.functions import (
    BoundMethod,
    ClassValue,
    FunctionValue,
    ModuleObject,
    PartialValue,
    wrap_cell,
)
from treadle_tracer.values.generic_alias import PLAIN_ALIASES, GenericAlias, wrap_alias
from treadle_tracer.values.graph_functions import goes_into_graph, rely_on_body
from treadle_tracer.values.growing import OutsideList, OutsideTuple
from treadle_tracer.values.jagged_tensors import is_jagged, wrap_jagged
from treadle_tracer.values.mapping_proxy import wrap_mapping_proxy
from treadle_tracer.values.mappings import VIEW_TYPES, DictValue, DictView
from treadle_tracer.values.modules import ModuleValue, is_submodule
from treadle_tracer.values.numpy_numbers import NumpyNumber, wrap_numpy_number
from treadle_tracer.values.numpy_random import RandomFunction, is_generator, is_random_function, wrap_numpy_generator
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.opaque import OPAQUE_CODES, OpaqueValue
from treadle_tracer.values.outside_counts import wrap_count
from treadle_tracer.values.outside_iterators import OUTSIDE_ITERATORS, wrap_iterator
from treadle_tracer.values.outside_sets import OutsideSet, is_known_member
from treadle_tracer.values.random_generators import wrap_generator
from treadle_tracer.values.random_numbers import wrap_python_generator
from treadle_tracer.values.rules.table import rule_of
from treadle_tracer.values.sequences import CodeTuple, ListValue, TupleValue, make_slice
from treadle_tracer.values.sets import SetValue
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.tensor_subclasses import is_subclassed, wrap_subclassed
from treadle_tracer.values.value import Value
from treadle_tracer.values.varying_text import wrap_text

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_Wrapper = Callable[["TraceContext", Any, Source], Value]


def wrap(tx: TraceContext, obj: Any, source: Source | None) -> Value:
    """The Value of `obj` found at `source` (None: it needs no guard), guarded as its kind requires."""
    cls = type(obj)
    if source is not None and tx.mutations.made and tx.guards.is_left_out(source):
        source = None  # read of an object that the trace has made
    if cls in CONSTANT_TYPES:
        if cls is int and source is not None and tx.symbols.is_dynamic_integer(source, obj):
            return tx.symbols.integer(tx, obj, source)
        if cls is int and source is not None and source in tx.symbols.dynamic and is_drawn(obj):
            return _drawn_number(tx, obj, source)
        if cls is float and source is not None and tx.symbols.varies_at(source):
            return tx.symbols.float_number(tx, obj, source)
        if cls is str and source is not None and tx.symbols.varies_at(source):
            return wrap_text(tx, obj, source)
        return wrap_constant(tx, obj, source)
    cached = tx.wrapped.get(id(obj))
    if cached is not None:
        return _seen_again(tx, obj, cached[1], source)
    wrapper = WRAPPERS.get(cls) or _wrapper_by_base(obj, cls)
    source = ConstSource(obj) if source is None else source
    try:
        value = wrapper(tx, obj, source)
    except Unsupported as reason:
        if reason.code not in OPAQUE_CODES:
            raise
        tx.guards.add(source, "type_is", cls)
        value = OpaqueValue(obj, source, without_frames(reason))
    if not isinstance(value, Constant):
        tx.wrapped[id(obj)] = (obj, value)
    return value


def _drawn_number(tx: TraceContext, obj: int, source: Source) -> Value:
    """An int that is another one in each call, and too large to be a symbol: Python computes with it."""
    tx.guards.add(source, "type_is", int)
    return OpaqueValue(obj, source, Unsupported("varying-number", source.text))


def wrap_constant(tx: TraceContext, obj: Any, source: Source | None) -> Value:
    if source is not None and not isinstance(source, ConstSource):
        if obj is None or obj is True or obj is False:
            tx.guards.add(source, "is", obj)
        else:
            tx.guards.add(source, "equals", obj)
    if obj is None:
        return NONE
    if cls_is_bool(obj):
        return TRUE if obj else FALSE
    return Constant(obj, source if may_be_another(obj) and not isinstance(source, ConstSource) else None)


def cls_is_bool(obj: Any) -> bool:
    return type(obj) is bool


def _seen_again(tx: TraceContext, obj: Any, value: Value, source: Source | None) -> Value:
    """Guard that two sources lead to one object: the object was reached through another source before."""
    if source == value.source:
        return value
    if isinstance(value, (FunctionValue, GenericAlias)):
        value.rely_on_identity(tx)
    if source is None or isinstance(source, ConstSource):
        if isinstance(value, ObjectValue) and value.source is not None:
            tx.guards.add(value.source, "is", obj)
        return value
    if isinstance(value, NumpyNumber):
        return wrap_numpy_number(tx, obj, source)  # numbers may be one object without meaning anything
    if isinstance(value, (ConcreteValue, FunctionValue)) or (
        isinstance(value, ModuleValue) and value.is_known_object(tx)
    ):
        _guard_identity(tx, obj, source)
    elif value.source is not None and not isinstance(value.source, ConstSource):
        tx.guards.add(source, "same_object", value.source)
    else:
        tx.guards.add(source, "is", obj)
    return value


def _guard_identity(tx: TraceContext, obj: Any, source: Source) -> None:
    if not isinstance(source, ConstSource):
        tx.guards.add(source, "is", obj)


# ---- kinds


def _function(tx: TraceContext, obj: types.FunctionType, source: Source) -> Value:
    own = obj.__dict__
    if own.get("_torchdynamo_disable") and _is_of_torch(obj) and "_torchdynamo_orig_callable" in own:
        _guard_identity(tx, obj, source)
        return tx.wrap_known(own["_torchdynamo_orig_callable"])
    if own.get("_treadle_disabled") or own.get("_torchdynamo_disable"):
        _guard_identity(tx, obj, source)
        return DisabledFunction(obj, source)
    if (
        "_torchdynamo_orig_callable" in own
    ):  # compiled by torch.compile: traced into this graph, as torch.compile does itself
        _guard_identity(tx, obj, source)
        return tx.wrap_known(own["_torchdynamo_orig_callable"])
    if "_treadle_original" in own:  # compiled by treadle on its own: traced into this graph
        _guard_identity(tx, obj, source)
        return tx.wrap_known(own["_treadle_original"])
    if obj.__code__ in _GUARDS_OF_REPR:
        _guard_identity(tx, obj, source)
        return tx.wrap_known(inspect.getclosurevars(obj).nonlocals["user_function"])
    if obj.__code__ is DISPATCH_CODE:
        _guard_identity(tx, obj, source)
        return Dispatch(obj, source)
    if obj.__code__ is _DYNAMO_EXCLUDED:
        _guard_identity(tx, obj, source)
        return tx.wrap_known(own["__wrapped__"])
    plain = control_flow.in_place_of(obj)
    if plain is not None:
        _guard_identity(tx, obj, source)
        return tx.wrap_known(plain)
    if rule_of(obj) is not None or goes_into_graph(obj):
        _guard_identity(tx, obj, source)
        if goes_into_graph(obj):
            rely_on_body(tx, obj)
        else:
            tx.guards.add(ConstSource(obj), "function_code", obj)
        return CallableValue(obj, source)
    if isinstance(source.root, LocalSource) and (obj.__closure__ or "<locals>" in obj.__qualname__ or _is_lambda(obj)):
        # Such a function is a new object at every call. Its code stays; its closure and defaults are guarded where they are read.
        tx.guards.add(source, "type_is", types.FunctionType)
        tx.guard_globals(AttrSource(source, "__globals__"), obj.__globals__)
        return FunctionValue.outside(tx, obj, source)
    _guard_identity(tx, obj, source)
    return FunctionValue.outside(tx, obj, ConstSource(obj))


def _is_lambda(function: types.FunctionType) -> bool:
    return function.__qualname__.endswith("<lambda>")


def _is_of_torch(function: types.FunctionType) -> bool:
    """Whether the function is PyTorch's own. What its own compiler leaves out (parts of optimizers, from the first `torch.compile` on)
    says nothing about this one."""
    return defining_package(function) == "torch"


def _known(kind: Callable[[Any, Source], Value]) -> _Wrapper:
    def make(tx: TraceContext, obj: Any, source: Source) -> Value:
        _guard_identity(tx, obj, source)
        return kind(obj, source)

    return make


def _class(tx: TraceContext, obj: type, source: Source) -> Value:
    _guard_identity(tx, obj, source)
    tx.guards.add(ConstSource(obj), "type_is", type(obj))
    return ClassValue(obj, source)


def _enum_member(tx: TraceContext, obj: Any, source: Source) -> Value:
    _guard_identity(tx, obj, source)
    return constant_object(tx, obj)


def constant_object(tx: TraceContext, obj: Any) -> Value:
    """An object that is a constant, of a class made at run time."""
    tx.guards.add(ConstSource(obj), "type_is", type(obj))
    return ConstantObject(obj)


def _tuple(tx: TraceContext, obj: tuple[Any, ...], source: Source) -> Value:
    cls = type(obj)
    tx.guards.add(source, "type_is", cls)
    if cls is tuple:
        return OutsideTuple(tx.guards, obj, source)
    tx.guards.add(source, "len", tuple.__len__(obj))
    items = [LazyValue(x, TupleItemSource(source, i)) for i, x in enumerate(tuple.__iter__(obj))]
    if not is_one_of(cls, (tuple, torch.Size)) and not _is_plain_tuple_class(tx, cls):
        return ObjectValue(cls, obj, source, TupleValue(items))
    return TupleValue(items, cls, source, obj)


def _is_plain_tuple_class(tx: TraceContext, cls: type) -> bool:
    """Whether instances are tuples with names for their items, and nothing else."""
    if not is_named_tuple(cls) or has_instance_dict(cls):  # a subclass has a dict, unless it has `__slots__`
        return False
    return all(lookup(tx, cls, name) is find_in_mro(tuple.__mro__, name)[0] for name in _TUPLE_PROTOCOL)


_TUPLE_PROTOCOL = tuple(
    f"__{name}__"
    for name in "getitem iter len bool contains eq ne lt le gt ge add mul rmul radd hash getattribute getattr".split()
)


def _list(tx: TraceContext, obj: list[Any], source: Source) -> Value:
    tx.guards.add(source, "type_is", list)
    return OutsideList(tx.guards, obj, source)


def _deque(tx: TraceContext, obj: collections.deque[Any], source: Source) -> Value:
    tx.guards.add(source, "type_is", collections.deque)
    tx.guards.add(source, "len", len(obj))
    tx.guards.add(AttrSource(source, "maxlen"), "equals", obj.maxlen)
    made = ListValue([LazyValue(x, ItemSource(source, i)) for i, x in enumerate(obj)], collections.deque, source, obj)
    made.maxlen = obj.maxlen
    return made


def _dict(tx: TraceContext, obj: dict[Any, Any], source: Source) -> Value:
    tx.guards.add(source, "type_is", type(obj))
    made = DictValue.outside(tx, obj, source)
    if isinstance(obj, collections.defaultdict) and obj.default_factory is not None:
        made.default_factory = tx.wrap(obj.default_factory, AttrSource(source, "default_factory"))
    return made


def _dict_view(tx: TraceContext, obj: Any, source: Source) -> Value:
    tx.guards.add(source, "type_is", type(obj))
    mapping = tx.wrap(_dict_of_view(obj), ApplySource(source, _dict_of_view)).as_dict(tx)
    if mapping is None:
        raise Unsupported("unknown-object", f"{source.text} is a view of a dict of a class of its own")
    made = DictView(mapping, _VIEWS[type(obj)])
    made.source = source
    return made


class _Seen:
    """Equal to everything, and keeps what it has been compared with last."""

    def __eq__(self, other: object) -> bool:
        self.other = other
        return True

    __hash__ = object.__hash__


def _dict_of_view(view: Any) -> Any:
    """The dict itself: a mapping proxy compares that, not itself."""
    if type(view) not in _VIEWS:
        raise TypeError("no view of a dict")
    seen = _Seen()
    assert view.mapping == seen
    return seen.other


_VIEWS = {type(getattr(cls(), kind)()): kind for cls in VIEW_TYPES for kind in VIEW_TYPES[cls]}
"""The method that gives a view, by the type of the view."""


def _set(tx: TraceContext, obj: Any, source: Source) -> Value:
    if not all(map(is_known_member, obj)):
        raise Unsupported("unknown-object", f"{source.text} is a set of objects")
    tx.guards.add(source, "type_is", type(obj))
    if not isinstance(source, ConstSource):
        return OutsideSet(tx, obj, source)
    made = SetValue.of(tx, [tx.wrap(item, ConstSource(item)) for item in obj], type(obj))
    made.source, made.obj, made.real = source, obj, obj
    return made


def _nn_module(tx: TraceContext, obj: torch.nn.Module, source: Source) -> Value:
    if isinstance(obj, torch.jit.ScriptModule):
        raise Unsupported("script-module", source.text)
    if id(type(obj)) in tx.symbols.dynamic.made and not is_submodule(source):
        tx.symbols.dynamic.modules.add(source)
    made = ModuleValue(type(obj), obj, source)
    made.rely_on_identity(tx)
    return made


def _tensor(tx: TraceContext, obj: torch.Tensor, source: Source) -> Value:
    if is_subclassed(obj):
        return wrap_subclassed(tx, obj, source)
    if is_dispatched(obj):
        return wrap_dispatched(tx, obj, source)
    if is_jagged(obj):
        return wrap_jagged(tx, obj, source)
    return tx.wrap_tensor(obj, source)


def _object(tx: TraceContext, obj: Any, source: Source) -> Value:
    cls = type(obj)
    tx.guards.add(source, "type_is", cls)
    container: Value | None = None
    if is_subtype(cls, dict):
        container = DictValue.outside(tx, obj, source)
        if is_subtype(cls, collections.OrderedDict):
            container.cls = collections.OrderedDict
        elif is_subtype(cls, collections.defaultdict):
            container.cls = collections.defaultdict
            if obj.default_factory is not None:
                container.default_factory = tx.wrap(obj.default_factory, AttrSource(source, "default_factory"))
        else:
            container.cls = dict
    elif is_subtype(cls, list):
        tx.guards.add(source, "len", list.__len__(obj))
        container = ListValue(
            [LazyValue(x, ListItemSource(source, i)) for i, x in enumerate(list.__iter__(obj))], list, source, obj
        )
    elif any(is_subtype(cls, base) for base in (int, str, float, bytes)):  # immutable except for attributes of its own
        _guard_identity(tx, obj, source)
        return constant_object(tx, obj)
    elif is_subtype(cls, set):
        raise Unsupported("unknown-object", f"{source.text} is a {qualname_of(cls)}")
    made = ObjectValue(cls, obj, source, container)
    if container is not None:
        container.owner = made  # type: ignore[attr-defined]
    return made


def _method(tx: TraceContext, obj: types.MethodType, source: Source) -> Value:
    tx.guards.add(source, "type_is", types.MethodType)
    function = tx.wrap(obj.__func__, AttrSource(source, "__func__"))
    return BoundMethod(function, tx.wrap(obj.__self__, AttrSource(source, "__self__")), source)


def _builtin(tx: TraceContext, obj: Any, source: Source) -> Value:
    owner = getattr(obj, "__self__", None)
    is_function = owner is None or isinstance(owner, (types.ModuleType, type)) or not hasattr(type(owner), obj.__name__)
    if (
        is_function or goes_into_graph(obj) or rule_of(obj) is not None
    ):  # pybind11's functions have a record of theirs as __self__
        _guard_identity(tx, obj, source)
        return CallableValue(obj, source)
    tx.guards.add(source, "type_is", type(obj))
    owner_value = tx.wrap(owner, AttrSource(source, "__self__"))
    if not isinstance(source, ConstSource):
        tx.guards.add(AttrSource(source, "__name__"), "equals", obj.__name__)
    return Method(owner_value, obj.__name__, obj)


def _partial(tx: TraceContext, obj: functools.partial[Any], source: Source) -> Value:
    cls = type(obj)
    tx.guards.add(source, "type_is", cls)
    # A subclass may have members of the same names.
    function, args, keywords = (vars(functools.partial)[name].__get__(obj) for name in ("func", "args", "keywords"))
    at = {name: SlotSource(source, vars(functools.partial)[name]) for name in ("func", "args", "keywords")}
    tx.guards.add(at["args"], "len", len(args))
    tx.guards.add(at["keywords"], "dict_keys", tuple(keywords))
    bound: list[Value] = [LazyValue(item, TupleItemSource(at["args"], i)) for i, item in enumerate(args)]
    named: dict[str, Value] = {k: LazyValue(item, DictItemSource(at["keywords"], k)) for k, item in keywords.items()}
    return ObjectValue(cls, obj, source, PartialValue(tx.wrap(function, at["func"]), bound, named))


def _iterator(tx: TraceContext, obj: Any, source: Source) -> Value:
    found = wrap_iterator(tx, obj, source)
    return _object(tx, obj, source) if found is None else found


def _cell(tx: TraceContext, obj: types.CellType, source: Source) -> Value:
    return wrap_cell(tx, obj, source)


def _symint(tx: TraceContext, obj: Any, source: Source) -> Value:
    return SymbolicValue(None, obj, source, obj)


def _weakref(tx: TraceContext, obj: Any, source: Source) -> Value:
    tx.guards.add(source, "type_is", type(obj))
    return ObjectValue(type(obj), obj, source)


def _without_recursion(wrapper: Any) -> types.CodeType:
    return wrapper(lambda self: "").__code__


_GUARDS_OF_REPR = frozenset(
    _without_recursion(wrapper)
    for wrapper in (reprlib.recursive_repr(), getattr(dataclasses, "_recursive_repr", reprlib.recursive_repr()))
)
"""Code of the wrappers of a `__repr__` that look whether it is running already. What contains itself nests too deeply for a trace."""
_DYNAMO_EXCLUDED = torch._disable_dynamo(len).__code__
"""Code of the wrapper around torch functions that PyTorch's own compiler does not trace."""


def _compiled(tx: TraceContext, obj: Any, source: Source) -> Value:
    _guard_identity(tx, obj, source)
    return tx.wrap_known(obj._treadle_original)


def _wrapper_by_base(obj: Any, cls: type) -> _Wrapper:
    if "_treadle_original" in (own_dict(obj) or ()) and not is_class(obj):
        return _compiled
    if is_class(obj):
        return WRAPPERS[type]
    if goes_into_graph(obj) or rule_of(obj) is not None:
        return _known(CallableValue)
    if is_random_function(obj):
        return _known(RandomFunction)
    if is_generator(obj):
        return wrap_numpy_generator
    if is_numpy_dtype(obj):
        return wrap_constant
    if is_numpy_type(cls):
        if cls.__name__ == "ndarray":
            return wrap_array
        if is_numpy_scalar(obj) and not isinstance(obj, type):
            return wrap_numpy_number
        if callable(obj):
            return _known(CallableValue)
    for base, wrapper in _WRAPPERS_BY_BASE:
        if issubclass(cls, base):
            return wrapper
    return _object


WRAPPERS: IdentityDict[type, Callable[..., Value]] = IdentityDict(
    {
        types.FunctionType: _function,
        types.BuiltinFunctionType: _builtin,
        types.MethodWrapperType: _builtin,
        types.MethodDescriptorType: _known(CallableValue),
        types.WrapperDescriptorType: _known(CallableValue),
        types.ClassMethodDescriptorType: _known(CallableValue),
        types.GetSetDescriptorType: _known(CallableValue),
        types.MemberDescriptorType: _known(CallableValue),
        functools._lru_cache_wrapper: _known(CallableValue),
        types.MethodType: _method,
        types.ModuleType: _known(ModuleObject),
        **dict.fromkeys(PLAIN_ALIASES, wrap_alias),
        types.CellType: _cell,
        contextvars.ContextVar: wrap_context_variable,
        random.Random: wrap_python_generator,
        itertools.count: wrap_count,
        **dict.fromkeys(OUTSIDE_ITERATORS, _iterator),
        types.MappingProxyType: wrap_mapping_proxy,
        **dict.fromkeys(_VIEWS, _dict_view),
        type: lambda tx, obj, source: _class(tx, obj, source),
        tuple: _tuple,
        torch.Size: _tuple,
        list: _list,
        collections.deque: _deque,
        dict: _dict,
        collections.OrderedDict: _dict,
        collections.defaultdict: _dict,
        set: _set,
        frozenset: _set,
        torch.Tensor: _tensor,
        torch.nn.Parameter: _tensor,
        functools.partial: _partial,
        torch.SymInt: _symint,
        torch.Generator: wrap_generator,
        slice: lambda tx, obj, source: _slice(tx, obj, source),
    }
)
"""Kind by exact type."""


def _slice(tx: TraceContext, obj: slice, source: Source) -> Value:
    parts = [tx.wrap(getattr(obj, name), AttrSource(source, name)) for name in ("start", "stop", "step")]
    return make_slice(parts)


_WRAPPERS_BY_BASE: list[tuple[Any, _Wrapper]] = [
    (torch.nn.Module, _nn_module),
    (torch.Tensor, _tensor),
    (enum.Enum, _enum_member),
    (types.ModuleType, _known(ModuleObject)),
    (tuple, _tuple),
    (functools.partial, _partial),
    (weakref.ReferenceType, _weakref),
    (typing._BaseGenericAlias, _known(GenericAlias)),  # type: ignore[attr-defined]
    (typing._SpecialForm, _known(GenericAlias)),  # type: ignore[attr-defined]
    ((typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple), _known(GenericAlias)),
]
"""Kind by base class, for types not in WRAPPERS; first match."""


def from_constant(tx: TraceContext, obj: Any) -> Value:
    """The Value of a Python object the trace has computed itself."""
    cls = type(obj)
    if cls in CONSTANT_TYPES:
        return wrap_constant(tx, obj, None)
    if is_one_of(cls, (tuple, torch.Size)) or (is_subtype(cls, tuple) and is_named_tuple(cls)):
        return TupleValue([from_constant(tx, item) for item in obj], cls)
    if cls is list:
        return ListValue([from_constant(tx, item) for item in obj])
    if is_one_of(cls, (dict, collections.OrderedDict)):
        made = DictValue({}, cls)
        for key, item in obj.items():
            made.set_item(tx, from_constant(tx, key), from_constant(tx, item))
        return made
    if is_one_of(cls, (set, frozenset)):
        made_set = SetValue.of(tx, [from_constant(tx, item) for item in obj], cls)
        made_set.real = obj
        return made_set
    if is_subtype(cls, enum.Enum):
        return constant_object(tx, obj)
    if is_numpy_scalar(obj):
        return Constant(obj)
    if is_numpy_type(cls) and cls.__name__ == "ndarray":
        return constant_array(tx, obj)
    if isinstance(obj, torch.Tensor):
        raise Unsupported("graph-result", "a tensor made while tracing")
    if isinstance(obj, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return tx.number(obj, None)
    if isinstance(obj, BaseException):
        return exception_of(tx, obj)
    if hasattr(obj, "__next__"):
        raise Unsupported("call", f"a {cls.__name__} made while tracing")
    return wrap(tx, obj, ConstSource(obj, is_made=True))


def code_constant(tx: TraceContext, obj: Any) -> Value:
    """The Value of a constant of a code object. A tuple is one object at every load, and may be met outside, too (as a default)."""
    if type(obj) is not tuple or not obj:
        return from_constant(tx, obj)
    known = tx.wrapped.get(id(obj))
    if known is not None:
        if known[1].source is not None:
            _guard_identity(tx, obj, known[1].source)
        return known[1]
    made = CodeTuple([code_constant(tx, item) for item in obj], obj)
    tx.wrapped[id(obj)] = (obj, made)
    return made
