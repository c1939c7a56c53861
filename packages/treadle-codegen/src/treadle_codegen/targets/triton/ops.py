"""How each scalar operation, cast and constant is spelled in Triton; tables keyed by operation and kind of dtype.

Triton's own division, square root and exponential of float32 are approximations; eager's kernels round correctly or use
CUDA's mathematical library, and so does what is written here, but where `precision` allows approximations.
"""

from __future__ import annotations

import math

import torch

from treadle_codegen.targets.triton.precision import APPROXIMATIONS

TRITON_TYPES: dict[torch.dtype, str] = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "i1",
}
VALUE_TYPES: dict[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.int64: "tl.int64",
    torch.int32: "tl.int32",
    torch.int16: "tl.int16",
    torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}
_LOW_FLOATS = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, torch.float64, *_LOW_FLOATS)
_SMALL_INTS = (torch.int8, torch.int16)

_FLOAT_OPS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "abs": "tl.abs({0})",
    "neg": "{0} * -1.0",  # Triton's minus is 0 - x, which loses the sign of 0
    "isnan": "{0} != {0}", "isinf": "tl.abs({0}) == float('inf')", "floor": "tl.floor({0})", "ceil": "tl.ceil({0})",
    "round": "libdevice.nearbyint({0})", "truncdiv": "libdevice.trunc(float_div({0}, {1}))",
    "one_plus_erf": "1.0 + libdevice.erf({0})",
    **{name: f"float_{name}({{0}})" for name in ("sign", "sigmoid", "signbit", "sqrt", "reciprocal")},
    **{name: f"float_{name}({{0}}, {{1}})" for name in ("div", "maximum", "minimum", "floordiv", "remainder")},
}  # fmt: skip
_INT_OPS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "neg": "{zero} - {0}", "abs": "tl.where({0} < 0, {zero} - {0}, {0})",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})", "truncdiv": "{0} // {1}", "fmod": "{0} % {1}",
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "~{0}",
    "shl": "{0} << {1}", "shr": "{0} >> {1}", "sign": "int_sign({0})",
    "floordiv": "treadle_floordiv({0}, {1})", "remainder": "treadle_mod({0}, {1})",
}  # fmt: skip
_BOOL_OPS = {
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "{0} ^ {one}",
}  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def expression(
    op: str, args: tuple[str, ...], dtype: torch.dtype, arg_dtype: torch.dtype, *, approximately: bool = False
) -> str:
    """Triton text of a pure operation on named values; `arg_dtype` is that of the first argument.

    approximately: whether an approximation will do where there is one (`precision`)."""
    if approximately and dtype is torch.float32 and op in APPROXIMATIONS:
        return APPROXIMATIONS[op].format(*args)
    if op == "where":
        return f"tl.where({', '.join(args)})"
    if op in _COMPARE:
        if arg_dtype is torch.bool:
            args = tuple([f"{a}.to(tl.int8)" for a in args])
        return f"{args[0]} {_COMPARE[op]} {args[1]}"
    is_float, is_bool = arg_dtype in _FLOATS, arg_dtype is torch.bool
    pattern = (_FLOAT_OPS if is_float else _BOOL_OPS if is_bool else _INT_OPS).get(op)
    if pattern is None:
        return f"libdevice.{op}({', '.join(args)})"
    text = pattern.format(*args, zero=constant(0, dtype), one=constant(1, torch.bool))
    # Shorter integers may become wider on the way.
    return f"({text}).to({VALUE_TYPES[dtype]})" if dtype in (torch.int8, torch.int16, torch.uint8) else text


def cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """Triton text of a conversion as eager makes it: a float beyond the range of the integer is nobody's business."""
    if source is target:
        return value
    if target is torch.bool:
        return f"{value} != 0"
    if source is torch.bool:
        value, source = f"{value}.to(tl.int8)", torch.int8
    if target in _LOW_FLOATS and source is not torch.float32:
        value = f"{value}.to(tl.float32)"
    elif target in _SMALL_INTS and source in _FLOATS:
        value = f"{value}.to(tl.int32)"
    elif target is torch.uint8 and source in _FLOATS:
        value = f"{value}.to(tl.int64)"  # negative values wrap around
    elif target is torch.float64 and source in _LOW_FLOATS:
        value = f"{value}.to(tl.float32)"
    elif source in _LOW_FLOATS and target not in _FLOATS:
        value = f"{value}.to(tl.float32)"
    return f"{value}.to({VALUE_TYPES[target]})"


def literal(value: object, dtype: torch.dtype) -> str:
    """The number as Triton text, without its dtype."""
    if dtype in _FLOATS:
        number = float(value)  # type: ignore[arg-type]
        if math.isnan(number) or math.isinf(number):
            return f"float('{number}')"
        return repr(number)
    if dtype is torch.bool:
        return "1" if value else "0"
    bits = 8 * dtype.itemsize
    integer = int(value) & ((1 << bits) - 1)  # type: ignore[call-overload]
    if dtype.is_signed and integer >= 1 << (bits - 1):
        integer -= 1 << bits
    return str(integer)


def constant(value: object, dtype: torch.dtype) -> str:
    """A value of exactly this dtype; it broadcasts to any block."""
    return f"tl.full([1], {literal(value, dtype)}, {VALUE_TYPES[dtype]})"
