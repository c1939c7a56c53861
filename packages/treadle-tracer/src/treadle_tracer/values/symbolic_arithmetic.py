"""Python's operators on symbolic numbers: what stays symbolic, with Python's own results, and what fixes the number."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes import ShapesError
from treadle_shapes.expr import Ne
from treadle_shapes.torch import raw_expr
from treadle_tracer.by_identity import is_one_of, unique
from treadle_tracer.errors import Unsupported
from treadle_tracer.values import floats, numpy_numbers
from treadle_tracer.values.base import Constant
from treadle_tracer.values.joined import SymbolicBool, symbolic_bool
from treadle_tracer.values.numpy_numbers import NumpyNumber
from treadle_tracer.values.tensor import SymbolicValue, TensorValue
from treadle_tracer.values.unbacked import is_unbacked, specialise
from treadle_tracer.values.value import Value

if TYPE_CHECKING:
    from treadle_tracer.values.value import TraceContext

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_OPERANDS = (int, float, bool, complex, *_SYMBOLIC)  # whose operators are no code of the program


def operator_in_graph(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """An operator with at least one tensor or symbolic operand."""
    if any(isinstance(arg, TensorValue) for arg in args):
        if tx.modes.ask:

            def plain(given: list[Value], named: dict[str, Value]) -> Value:
                return tx.run_in_graph("call_function", function, given, named)

            return tx.call_by_modes(function, plain, args, {})
        return tx.run_in_graph("call_function", function, args, {})
    if any(isinstance(arg, NumpyNumber) for arg in args):
        return numpy_numbers.operate(tx, function, args)
    return symbolic_op(tx, function, args)


def symbolic_op(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """Arithmetic of symbolic numbers. A comparison of numbers with hints becomes a condition and no node."""
    if any(is_unbacked(tx, arg) for arg in args):
        return operate(tx, function, args)
    if any(map(floats.is_float, args)):
        return floats.operate(tx, function, args)
    plain = [_number(arg) for arg in args]
    if not all(is_one_of(type(number), _OPERANDS) for number in plain):  # its operators may be code of the program
        return _of_fixed_numbers(tx, function, args)
    if function in _SHIFTS and isinstance(args[1], SymbolicValue) and tx.compare("<", args[1], Constant(0)).truth(tx):
        return _of_fixed_numbers(tx, function, args)
    try:
        result = function(*plain)
    except (ArithmeticError, ValueError, RuntimeError, TypeError, ShapesError):  # what Python makes of these numbers
        return _of_fixed_numbers(tx, function, args)
    if not isinstance(result, _SYMBOLIC):
        return tx.from_constant(result)
    if isinstance(result, torch.SymBool):
        truth = symbolic_bool(tx, raw_expr(result))
        if isinstance(truth, SymbolicBool) and function in _COUNTED and all(x.python_type() is int for x in args):
            truth.compared = (function, args[0], args[1])
        return truth
    nodes = tuple(arg.node(tx) if isinstance(arg, SymbolicValue) else arg.constant() for arg in args)
    node = tx.graph.call("call_function", function, nodes, {}, result, tx.stack_trace())
    return tx.number(result, node)


_SHIFTS = (operator.lshift, operator.rshift)


def _number(arg: Value) -> Any:
    """What the operator is called with: a size that the trace has decided is a number of Python, whose quotients raise as Python's do."""
    if not isinstance(arg, SymbolicValue):
        return arg.constant()
    known = arg.sym.node.maybe_as_int() if isinstance(arg.sym, torch.SymInt) else None
    return arg.sym if known is None else known


