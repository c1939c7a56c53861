"""Python's arithmetic on symbolic floats: what stays symbolic, with Python's own results and exceptions, and what specialises.

A float that changes between calls is a float symbol of the ShapeEnv. An operation listed here gives an expression over it and a graph
node that calls Python's own function. A comparison is decided for the current value and recorded as a guard. Everything else reads
the value and so guards on its bits.
"""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from treadle_tracer.by_identity import is_one_of
from treadle_tracer.errors import Unsupported
from treadle_tracer.values.base import Constant
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

# Python compares a greater int exactly, though no float equals it.
_EXACT = 2**53

_OPERATIONS: dict[Callable[..., Any], tuple[str, int]] = {
    operator.add: ("fadd", 2),
    operator.sub: ("fsub", 2),
    operator.mul: ("fmul", 2),
    operator.truediv: ("fdiv", 2),
    operator.floordiv: ("ffloordiv", 2),
    operator.mod: ("fmod", 2),
    operator.pow: ("fpow", 2),
    builtins.pow: ("fpow", 2),
    operator.neg: ("fneg", 1),
    operator.abs: ("fabs", 1),
    builtins.abs: ("fabs", 1),
    builtins.min: ("fmin", 2),
    builtins.max: ("fmax", 2),
    math.copysign: ("fcopysign", 2),
    **{getattr(math, name): (f"math_{name}", 2) for name in ("pow", "atan2", "hypot", "fmod")},
    **{
        getattr(math, name): (f"math_{name}", 1)
        for name in "sqrt cos cosh sin sinh tan tanh asin acos atan exp log2 log10 log1p expm1 exp2 cbrt asinh acosh atanh "
        "erf erfc gamma lgamma degrees radians fabs log".split()
        if hasattr(math, name)
    },
}
"""Python's function -> the operation of `treadle_shapes.floats` and how many arguments it takes as such."""

_COMPARISONS: dict[Callable[..., Any], tuple[str, bool]] = {
    operator.lt: ("lt", False),
    operator.gt: ("lt", True),
    operator.ge: ("ge", False),
    operator.le: ("ge", True),
    operator.eq: ("eq", False),
    operator.ne: ("ne", False),
}
"""Comparison -> the one of `treadle_shapes.floats`, and whether its operands change places."""

_ROUNDINGS: dict[Callable[..., Any], str] = {
    builtins.int: "trunc",
    math.trunc: "trunc",
    math.floor: "floor",
    math.ceil: "ceil",
    builtins.round: "round",
}
"""Functions from a float to an int. A float that the caller gives rounds to a constant, guarded as such: more floats than the one at hand
do. What is computed from sizes alone (`math.ceil(height / 32) * 32`) changes with them, and so does the int."""

_TESTS: dict[Callable[..., Any], Callable[[Any], bool]] = {
    math.isnan: math.isnan,
    math.isinf: math.isinf,
    math.isfinite: math.isfinite,
}


def is_float(value: Value) -> bool:
    """Whether the value is a symbolic float."""
    return isinstance(value, SymbolicValue) and isinstance(value.sym, torch.SymFloat)


def is_operation(function: Callable[..., Any], arity: int) -> bool:
    """Whether so many symbolic numbers give a symbolic float."""
    return _OPERATIONS.get(function, ("", -1))[1] == arity


