"""The scalar operations of the loop IR: one table with arity, dtype rule, cost and meaning of each.

Value dtypes are bool, uint8, int8 .. int64, float32 and float64. float16 and bfloat16 appear only as results of loads
and casts and as arguments of casts and stores: arithmetic on them is done in float32, as in eager kernels. Integer
arithmetic wraps around. The meaning of an operation is that of the torch function in its `torch` field, applied
elementwise to tensors of the instruction's dtype; renderers must agree with it, NaN and signed zeros included, except that
transcendental functions may differ by a few units in the last place.

`Ops` is the protocol that the lowerings speak; `lower.loop_builder.LoopBuilder` is its implementation that builds a loop's body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import torch

FLOATS = frozenset({torch.float32, torch.float64})
LOW_FLOATS = frozenset({torch.float16, torch.bfloat16})
INTS = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
VALUE_DTYPES = FLOATS | INTS | {torch.bool}
BUFFER_DTYPES = VALUE_DTYPES | LOW_FLOATS
# A complex element is two neighbours in memory. Loops address, load, compute and store its real and imaginary part.
COMPLEX_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
PRODUCT_DTYPES = LOW_FLOATS | {torch.float32}  # of the two factors of a matrix product


class Cost(IntEnum):
    """Rough cost of one scalar operation in multiples of an addition, assuming vector code."""

    FREE = 0
    CHEAP = 1
    DIVIDE = 4
    TRANSCENDENTAL = 12


Rule = Callable[[Sequence[torch.dtype], torch.dtype], "str | None"]


def _all_are(allowed: frozenset[torch.dtype], what: str) -> Rule:
    """Arguments and result share one dtype out of `allowed`."""

    def rule(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
        if result not in allowed:
            return f"result must be {what}, is {result}"
        wrong = [str(a) for a in args if a != result]
        return f"arguments must have the result's dtype {result}, have {', '.join(wrong)}" if wrong else None

    return rule


def _compare(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    if result != torch.bool:
        return f"result must be bool, is {result}"
    return None if args[0] == args[1] and args[0] in VALUE_DTYPES else f"arguments must agree, are {args[0]}, {args[1]}"


def _float_test(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    if result != torch.bool:
        return f"result must be bool, is {result}"
    return None if args[0] in FLOATS else f"argument must be float32 or float64, is {args[0]}"


def _where(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    if args[0] != torch.bool:
        return f"condition must be bool, is {args[0]}"
    return (
        None if args[1] == args[2] == result else f"branches {args[1]}, {args[2]} must have the result's dtype {result}"
    )


def _load(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    return None if result in BUFFER_DTYPES else f"{result} cannot be loaded"


def _indices(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    wrong = [str(a) for a in args if a != torch.int64]
    return f"indices must be int64, are {', '.join(wrong)}" if wrong else _load((), result)


def _number(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    return None if result == torch.float64 else f"a float known at run time is float64, not {result}"


def _stored(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    return None if args[0] == result else f"stores {args[0]} as {result}"


def _indirect_stored(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    return _stored(args, result) or _indices(args[1:], result)


def _position(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    return _indices(args, result) or (None if result == torch.int64 else f"a position is int64, not {result}")


def _cast(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    return None if args[0] in BUFFER_DTYPES and result in BUFFER_DTYPES else f"no cast from {args[0]} to {result}"


def _reduce(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    # argmax and argmin give int64 positions; any and all take and give bool (checked with the kind by ir.verify).
    if len(args) == 2:
        same = args[0] == args[1] or args[0] == torch.float32  # a product; weights of a sum, before their softmax
        known = same and args[1] in PRODUCT_DTYPES and result == torch.float32
        return None if known else f"no matrix product of {args[0]} and {args[1]} in {result}"
    if len(args) != 1:
        return f"reduces {len(args)} values"
    return None if args[0] in VALUE_DTYPES else f"cannot reduce {args[0]}"


def _inner_dot(args: Sequence[torch.dtype], result: torch.dtype) -> str | None:
    known = args[0] == args[1] and args[0] in PRODUCT_DTYPES and result == torch.float32
    return None if known else f"no matrix product of {args[0]} and {args[1]} in {result}"


_ARITH = _all_are(FLOATS | INTS, "a number")
_FLOAT = _all_are(FLOATS, "float32 or float64")
_BITS = _all_are(INTS | {torch.bool}, "an integer or bool")
_INT = _all_are(INTS, "an integer")


@dataclass(frozen=True, slots=True)
class OpInfo:
    """One scalar operation. `arity` is None when it varies; `torch` is its meaning on tensors (None for memory and structure)."""

    name: str
    arity: int | None
    rule: Rule
    cost: Cost
    torch: Callable[..., torch.Tensor] | None = None
    pure: bool = True


def _trunc_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="trunc")


def _floor_div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.div(a, b, rounding_mode="floor")


def _one_plus_erf(a: torch.Tensor) -> torch.Tensor:
    return 1 + torch.erf(a)


_FREE, _CHEAP, _DIVIDE, _HARD = Cost.FREE, Cost.CHEAP, Cost.DIVIDE, Cost.TRANSCENDENTAL
_FUNCTIONS = "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh sigmoid erf erfc lgamma"
_ROWS = (
    # memory and structure
    OpInfo("load", 0, _load, _CHEAP),
    OpInfo("masked_load", 0, _load, _CHEAP),
    OpInfo("indirect_load", None, _indices, _DIVIDE),
    OpInfo("store", 1, _stored, _CHEAP, pure=False),
    OpInfo("indirect_store", None, _indirect_stored, _DIVIDE, pure=False),
    OpInfo("check_position", 1, _position, _CHEAP, pure=False),
    OpInfo("const", 0, _load, _FREE),
    OpInfo("index", 0, _indices, _FREE),
    OpInfo("scalar", 0, _number, _FREE),
    OpInfo("cast", 1, _cast, _CHEAP),
    OpInfo("reduce", None, _reduce, _CHEAP),
    OpInfo("inner_dot", 2, _inner_dot, _HARD),  # the sum of products along the last reduce axis (`ir.attention`)
    OpInfo("scan", 1, _ARITH, _CHEAP),
    OpInfo("where", 3, _where, _CHEAP, torch.where),
    # arithmetic on integers and floats
    OpInfo("add", 2, _ARITH, _CHEAP, torch.add),
    OpInfo("sub", 2, _ARITH, _CHEAP, torch.sub),
    OpInfo("mul", 2, _ARITH, _CHEAP, torch.mul),
    OpInfo("neg", 1, _ARITH, _CHEAP, torch.neg),
    OpInfo("abs", 1, _ARITH, _CHEAP, torch.abs),
    OpInfo("sign", 1, _ARITH, _CHEAP, torch.sign),
    OpInfo("maximum", 2, _ARITH, _CHEAP, torch.maximum),  # NaN if either is NaN
    OpInfo("minimum", 2, _ARITH, _CHEAP, torch.minimum),
    OpInfo("truncdiv", 2, _ARITH, _DIVIDE, _trunc_div),  # integers: divisor not 0
    OpInfo("floordiv", 2, _ARITH, _DIVIDE, _floor_div),  # integers: divisor not 0
    OpInfo("remainder", 2, _ARITH, _DIVIDE, torch.remainder),  # sign of the divisor; integers: divisor not 0
    OpInfo("fmod", 2, _ARITH, _DIVIDE, torch.fmod),  # sign of the dividend; integers: divisor not 0
    # integers and bool
    OpInfo("bitwise_and", 2, _BITS, _CHEAP, torch.bitwise_and),
    OpInfo("bitwise_or", 2, _BITS, _CHEAP, torch.bitwise_or),
    OpInfo("bitwise_xor", 2, _BITS, _CHEAP, torch.bitwise_xor),
    OpInfo("bitwise_not", 1, _BITS, _CHEAP, torch.bitwise_not),  # bool: logical not
    OpInfo("shl", 2, _INT, _CHEAP, torch.bitwise_left_shift),  # 0 <= amount < bits
    OpInfo("shr", 2, _INT, _CHEAP, torch.bitwise_right_shift),  # arithmetic; 0 <= amount < bits
    # comparisons
    OpInfo("eq", 2, _compare, _CHEAP, torch.eq),
    OpInfo("ne", 2, _compare, _CHEAP, torch.ne),
    OpInfo("lt", 2, _compare, _CHEAP, torch.lt),
    OpInfo("le", 2, _compare, _CHEAP, torch.le),
    OpInfo("gt", 2, _compare, _CHEAP, torch.gt),
    OpInfo("ge", 2, _compare, _CHEAP, torch.ge),
    OpInfo("isnan", 1, _float_test, _CHEAP, torch.isnan),
    OpInfo("isinf", 1, _float_test, _CHEAP, torch.isinf),
    OpInfo("signbit", 1, _float_test, _CHEAP, torch.signbit),
    # floats only
    OpInfo("div", 2, _FLOAT, _DIVIDE, torch.div),
    OpInfo("reciprocal", 1, _FLOAT, _DIVIDE, torch.reciprocal),
    OpInfo("sqrt", 1, _FLOAT, _DIVIDE, torch.sqrt),
    OpInfo("rsqrt", 1, _FLOAT, _DIVIDE, torch.rsqrt),
    OpInfo("floor", 1, _FLOAT, _CHEAP, torch.floor),
    OpInfo("ceil", 1, _FLOAT, _CHEAP, torch.ceil),
    OpInfo("round", 1, _FLOAT, _CHEAP, torch.round),  # half to even
    OpInfo("trunc", 1, _FLOAT, _CHEAP, torch.trunc),
    OpInfo("copysign", 2, _FLOAT, _CHEAP, torch.copysign),
    OpInfo("hypot", 2, _FLOAT, _HARD, torch.hypot),
    OpInfo("pow", 2, _FLOAT, _HARD, torch.pow),
    OpInfo("atan2", 2, _FLOAT, _HARD, torch.atan2),
    OpInfo("one_plus_erf", 1, _FLOAT, _HARD, _one_plus_erf),  # less of erf's precision survives, and less is computed
    *[OpInfo(name, 1, _FLOAT, _HARD, getattr(torch, name)) for name in _FUNCTIONS.split()],
)
OPS: dict[str, OpInfo] = {row.name: row for row in _ROWS}

REDUCTIONS = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})
# Reductions to the first position of the best value, and the reductions to that value.
POSITIONS = {"argmax": "max", "argmin": "min"}
SCANS = frozenset({"sum", "prod"})
# How an `indirect_store` with a mode makes of the old element and the value the new element.
SCATTERS = {"add": "add", "max": "maximum", "min": "minimum", "mul": "mul"}
# Reductions of two arguments: sums of products, in float32. With "dot_tf32" the arguments may be rounded to TF32 first.
PRODUCTS = frozenset({"dot", "dot_tf32"})
# Reductions of scores and values: the sum of values weighted by the softmax of the scores (`ir.attention`), in float32. A "safe" one of
# scores that are all -inf is 0, the other one NaN.
ATTENTIONS = frozenset({"softmax_dot", "safe_softmax_dot"})


def reduced_dtype(kind: str, dtype: torch.dtype) -> torch.dtype:
    """Dtype of `reduce kind` over values of `dtype`. max/min propagate NaN; argmax/argmin give the first position, NaN first of all."""
    return torch.int64 if kind in POSITIONS else dtype


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """Dtype of the scalars that stand for elements of a tensor of `dtype`: float32 for the low-precision floats."""
    return torch.float32 if dtype in LOW_FLOATS else dtype


def memory_dtype(dtype: torch.dtype) -> torch.dtype:
    """What loops load from and store to a buffer of `dtype`: itself, or the parts of complex numbers."""
    return COMPLEX_PARTS.get(dtype, dtype)


def why_not_dtype(dtype: torch.dtype, dtypes: frozenset[torch.dtype] = BUFFER_DTYPES) -> str | None:
    """Why loops that compute in `dtypes` cannot compute elements of this dtype (complex, quantised, ...), or None."""
    return None if dtype in dtypes else f"no loops over {dtype}"


class Ops(Protocol):
    """What a lowering may ask for. A value is whatever the implementation returns; `dtype_of` tells its dtype."""

    def emit(self, op: str, *args: Any, dtype: torch.dtype, attr: Any = None) -> Any: ...

    def dtype_of(self, value: Any) -> torch.dtype: ...
