"""Numbers that are read off tensors, computed and checked in C++, as Python would do it for a graph's float numbers.

    b0: the tensor whose element is read; r0, r1: the places of the table for the number and what follows from it

    double v0 = b0[0]; bad |= v0 - v0 != 0.0;
    double v1 = exact_pow(0.9, v0); bad |= v1 - v1 != 0.0;
    double v2 = 1.0 - v1; bad |= v2 - v2 != 0.0;
    bad |= !(v2 >= 0.0);
    r0[0] = v0; r1[0] = v2;
    if (bad) *err |= 2;

Python raises where C computes infinity or NaN (division by zero, overflow), and a check may fail: wherever something is not finite or
not true, the host computes it all again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from treadle_codegen.ir.loops import BoolExpr, Buffer, Check, FloatExpr
from treadle_codegen.targets.cpp.ops import MEMORY_TYPES
from treadle_codegen.targets.renderer import NumberGroup, RenderedKernel, function_name

_READABLE = frozenset((torch.float32, torch.float64))

# Operation of `treadle_shapes.floats` -> the same in C for finite arguments, but for results that are not finite.
_OPERATIONS: Mapping[str, str] = {
    "fadd": "{} + {}",
    "fsub": "{} - {}",
    "fmul": "{} * {}",
    "fdiv": "{} / {}",
    "fneg": "-{}",
    "fabs": "__builtin_fabs({})",
    "fmin": "{1} < {0} ? {1} : {0}",
    "fmax": "{1} > {0} ? {1} : {0}",
    "fpow": "exact_pow({}, {})",
    "math_sqrt": "__builtin_sqrt({})",
}
_COMPARISONS: Mapping[str, str] = {
    "float_lt": "{} < {}",
    "float_ge": "{} >= {}",
    "float_eq": "{} == {}",
    "float_ne": "{} != {}",
}


class _Unsupported(Exception):
    """An expression has no text here."""


def render_numbers(group: NumberGroup, buffers: Mapping[str, Buffer]) -> RenderedKernel | None:
    """The function that computes a group of numbers; None if one of its steps has no equal in C++."""
    try:
        return _Printer(buffers).kernel(group)
    except _Unsupported:
        return None


class _Printer:
    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers = buffers
        self._lines: list[str] = []
        self._values: dict[Any, str] = {}  # expression -> variable or parameter
        self._read: dict[str, str] = {}  # buffer -> parameter

    def kernel(self, group: NumberGroup) -> RenderedKernel:
        for number in group.inputs:
            self._values[number] = f"d{len(self._values)}"
        for step in group.steps:
            if isinstance(step, Check):
                self._line(f"bad |= !({self._condition(step.condition)});")
            else:
                self._read_number(step)
        for k, result in enumerate(group.results):
            self._line(f"r{k}[0] = {self._number(result)};")
        parameters = [f"const {MEMORY_TYPES[self._buffers[b].dtype]}* {name}" for b, name in self._read.items()]
        parameters += [f"double d{k}" for k in range(len(group.inputs))]
        parameters += [f"double* r{k}" for k in range(len(group.results))]
        lines = ["int bad = 0;", *self._lines, "if (bad) *err |= 2;"]
        text = f"({', '.join([*parameters, 'i64* err'])}) {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
        label = f"numbers_{group.steps[0].name}"
        return RenderedKernel(
            *(function_name(text), text, tuple(self._read), tuple(group.inputs), False, label),
            why_not_constant="it runs once per call",
            results=tuple(group.results),
            may_doubt=True,
        )

    def _line(self, text: str) -> None:
        self._lines.append(text)

    def _read_number(self, step: Any) -> None:
        (bind,), (view, *_) = step.binds, step.args
        if self._buffers[view.buffer].dtype not in _READABLE or not isinstance(view.offset, int):
            raise _Unsupported
        source = self._read.setdefault(view.buffer, f"b{len(self._read)}")
        self._values[bind.symbol] = self._finite(f"(double){source}[{view.offset}]")

    def _finite(self, text: str) -> str:
        name = f"v{len(self._lines)}"
        self._line(f"const double {name} = {text}; bad |= {name} - {name} != 0.0;")
        return name

    def _number(self, e: Any) -> str:
        """The variable or literal of a float."""
        if isinstance(e, float):
            return _literal(e)
        if not isinstance(e, FloatExpr):
            raise _Unsupported
        found = self._values.get(e)
        if found is None:
            operation = _OPERATIONS.get(e.op)
            if operation is None:
                raise _Unsupported
            found = self._values[e] = self._finite(operation.format(*map(self._number, e.args)))
        return found

    def _condition(self, e: Any) -> str:
        """The text of a condition. Python may leave parts of it out that raise; these are found not to be finite."""
        if isinstance(e, bool):
            return str(int(e))
        if not isinstance(e, BoolExpr):
            raise _Unsupported
        if e.op in ("and", "or"):
            return (" && " if e.op == "and" else " || ").join(f"({self._condition(arg)})" for arg in e.args)
        if e.op == "not":
            return f"!({self._condition(e.args[0])})"
        if e.op == "defined":  # whatever is not a float in Python is not finite in C
            self._number(e.args[0])
            return "1"
        comparison = _COMPARISONS.get(e.op)
        if comparison is None:
            raise _Unsupported
        return comparison.format(*map(self._number, e.args))


def _literal(value: float) -> str:
    if math.isfinite(value):
        return f"({value.hex()})"
    return '__builtin_nan("")' if math.isnan(value) else f"({'-' if value < 0 else ''}__builtin_inf())"