def operate(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """Call a pure Python function of symbolic numbers, one of which is a float."""
    if function is operator.pos or function is builtins.float:
        return args[0]
    if function in _TESTS and len(args) == 1:
        return Constant(_test(tx, function, expression(args[0])))
    if function in _ROUNDINGS and len(args) == 1:
        return _rounded(tx, function, args[0])  # type: ignore[arg-type]
    if function in _COMPARISONS and not all(map(_is_number, args)) and _is_unequal_kind(function, args):
        return Constant(function is operator.ne)
    if not all(map(_is_number, args)):
        return _with_constants(tx, function, args)
    if function in _COMPARISONS:
        return Constant(_decide(tx, function, args))
    if function is builtins.round and len(args) == 2 and args[1].is_constant():
        return _computed(tx, function, args, "fround", [_operand(args[0]), args[1].constant()])
    name, arity = _OPERATIONS.get(function, ("", 0))
    if len(args) != arity:
        return _with_constants(tx, function, args)
    try:
        operands = [_operand(arg) for arg in args]
    except OverflowError as error:
        tx.raise_real(error)
    if name == "fcopysign" and args[0].__class__ is not SymbolicValue and _is_positive(tx, args[1]):
        return Constant(abs(float(args[0].constant())))
    return _computed(tx, function, args, name, operands)


def _is_positive(tx: TraceContext, value: Value) -> bool:
    """Whether the sign of a number is known to be positive: that of an int such as a size."""
    from treadle_shapes.floats import FloatExpr

    found = expression(value)
    if value.python_type() is not int or isinstance(found, FloatExpr):
        return False
    least = tx.symbols.env.bounds(found).lower
    return least is not None and least >= 0


def expression(value: Value) -> Any:
    """The expression of a symbolic number, or the number of a constant."""
    if not isinstance(value, SymbolicValue):
        return value.constant()
    from treadle_shapes.torch import expr_of

    return expr_of(value.sym)


def _operand(value: Value) -> Any:
    """The expression of a number as a float."""
    from treadle_shapes.floats import FloatExpr, to_float

    found = expression(value)
    return found if isinstance(found, FloatExpr) else to_float(found)


def _is_number(value: Value) -> bool:
    if isinstance(value, SymbolicValue):
        return not isinstance(value.sym, torch.SymBool)
    return isinstance(value, Constant) and is_one_of(type(value.obj), (bool, int, float))


def _is_unequal_kind(function: Callable[..., Any], args: list[Value]) -> bool:
    """`==` or `!=` with an object that no float is equal to."""
    others = [arg.obj for arg in args if isinstance(arg, Constant)]
    return function in (operator.eq, operator.ne) and all(
        isinstance(other, (str, bytes, type(None))) for other in others
    )


def _decide(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> bool:
    from treadle_shapes.floats import compare

    constants = [arg.constant() for arg in args if not isinstance(arg, SymbolicValue)]
    if any(type(c) is int and abs(c) > _EXACT for c in constants):
        return bool(_with_constants(tx, function, args).constant())
    name, swapped = _COMPARISONS[function]
    a, b = (_operand(arg) for arg in (reversed(args) if swapped else args))
    return tx.symbols.env.decide(compare(name, a, b))


def _test(tx: TraceContext, function: Callable[..., Any], x: Any) -> bool:
    """nan(x) == (x != x);  inf(x) == (abs(x) == inf);  finite(x) == (abs(x) < inf)"""
    from treadle_shapes.floats import compare, float_fn

    if function is math.isnan:
        return tx.symbols.env.decide(compare("ne", x, x))
    name = "eq" if function is math.isinf else "lt"
    return tx.symbols.env.decide(compare(name, float_fn("fabs", x), math.inf))


def _rounded(tx: TraceContext, function: Callable[..., Any], value: SymbolicValue) -> Value:
    from treadle_shapes.floats import has_float_symbol, round_to_int

    env, x = tx.symbols.env, expression(value)
    if env.is_unbacked(x):
        return _whole_number(tx, function, value)
    try:
        number = function(env.hint(x))
    except (ArithmeticError, ValueError):
        return _with_constants(tx, function, [value])  # which raises it in the traced program
    if not -_EXACT < number < _EXACT:
        return _with_constants(tx, function, [value])
    if has_float_symbol(x) or not _is_small(tx, x):
        return Constant(env.specialize(round_to_int(_ROUNDINGS[function], x)))
    return _whole_number(tx, function, value)


def _is_small(tx: TraceContext, x: Any) -> bool:
    """Whether a float that sizes give rounds to an int of 64 bits, guarded where that is so now."""
    from treadle_shapes.floats import compare, float_fn

    return tx.symbols.env.decide(compare("lt", float_fn("fabs", x), float(_EXACT)))


def _whole_number(tx: TraceContext, function: Callable[..., Any], value: SymbolicValue) -> Value:
    """The rounded float as a node of the graph."""
    from treadle_shapes.floats import round_to_int
    from treadle_shapes.torch import sym_int

    number = sym_int(tx.symbols.env, round_to_int(_ROUNDINGS[function], expression(value)))
    return tx.number(number, tx.graph.call("call_function", function, (value.node(tx),), {}, number, tx.stack_trace()))


def _computed(
    tx: TraceContext, function: Callable[..., Any], args: list[Value], name: str, operands: list[Any]
) -> Value:
    """The result of an operation. Where Python does not always give a float, a guard ensures that it does."""
    from treadle_shapes import UsageError
    from treadle_shapes.floats import PARTIAL, compare, float_fn
    from treadle_shapes.torch import sym_float

    env = tx.symbols.env
    result = float_fn(name, *operands)
    if name == "fpow" and env.is_unbacked(result) and not _is_whole(operands[1]):
        env.expect(compare("ge", operands[0], 0.0))  # a complex number otherwise
    if name in PARTIAL:
        try:
            env.check_float(result)
        except (ArithmeticError, ValueError, UsageError):  # raises in Python too, or gives a complex number
            return _with_constants(tx, function, args)
    number = sym_float(env, result)
    if not isinstance(number, torch.SymFloat):
        return tx.from_constant(number)
    nodes = tuple(arg.node(tx) if isinstance(arg, SymbolicValue) else arg.constant() for arg in args)
    node = tx.graph.call("call_function", function, nodes, {}, number, tx.stack_trace())
    return tx.number(number, node)


def _is_whole(exponent: Any) -> bool:
    """Whether powers with it are real numbers whatever the base."""
    return isinstance(exponent, float) and (exponent.is_integer() or math.isinf(exponent))


def _with_constants(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """The call with all numbers specialised."""
    return tx.fold(function, [Constant(tx.specialise(a)) if isinstance(a, SymbolicValue) else a for a in args], {})


# ---- calls of torch


def retry_with_constants(
    failed: Unsupported, pairs: list[Any], named: dict[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The (graph argument, fake argument) pairs of a torch call that does not work on dynamic floats, with these floats fixed.

    Raises `failed` when there are none.
    """
    if not any(_holds_float(pair[1]) for pair in (*pairs, *named.values())):
        raise failed
    fix = lambda pair: (_fixed(pair[0]), _fixed(pair[1]))
    return [fix(pair) for pair in pairs], {name: fix(pair) for name, pair in named.items()}


def _holds_float(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(map(_holds_float, value))
    if isinstance(value, dict):
        return any(map(_holds_float, value.values()))
    return isinstance(value, torch.SymFloat)


def _fixed(value: Any) -> Any:
    if isinstance(value, fx.Node) and isinstance(value.meta.get("example_value"), torch.SymFloat):
        return float(value.meta["example_value"])
    if isinstance(value, torch.SymFloat):
        return float(value)
    if isinstance(value, (list, tuple)):
        fixed = [_fixed(item) for item in value]
        return tuple(fixed) if type(value) is tuple else fixed if type(value) is list else type(value)(*fixed)
    if isinstance(value, dict):
        return {key: _fixed(item) for key, item in value.items()}
    return value
