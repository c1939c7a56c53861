"""How each scalar operation, cast and constant is spelled in C++; tables keyed by operation and kind of dtype."""

from __future__ import annotations

import math
import struct

import torch

from treadle_codegen.targets.cpp.vector_fmod import fmod_function

C_TYPES: dict[torch.dtype, str] = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "float",
    torch.bfloat16: "float",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "u8",
    torch.bool: "bool",
}
MEMORY_TYPES = C_TYPES | {
    torch.float16: "u16", torch.bfloat16: "u16", torch.bool: "u8",
    torch.complex64: "float", torch.complex128: "double",
}  # fmt: skip
_UNSIGNED = {torch.int64: "u64", torch.int32: "u32"}
_BITS = {torch.int64: 64, torch.int32: 32, torch.int16: 16, torch.int8: 8, torch.uint8: 8}

_FLOAT_OPS = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "div": "{0} / {1}", "neg": "t_neg({0})",
    "abs": "t_abs({0})", "sign": "({t})(({0} > 0) - ({0} < 0))", "maximum": "t_max({0}, {1})", "minimum": "t_min({0}, {1})",
    "truncdiv": "f_trunc({0} / {1})", "floordiv": "float_floordiv<{t}>({fmod}({0}, {1}), {0}, {1})",
    "remainder": "float_mod<{t}>({fmod}({0}, {1}), {1})", "fmod": "{fmod}({0}, {1})",
    "isnan": "{0} != {0}", "isinf": "__builtin_isinf({0})", "signbit": "t_signbit({0})",
    "reciprocal": "({t})1 / {0}", "round": "f_rint({0})", "trunc": "f_trunc({0})",
}  # fmt: skip
_INT_OPS = {
    "add": "({t})(({u}){0} + ({u}){1})", "sub": "({t})(({u}){0} - ({u}){1})", "mul": "({t})(({u}){0} * ({u}){1})",
    "neg": "({t})(({u})0 - ({u}){0})", "abs": "({t})({0} < 0 ? ({u})0 - ({u}){0} : ({u}){0})", "sign": "t_sign<{t}>({0})",
    "maximum": "t_max<{t}>({0}, {1})", "minimum": "t_min<{t}>({0}, {1})",
    "truncdiv": "({t})({0} / {1})", "floordiv": "int_floordiv<{t}>({0}, {1})",
    "remainder": "int_mod<{t}>({0}, {1})", "fmod": "({t})({0} % {1})",
    "bitwise_and": "({t})({0} & {1})", "bitwise_or": "({t})({0} | {1})", "bitwise_xor": "({t})({0} ^ {1})",
    "bitwise_not": "({t})(~{0})", "shl": "({t})(({u}){0} << {1})", "shr": "({t})({0} >> {1})",
}  # fmt: skip
_BOOL_OPS = {
    "bitwise_and": "{0} & {1}", "bitwise_or": "{0} | {1}", "bitwise_xor": "{0} ^ {1}", "bitwise_not": "!{0}",
}  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Functions of the prelude: rounded as written, or exactly, whatever the compiler knows of their arguments.
_EXACT_FUNCTIONS = frozenset({"sqrt", "floor", "ceil", "rint", "trunc", "fabs", "copysign", "fmod", "rsqrt"})
_FLOAT32_FUNCTIONS = frozenset({"exp", "expm1", "log", "log1p", "tanh", "sigmoid", "erf", "one_plus_erf"})
_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def expression(op: str, args: tuple[str, ...], dtype: torch.dtype, arg_dtype: torch.dtype) -> str:
    """C++ text of a pure operation on named values; `arg_dtype` is that of the first argument."""
    if op == "where":
        return f"{args[0]} ? {args[1]} : {args[2]}"
    if op in _COMPARE:
        return f"{args[0]} {_COMPARE[op]} {args[1]}"
    table = _FLOAT_OPS if arg_dtype in _FLOATS else _BOOL_OPS if arg_dtype is torch.bool else _INT_OPS
    pattern = table.get(op)
    if pattern is not None:
        fmod = fmod_function(arg_dtype) if "{fmod}" in pattern else ""
        return pattern.format(*args, t=C_TYPES[dtype], u=_UNSIGNED.get(dtype, "u32"), fmod=fmod)
    return f"f_{op}({', '.join(args)})"


