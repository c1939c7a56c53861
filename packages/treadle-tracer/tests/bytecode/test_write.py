"""Writing: real code comes back byte for byte, and from meanings alone it comes back the same."""

from __future__ import annotations

import dis
import struct
import types

import bytecode
import bytecode_corpus
import bytecode_programs
import pytest
from bytecode_building import blank
from bytecode_runs import function_like, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle_tracer.bytecode import (
    ArgKind,
    BytecodeError,
    CodeModel,
    ExceptionEntry,
    Instruction,
    read,
    write,
)
from treadle_tracer.bytecode.opcodes import MINOR
from treadle_tracer.bytecode.write import encode_exceptions, encode_positions

LAID_OUT = {"co_code", "co_linetable", "co_exceptiontable"}
SIMPLE_ATTRIBUTES = sorted(
    name
    for name in set(dir(types.CodeType)) - LAID_OUT
    if name.startswith("co_") and not callable(getattr(types.CodeType, name)) and name != "co_lnotab"
)
ATTRIBUTES = SIMPLE_ATTRIBUTES + sorted(LAID_OUT)
INDEXED = (ArgKind.CONST, ArgKind.NAME, ArgKind.LOCAL, ArgKind.FREE, ArgKind.LOCAL_PAIR)


def test_standard_library_comes_back_byte_for_byte():
    codes = bytecode_corpus.standard_library()
    assert len(codes) > 15_000
    shorter = 0
    for code in codes:
        written = write(read(code))
        # The compilers now and then leave an EXTENDED_ARG before a jump that needs none.
        same_layout = len(written.co_code) == len(code.co_code)
        shorter += not same_layout
        for name in ATTRIBUTES if same_layout else SIMPLE_ATTRIBUTES:
            value = getattr(code, name)
            if value is not getattr(written, name):
                assert getattr(written, name) == value, (code, name)
        if not same_layout:
            assert len(written.co_code) < len(code.co_code)
            assert everything(read(written)) == everything(read(code))
    assert shorter <= 10


def test_positions_and_lines_come_back():
    for code in bytecode_corpus.sample(61):
        written = write(read(code))
        assert list(written.co_lines()) == list(code.co_lines())
        assert list(written.co_positions()) == list(code.co_positions())


def everything(model: CodeModel) -> list[object]:
    """All that instructions and exception table say, but for offsets."""
    operands = [(i.opname, i.target or i.arg, i.positions) for i in model.instructions]
    return [operands, model.exceptions]


def without_hints(model: CodeModel) -> CodeModel:
    """The model with nothing in ``arg`` but what ``argval`` does not say, and empty tables."""
    duplicated = len(set(model.localsplus)) != len(model.localsplus)
    instructions = []
    for i in model.instructions:
        slot = i.op.kind in (ArgKind.LOCAL, ArgKind.FREE, ArgKind.LOCAL_PAIR)
        if i.op.kind in INDEXED and not (slot and (duplicated or i.argval in model.cellvars)):
            i = i._replace(arg=i.flag_bits or None)
        instructions.append(i._replace(offset=-1))
    return model.replace(instructions=tuple(instructions), consts=model.consts[:1], names=())


BY_VALUE = {int, bool, str, bytes, type(None), type(Ellipsis)}


def const_key(value: object) -> object:
    """What tells constants apart for CPython's compiler: type and value of its own immutable constants, identity of any other object.

    Floats and complex numbers are compared by bits, so 0.0 and -0.0 stay two constants (``_PyCode_ConstantKey``).
    """
    kind = type(value)
    if kind in BY_VALUE:
        return kind, value
    if kind is float:
        return kind, struct.pack("d", value)
    if kind is complex:
        return kind, struct.pack("dd", value.real, value.imag)
    if kind is tuple:
        return kind, tuple(map(const_key, value))
    if kind is frozenset:
        return kind, frozenset(map(const_key, value))
    return kind, id(value)


def meaning(model: CodeModel) -> list[tuple[object, ...]]:
    return [
        (
            i.opname,
            const_key(i.argval) if i.op.kind is ArgKind.CONST else i.argval,
            i.flag_bits,
            None if i.op.kind in INDEXED else i.arg,
            i.positions,
        )
        for i in model.instructions
        if not i.op.jumps
    ]


def test_standard_library_comes_back_from_meanings():
    for code in bytecode_corpus.sample(29):
        model = read(code)
        written = write(without_hints(model))
        again = read(written)
        assert meaning(again) == meaning(model)
        assert [i.target for i in again.instructions] == [i.target for i in model.instructions]
        assert again.exceptions == model.exceptions
        assert again.localsplus == model.localsplus
        assert written.co_stacksize == code.co_stacksize
        assert write(again).co_code == written.co_code
        assert write(read(write(again))) == write(again)


