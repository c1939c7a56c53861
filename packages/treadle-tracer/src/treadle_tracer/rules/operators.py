"""Rules of arithmetic and of text: abs, round, pow, divmod, format, and the modules `math` and `operator`."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from treadle_tracer.errors import Unsupported
from treadle_tracer.rules.rule import Apply, Args, Effect, Kwargs, Rule
from treadle_tracer.values.base import NONE, Constant, Value, boolean
from treadle_tracer.values.objects import ObjectValue
from treadle_tracer.values.protocol import BINARY, COMPARE, IN_PLACE
from treadle_tracer.values.sequences import TupleValue
from treadle_tracer.values.tensor import SymbolicValue, TensorValue, length_of

if TYPE_CHECKING:
    from treadle_tracer.trace.tracer import Tracer


# ---- numbers and text


def _abs(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], (TensorValue, SymbolicValue)):
        return tx.operator_in_graph(operator.abs, args)
    return tx.call_special(args[0], "__abs__", []) if isinstance(args[0], ObjectValue) else tx.fold(abs, args, {})


def _round(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], TensorValue):
        return tx.tensor_method(args[0], "round", [], {"decimals": args[1]} if len(args) > 1 else {})
    return tx.fold(round, args, kwargs)


def _pow(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and any(isinstance(arg, (TensorValue, SymbolicValue)) for arg in args):
        return tx.binary_op("**", args[0], args[1])
    return tx.fold(pow, args, kwargs)


def _divmod(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    if any(isinstance(arg, TensorValue) for arg in args):
        tx.raise_exception(TypeError, "unsupported operand type(s) for divmod()")
    return TupleValue((tx.binary_op("//", args[0], args[1]), tx.binary_op("%", args[0], args[1])))


def _repr(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.to_repr(args[0])


def _format(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.format_value(args[0], args[1] if len(args) > 1 else Constant(""))


def _math_power(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    return tx.fold(math.pow, args, kwargs)


def _set_item(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].set_item(tx, args[1], args[2])
    return NONE


def _delete_item(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
    args[0].del_item(tx, args[1])
    return NONE


def _math(function: Callable[..., Any]) -> Apply:
    def run(tx: Tracer, args: Args, kwargs: Kwargs) -> Value:
        if any(isinstance(arg, TensorValue) for arg in args):
            raise Unsupported("data-dependent", f"math.{function.__name__} of a tensor")
        if len(args) == 1 and isinstance(args[0], SymbolicValue):
            return tx.symbolic_math(function, args[0])
        return tx.fold(function, args, kwargs)

    return run


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


def _item_getter(cls: type) -> Apply:
    return lambda tx, args, kwargs: ItemGetter(cls, args)


def _binary(text: str) -> Apply:
    return lambda tx, args, kwargs: tx.binary_op(text, args[0], args[1])


def _comparison(text: str) -> Apply:
    return lambda tx, args, kwargs: tx.compare(text, args[0], args[1])


_MATH = [function for name, function in vars(math).items() if callable(function) and name != "prod"]
"""`math.prod` works on any iterable: see rules.python_builtins."""

RULES = (
    Rule(abs, _abs),
    Rule(round, _round),
    Rule(pow, _pow),
    Rule(divmod, _divmod),
    Rule(repr, _repr),
    Rule(ascii, _repr),
    Rule(format, _format),
    *[Rule(function, _math_power if function is math.pow else _math(function)) for function in _MATH],
    *[Rule(function, _binary(text)) for text, (function, _) in BINARY.items()],
    *[Rule(function, _binary(text), Effect.WRITES_ARGUMENTS) for text, function in IN_PLACE.items()],
    *[Rule(function, _comparison(text)) for text, (function, _, _) in COMPARE.items()],
    Rule(operator.neg, lambda tx, args, kwargs: tx.unary_op("-", args[0])),
    Rule(operator.pos, lambda tx, args, kwargs: tx.unary_op("+", args[0])),
    Rule(operator.invert, lambda tx, args, kwargs: tx.unary_op("~", args[0])),
    Rule(operator.not_, lambda tx, args, kwargs: tx.not_(args[0])),
    Rule(operator.truth, lambda tx, args, kwargs: boolean(tx.truth(args[0]))),
    Rule(operator.is_, lambda tx, args, kwargs: boolean(tx.is_same(args[0], args[1])), Effect.NONE),
    Rule(operator.is_not, lambda tx, args, kwargs: boolean(not tx.is_same(args[0], args[1])), Effect.NONE),
    Rule(operator.getitem, lambda tx, args, kwargs: args[0].get_item(tx, args[1])),
    Rule(operator.setitem, _set_item, Effect.WRITES_ARGUMENTS),
    Rule(operator.delitem, _delete_item, Effect.WRITES_ARGUMENTS),
    Rule(operator.contains, lambda tx, args, kwargs: boolean(args[0].contains(tx, args[1]))),
    Rule(operator.index, lambda tx, args, kwargs: Constant(tx.index(args[0]))),
    Rule(operator.abs, _abs),
    Rule(operator.length_hint, lambda tx, args, kwargs: length_of(tx, args[0])),
    Rule(operator.itemgetter, _item_getter(operator.itemgetter), Effect.NONE),
    Rule(operator.attrgetter, _item_getter(operator.attrgetter), Effect.NONE),
)
