"""Opcode tables for CPython 3.11, 3.12 and 3.13: the only place in the tracer that knows how the versions differ.

Every opcode a compiler emits is declared once per version window with the kind of its operand and its stack effect.
Facts: ``Include/opcode.h``, ``Python/compile.c`` (``stack_effect``), ``Python/bytecodes.c``, ``Lib/dis.py`` of the
versions concerned. Tests compare every row with ``dis.opmap``, ``dis.stack_effect`` and the lists in ``opcode``.
"""

from __future__ import annotations

import enum
import opcode
import sys
from collections.abc import Callable
from typing import NamedTuple

MINOR = sys.version_info[1]
"""Minor version of the running CPython: 11, 12 or 13."""


class ArgKind(enum.Enum):
    """What an operand means, and so what ``Instruction.argval`` holds."""

    NONE = "no operand"
    RAW = "a number"
    CONST = "index into consts; argval: the object"
    NAME = "index into names, shifted left over flag bits; argval: the name"
    LOCAL = "fast slot; argval: the name"
    LOCAL_PAIR = "two fast slots of four bits each; argval: both names"
    FREE = "fast slot of a cell or free variable; argval: the name"
    FORWARD = "code units forward from the next instruction; argval: instruction index"
    BACKWARD = "code units backward from the next instruction; argval: instruction index"
    COMPARE = "comparison, shifted left over cache hints; argval: operator text"
    BINARY = "NB_* number; argval: operator text"
    INTRINSIC_1 = "one-argument intrinsic; argval: its name"
    INTRINSIC_2 = "two-argument intrinsic; argval: its name"


Effect = int | Callable[[int], int]


class Op(NamedTuple):
    """One opcode of the running version.

    effect       change of stack depth when the next instruction follows (number, or function of the operand)
    jump_effect  the same when it jumps
    ends         execution never goes on to the next instruction
    shift        flag bits below the name or comparison index in the operand
    caches       CACHE units that follow the instruction
    """

    name: str
    code: int
    kind: ArgKind
    effect: Effect
    jump_effect: Effect
    ends: bool
    shift: int
    caches: int

    @property
    def jumps(self) -> bool:
        return self.kind is ArgKind.FORWARD or self.kind is ArgKind.BACKWARD


_CACHES: dict[int, dict[str, int]] = {
    11: {
        "BINARY_SUBSCR": 4, "STORE_SUBSCR": 1, "UNPACK_SEQUENCE": 1, "STORE_ATTR": 4, "LOAD_ATTR": 4, "COMPARE_OP": 2,
        "LOAD_GLOBAL": 5, "BINARY_OP": 1, "LOAD_METHOD": 10, "PRECALL": 1, "CALL": 4,
    },
    12: {
        "BINARY_SUBSCR": 1, "STORE_SUBSCR": 1, "UNPACK_SEQUENCE": 1, "FOR_ITER": 1, "STORE_ATTR": 4, "LOAD_ATTR": 9,
        "COMPARE_OP": 1, "LOAD_GLOBAL": 4, "BINARY_OP": 1, "SEND": 1, "LOAD_SUPER_ATTR": 1, "CALL": 3,
    },
    13: {
        "LOAD_GLOBAL": 4, "BINARY_OP": 1, "UNPACK_SEQUENCE": 1, "COMPARE_OP": 1, "CONTAINS_OP": 1, "BINARY_SUBSCR": 1,
        "FOR_ITER": 1, "LOAD_SUPER_ATTR": 1, "LOAD_ATTR": 9, "STORE_ATTR": 4, "CALL": 3, "STORE_SUBSCR": 1, "SEND": 1,
        "JUMP_BACKWARD": 1, "TO_BOOL": 3, "POP_JUMP_IF_TRUE": 1, "POP_JUMP_IF_FALSE": 1, "POP_JUMP_IF_NONE": 1,
        "POP_JUMP_IF_NOT_NONE": 1,
    },
}  # fmt: skip
"""CACHE units per opcode (``opcode._inline_cache_entries``)."""

OPS: dict[str, Op] = {}
"""Every opcode that the code of the running version may contain, by name."""


def _op(
    names: str,
    kind: ArgKind = ArgKind.NONE,
    effect: Effect = 0,
    jump_effect: Effect | None = None,
    *,
    ends: bool = False,
    shift: int = 0,
    since: int = 11,
    until: int = 13,
) -> None:
    """Declare the opcodes in ``names`` (separated by spaces) for the versions 3.``since`` … 3.``until``."""
    if not since <= MINOR <= until:
        return
    for name in names.split():
        if name in OPS:
            raise ValueError(f"opcode {name} is declared twice for Python 3.{MINOR}")
        caches = _CACHES[MINOR].get(name, 0)
        jump = effect if jump_effect is None else jump_effect
        OPS[name] = Op(name, opcode.opmap[name], kind, effect, jump, ends, shift, caches)


