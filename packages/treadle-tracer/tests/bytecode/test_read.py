"""Reading, against ``dis`` and the PyPI package ``bytecode``."""

from __future__ import annotations

import dis
import sys

import bytecode
import bytecode_corpus
import pytest

from treadle_tracer.bytecode import OPS, ArgKind, BytecodeError, read
from treadle_tracer.bytecode.opcodes import EXTENDED_ARG


def test_same_instructions_as_dis():
    for code in bytecode_corpus.sample(23):
        model = read(code)
        expected = [i for i in dis.get_instructions(code) if i.opcode != EXTENDED_ARG and i.opname != "CACHE"]
        assert len(model.instructions) == len(expected)
        for mine, theirs in zip(model.instructions, expected, strict=True):
            assert (mine.opname, mine.offset, mine.arg) == (theirs.opname, theirs.offset, theirs.arg)
            assert mine.positions == (tuple(theirs.positions) if theirs.positions else (None,) * 4)
            if mine.op.kind is ArgKind.CONST:
                assert mine.argval is code.co_consts[theirs.arg]
            elif mine.op.kind in (ArgKind.NAME, ArgKind.LOCAL, ArgKind.FREE, ArgKind.LOCAL_PAIR):
                assert mine.argval == theirs.argval
            elif mine.op.jumps:
                target = model.instructions[mine.target]
                assert target.offset >= theirs.argval
                between = code.co_code[theirs.argval : target.offset : 2]
                assert all(number == EXTENDED_ARG for number in between)


def test_same_instructions_and_exceptions_as_bytecode():
    for code in bytecode_corpus.sample(31):
        model = read(code)
        theirs = bytecode.ConcreteBytecode.from_code(code, extended_arg=True)
        listed = [i for i in theirs if i.name not in ("CACHE", "EXTENDED_ARG")]
        assert [i.opname for i in model.instructions] == [i.name for i in listed]
        index_of, index, start = {}, 0, None
        for unit, instruction in enumerate(theirs):
            start = unit if start is None else start
            if instruction.name not in ("CACHE", "EXTENDED_ARG"):
                index_of[start] = index
                index += 1
            if instruction.name != "EXTENDED_ARG":
                start = None
        index_of[len(theirs)] = index
        starts = sorted(index_of)
        entries = [
            (
                index_of[e.start_offset],
                max(index_of[s] for s in starts if s <= e.stop_offset),
                index_of[e.target],
                e.stack_depth,
                e.push_lasti,
            )
            for e in theirs.exception_table
        ]
        assert [(e.start, e.end, e.target, e.depth, e.lasti) for e in model.exceptions] == entries


def example(a, /, b, *args, c=1, **kwargs):
    d = a + b
    try:
        return [x for x in args if x > d], lambda: d + c
    except TypeError:
        return kwargs


def test_attributes():
    model = read(example.__code__)
    assert (model.name, model.argcount, model.posonlyargcount, model.kwonlyargcount) == ("example", 2, 1, 1)
    assert model.arguments == ("a", "b", "c", "args", "kwargs")
    assert set(model.cellvars) >= {"d", "c"}
    assert model.localsplus[: len(model.varnames)] == model.varnames
    assert sorted(model.localsplus) == sorted(set(model.varnames) | set(model.cellvars))


def test_flag_bits():
    model = read(compile("f(a.b, c.d())", "", "eval"))
    attributes = [i for i in model.instructions if i.opname == "LOAD_ATTR"]
    if sys.version_info >= (3, 12):
        assert [(i.argval, i.flag_bits) for i in attributes] == [("b", 0), ("d", 1)]
    else:
        assert [(i.argval, i.flag_bits) for i in attributes] == [("b", 0)]

    def call():
        return len(sys)

    loads = [i for i in read(call.__code__).instructions if i.opname == "LOAD_GLOBAL"]
    assert [(i.argval, i.flag_bits) for i in loads] == [("len", 1), ("sys", 0)]


def test_handler():
    model = read(example.__code__)
    covered = {i for e in model.exceptions for i in range(e.start, e.end + 1)}
    for index in range(len(model.instructions)):
        entry = model.handler_at(index)
        assert (entry is not None) == (index in covered)
        assert entry is None or entry.start <= index <= entry.end
    assert covered


def test_specialised_code_reads_as_compiled():
    def hot(a, b):
        return a.real + b[0]

    before = [(i.opname, i.arg) for i in read(hot.__code__).instructions]
    for _ in range(100):
        hot(1, [2])
    assert [(i.opname, i.arg) for i in read(hot.__code__).instructions] == before


def test_instructions_are_told_apart_by_identity():
    one, other = (read(example.__code__).instructions[0] for _ in range(2))
    assert tuple(one) == tuple(other)
    assert one != other
    assert len({one, other, one}) == 2


def delegates(items):
    yield from items


def delegates_inside(items):
    try:
        yield from items
    finally:
        print("closed")


@pytest.mark.parametrize(("function", "has_handler"), [(delegates, False), (delegates_inside, True)])
def test_handlers_of_a_yield_from_that_are_the_programs(function, has_handler):
    model = read(function.__code__)
    yields = next(n for n, i in enumerate(model.instructions) if i.opname == "YIELD_VALUE")
    entry = model.handler_at(yields)
    while entry is not None and model.ends_delegation(entry):
        entry = model.handler_at(entry.target)
    assert (entry is not None and not model.converts_stop_iteration(entry)) == has_handler


def test_wrong_input():
    with pytest.raises(TypeError, match="code object, got function"):
        read(example)
    code = example.__code__
    with pytest.raises(BytecodeError, match="unknown opcode 0 at offset 0 of example"):
        read(code.replace(co_code=bytes(2) + code.co_code[2:]))
    beyond = bytes([OPS["LOAD_CONST"].code, 200])
    with pytest.raises(BytecodeError, match="LOAD_CONST 200 at offset 0 of example points at nothing"):
        read(code.replace(co_code=beyond + code.co_code[2:], co_exceptiontable=b""))


def _comprehension(x):
    n = 1
    return [{m: print(n, m) for m in n} for n in x], lambda: n


def _finally(x):
    try:
        return print(x)
    finally:
        x = 1


def _except(x):
    try:
        return print(x)
    except ValueError:
        x = 1


def _with(x):
    with x as y:
        return print(y)


@pytest.mark.parametrize(
    ("function", "restores"),
    [(_comprehension, sys.version_info >= (3, 12)), (_finally, False), (_except, False), (_with, False)],
)
def test_handlers_of_inlined_comprehensions(function, restores):
    model = read(function.__code__)
    assert [*map(model.only_restores, model.exceptions)] == [restores] * len(model.exceptions)
    assert model.exceptions or not restores