def test_stack_size_agrees_with_bytecode():
    for code in bytecode_corpus.sample(211):
        theirs = bytecode.Bytecode.from_code(code)
        if not code.co_flags & 0x20 | code.co_flags & 0x280:  # bytecode counts generators differently
            assert write(read(code)).co_stacksize <= max(1, theirs.compute_stacksize())


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(bytecode_programs.programs())
def test_random_programs_run_the_same(source):
    function = bytecode_programs.compiled(source)
    model = read(function.__code__)
    rewritten = function_like(write(without_hints(model)), function)
    theirs = function_like(bytecode.Bytecode.from_code(function.__code__).to_code(), function)
    for inputs in ("(1, 2, [])", "(0, [3], [])", "('x', None, [1])"):
        expected = outcome(function, inputs)
        assert outcome(rewritten, inputs) == expected
        assert outcome(theirs, inputs) == expected


def returning(value: object, *, count: int = 0) -> types.CodeType:
    """Code that stores ``count`` different constants and returns ``value``."""
    filling = [
        i for n in range(count) for i in (Instruction("LOAD_CONST", None, ("filler", n)), Instruction("POP_TOP"))
    ]
    body = [Instruction("RESUME", 0, 0), *filling, Instruction("LOAD_CONST", None, value), Instruction("RETURN_VALUE")]
    return write(blank("f").replace(instructions=tuple(body)))


def call(code: types.CodeType, *args: object) -> object:
    return types.FunctionType(code, {})(*args)


@pytest.mark.parametrize("count", [0, 254, 255, 256, 300, 66_000])
def test_many_constants(count):
    value = object()
    assert call(returning(value, count=count)) is value


@pytest.mark.parametrize("distance", [1, 126, 127, 128, 254, 255, 256, 257, 65_534, 65_540])
def test_jumps_of_every_length(distance):
    forward = "POP_JUMP_FORWARD_IF_FALSE" if MINOR == 11 else "POP_JUMP_IF_FALSE"
    filling = (Instruction("NOP"),) * distance
    # 0 RESUME; while flag: (NOPs) flag = False; return "end"
    body = (
        Instruction("RESUME", 0, 0),
        Instruction("LOAD_FAST", None, "flag"),
        Instruction(forward, None, 6 + distance),
        *filling,
        Instruction("LOAD_CONST", None, False),
        Instruction("STORE_FAST", None, "flag"),
        Instruction("JUMP_BACKWARD", None, 1),
        Instruction("LOAD_CONST", None, "end"),
        Instruction("RETURN_VALUE"),
    )
    code = write(blank("f", ["flag"]).replace(instructions=body))
    assert call(code, True) == call(code, False) == "end"
    again = read(code)
    assert [i.target for i in again.instructions] == [i.target for i in body]
    units = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    assert len(units) == len(body)


def test_constants_are_told_apart_as_the_compiler_does():
    values = [1, True, 1.0, 0.0, -0.0, 1 + 0j, complex(0.0, -0.0), 0j, "a", b"a", None, ..., (1,), (True,), (1.0,), (0.0,),
              (-0.0,), frozenset({1}), frozenset({1.0}), frozenset({True}), (1, (2, -0.0)), (1, (2, 0.0)), float("nan")]  # fmt: skip
    keys = [const_key(v) for v in values]
    assert len(set(keys)) == len(values)
    assert [const_key(v) for v in values] == keys
    body = [Instruction("RESUME", 0, 0), *(Instruction("LOAD_CONST", None, v) for v in values + values)]
    body += [Instruction("BUILD_TUPLE", 2 * len(values), 2 * len(values)), Instruction("RETURN_VALUE")]
    code = write(blank("f").replace(instructions=tuple(body)))
    got = call(code)
    assert [const_key(v) for v in got] == keys + keys
    assert len(code.co_consts) == len(set(keys) | {const_key(None)})


def test_any_object_may_be_a_constant():
    values = [[], {}, object(), [], lambda: 1, dis, type, (1, []), (1, [])]
    body = [Instruction("RESUME", 0, 0), *(Instruction("LOAD_CONST", None, v) for v in [*values, *values])]
    body += [Instruction("BUILD_TUPLE", 2 * len(values), 2 * len(values)), Instruction("RETURN_VALUE")]
    code = write(blank("f").replace(instructions=tuple(body)))
    got = call(code)
    assert all(a is b for a, b in zip(got, values + values, strict=True))
    assert len(code.co_consts) == len(values) + 1