_K = ArgKind


def _low_bit(base: int) -> Callable[[int], int]:
    """One value more is pushed when the lowest operand bit is set."""
    return lambda arg: base + (arg & 1)


def _takes(fixed: int) -> Callable[[int], int]:
    """``fixed`` more values than the operand says are replaced by nothing (so -fixed - operand)."""
    return lambda arg: -fixed - arg


def _declare_stack_and_data() -> None:
    _op("NOP UNARY_NEGATIVE UNARY_NOT UNARY_INVERT GET_ITER GET_YIELD_FROM_ITER GET_AITER SETUP_ANNOTATIONS")
    _op("CHECK_EXC_MATCH CHECK_EG_MATCH")
    _op("UNARY_POSITIVE LIST_TO_TUPLE ASYNC_GEN_WRAP", until=11)
    _op("POP_TOP POP_EXCEPT BINARY_SUBSCR", effect=-1)
    _op("PRINT_EXPR IMPORT_STAR PREP_RERAISE_STAR", effect=-1, until=11)
    _op("END_SEND CLEANUP_THROW", effect=-1, since=12)
    _op("BINARY_SLICE", effect=-2, since=12)
    _op("STORE_SLICE", effect=-4, since=12)
    _op("DELETE_SUBSCR END_ASYNC_FOR", effect=-2)
    _op("STORE_SUBSCR", effect=-3)
    _op("PUSH_NULL LOAD_BUILD_CLASS LOAD_ASSERTION_ERROR PUSH_EXC_INFO WITH_EXCEPT_START GET_LEN GET_ANEXT", effect=1)
    _op("MATCH_KEYS MATCH_MAPPING MATCH_SEQUENCE BEFORE_WITH BEFORE_ASYNC_WITH", effect=1)
    _op("LOAD_LOCALS", effect=1, since=12)
    _op("END_FOR", effect=-2, since=12, until=12)
    _op("END_FOR", effect=-1, since=13)
    _op("TO_BOOL FORMAT_SIMPLE", since=13)
    _op("FORMAT_WITH_SPEC", effect=-1, since=13)
    _op("RESUME COPY_FREE_VARS SWAP GET_AWAITABLE", _K.RAW)
    _op("CONVERT_VALUE", _K.RAW, since=13)
    _op("COPY", _K.RAW, 1)
    _op("IS_OP CONTAINS_OP LIST_APPEND SET_ADD LIST_EXTEND SET_UPDATE DICT_UPDATE DICT_MERGE", _K.RAW, -1)
    _op("MAP_ADD MATCH_CLASS", _K.RAW, -2)
    _op("BUILD_TUPLE BUILD_LIST BUILD_SET BUILD_STRING", _K.RAW, lambda arg: 1 - arg)
    _op("BUILD_MAP", _K.RAW, lambda arg: 1 - 2 * arg)
    _op("BUILD_CONST_KEY_MAP", _K.RAW, _takes(0))
    _op("BUILD_SLICE", _K.RAW, lambda arg: -2 if arg == 3 else -1)
    _op("FORMAT_VALUE", _K.RAW, lambda arg: -1 if arg & 4 else 0, until=12)  # 4: a format spec is on the stack
    _op("UNPACK_SEQUENCE", _K.RAW, lambda arg: arg - 1)
    _op("UNPACK_EX", _K.RAW, lambda arg: (arg & 0xFF) + (arg >> 8))
    _op("BINARY_OP", _K.BINARY, -1)
    _op("COMPARE_OP", _K.COMPARE, -1, until=11)
    _op("COMPARE_OP", _K.COMPARE, -1, shift=4, since=12, until=12)
    _op("COMPARE_OP", _K.COMPARE, -1, shift=5, since=13)
    _op("CALL_INTRINSIC_1", _K.INTRINSIC_1, 0, since=12)
    _op("CALL_INTRINSIC_2", _K.INTRINSIC_2, -1, since=12)