def _of_fixed_numbers(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """The operator on the numbers of this call, which are guarded; what it raises, the program raises."""
    fixed = [Constant(specialise(tx, arg)) if isinstance(arg, SymbolicValue) else arg for arg in args]
    return tx.fold(_IN_PYTHON.get(function, function), fixed, {})


_IN_PYTHON: dict[Any, Callable[..., Any]] = {
    **{found: getattr(math, name) for name in dir(math) if (found := getattr(torch, f"_sym_{name}", None)) is not None},
    torch.sym_float: float, torch.sym_max: max, torch.sym_min: min, torch.sym_not: operator.not_,
}  # fmt: skip
"""The functions of Python that PyTorch's functions of symbolic numbers stand for."""


# `int(a < b)` of ints, by the difference of the two.
_COUNTED: dict[Any, Callable[[TraceContext, Value, Value], Value]] = {
    operator.gt: lambda tx, a, b: _between_0_and_1(tx, tx.binary_op("-", a, b)),
    operator.lt: lambda tx, a, b: _between_0_and_1(tx, tx.binary_op("-", b, a)),
    operator.ge: lambda tx, a, b: tx.binary_op("-", Constant(1), _between_0_and_1(tx, tx.binary_op("-", b, a))),
    operator.le: lambda tx, a, b: tx.binary_op("-", Constant(1), _between_0_and_1(tx, tx.binary_op("-", a, b))),
}


def _between_0_and_1(tx: TraceContext, number: Value) -> Value:
    positive = operator_in_graph(tx, torch.sym_max, [number, Constant(0)])
    return operator_in_graph(tx, torch.sym_min, [positive, Constant(1)])


def counted(tx: TraceContext, truth: Value) -> Value | None:
    """`int(truth)`, still undecided; None for what is no undecided comparison of ints."""
    if not isinstance(truth, SymbolicBool) or truth.compared is None:
        return None
    comparison, a, b = truth.compared
    return _COUNTED[comparison](tx, a, b)


def convert(tx: TraceContext, value: SymbolicValue, cls: type) -> Value:
    """`cls(value)` for a class of numbers."""
    if cls is float:
        return operator_in_graph(tx, torch.sym_float, [value])
    if cls is int and value.python_type() is float:
        return operator_in_graph(tx, int, [value])
    return Constant(cls(tx.specialise(value)))


# ---- numbers without a value while tracing

_COMPARISONS = frozenset({operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne})
_INTEGER = _COMPARISONS | {
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, torch.sym_min, torch.sym_max, torch.sym_float,
}  # fmt: skip
_DIVISIONS = frozenset({operator.floordiv, operator.mod, operator.truediv})
_LOGICAL = frozenset({operator.and_, operator.or_, operator.eq, operator.ne, torch.sym_not})
_MOST_POWER = 16


def operate(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """A Python operator on numbers, one of them unbacked. The result stays symbolic where it is exactly Python's."""
    is_float = any(floats.is_float(arg) for arg in args)
    if is_float and function not in _COMPARISONS:
        return floats.operate(tx, function, args)
    why_not = _why_not_symbolic(function, args)
    if why_not is not None:
        return _of_fixed_numbers(tx, function, args)
    if function in _DIVISIONS:
        _expect_divisor(tx, args[1])
    plain = [arg.sym if isinstance(arg, SymbolicValue) else arg.constant() for arg in args]
    if not all(_is_bool(arg) for arg in args):
        plain = [int(x) if isinstance(x, bool) else x for x in plain]
    try:
        result = function(*plain)
    except ShapesError as error:
        raise Unsupported("unbacked-decision", str(error)) from None
    if not isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return tx.from_constant(result)
    nodes = tuple(arg.node(tx) if isinstance(arg, SymbolicValue) else x for arg, x in zip(args, plain, strict=True))
    node = tx.graph.call("call_function", function, nodes, {}, result, tx.stack_trace())
    return tx.number(result, node)


def _is_bool(value: Value) -> bool:
    return value.python_type() is bool


def _why_not_symbolic(function: Callable[..., Any], args: list[Value]) -> str | None:
    """Why an operator needs the numbers themselves."""
    kinds = unique(arg.python_type() for arg in args)
    if not all(is_one_of(kind, (int, float, bool)) for kind in kinds):
        return "operands that are no real numbers"
    if kinds == [bool]:
        return None if function in _LOGICAL else "arithmetic of truth values"
    if bool in kinds and any(_is_bool(arg) and isinstance(arg, SymbolicValue) for arg in args):
        return "arithmetic of truth values"
    if function is operator.pow:
        exponent = args[1]
        plain = isinstance(exponent, Constant) and type(exponent.obj) is int and 0 <= exponent.obj <= _MOST_POWER
        return None if plain and float not in kinds else "a power that may be no integer"
    return None if function in _INTEGER or function in _DIVISIONS else "not an operator of symbolic numbers"


def _expect_divisor(tx: TraceContext, divisor: Value) -> None:
    """Have the graph check that the divisor is not zero. Where it is, Python runs the program, which raises."""
    if is_unbacked(tx, divisor):
        condition = Ne(raw_expr(divisor.sym), 0)  # type: ignore[attr-defined]
        if tx.symbols.env.prove(condition) is False:
            tx.raise_exception(ZeroDivisionError, "integer division or modulo by zero")
        tx.symbols.unbacked.state(tx, condition, "", ZeroDivisionError)
