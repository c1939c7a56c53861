"""Numbers that a dtype cannot hold: eager raises for `x.fill_(1e300)`, where a kernel would round the number to infinity or wrap it.

torch.full((2,), n, dtype=torch.int8)        ==>        aten._assert_scalar(-255 <= n <= 127, "value cannot be converted ...")
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from treadle_shapes.expr import And, Ge, Le, Or
from treadle_shapes.floats import FloatExpr, compare, same
from treadle_shapes.torch import Operator

_LOW_FLOATS = frozenset({torch.float16, torch.bfloat16})


def numbers_that_must_fit(
    func: Any, record: Operator | None, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> Iterator[tuple[Any, torch.dtype]]:
    """The numbers among a call's arguments that a dtype must be able to hold, each with that dtype.

    record: what is known of the operator `func`. result: the fake result of the call.
    """
    if record is None or not (record.held_by_result or record.held_by_compute) or not isinstance(result, torch.Tensor):
        return
    is_low = result.dtype in _LOW_FLOATS
    if is_low and record.rounds_to_low_float:
        return
    for position, argument in enumerate(func._schema.arguments):
        in_compute = argument.name in record.held_by_compute
        if in_compute or argument.name in record.held_by_result:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            if isinstance(value, (int, float, torch.SymInt, torch.SymFloat)) and not isinstance(value, bool):
                yield value, torch.float32 if is_low and in_compute else result.dtype


def why_not_of_kind(record: Operator | None, kwargs: Mapping[str, Any], result: Any) -> str | None:
    """Eager's complaint about the `alpha` of a sum or difference that is of another kind than the result (ATen's `alpha_check`, which fake
    tensors leave out)."""
    alpha = kwargs.get("alpha")
    if alpha is None or record is None or "alpha" not in record.held_by_result or not isinstance(result, torch.Tensor):
        return None
    if isinstance(alpha, bool) and result.dtype is not torch.bool:
        return "Boolean alpha only supported for Boolean results."
    is_integral = not (result.dtype.is_floating_point or result.dtype.is_complex)
    if isinstance(alpha, (float, complex, torch.SymFloat)) and is_integral:
        return "For integral input tensors, argument alpha must not be a floating point number."
    return None


def fits_dtype(value: Any, dtype: torch.dtype) -> Any:
    """The condition under which `dtype` holds a number (c10::overflows): True, False or a BoolExpr.

    value: an int, a float or an expression. Floating dtypes hold infinity and NaN. Unsigned dtypes accept a negative int whose
    absolute value they hold, and wrap it.
    """
    if dtype in (torch.bool, torch.int64) and not isinstance(value, (float, FloatExpr)):
        return True
    if dtype == torch.bool or dtype.is_complex:
        return True
    info: Any = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    if isinstance(value, (float, FloatExpr)):
        return _fits_float(value, float(info.min), float(info.max), dtype.is_floating_point)
    low, high = int(info.min) or -int(info.max), int(info.max)
    if isinstance(value, int):
        return low <= value <= high
    return True if high > 2**63 else And(Ge(value, low), Le(value, high))


def _fits_float(value: Any, low: float, high: float, unbounded: bool) -> Any:
    if isinstance(value, float):
        return (unbounded and not math.isfinite(value)) or low <= value <= high
    inside = And(compare("ge", value, low), compare("ge", high, value))
    return Or(inside, *[same(value, x) for x in (math.inf, -math.inf, math.nan)]) if unbounded else inside


_C_NAMES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "c10::Half",
    torch.bfloat16: "c10::BFloat16",
    torch.int8: "int8_t",
    torch.uint8: "uint8_t",
    torch.int16: "int16_t",
    torch.int32: "int",
    torch.int64: "int64_t",
}


def overflow_message(dtype: torch.dtype) -> str:
    """Eager's message for a number that `dtype` cannot hold."""
    return f"value cannot be converted to type {_C_NAMES.get(dtype, dtype)} without overflow"