def _declare_names() -> None:
    _op("LOAD_CONST", _K.CONST, 1)
    _op("KW_NAMES", _K.CONST, 0, until=12)
    _op("LOAD_NAME", _K.NAME, 1)
    _op("STORE_NAME STORE_GLOBAL", _K.NAME, -1)
    _op("DELETE_NAME DELETE_GLOBAL", _K.NAME, 0)
    _op("DELETE_ATTR IMPORT_NAME", _K.NAME, -1)
    _op("STORE_ATTR", _K.NAME, -2)
    _op("IMPORT_FROM", _K.NAME, 1)
    _op("LOAD_GLOBAL", _K.NAME, _low_bit(1), shift=1)
    _op("LOAD_METHOD", _K.NAME, 1, until=11)
    _op("LOAD_ATTR", _K.NAME, 0, until=11)
    _op("LOAD_ATTR", _K.NAME, _low_bit(0), shift=1, since=12)
    _op("LOAD_SUPER_ATTR", _K.NAME, _low_bit(-2), shift=2, since=12)
    _op("LOAD_FROM_DICT_OR_GLOBALS", _K.NAME, 0, since=12)
    _op("LOAD_FAST", _K.LOCAL, 1)
    _op("LOAD_FAST_CHECK LOAD_FAST_AND_CLEAR", _K.LOCAL, 1, since=12)
    _op("STORE_FAST", _K.LOCAL, -1)
    _op("DELETE_FAST", _K.LOCAL, 0)
    _op("LOAD_FAST_LOAD_FAST", _K.LOCAL_PAIR, 2, since=13)
    _op("STORE_FAST_LOAD_FAST", _K.LOCAL_PAIR, 0, since=13)
    _op("STORE_FAST_STORE_FAST", _K.LOCAL_PAIR, -2, since=13)
    _op("MAKE_CELL DELETE_DEREF", _K.FREE, 0)
    _op("LOAD_DEREF", _K.FREE, 1)
    _op("STORE_DEREF", _K.FREE, -1)
    _op("LOAD_CLOSURE", _K.FREE, 1, until=12)
    _op("LOAD_CLASSDEREF", _K.FREE, 1, until=11)
    _op("LOAD_FROM_DICT_OR_DEREF", _K.FREE, 0, since=12)


def _declare_calls_and_flow() -> None:
    _op("PRECALL", _K.RAW, _takes(0), until=11)
    _op("CALL", _K.RAW, -1, until=11)  # PRECALL has taken the arguments off
    _op("CALL", _K.RAW, _takes(1), since=12)
    _op("CALL_KW", _K.RAW, _takes(2), since=13)
    _op("CALL_FUNCTION_EX", _K.RAW, lambda arg: -2 - (arg & 1))
    _op(
        "MAKE_FUNCTION", _K.RAW, lambda arg: -(arg & 0xF).bit_count(), until=12
    )  # defaults, kwdefaults, annotations, closure
    _op("MAKE_FUNCTION", since=13)
    _op("SET_FUNCTION_ATTRIBUTE", _K.RAW, -1, since=13)
    _op("RETURN_VALUE", effect=-1, ends=True)
    _op("RETURN_CONST", _K.CONST, 0, ends=True, since=12)
    # The compilers of 3.11 and 3.12 count 0 here and let the frame start with one value; what happens is that the first
    # send leaves a value on the stack, as 3.13 says.
    _op("RETURN_GENERATOR", effect=1)
    _op("YIELD_VALUE", until=11)
    _op("YIELD_VALUE", _K.RAW, since=12)
    _op("RAISE_VARARGS", _K.RAW, _takes(0), ends=True)
    _op("RERAISE", _K.RAW, -1, ends=True)
    _op("JUMP_FORWARD", _K.FORWARD, ends=True)
    _op("JUMP_BACKWARD JUMP_BACKWARD_NO_INTERRUPT", _K.BACKWARD, ends=True)
    _op("JUMP_IF_FALSE_OR_POP JUMP_IF_TRUE_OR_POP", _K.FORWARD, -1, 0, until=11)
    for condition in ("TRUE", "FALSE", "NONE", "NOT_NONE"):
        _op(f"POP_JUMP_FORWARD_IF_{condition}", _K.FORWARD, -1, until=11)
        _op(f"POP_JUMP_BACKWARD_IF_{condition}", _K.BACKWARD, -1, until=11)
        _op(f"POP_JUMP_IF_{condition}", _K.FORWARD, -1, since=12)
    _op("FOR_ITER", _K.FORWARD, 1, -1, until=11)
    _op("FOR_ITER", _K.FORWARD, 1, since=12)  # counted to the END_FOR it names, though the interpreter jumps past that
    _op("SEND", _K.FORWARD, 0, -1, until=11)
    _op("SEND", _K.FORWARD, 0, since=12)


_declare_stack_and_data()
_declare_names()
_declare_calls_and_flow()

NEVER_READ = frozenset(
    {"CACHE", "EXTENDED_ARG", "RESERVED", "INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR"}
)  # fmt: skip
"""Real opcodes that are never instructions of their own in ``co_code``: folded by the reader, or internal to the
interpreter. ``co_code`` undoes instrumented and specialised opcodes; numbers above 255 are the compiler's own."""

EXTENDED_ARG = opcode.opmap["EXTENDED_ARG"]

WRITE_ALIASES: dict[str, str] = {} if MINOR < 13 else {"LOAD_CLOSURE": "LOAD_FAST"}
"""Names the writer takes besides ``OPS``. LOAD_CLOSURE pushes the cell itself; 3.13 does that with LOAD_FAST."""

