"""NumPy's scalars: constants, and numbers that change between calls as symbols.

A scalar is guarded by its type and by the Python number that `item()` gives. When that number has changed between calls it becomes a
symbol, as Python's own numbers do. Torch calls take the symbol. So do comparisons, and sums, differences, products, quotients and powers
of float64 and int64, as long as the result is a normal number: NumPy warns or wraps around beyond. Everything else fixes the number.
"""

from __future__ import annotations

import functools
import math
import operator
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from treadle_shapes.torch import expr_of
from treadle_tracer.by_identity import is_one_of, unique
from treadle_tracer.errors import InternalError
from treadle_tracer.source import ApplySource, ConstSource
from treadle_tracer.values.base import Constant, Method
from treadle_tracer.values.constants import is_numpy_scalar
from treadle_tracer.values.tensor import SymbolicValue
from treadle_tracer.values.value import NotConstant, Value
from treadle_tracer.values.varying_text import answer

if TYPE_CHECKING:
    from treadle_tracer.source import Source
    from treadle_tracer.values.value import TraceContext


def wrap_numpy_number(tx: TraceContext, obj: Any, source: Source) -> Value:
    """The Value of an outside scalar."""
    plain = obj.item()
    if isinstance(source, ConstSource):
        return Constant(obj)
    if not is_one_of(type(plain), (bool, int, float)):
        tx.guards.add(source, "call", _SameScalar(obj), f"{source.text} == {obj!r}")
        return Constant(obj, source)
    tx.guards.add(source, "type_is", type(obj))
    number = tx.wrap(plain, ApplySource(source, type(obj).item))
    return NumpyNumber(obj, number, source) if isinstance(number, SymbolicValue) else Constant(obj, source)


class _SameScalar:
    """Guard callable: a scalar of the recorded type, dtype and bits."""

    def __init__(self, scalar: Any):
        self.scalar = scalar
        self.bits = scalar.tobytes()

    def __call__(self, value: Any) -> bool:
        return (
            type(value) is type(self.scalar) and value.dtype == self.scalar.dtype and bool(value.tobytes() == self.bits)
        )


