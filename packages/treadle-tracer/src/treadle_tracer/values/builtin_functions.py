"""Handlers of built-in and standard library functions whose meaning depends on traced values, by function object."""

from __future__ import annotations

import builtins
import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import math
import operator
import sys
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.errors import Unsupported
from treadle_tracer.source import ConstSource
from treadle_tracer.values.base import (
    MISSING,
    NONE,
    ConcreteValue,
    Constant,
    Handler,
    Method,
    NotConstant,
    Raised,
    Value,
    boolean,
)
from treadle_tracer.values.functions import BoundMethod, ClassValue, FunctionValue, ModuleObject
from treadle_tracer.values.iterators import chain_from_iterable
from treadle_tracer.values.list_methods import sorted_values
from treadle_tracer.values.objects import ObjectValue, lookup
from treadle_tracer.values.protocol import BINARY, COMPARE, IN_PLACE
from treadle_tracer.values.sequences import IteratorValue, ListValue, SliceValue, TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue

if TYPE_CHECKING:
    from treadle_tracer.trace.tracer import Tracer

Args = list[Value]
Kwargs = dict[str, Value]

HANDLERS: dict[Any, Handler] = {}
"""Handler by callable."""


def handles(*functions: Any) -> Callable[[Handler], Handler]:
    def register(handler: Handler) -> Handler:
        HANDLERS.update(dict.fromkeys(functions, handler))
        return handler

    return register


# ---- types and attributes


def _classes(tx: Tracer, value: Value) -> tuple[Any, ...]:
    """The second argument of isinstance, flattened."""
    if isinstance(value, TupleValue):
        return tuple(cls for item in value.unpack(tx) for cls in _classes(tx, item))
    plain = value.constant()
    if isinstance(plain, types.UnionType):
        return plain.__args__
    return (plain,)


_TENSOR_CLASSES = {
    torch.Tensor: lambda cls: True,
    torch.nn.Parameter: lambda cls: issubclass(cls, torch.nn.Parameter),
}