if "LOAD_CLOSURE" in WRITE_ALIASES:
    OPS["LOAD_CLOSURE"] = OPS["LOAD_FAST"]._replace(name="LOAD_CLOSURE", kind=ArgKind.FREE)

_BY_CODE = {op.code: op for name, op in OPS.items() if name not in WRITE_ALIASES}

BY_CODE: tuple[Op | None, ...] = tuple(map(_BY_CODE.get, range(256)))
"""``OPS`` by opcode number."""

CHECKED_LOADS: dict[str, str] = {
    11: {},
    12: {"LOAD_FAST": "LOAD_FAST_CHECK"},
    13: {"LOAD_FAST": "LOAD_FAST_CHECK", "LOAD_CLOSURE": "LOAD_FAST_CHECK"},
}[MINOR]
"""The loads that crash on an empty slot, and what raises UnboundLocalError instead (3.11: all loads do)."""

BINARY_OPS: tuple[str, ...] = (
    "+", "&", "//", "<<", "@", "*", "%", "|", "**", ">>", "-", "/", "^",
    "+=", "&=", "//=", "<<=", "@=", "*=", "%=", "|=", "**=", ">>=", "-=", "/=", "^=",
)  # fmt: skip
"""Operator text of each NB_* number of BINARY_OP."""

COMPARE_OPS: tuple[str, ...] = ("<", "<=", "==", "!=", ">", ">=")
"""Operator text of each comparison number (Py_LT …)."""

_COMPARE_CACHE_BITS = (2, 10, 8, 7, 4, 12)  # unordered 1, less 2, greater 4, equal 8
_COMPARE_TO_BOOL = 16  # 3.13 only: the result goes through bool()

INTRINSICS_1: tuple[str, ...] = (
    "INTRINSIC_1_INVALID", "INTRINSIC_PRINT", "INTRINSIC_IMPORT_STAR", "INTRINSIC_STOPITERATION_ERROR",
    "INTRINSIC_ASYNC_GEN_WRAP", "INTRINSIC_UNARY_POSITIVE", "INTRINSIC_LIST_TO_TUPLE", "INTRINSIC_TYPEVAR",
    "INTRINSIC_PARAMSPEC", "INTRINSIC_TYPEVARTUPLE", "INTRINSIC_SUBSCRIPT_GENERIC", "INTRINSIC_TYPEALIAS",
)  # fmt: skip
INTRINSICS_2: tuple[str, ...] = (
    "INTRINSIC_2_INVALID", "INTRINSIC_PREP_RERAISE_STAR", "INTRINSIC_TYPEVAR_WITH_BOUND",
    "INTRINSIC_TYPEVAR_WITH_CONSTRAINTS", "INTRINSIC_SET_FUNCTION_TYPE_PARAMS",
) + (("INTRINSIC_SET_TYPEPARAM_DEFAULT",) if MINOR >= 13 else ())  # fmt: skip

PAIR_PARTS: dict[str, tuple[str, str]] = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
"""The two instructions that each superinstruction replaces, in order of execution (3.13)."""

NULL_AFTER_CALLABLE = MINOR >= 13
"""Calls find ``callable, NULL|self, args…`` on the stack from 3.13 on, and ``NULL, callable, args…`` or
``method, self, args…`` before."""


def compare_arg(operator: str, *, to_bool: bool = False) -> int:
    """Operand of COMPARE_OP for an operator text; ``to_bool`` (3.13; ignored before) converts the result."""
    number = COMPARE_OPS.index(operator)
    if MINOR < 12:
        return number
    flags = _COMPARE_CACHE_BITS[number] | (_COMPARE_TO_BOOL if to_bool and MINOR >= 13 else 0)
    return number << OPS["COMPARE_OP"].shift | flags


def compare_converts_to_bool(arg: int) -> bool:
    """Whether a COMPARE_OP with this operand leaves ``bool(result)``."""
    return MINOR >= 13 and bool(arg & _COMPARE_TO_BOOL)


def stack_effect(op: Op, arg: int | None, *, jump: bool = False) -> int:
    """Change of stack depth by one execution of ``op``; ``jump`` selects the case that it jumps."""
    effect = op.jump_effect if jump else op.effect
    return effect if isinstance(effect, int) else effect(arg or 0)


RANGE_STARTS_LATE = MINOR >= 13
"""An exception that comes out of an inlined Python call is looked up one code unit before the calling instruction: the
first instruction of a range must be one that calls nothing (``exception_unwind`` after ``exit_unwind`` in
``Python/ceval.c``; the compiler's ranges begin with a NOP or a load)."""

MERGES_POSITIONS = MINOR >= 12
"""Whether the compiler writes one location entry for neighbours at the same position (3.11: one each)."""