class NumpyNumber(Value):
    """A scalar whose number is a symbol. `obj`: the scalar that it is in the call that is traced; `number`: what `item()` gives."""

    __slots__ = ("number", "obj")

    def __init__(self, obj: Any, number: SymbolicValue, source: Source | None = None):
        self.source = source
        self.obj = obj
        self.number = number

    def python_type(self) -> type:
        return type(self.obj)

    def describe(self) -> str:
        return f"dynamic {type(self.obj).__name__} {self.number.sym}"

    def fixed(self, tx: TraceContext) -> Constant:
        """The scalar as a constant; its number is guarded."""
        tx.specialise(self.number)
        return Constant(self.obj)

    def constant(self) -> Any:
        raise NotConstant(self)

    def hash_key(self, tx: TraceContext) -> Any:
        return self.fixed(tx).hash_key(tx)

    def truth(self, tx: TraceContext) -> bool:
        return self.number.truth(tx)

    def as_index(self, tx: TraceContext) -> int:
        return self.fixed(tx).as_index(tx)

    def get_attr(self, tx: TraceContext, name: str) -> Value:
        if name in _OF_TYPE:
            return tx.from_constant(getattr(self.obj, name))
        return Method(self, name, getattr(self.obj, name)) if name in _ITEM else self.fixed(tx).get_attr(tx, name)

    def builtin_method(self, tx: TraceContext, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if name in _ITEM and not args and not kwargs:
            return self.number
        return self.fixed(tx).builtin_method(tx, name, args, kwargs)

    def reconstruct(self, cg: Any) -> None:
        if self.source is not None:
            self.source.emit(cg.cb)
        else:
            cg.call_const(type(self.obj), self.number)


_ITEM = ("item", "tolist")
_OF_TYPE = ("dtype", "ndim", "shape", "size", "itemsize", "nbytes")  # the same for all numbers of a type


def fix_all(tx: TraceContext, args: list[Value]) -> list[Value]:
    """The arguments with scalars as constants."""
    return [arg.fixed(tx) if isinstance(arg, NumpyNumber) else arg for arg in args]


# ---- operators. Of float64 and int64, NumPy's results are Python's within the limits below, which become guards.

_COMPARISONS = {
    operator.lt: "<",
    operator.le: "<=",
    operator.eq: "==",
    operator.ne: "!=",
    operator.ge: ">=",
    operator.gt: ">",
}
_ARITHMETIC = {operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/"}
_EXACT = ("float64", "int64")


def operate(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value:
    """An operator or a pure function of numbers, one of which is a scalar with a symbol, and none a tensor."""
    if all(map(_is_exact, args)):
        numbers = plain_numbers(args)
        as_floats = function is operator.truediv or (
            function in _COMPARISONS and len(unique(n.python_type() for n in numbers)) > 1
        )
        if as_floats and not all(_is_exact_float(tx, number) for number in numbers):
            return tx.fold(function, fix_all(tx, args), {})
        if function in _COMPARISONS:
            found = tx.compare(_COMPARISONS[function], *numbers).truth(tx)
            return Constant(sys.modules["numpy"].bool_(found))
        if function in _ARITHMETIC:
            return _computed(tx, function, args, _ARITHMETIC[function], numbers)
        if function is operator.neg:
            return _computed(tx, function, args, "-", [Constant(0), *numbers])
        if getattr(function, "__module__", None) == "math":
            return tx.fold(function, numbers, {})
        if function is operator.pow and any(number.python_type() is float for number in numbers):
            return _power(tx, args, numbers)
    return tx.fold(function, fix_all(tx, args), {})


def universal(tx: TraceContext, name: str, args: list[Value]) -> Value | None:
    """A universal function of numbers some of which are symbols; None: they have to be constants."""
    numbers = plain_numbers(args)
    if not all(map(_is_exact, args)) or not any(isinstance(number, SymbolicValue) for number in numbers):
        return None
    if name == "sqrt":  # rounded correctly by both
        return scalar_of(tx, sys.modules["numpy"].float64, tx.wrap_known(math.sqrt).call(tx, numbers, {}))
    if name in ("maximum", "minimum") and all(number.python_type() is int for number in numbers):
        first = tx.compare(">=" if name == "maximum" else "<=", *numbers).truth(tx)
        return scalar_of(tx, sys.modules["numpy"].int64, numbers[0 if first else 1])
    return None


def made_anew(tx: TraceContext, function: Callable[..., Any], args: list[Value]) -> Value | None:
    """A universal function of numbers that the caller gives, computed by NumPy before the graph runs; None: they have to be constants.

    NumPy's functions differ from the C library's in the last bit.
    """
    if not all(map(_is_exact, args)):
        return None
    numbers = plain_numbers(args)
    number = answer(tx, _plain_result(function), numbers)
    if number is None or not isinstance(number, SymbolicValue):
        return None
    return scalar_of(tx, sys.modules["numpy"].float64, number)


class _PlainResult:
    """`function(*numbers)` as a number of Python's, where it is a float64. Raises an ArithmeticError where NumPy warns."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.__name__ = f"numpy.{function.__name__}"

    def __call__(self, *numbers: Any) -> float:
        with sys.modules["numpy"].errstate(all="raise"):
            result = self.function(*numbers)
        if type(result).__name__ != "float64":
            raise TypeError(f"{self.__name__} gives {type(result).__name__}")
        return float(result)


_plain_result = functools.cache(_PlainResult)


def scalar_of(tx: TraceContext, cls: Any, number: Value) -> Value:
    """`cls(number)`, where `cls` is NumPy's float64 or int64 and the number one of Python's that fits."""
    obj = cls(_hint(tx, number))
    return NumpyNumber(obj, number) if isinstance(number, SymbolicValue) else Constant(obj)


def _is_exact(value: Value) -> bool:
    if isinstance(value, SymbolicValue):
        return is_one_of(value.python_type(), (int, float))
    if isinstance(value, Constant) and is_one_of(type(value.obj), (int, float)):
        return type(value.obj) is float or abs(value.obj) < 2**53
    return value.python_type().__name__ in _EXACT and isinstance(value, (NumpyNumber, Constant))


def _is_exact_float(tx: TraceContext, number: Value) -> bool:
    """Whether a number is the same as a float: NumPy compares and divides floats where Python's ints are exact."""
    limits = (("<=", Constant(2**53)), (">=", Constant(-(2**53))))
    return number.python_type() is float or all(tx.compare(text, number, limit).truth(tx) for text, limit in limits)


def plain_numbers(args: list[Value]) -> list[Value]:
    """The arguments with scalars as Python's numbers."""
    return [_plain_number(arg) for arg in args]


def _plain_number(value: Value) -> Value:
    if isinstance(value, NumpyNumber):
        return value.number
    return Constant(value.obj.item()) if isinstance(value, Constant) and is_numpy_scalar(value.obj) else value


def torch_dtype_of(value: Value) -> torch.dtype | None:
    """The dtype that torch's constructors infer for a scalar; None for other values, and where PyTorch has no such dtype."""
    is_scalar = isinstance(value, NumpyNumber) or (isinstance(value, Constant) and is_numpy_scalar(value.obj))
    return _TORCH_DTYPES.get(value.python_type().__name__) if is_scalar else None


_TORCH_DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "bool_": torch.bool,  # before NumPy 2
    "complex128": torch.complex128,
    "complex64": torch.complex64,
}


def _computed(
    tx: TraceContext, function: Callable[..., Any], args: list[Value], text: str, numbers: list[Value]
) -> Value:
    """`function(*args)`, whose number is that of the operator `text` on `numbers` where it is a normal number."""
    with sys.modules["numpy"].errstate(all="ignore"):
        result = function(*[arg.obj if isinstance(arg, NumpyNumber) else _hint(tx, arg) for arg in args])
    if not _is_normal(result.item()):
        return tx.fold(function, fix_all(tx, args), {})
    number = tx.binary_op(text, *numbers)
    if not isinstance(number, SymbolicValue):
        return Constant(type(result)(number.constant()))
    if number.python_type() is float:
        _stay_normal(tx, number, is_negative=result < 0)
    return NumpyNumber(result, number)


def _stay_normal(tx: TraceContext, number: Value, is_negative: bool) -> None:
    """Guard that a float, which is a normal number now, remains one of the same sign."""
    least, most = sys.float_info.min, sys.float_info.max
    for text, limit in (("<=", -least), (">=", -most)) if is_negative else ((">=", least), ("<=", most)):
        if not tx.compare(text, number, Constant(limit)).truth(tx):
            raise InternalError("numpy-numbers", f"{number.describe()} is no normal number")


def _power(tx: TraceContext, args: list[Value], numbers: list[Value]) -> Value:
    """A power of floats, for which Python calls the C library's `pow` as NumPy does. Python's powers of negative numbers are complex."""
    floats = [Constant(float(n.obj)) if isinstance(n, Constant) else n for n in numbers]
    if all(number.python_type() is float for number in floats) and tx.compare(">", floats[0], Constant(0.0)).truth(tx):
        return _computed(tx, operator.pow, args, "**", floats)
    return tx.fold(operator.pow, fix_all(tx, args), {})


def _hint(tx: TraceContext, value: Value) -> Any:
    """The number that a symbol is in the call that is traced."""
    if not isinstance(value, SymbolicValue):
        return value.constant()
    return tx.symbols.env.hint(expr_of(value.sym))


def _is_normal(number: float) -> bool:
    return type(number) is int or sys.float_info.min <= math.fabs(number) <= sys.float_info.max