entries = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 9999), st.integers(0, 200), st.booleans()),
    max_size=6,
)


@given(entries)
def test_exception_tables(drawn):
    numbers = sorted({n for start, length, *_ in drawn for n in (start, start + length)})
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
    table = [ExceptionEntry(a, b, e[2], e[3], e[4]) for (a, b), e in zip(pairs, drawn, strict=False)]
    encoded = encode_exceptions(table, [3 * i for i in range(10_002)])
    code = (lambda: 0).__code__.replace(co_exceptiontable=encoded)
    parsed = dis._parse_exception_table(code)
    expected = [(6 * e.start, 6 * (e.end + 1), 6 * e.target, e.depth, e.lasti) for e in table]
    assert [(p.start, p.end, p.target, p.depth, p.lasti) for p in parsed] == expected


columns = st.one_of(st.integers(0, 200), st.integers(0, 20_000))
positions = st.one_of(
    st.just((None, None, None, None)),
    st.integers(1, 5000).map(lambda line: (line, line, None, None)),
    st.tuples(st.integers(1, 300), st.integers(0, 100), columns, columns).map(
        lambda t: (t[0], t[0] + t[1], t[2], t[3])
    ),
    st.tuples(st.integers(1, 9), st.integers(0, 70), st.integers(0, 20)).map(lambda t: (t[0], t[0], t[1], t[1] + t[2])),
    st.tuples(st.integers(1, 9), st.integers(1, 70)).map(lambda t: (t[0], t[0] + t[1], None, None)),
)


@given(st.lists(st.tuples(st.integers(1, 30), positions), max_size=12), st.integers(1, 400))
def test_location_tables(runs, first_line):
    encoded = encode_positions(runs, first_line)
    units = sum(size for size, _ in runs)
    nops = bytes([dis.opmap["NOP"], 0]) * units
    code = (lambda: 0).__code__.replace(co_code=nops, co_linetable=encoded, co_firstlineno=first_line)
    expected = [position for size, position in runs for _ in range(size)]
    assert list(code.co_positions()) == expected


def model_of(*instructions: Instruction) -> CodeModel:
    return blank("f", ["x"]).replace(instructions=(Instruction("RESUME", 0, 0), *instructions))


@pytest.mark.parametrize(
    ("instructions", "message"),
    [
        ([Instruction("FLY")], "FLY in f is no opcode of this Python version"),
        ([Instruction("LOAD_FAST", None, "y"), Instruction("RETURN_VALUE")], "f has no local variable 'y' .known: x"),
        (
            [Instruction("LOAD_DEREF", None, "x"), Instruction("RETURN_VALUE")],
            "f has no free variable 'x' .known: none",
        ),
        ([Instruction("JUMP_FORWARD", None, 7)], "JUMP_FORWARD at index 1 of f jumps to 7"),
        ([Instruction("JUMP_FORWARD", None, 1)], "JUMP_FORWARD at index 1 of f cannot jump to index 1"),
        ([Instruction("NOP")], "runs off the end of f"),
        (
            [Instruction("POP_TOP"), Instruction("RETURN_VALUE")],
            "instruction 1 .POP_TOP. of f takes more than the stack",
        ),
        ([Instruction("BINARY_OP", None, "?")], "no operand|not in tuple"),
    ],
)
def test_wrong_models(instructions, message):
    with pytest.raises((BytecodeError, ValueError), match=message):
        write(model_of(*instructions))


def test_no_instructions():
    with pytest.raises(BytecodeError, match="f has no instructions"):
        write(blank("f"))


@pytest.mark.skipif(MINOR < 13, reason="superinstructions in the code itself came with 3.13")
def test_superinstructions_split_where_slots_do_not_fit():
    names = [f"v{i}" for i in range(20)]
    body = (
        Instruction("RESUME", 0, 0),
        Instruction("LOAD_FAST_LOAD_FAST", None, ("v1", "v17")),
        Instruction("STORE_FAST_STORE_FAST", None, ("v18", "v2")),
        Instruction("LOAD_FAST_LOAD_FAST", None, ("v18", "v2")),
        Instruction("STORE_FAST_LOAD_FAST", None, ("v3", "v19")),
        Instruction("LOAD_FAST_LOAD_FAST", None, ("v3", "v4")),
        Instruction("BUILD_TUPLE", 4, 4),
        Instruction("RETURN_VALUE"),
    )
    code = write(blank("f", names).replace(instructions=body))
    assert call(code, *range(20)) == (17, 19, 1, 4)
