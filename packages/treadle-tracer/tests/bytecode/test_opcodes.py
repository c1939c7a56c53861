"""The opcode tables against what the running interpreter says about itself."""

from __future__ import annotations

import dis
import opcode
import operator
import sys

import pytest

from treadle_tracer.bytecode import OPS, ArgKind, read, stack_effect
from treadle_tracer.bytecode.opcodes import (
    BINARY_OPS,
    BY_CODE,
    COMPARE_OPS,
    INTRINSICS_1,
    INTRINSICS_2,
    MINOR,
    NEVER_READ,
    PAIR_PARTS,
    WRITE_ALIASES,
    compare_arg,
    compare_converts_to_bool,
)

REAL = {name: op for name, op in OPS.items() if name not in WRITE_ALIASES}


def takes_argument(code: int) -> bool:
    return code in dis.hasarg if hasattr(dis, "hasarg") else code >= dis.HAVE_ARGUMENT


def test_every_opcode_is_declared():
    of_interpreter = {n for n, code in dis.opmap.items() if code < 256 and not n.startswith("INSTRUMENTED_")}
    assert set(REAL) == of_interpreter - NEVER_READ
    assert NEVER_READ & set(REAL) == set()
    for name, op in REAL.items():
        assert op.code == dis.opmap[name]
        assert BY_CODE[op.code] is op
        assert (op.kind is not ArgKind.NONE) == takes_argument(op.code), name


@pytest.mark.parametrize("name", sorted(REAL))
def test_stack_effects(name):
    op = REAL[name]
    if name == "RETURN_GENERATOR" and MINOR < 13:
        assert stack_effect(op, None) == 1  # the interpreters' 0 leaves out the value that the first send pushes
        return
    for arg in [*range(300), 0x1FF, 0x203, 0x10000] if takes_argument(op.code) else [None]:
        for jump in (False, True):
            try:
                expected = dis.stack_effect(op.code, arg, jump=jump)
            except ValueError:  # 3.13 refuses operands that cannot be
                continue
            assert stack_effect(op, arg, jump=jump) == expected, (arg, jump)


def test_operand_kinds():
    by_kind = {kind: {op.code for op in REAL.values() if op.kind is kind} for kind in ArgKind}

    def real(codes):
        return {c for c in codes if BY_CODE[c] is not None} if codes else set()

    assert by_kind[ArgKind.CONST] == real(c for c in dis.hasconst if c < 256)
    assert by_kind[ArgKind.NAME] == real(c for c in dis.hasname if c < 256)
    assert by_kind[ArgKind.LOCAL] | by_kind[ArgKind.LOCAL_PAIR] == real(c for c in dis.haslocal if c < 256)
    assert by_kind[ArgKind.FREE] == real(c for c in dis.hasfree if c < 256)
    assert by_kind[ArgKind.FORWARD] | by_kind[ArgKind.BACKWARD] == real(c for c in dis.hasjrel if c < 256)
    assert by_kind[ArgKind.COMPARE] == set(dis.hascompare)
    assert not [c for c in dis.hasjabs if c < 256]
    assert all("BACKWARD" in BY_CODE[c].name for c in by_kind[ArgKind.BACKWARD])
    assert not any("BACKWARD" in BY_CODE[c].name for c in by_kind[ArgKind.FORWARD])
    assert {op.name for op in REAL.values() if op.kind is ArgKind.LOCAL_PAIR} == (
        set(PAIR_PARTS) if MINOR >= 13 else set()
    )


def test_caches():
    entries = opcode._inline_cache_entries
    for name, op in REAL.items():
        assert op.caches == (entries[op.code] if isinstance(entries, list) else entries.get(name, 0)), name


def test_operators_and_intrinsics():
    assert tuple(symbol for _, symbol in opcode._nb_ops) == BINARY_OPS
    assert tuple(dis.cmp_op) == COMPARE_OPS
    if MINOR >= 12:
        assert tuple(opcode._intrinsic_1_descs) == INTRINSICS_1
        assert tuple(opcode._intrinsic_2_descs) == INTRINSICS_2


@pytest.mark.parametrize("text", COMPARE_OPS)
def test_compare_operands(text):
    plain = read(compile(f"a {text} b", "", "eval")).instructions
    (compare,) = [i for i in plain if i.opname == "COMPARE_OP"]
    assert compare.argval == text
    assert compare.arg == compare_arg(text)
    assert not compare_converts_to_bool(compare.arg)
    condition = read(compile(f"1 if a {text} b else 2", "", "eval")).instructions
    (compare,) = [i for i in condition if i.opname == "COMPARE_OP"]
    assert compare.argval == text
    assert compare.arg == compare_arg(text, to_bool=True)
    assert compare_converts_to_bool(compare.arg) == (sys.version_info >= (3, 13))


def test_terminators():
    ends = {name for name, op in REAL.items() if op.ends}
    expected = {"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD"}
    assert ends == (expected | {"JUMP_BACKWARD_NO_INTERRUPT"}) & set(REAL)


def test_binary_operator_texts_mean_what_they_say():
    functions = {"+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
                 "&": operator.and_, "|": operator.or_, "^": operator.xor, "<<": operator.lshift, ">>": operator.rshift,
                 "**": operator.pow, "/": operator.truediv}  # fmt: skip
    for text, function in functions.items():
        (op,) = [i for i in read(compile(f"a {text} b", "", "eval")).instructions if i.opname == "BINARY_OP"]
        assert op.argval == text
        assert eval(f"13 {op.argval} 3") == function(13, 3)