@handles(isinstance)
def _isinstance(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value, classes = args
    own = value.python_type()
    for cls in _classes(tx, classes):
        if isinstance(value, TensorValue):
            if _tensor_isinstance(tx, value, own, cls):
                return boolean(True)
        elif isinstance(value, ConcreteValue) and isinstance(value.obj, cls):
            return boolean(True)
        elif isinstance(value, ObjectValue) and value.obj is not None and isinstance(value.obj, cls):
            return boolean(True)
        elif _is_subclass(tx, own, cls):
            return boolean(True)
    return boolean(False)


def _tensor_isinstance(tx: Tracer, value: TensorValue, own: type, cls: Any) -> bool:
    if cls in _TENSOR_CLASSES:
        return _TENSOR_CLASSES[cls](own)
    if type(cls).__name__ == "tensortype":  # torch.FloatTensor and its like
        return value.fake.type() == f"{cls.__module__}.{cls.__name__}"
    if type(cls).__module__ == "torch.nn.parameter" and value.obj is not None:
        return isinstance(value.obj, cls)
    return issubclass(own, cls)


def _is_subclass(tx: Tracer, own: type, cls: Any) -> bool:
    check = lookup(tx, type(cls), "__instancecheck__")
    if isinstance(check, types.FunctionType) and type(cls).__module__ not in ("abc", "typing", "torch.nn.parameter"):
        return False
    try:
        return issubclass(own, cls)
    except TypeError as error:
        tx.raise_real(error)


@handles(issubclass)
def _issubclass(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.fold(issubclass, [args[0], Constant(_classes(tx, args[1]))], {})


@handles(getattr)
def _getattr(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    owner, name = args[0], args[1].constant()
    if len(args) < 3:
        return tx.get_attr(owner, name)
    try:
        return tx.get_attr(owner, name)
    except Raised as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return args[2]
        raise


@handles(hasattr)
def _hasattr(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    try:
        tx.get_attr(args[0], args[1].constant())
    except Raised as raised:
        if issubclass(raised.value.python_type(), AttributeError):
            return boolean(False)
        raise
    return boolean(True)


@handles(setattr)
def _setattr(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_attr(tx, args[1].constant(), args[2])
    return NONE


@handles(delattr)
def _delattr(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_attr(tx, args[1].constant())
    return NONE


@handles(callable)
def _callable(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, ConcreteValue):
        return boolean(callable(value.obj))
    return boolean(lookup(tx, value.python_type(), "__call__") is not MISSING)


@handles(vars)
def _vars(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if not args:
        raise Unsupported("call", "vars() without argument")
    return tx.get_attr(args[0], "__dict__")


@handles(dir, globals, eval, exec, compile, input, breakpoint, open, sys._getframe)
def _frame_dependent(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise Unsupported("call", "a function that looks at the frame or the outside world")


@handles(locals)
def _locals(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.dict_of(tx.frames[-1].named_locals())


@handles(sys.exc_info)
def _exc_info(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    """The handled exception; its traceback is not known while tracing."""
    if tx.exception is None:
        return TupleValue((NONE, NONE, NONE))
    return TupleValue((tx.wrap_known(tx.exception.python_type()), tx.exception, NONE))


@handles(sys.exception)
def _exception(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.exception or NONE


@handles(id)
def _id(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    obj = getattr(value, "obj", None)
    if value.source is None or obj is None:
        raise Unsupported("identity-number", value.describe())
    tx.guards.add(value.source, "is", obj)
    return Constant(id(obj))


@handles(print)
def _print(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise Unsupported("output", "print")


@handles(hash)
def _hash(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], ObjectValue) and isinstance(lookup(tx, args[0].cls, "__hash__"), types.FunctionType):
        return tx.call_special(args[0], "__hash__", [])
    if not args[0].is_constant():
        raise Unsupported("hash", args[0].describe())
    return tx.fold(hash, args, kwargs)


# ---- iteration


@handles(len)
def _len(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, TensorValue):
        return value.builtin_method(tx, "__len__", [], {})
    return Constant(value.length(tx))


@handles(iter)
def _iter(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        raise Unsupported("call", "iter() with a sentinel")
    return args[0].iterate(tx)


@handles(next)
def _next(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    item = args[0].next(tx)
    if item is not None:
        return item
    if len(args) > 1:
        return args[1]
    if isinstance(args[0], IteratorValue):
        tx.raise_exception(StopIteration)
    return tx.call_special(args[0], "__next__", [])


@handles(any)
def _any(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    iterator = args[0].iterate(tx)
    while (item := iterator.next(tx)) is not None:
        if tx.truth(item):
            return boolean(True)
    return boolean(False)


@handles(all)
def _all(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    iterator = args[0].iterate(tx)
    while (item := iterator.next(tx)) is not None:
        if not tx.truth(item):
            return boolean(False)
    return boolean(True)


@handles(sum)
def _sum(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", args[1] if len(args) > 1 else Constant(0))
    for item in args[0].unpack(tx):
        total = tx.binary_op("+", total, item)
    return total


@handles(math.prod)
def _prod(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", Constant(1))
    for item in args[0].unpack(tx):
        total = tx.binary_op("*", total, item)
    return total


def _extreme(text: str) -> Handler:
    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        items = args[0].unpack(tx) if len(args) == 1 else args
        key = kwargs.get("key", NONE)
        keyed = not (isinstance(key, Constant) and key.obj is None)
        if not items:
            if "default" in kwargs:
                return kwargs["default"]
            tx.raise_exception(
                ValueError, "max() arg is an empty sequence" if text == ">" else "min() arg is an empty sequence"
            )
        if not keyed and any(isinstance(item, SymbolicValue) for item in items):
            return tx.symbolic_extreme(text, items)
        best = items[0]
        best_key = tx.call(key, [best], {}) if keyed else best
        for item in items[1:]:
            item_key = tx.call(key, [item], {}) if keyed else item
            if tx.truth(tx.compare(text, item_key, best_key)):
                best, best_key = item, item_key
        return best

    return run


HANDLERS[max] = _extreme(">")
HANDLERS[min] = _extreme("<")


@handles(sorted)
def _sorted(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    items = sorted_values(tx, args[0].unpack(tx), kwargs.get("key", NONE), kwargs.get("reverse", NONE))
    return ListValue(items)


@handles(functools.reduce)
def _reduce(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    items = args[1].unpack(tx)
    if len(args) > 2:
        items.insert(0, args[2])
    if not items:
        tx.raise_exception(TypeError, "reduce() of empty iterable with no initial value")
    total = items[0]
    for item in items[1:]:
        total = tx.call(args[0], [total, item], {})
    return total


HANDLERS[itertools.chain.from_iterable] = chain_from_iterable


# ---- numbers and text


@handles(abs)
def _abs(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], (TensorValue, SymbolicValue)):
        return tx.operator_in_graph(operator.abs, args)
    return tx.call_special(args[0], "__abs__", []) if isinstance(args[0], ObjectValue) else tx.fold(abs, args, {})


@handles(round)
def _round(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TensorValue):
        return tx.tensor_method(args[0], "round", [], {"decimals": args[1]} if len(args) > 1 else {})
    return tx.fold(round, args, kwargs)


@handles(pow, math.pow)
def _pow(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and any(isinstance(arg, (TensorValue, SymbolicValue)) for arg in args):
        return tx.binary_op("**", args[0], args[1])
    return tx.fold(pow, args, kwargs)


HANDLERS[math.pow] = lambda tx, args, kwargs: tx.fold(math.pow, args, kwargs)


@handles(divmod)
def _divmod(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if any(isinstance(arg, TensorValue) for arg in args):
        tx.raise_exception(TypeError, "unsupported operand type(s) for divmod()")
    return TupleValue((tx.binary_op("//", args[0], args[1]), tx.binary_op("%", args[0], args[1])))


@handles(repr, ascii)
def _repr(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.to_repr(args[0])


@handles(format)
def _format(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.format_value(args[0], args[1] if len(args) > 1 else Constant(""))


def _math(function: Callable[..., Any]) -> Handler:
    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if any(isinstance(arg, TensorValue) for arg in args):
            raise Unsupported("data-dependent", f"math.{function.__name__} of a tensor")
        if len(args) == 1 and isinstance(args[0], SymbolicValue):
            return tx.symbolic_math(function, args[0])
        return tx.fold(function, args, kwargs)

    return run


for _name, _function in vars(math).items():
    if callable(_function) and _function not in HANDLERS:
        HANDLERS[_function] = _math(_function)


# ---- operator


def _operator_handlers() -> None:
    for text, (function, _) in BINARY.items():
        HANDLERS[function] = lambda tx, args, kwargs, text=text: tx.binary_op(text, args[0], args[1])
    for text, function in IN_PLACE.items():
        HANDLERS[function] = lambda tx, args, kwargs, text=text: tx.binary_op(text, args[0], args[1])
    for text, (function, _, _) in COMPARE.items():
        HANDLERS[function] = lambda tx, args, kwargs, text=text: tx.compare(text, args[0], args[1])


_operator_handlers()
HANDLERS.update(
    {
        operator.neg: lambda tx, args, kwargs: tx.unary_op("-", args[0]),
        operator.pos: lambda tx, args, kwargs: tx.unary_op("+", args[0]),
        operator.invert: lambda tx, args, kwargs: tx.unary_op("~", args[0]),
        operator.not_: lambda tx, args, kwargs: tx.not_(args[0]),
        operator.truth: lambda tx, args, kwargs: boolean(tx.truth(args[0])),
        operator.is_: lambda tx, args, kwargs: boolean(tx.is_same(args[0], args[1])),
        operator.is_not: lambda tx, args, kwargs: boolean(not tx.is_same(args[0], args[1])),
        operator.getitem: lambda tx, args, kwargs: args[0].get_item(tx, args[1]),
        operator.setitem: lambda tx, args, kwargs: args[0].set_item(tx, args[1], args[2]) or NONE,
        operator.delitem: lambda tx, args, kwargs: args[0].del_item(tx, args[1]) or NONE,
        operator.contains: lambda tx, args, kwargs: boolean(args[0].contains(tx, args[1])),
        operator.index: lambda tx, args, kwargs: Constant(tx.index(args[0])),
        operator.abs: _abs,
        operator.length_hint: _len,
    }
)


# ---- classes, copies, typing


def _identity(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return args[-1]


HANDLERS[typing.cast] = _identity
for _function in (typing.get_origin, typing.get_args, importlib.util.find_spec, importlib.metadata.version):
    HANDLERS[_function] = lambda tx, args, kwargs, function=_function: tx.fold(function, args, kwargs)


@handles(inspect.signature)
def _signature(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    function = _plain_callable(args[0])
    if function is None or kwargs:
        raise Unsupported("call", f"inspect.signature of {args[0].describe()}")
    return tx.from_constant(inspect.signature(function))


def _plain_callable(value: Value) -> Any:
    """A real callable with the same signature as a traced one, or None."""
    if isinstance(value, BoundMethod):
        function = _plain_callable(value.function)
        return None if function is None else types.MethodType(function, object())
    if isinstance(value, FunctionValue) and value.obj is None:
        return None
    return value.constant() if value.is_constant() else None


@handles(dataclasses.fields)
def _fields(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant() if isinstance(args[0], ClassValue) else args[0].python_type()
    try:
        fields = dataclasses.fields(cls)
    except TypeError as error:
        tx.raise_real(error)
    return TupleValue([tx.wrap(field, ConstSource(field)) for field in fields])


@handles(dataclasses.is_dataclass)
def _is_dataclass(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].constant() if isinstance(args[0], ClassValue) else args[0].python_type()
    return boolean(dataclasses.is_dataclass(cls))


@handles(builtins.__build_class__)
def _build_class(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    raise Unsupported("class-definition", "class statement")


@handles(builtins.__import__)
def _import(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    name = args[0].constant()
    if name not in sys.modules:
        raise Unsupported("import", name)
    return tx.wrap_known(sys.modules[name if len(args) > 3 and args[3].length(tx) else name.partition(".")[0]])


class ItemGetter(Value):
    """`operator.itemgetter(*keys)` or `operator.attrgetter(*names)`."""

    __slots__ = ("cls", "keys")

    def __init__(self, cls: type, keys: Args):
        self.source = None
        self.cls = cls
        self.keys = keys

    def python_type(self) -> type:
        return self.cls

    def call(self, tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if self.cls is operator.itemgetter:
            items = [args[0].get_item(tx, key) for key in self.keys]
        else:
            items = [self._dotted(tx, args[0], key.constant()) for key in self.keys]
        return items[0] if len(items) == 1 else TupleValue(items)

    def _dotted(self, tx: Tracer, value: Value, names: str) -> Value:
        for name in names.split("."):
            value = tx.get_attr(value, name)
        return value

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(self.cls)
        for key in self.keys:
            cg.value(key)
        cg.cb.call(len(self.keys))


for _cls in (operator.itemgetter, operator.attrgetter):
    HANDLERS[_cls] = lambda tx, args, kwargs, cls=_cls: ItemGetter(cls, args)


def make_slice(tx: Tracer, parts: Args) -> Value:
    """`slice(...)` of one to three values."""
    if len(parts) == 1:
        parts = [NONE, parts[0]]
    start, stop, step = (*parts, NONE)[:3]
    made = SliceValue(start, stop, step)
    try:
        return Constant(made.constant()) if not any(isinstance(p, TensorValue) for p in parts) else made
    except NotConstant:
        return made


FOLDABLE_MODULES = frozenset(
    "math cmath re string unicodedata binascii _operator _statistics keyword _sre numbers fnmatch posixpath textwrap "
    "difflib colorsys".split()
)
"""Modules whose functions are pure when given constants."""

FOLDABLE: frozenset[Any] = frozenset({chr, ord, bin, hex, oct, sys.getrecursionlimit, sys.intern})

__all__ = ["FOLDABLE", "FOLDABLE_MODULES", "HANDLERS", "BoundMethod", "ItemGetter", "Method", "ModuleObject",
           "handles", "make_slice"]  # fmt: skip
