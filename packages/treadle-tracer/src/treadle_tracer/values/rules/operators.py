"""Rules of arithmetic and of text: abs, round, pow, divmod, format, and the modules `math` and `operator`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_tracer.class_facts import is_subtype
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import floats, protocol
from treadle_tracer.values.arrays import ArrayValue
from treadle_tracer.values.base import NONE, Constant, boolean
from treadle_tracer.values.class_lookup import MISSING, lookup
from treadle_tracer.values.identity import identity
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.protocol import BINARY, COMPARE, IN_PLACE
from treadle_tracer.values.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.symbolic_arithmetic import operator_in_graph
from treadle_tracer.values.tensor import SymbolicValue, TensorValue, length_of
from treadle_tracer.values.text import format_value, to_ascii, to_repr
from treadle_tracer.values.unbacked import is_unbacked
from treadle_tracer.values.value import Value, call_special
from treadle_tracer.values.varying_text import answer

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext


# ---- numbers and text


def _abs(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], (TensorValue, SymbolicValue)):
        return operator_in_graph(tx, operator.abs, args)
    if isinstance(args[0], ArrayValue):
        return tx.array_method(args[0], "__abs__", [], {})
    return call_special(tx, args[0], "__abs__", []) if isinstance(args[0], ObjectValue) else tx.fold(abs, args, {})


def _length_hint(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if lookup(tx, args[0].python_type(), "__len__") is MISSING or len(args) > 1:
        raise Unsupported("builtin-call", "operator.length_hint")
    return length_of(tx, args[0])


def _by_position(args: Args, kwargs: Kwargs, names: tuple[str, ...]) -> tuple[Args, Kwargs]:
    """The arguments, given by position as far as that goes."""
    args, kwargs = list(args), dict(kwargs)
    while len(args) < len(names) and names[len(args)] in kwargs:
        args.append(kwargs.pop(names[len(args)]))
    return args, kwargs


def _round(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args, kwargs = _by_position(args, kwargs, ("number", "ndigits"))
    if isinstance(args[0], TensorValue):
        kind = args[0].python_type()
        if lookup(tx, kind, "__round__") is MISSING:  # PyTorch's tensors have none
            tx.raise_exception(TypeError, f"type {kind.__name__} doesn't define __round__ method")
        raise Unsupported("builtin-call", f"round() of {args[0].describe()}")
    if isinstance(args[0], ObjectValue) and not kwargs and 1 <= len(args) <= 2:
        kind = args[0].python_type()
        if lookup(tx, kind, "__round__") is MISSING:
            tx.raise_exception(TypeError, f"type {kind.__name__} doesn't define __round__ method")
        digits = [arg for arg in args[1:] if not (arg.is_constant() and arg.constant() is None)]
        return call_special(tx, args[0], "__round__", digits)
    return tx.fold(round, args, kwargs)


def _pow(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args, kwargs = _by_position(args, kwargs, ("base", "exp", "mod"))
    if len(args) == 2 and any(isinstance(arg, _ASKED_BY_POW) for arg in args):
        return tx.binary_op("**", args[0], args[1])
    return tx.fold(pow, args, kwargs)


_ASKED_BY_POW = (TensorValue, SymbolicValue, NumpyNumber, ObjectValue)


def _divmod(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if any(isinstance(arg, TensorValue) for arg in args):
        left, right = (arg.python_type().__name__ for arg in args)
        tx.raise_exception(TypeError, f"unsupported operand type(s) for divmod(): '{left}' and '{right}'")
    if len(args) == 2 and any(isinstance(arg, ObjectValue) for arg in args):
        return protocol.divmod_of_objects(tx, args[0], args[1])
    return TupleValue((tx.binary_op("//", args[0], args[1]), tx.binary_op("%", args[0], args[1])))


def _repr(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return to_repr(tx, args[0])


def _ascii(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return to_ascii(tx, args[0])


def _format(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    return format_value(tx, args[0], args[1] if len(args) > 1 else Constant(""))


def _set_item(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(tx, args[1], args[2])
    return NONE


def _delete_item(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_item(tx, args[1])
    return NONE


def _symbolic_math(tx: TraceContext, function: Callable[..., Any], args: Args) -> Value:
    """`math.function(*args)`, with a symbolic number among the arguments."""
    is_single = len(args) == 1
    graph_function = getattr(torch, f"_sym_{function.__name__}", None) if is_single else None
    if is_single and args[0].python_type() is float:
        return operator_in_graph(tx, function, args)
    if graph_function is not None:
        return operator_in_graph(tx, graph_function, args)
    if floats.is_operation(function, len(args)):
        if any(is_unbacked(tx, arg) for arg in args):
            return operator_in_graph(tx, function, args)
        return floats.operate(tx, function, args)
    found = answer(tx, function, args)  # `math.gcd` and the like are asked again in every call
    if found is not None:
        return found
    return tx.fold(function, [Constant(tx.specialise(a)) if isinstance(a, SymbolicValue) else a for a in args], {})


# Functions of `math` that take every argument as a float: of a tensor they ask `__float__`.
_OF_FLOATS = frozenset(
    "acos acosh asin asinh atan atan2 atanh copysign cos cosh degrees erf erfc exp exp2 expm1 fabs fmod hypot isfinite isinf isnan log "
    "log10 log1p log2 pow radians remainder sin sinh sqrt tan tanh".split()
)


def _math(function: Callable[..., Any]) -> Apply:
    def run(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if any(isinstance(arg, TensorValue) for arg in args):
            if kwargs or function.__name__ not in _OF_FLOATS:
                raise Unsupported("data-dependent", f"math.{function.__name__} of a tensor")
            args = [arg.call_method(tx, "__float__", [], {}) if isinstance(arg, TensorValue) else arg for arg in args]
        if not kwargs and any(isinstance(arg, SymbolicValue) for arg in args):
            return _symbolic_math(tx, function, args)
        return tx.fold(function, args, kwargs)

    return run


class MethodCaller(Value):
    """`operator.methodcaller(name, *args, **kwargs)`."""

    __slots__ = ("args", "kwargs", "name")

    def __init__(self, name: str, args: Args, kwargs: Kwargs):
        self.source = None
        self.name, self.args, self.kwargs = name, args, kwargs

    def python_type(self) -> type:
        return operator.methodcaller

    def call(self, tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if len(args) != 1 or kwargs:
            raise Unsupported("call", "operator.methodcaller with several arguments")
        return args[0].get_attr(tx, self.name).call(tx, self.args, self.kwargs)


def _method_caller(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
    if not args or not isinstance(args[0], Constant) or type(args[0].obj) is not str:
        raise Unsupported("call", "operator.methodcaller without the name of a method")
    return MethodCaller(args[0].obj, args[1:], kwargs)


class ItemGetter(Value):
    """`operator.itemgetter(*keys)` or `operator.attrgetter(*names)`."""

    __slots__ = ("cls", "keys")

    def __init__(self, cls: type, keys: Args):
        self.source = None
        self.cls = cls
        self.keys = keys

    def python_type(self) -> type:
        return self.cls

    def call(self, tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        if self.cls is operator.itemgetter:
            items = [args[0].get_item(tx, key) for key in self.keys]
        else:
            items = [self._dotted(tx, args[0], key.constant()) for key in self.keys]
        return items[0] if len(items) == 1 else TupleValue(items)

    def _dotted(self, tx: TraceContext, value: Value, names: str) -> Value:
        for name in names.split("."):
            value = value.get_attr(tx, name)
        return value

    def reconstruct(self, cg: Any) -> None:
        cg.cb.push_null()
        cg.const(self.cls)
        for key in self.keys:
            cg.value(key)
        cg.cb.call(len(self.keys))


def _item_getter(cls: type) -> Apply:
    def apply(tx: TraceContext, args: Args, kwargs: Kwargs) -> Value:
        is_named = cls is operator.itemgetter or all(is_subtype(arg.python_type(), str) for arg in args)
        if kwargs or not args or not is_named:
            raise Unsupported("raises", f"operator.{cls.__name__} of {len(args)} arguments")
        return ItemGetter(cls, args)

    return apply


def _binary(text: str) -> Apply:
    return lambda tx, args, kwargs: tx.binary_op(text, args[0], args[1])


def _comparison(text: str) -> Apply:
    return lambda tx, args, kwargs: tx.compare(text, args[0], args[1])


_MATH = [function for name, function in vars(math).items() if callable(function) and name != "prod"]
"""`math.prod` works on any iterable: see values.rules.python_builtins."""


def _index(tx: TraceContext, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if isinstance(args[0], SymbolicValue) and args[0].python_type() is int:
        return args[0]
    return Constant(args[0].as_index(tx))


RULES = (
    Rule(abs, _abs),
    Rule(round, _round),
    Rule(pow, _pow),
    Rule(divmod, _divmod),
    Rule(repr, _repr),
    Rule(ascii, _ascii),
    Rule(format, _format),
    *[Rule(function, _math(function)) for function in _MATH],
    *[Rule(function, _binary(text)) for text, (function, _) in BINARY.items()],
    *[Rule(function, _binary(text), Effect.WRITES_ARGUMENTS) for text, function in IN_PLACE.items()],
    *[Rule(function, _comparison(text)) for text, (function, _, _) in COMPARE.items()],
    Rule(operator.neg, lambda tx, args, kwargs: protocol.unary_op(tx, "-", args[0])),
    Rule(operator.pos, lambda tx, args, kwargs: protocol.unary_op(tx, "+", args[0])),
    Rule(operator.invert, lambda tx, args, kwargs: protocol.unary_op(tx, "~", args[0])),
    Rule(operator.not_, lambda tx, args, kwargs: protocol.not_(tx, args[0])),
    Rule(operator.truth, lambda tx, args, kwargs: boolean(args[0].truth(tx))),
    Rule(operator.is_, lambda tx, args, kwargs: identity(tx, args[0], args[1]), Effect.NONE),
    Rule(operator.is_not, lambda tx, args, kwargs: protocol.not_(tx, identity(tx, args[0], args[1])), Effect.NONE),
    Rule(operator.getitem, lambda tx, args, kwargs: args[0].get_item(tx, args[1])),
    Rule(operator.setitem, _set_item, Effect.WRITES_ARGUMENTS),
    Rule(operator.delitem, _delete_item, Effect.WRITES_ARGUMENTS),
    Rule(operator.contains, lambda tx, args, kwargs: boolean(args[0].contains(tx, args[1]))),
    Rule(operator.index, _index),
    Rule(operator.abs, _abs),
    Rule(operator.length_hint, _length_hint),
    Rule(operator.methodcaller, _method_caller, Effect.NONE),
    Rule(operator.itemgetter, _item_getter(operator.itemgetter), Effect.NONE),
    Rule(operator.attrgetter, _item_getter(operator.attrgetter), Effect.NONE),
)
