"""Programs of decisions over tensors without dimensions, as arithmetic on Python's numbers.

    if timestep - 50 >= 0:        # timestep: a tensor of int64 without dimensions

    v1 = sub(g0, 50)              v1 = g0 - 50                           # g0: what `item()` gives
    v2 = ge(v1, 0)          ->    if not -2**63 <= v1 < 2**63: return None
    if bool(v2) is not True: ...  if bool(v1 >= 0) is not True: ...

A call of an operator takes 2 us and more, the same on numbers 0.05 us. Only what has exactly the tensor's result is translated:
comparisons, sums, differences and products of int64 and of float64, and logic of bools. Numbers that leave int64 are left to the tensors.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .decision_programs import Call, Decision, Position, Program, compiled_text, name_of_value

_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*"}
_LOGIC = {"logical_and": "and", "logical_or": "or"}
_INTEGERS = frozenset((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8))
_FLOATS = frozenset((torch.float64, torch.float32))
_LEAST, _END = -(1 << 63), 1 << 63
_EXACT = 1 << 53  # integers up to here are doubles


def _named(name: str) -> list[Any]:
    """The functions that apply an operator to tensors."""
    owners = (operator, torch, torch.Tensor)
    return [found for owner in owners if (found := getattr(owner, name, None)) is not None]


_OPERATORS: Mapping[Any, str] = {
    function: name for name in (*_COMPARISONS, *_ARITHMETIC, *_LOGIC) for function in _named(name)
}


class _Value(NamedTuple):
    """The text of a value. dtype: of the tensor that it stands for; None for a number of Python."""

    text: str
    dtype: Any
    constant: Any = None


def compiled_on_numbers(program: Program, dtypes: Sequence[Any]) -> Callable[..., int | None] | None:
    """`program.compiled()` as a function of the numbers in its tensors. It gives None where only the tensors tell.

    dtypes: of the outside objects of a row; int for a number, None for what is no tensor without dimensions on the CPU. None if the
    program has calls that are not translated.
    """
    values: dict[int, _Value] = {}
    for position, dtype in enumerate(dtypes):
        if dtype is not int and dtype not in _INTEGERS | _FLOATS | {torch.bool}:
            return None
        values[position] = _Value(name_of_value(position), None if dtype is int else dtype)
    lines: list[list[str]] = []
    for number, call in enumerate(program.calls):
        found = _translated(call, values)
        if found is None:
            return None
        name = name_of_value(-number - 1)
        values[-number - 1] = _Value(name, found.dtype)
        lines.append([f"{name} = {found.text}"])
        if found.dtype is torch.int64:
            lines[-1].append(f"if not {_LEAST} <= {name} < {_END}: return None")
    if not all(_is_readable(decision, values) for decision in program.decisions):
        return None
    return compiled_text(program, len(dtypes), lines)


def _translated(call: Call, values: Mapping[int, _Value]) -> _Value | None:
    """The value of a call; None if numbers of Python do not tell it."""
    if call.kwargs:
        return None
    args = [_argument(arg, values) for arg in call.args]
    if None in args:
        return None
    if call.target is torch.Tensor.item and len(args) == 1:
        return _Value(args[0].text, None) if args[0].dtype is not None else None
    name = _OPERATORS.get(call.target) if _is_hashable(call.target) else None
    if name is None or len(args) != 2:
        return None
    return _applied(name, args[0], args[1])


def _is_hashable(target: Any) -> bool:
    return getattr(type(target), "__hash__", None) is not None


def _argument(arg: Any, values: Mapping[int, _Value]) -> Any:
    if isinstance(arg, Position):
        return values[arg.number]
    return _Value(repr(arg), None, arg) if type(arg) is int or (type(arg) is float and math.isfinite(arg)) else None


def _applied(name: str, a: _Value, b: _Value) -> _Value | None:
    tensors = {value.dtype for value in (a, b) if value.dtype is not None}
    if not tensors and name not in _LOGIC:
        return _Value(f"{a.text} {(_COMPARISONS | _ARITHMETIC)[name]} {b.text}", None)
    if len(tensors) != 1:
        return None
    (dtype,) = tensors
    if name in _LOGIC:
        is_logical = a.dtype is b.dtype is torch.bool
        return _Value(f"({a.text} {_LOGIC[name]} {b.text})", torch.bool) if is_logical else None
    a, b = (value if value.dtype is not None else _as_dtype(value, dtype) for value in (a, b))
    if a is None or b is None:
        return None
    if name in _COMPARISONS:
        return _Value(f"{a.text} {_COMPARISONS[name]} {b.text}", torch.bool)
    if dtype not in (torch.int64, torch.float64):  # others are rounded or wrap around
        return None
    return _Value(f"{a.text} {_ARITHMETIC[name]} {b.text}", dtype)


def _as_dtype(value: _Value, dtype: torch.dtype) -> Any:
    """A constant beside a tensor of this dtype, as the operator reads it."""
    number = value.constant
    if type(number) is int and dtype in _INTEGERS:
        info = torch.iinfo(dtype)
        return value if info.min <= number <= info.max else None
    if number is None or dtype not in _FLOATS or abs(number) > _EXACT:
        return None
    number = float(number)
    if dtype is torch.float32:
        number = struct.unpack("f", struct.pack("f", number))[0]
    return _Value(repr(number), None, number)


def _is_readable(decision: Decision, values: Mapping[int, _Value]) -> bool:
    """Whether a decision reads numbers as it reads the tensors."""
    dtypes = [values[number].dtype for number in decision.results]
    if all(dtype is None for dtype in dtypes):
        return True
    if len(dtypes) != 1:
        return False
    return decision.read is bool or (decision.read is operator.index and dtypes[0] in _INTEGERS)


__all__ = ["compiled_on_numbers"]
