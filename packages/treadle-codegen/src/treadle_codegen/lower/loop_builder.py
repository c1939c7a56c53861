"""Builds the body of one loop: every request becomes an SSA instruction, equal ones the same instruction."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from treadle_codegen.ir.loops import Expr, FloatExpr, Instr, IntLike, Load, NumberLike, Store, has_float
from treadle_codegen.ir.ops import COMPLEX_PARTS, FLOATS, INTS, LOW_FLOATS, OPS, memory_dtype
from treadle_shapes.expr import And, BoolExpr, where
from treadle_shapes.floats import to_float

_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "signbit"})
_NARROW_INTS = frozenset({torch.uint8, torch.int8, torch.int16})


def number(value: Any, dtype: torch.dtype) -> bool | int | float:
    """The Python number that `value` becomes in `dtype`: wrapped to the width of integers, rounded to float32."""
    if dtype == torch.bool:
        return bool(value)
    if dtype in INTS:
        bits = torch.iinfo(dtype).bits
        wrapped = int(value) & ((1 << bits) - 1)
        return wrapped - (1 << bits) if torch.iinfo(dtype).min < 0 and wrapped >> (bits - 1) else wrapped
    if dtype == torch.float32 or dtype in LOW_FLOATS:
        try:
            return struct.unpack("f", struct.pack("f", value))[0]
        except OverflowError:
            return math.copysign(math.inf, value)
    return float(value)


class LoopBuilder:
    """The implementation of `ir.ops.Ops` whose values are positions in a growing body."""

    def __init__(self) -> None:
        self.body: list[Instr] = []
        self.origins: dict[str, None] = {}
        self._known: dict[Any, int] = {}
        self._mask: BoolExpr | bool = True
        self.terms: IntLike | None = None  # in an attention, where a score's sum stands (`lower.attention`)

    def emit(self, op: str, *args: int, dtype: torch.dtype, attr: Any = None) -> int:
        """The value of an instruction; an equal pure one that was recorded before is reused."""
        key = (op, args, dtype, repr(attr) if op == "const" else attr)
        known = self._known.get(key)
        if known is not None and OPS[op].pure:
            return known
        self.body.append(Instr(op, args, dtype, attr))
        self._known[key] = len(self.body) - 1
        return len(self.body) - 1

    def dtype_of(self, value: int) -> torch.dtype:
        return self.body[value].dtype

    def op(self, name: str, *args: int) -> int:
        """An operation whose result dtype follows from its arguments (all but casts and memory)."""
        dtype = torch.bool if name in _COMPARISONS else self.body[args[-1]].dtype
        if name == "add" and dtype == torch.float32:
            name, args = self._sum(args)
        return self.emit(name, *args, dtype=dtype)

    def _sum(self, args: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """`1 + erf(x)`, of gelu and its derivative, is an operation of its own."""
        for one, other in (args, args[::-1]):
            if self.body[other].op == "erf" and (self.body[one].op, self.body[one].attr) == ("const", 1.0):
                return "one_plus_erf", self.body[other].args
        return "add", args

    def const(self, value: Any, dtype: torch.dtype) -> int:
        return self.emit("const", dtype=dtype, attr=number(value, dtype))

    def like(self, value: Any, other: int) -> int:
        """A number as another value's dtype."""
        return self.cast(self.number(value, self.dtype_of(other)), self.dtype_of(other))

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """Conversion as eager does it; constants are converted at once. A complex value is the pair of its parts."""
        if dtype in COMPLEX_PARTS:
            part = COMPLEX_PARTS[dtype]
            pair = value if isinstance(value, tuple) else (value, self.const(0, part))
            return self.cast(pair[0], part), self.cast(pair[1], part)
        source = self.body[value]
        if source.dtype == dtype:
            return value
        if source.op == "const" and dtype not in LOW_FLOATS and not (source.dtype in FLOATS and dtype in INTS):
            return self.const(source.attr, dtype)
        if dtype in LOW_FLOATS and source.op == "cast" and source.dtype == torch.float32:
            (narrow,) = source.args
            if self.body[narrow].dtype == dtype:  # back to where it came from: nothing was rounded
                return narrow
        if source.dtype in FLOATS and dtype in _NARROW_INTS:
            # Out of range, ATen goes through a wider integer and wraps; a direct conversion is undefined in most languages.
            wide = torch.int64 if dtype == torch.uint8 else torch.int32
            value = self.emit("cast", value, dtype=wide, attr=wide)
        return self.emit("cast", value, dtype=dtype, attr=dtype)

    def index(self, expr: IntLike) -> int:
        """The int64 value of an index expression."""
        if isinstance(expr, int):
            return self.const(expr, torch.int64)
        return self.emit("index", dtype=torch.int64, attr=expr)

    def number(self, value: NumberLike | complex, dtype: torch.dtype) -> Any:
        """A number of the graph: a constant of `dtype`, or what is known at run time as int64, float64 or bool."""
        if isinstance(value, complex):
            part = COMPLEX_PARTS[dtype]
            return self.const(value.real, part), self.const(value.imag, part)
        dtype = memory_dtype(dtype)
        if isinstance(value, FloatExpr):
            return self.emit("scalar", dtype=torch.float64, attr=value)
        if isinstance(value, BoolExpr):
            return self.cast(self.number(where(value, 1, 0), torch.int64), torch.bool)
        if isinstance(value, Expr) and has_float(value):
            # Kernels know no float arithmetic on sizes: the host computes it, exactly up to 2**53.
            return self.cast(self.emit("scalar", dtype=torch.float64, attr=to_float(value)), torch.int64)
        return self.index(value) if isinstance(value, Expr) else self.const(value, dtype)

    def load(self, buffer: str, index: IntLike, dtype: torch.dtype) -> Any:
        """Element of a buffer, as its compute dtype; under a mask it is read only where the mask holds (else it is 0)."""
        if dtype in COMPLEX_PARTS:
            part = COMPLEX_PARTS[dtype]
            return self.load(buffer, index * 2, part), self.load(buffer, index * 2 + 1, part)
        if self._mask is True:
            value = self.emit("load", dtype=dtype, attr=Load(buffer, index))
        else:
            value = self.emit("masked_load", dtype=dtype, attr=(Load(buffer, index), self._mask, 0))
        return self.cast(value, torch.float32) if dtype in LOW_FLOATS else value

    def indirect_load(
        self,
        buffer: str,
        strides: tuple[IntLike, ...],
        sizes: tuple[IntLike, ...],
        indices: tuple[int, ...],
        dtype: torch.dtype,
    ) -> int:
        """`buffer[sum(stride * index)]`, each index checked against its size at run time."""
        value = self.emit("indirect_load", *indices, dtype=dtype, attr=(buffer, strides, sizes))
        return self.cast(value, torch.float32) if dtype in LOW_FLOATS else value

    @property
    def masked(self) -> bool:
        return self._mask is not True

    @contextmanager
    def mask(self, condition: BoolExpr | bool) -> Iterator[None]:
        """Loads inside happen only where `condition` (and every mask around it) holds."""
        outer = self._mask
        self._mask = And(outer, condition)
        try:
            yield
        finally:
            self._mask = outer

    def store(self, buffer: str, index: IntLike, value: Any, dtype: torch.dtype, mode: str | None = None) -> None:
        """Store converted to the buffer's dtype."""
        if dtype in COMPLEX_PARTS:
            for k, part in enumerate(self.cast(value, dtype)):
                self.store(buffer, index * 2 + k, part, COMPLEX_PARTS[dtype], mode)
            return
        value = self.cast(value, dtype)
        self.emit("store", value, dtype=dtype, attr=Store(buffer, index, mode))

    def reduce(self, kind: str, value: int, dtype: torch.dtype) -> int:
        """A reduction. What comes after it runs outside of the inner loop, so nothing from inside is reused there."""
        self._known.clear()
        return self.emit("reduce", value, dtype=dtype, attr=kind)

    def dot(self, kind: str, left: int, right: int) -> int:
        """A reduction of products (`ir.product`), in float32."""
        self._known.clear()
        return self.emit("reduce", left, right, dtype=torch.float32, attr=kind)