def calls_c_library(op: str, arg_dtype: torch.dtype) -> bool:
    """Whether the operation ends in the C library, and not for a result that is exact anyway.

    The compiler computes such a function of a constant itself, correctly rounded, where the library's last bit may differ.
    """
    if arg_dtype not in _FLOATS or op in _FLOAT_OPS or op in _COMPARE or op == "where" or op in _EXACT_FUNCTIONS:
        return False
    return arg_dtype is torch.float64 or op not in _FLOAT32_FUNCTIONS


def cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """C++ text of a conversion, rounding to float16/bfloat16 although the value stays a float in registers."""
    if source is target:
        return value
    if target is torch.bool:
        return f"{value} != 0"
    if source is torch.bool and target in _FLOATS:  # g++ 12 converts one bool at a time, and so the whole loop
        return f"({value} ? {constant(1, target)} : {constant(0, target)})"
    if target in (torch.bfloat16, torch.float16):  # doubles are rounded twice, by way of float, as in eager
        single = cast(value, source, torch.float32)
        return (
            f"from_bf16(to_bf16({single}))" if target is torch.bfloat16 else f"vector_from_f16(vector_to_f16({single}))"
        )
    if target is torch.uint8 and source in _FLOATS:
        return f"(u8)(i64){value}"  # negative values wrap around as in eager
    if source is torch.float64 and target is torch.float32:
        return f"to_f32({value})"
    return f"({C_TYPES[target]}){value}"


def constant(value: object, dtype: torch.dtype) -> str:
    """A literal that reads back to exactly this value."""
    if dtype is torch.bool:
        return "true" if value else "false"
    if dtype in _FLOATS:
        number = float(value)  # type: ignore[arg-type]
        single = dtype is not torch.float64
        if math.isnan(number):
            return '__builtin_nanf("")' if single else '__builtin_nan("")'
        if single and not math.isinf(number):
            number = _to_float32(number)
        if math.isinf(number):
            text = "__builtin_inff()" if single else "__builtin_inf()"
            return text if number > 0 else f"(-{text})"
        literal = number.hex() + ("f" if single else "")
        return literal if math.copysign(1, number) > 0 else f"({literal})"
    bits = _BITS[dtype]
    integer = int(value) & ((1 << bits) - 1)  # type: ignore[call-overload]
    if dtype is not torch.uint8 and integer >= 1 << (bits - 1):
        integer -= 1 << bits
    if integer == -(1 << 63):
        return "(-9223372036854775807LL - 1)"
    return f"({C_TYPES[dtype]}){integer}LL" if integer >= 0 else f"({C_TYPES[dtype]})({integer}LL)"


def _to_float32(number: float) -> float:
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def read_memory(place: str, dtype: torch.dtype) -> str:
    """A value loaded from memory."""
    if dtype is torch.bfloat16:
        return f"from_bf16({place})"
    if dtype is torch.float16:
        return f"vector_from_f16({place})"
    return f"{place} != 0" if dtype is torch.bool else place


def half_where(condition: str, place: str, other: float) -> str:
    """A float16 number in memory where the condition holds, `other` elsewhere. What converts it is called for all elements: g++ makes no
    vectors of calls under conditions."""
    return read_memory(f"({condition} ? {place} : (u16){_half_bits(float(other))})", torch.float16)


def _half_bits(number: float) -> int:
    """The bits of the float16 number next to a number; infinity beyond the largest."""
    if math.isnan(number):
        return 0x7E00
    try:
        return int.from_bytes(struct.pack("<e", number), "little")
    except OverflowError:
        return 0x7C00 if number > 0 else 0xFC00


_UNPACKED = {torch.bfloat16: ("from_bf16(",), torch.float16: ("vector_from_f16(", "from_f16(")}


def packed(text: str, dtype: torch.dtype) -> str | None:
    """The 16 bits behind a value that `read_memory` or `cast` has spelled; None for what is no such value."""
    head = next((head for head in _UNPACKED.get(dtype, ()) if text.startswith(head)), None)
    return None if head is None else text[len(head) : -1]


def write_memory(value: str, dtype: torch.dtype) -> str:
    """What is stored for a value."""
    if dtype is torch.bfloat16:
        return f"to_bf16({value})"
    if dtype is torch.float16:
        return f"vector_to_f16({value})"
    return f"(u8){value}" if dtype is torch.bool else value
