"""Flow analysis: small examples with known answers, and properties over the standard library."""

from __future__ import annotations

import bytecode_corpus
import pytest
from bytecode_building import FullBuilder

from treadle_tracer.bytecode import (
    BytecodeError,
    SlotKind,
    accesses,
    blocks,
    handlers,
    joins,
    live_locals,
    live_variables,
    max_stack,
    read,
    same_tails,
    stack_depths,
    stack_kinds,
    successors,
)
from treadle_tracer.bytecode.opcodes import NULL_AFTER_CALLABLE

VALUE, NULL, HANDLED, EITHER = SlotKind.VALUE, SlotKind.NULL, SlotKind.HANDLED, SlotKind.EITHER


def find(model, opname, argval=None, nth=0):
    found = [i for i, x in enumerate(model.instructions) if x.opname == opname and argval in (None, x.argval)]
    return found[nth]


def branches(a, b, c):
    if a:
        x = b
    else:
        x = c
    for _ in range(x):
        c = x
    return x


def test_live_variables_by_hand():
    model = read(branches.__code__)
    assert live_locals(model, 1) == ("a", "b", "c")
    store = find(model, "STORE_FAST", "x")
    assert live_locals(model, store) == ()
    assert live_locals(model, store - 1) == ("b",)
    assert live_locals(model, find(model, "FOR_ITER")) == ("x",)
    assert live_locals(model, find(model, "RETURN_VALUE")) == ()


def protected(a, b):
    x = 1
    try:
        x = a()
        x = b()
    except ValueError:
        return x
    return 0


def test_what_a_handler_reads_is_live_in_its_range():
    model = read(protected.__code__)
    second_store = find(model, "STORE_FAST", "x", 2)
    assert "x" in live_locals(model, second_store)
    assert "x" in live_locals(model, second_store - 1)
    first_store = find(model, "STORE_FAST", "x", 0)
    assert "x" not in live_locals(model, first_store)


def deleting(a):
    del a
    b = 1
    b = 2
    return b


def test_deleting_reads():
    model = read(deleting.__code__)
    assert live_locals(model, find(model, "DELETE_FAST")) == ("a",)
    assert live_locals(model, find(model, "STORE_FAST", "b", 0)) == ()


def with_cells(a):
    def get():
        return a, b

    b = 1
    return get


def test_cells_are_live_while_used():
    model = read(with_cells.__code__)
    assert live_locals(model, find(model, "STORE_DEREF", "b")) == ("get", "b")
    assert live_locals(model, find(model, "RETURN_VALUE")) == ()
    assert "a" in live_locals(model, 2)


class Method:
    def with_super(self):
        parent = super
        return parent()

    def with_locals(self, unused):
        return sorted(locals())


def test_variables_that_the_frame_is_asked_for():
    model = read(Method.with_super.__code__)
    assert "self" in live_locals(model, len(model.instructions) - 1) or "__class__" not in model.freevars
    model = read(Method.with_locals.__code__)
    assert live_locals(model, find(model, "RETURN_VALUE")) == ("self", "unused")


def brute_force_live(model, index):
    """Variables for which some path from ``index`` gets to a read without a store before it."""
    covering = handlers(model)
    live = set()
    for name in {n for i in model.instructions for n, _ in accesses(i)}:
        seen, work = set(), [index]
        while work:
            at = work.pop()
            if at in seen:
                continue
            seen.add(at)
            entry = covering[at]
            if entry is not None:
                work.append(entry.target)
            touched = [read for n, read in accesses(model.instructions[at]) if n == name]
            if touched and touched[0]:
                live.add(name)
                break
            if not touched:
                work.extend(successors(model, at))
    return live


def test_live_variables_against_all_paths():
    for code in bytecode_corpus.sample(401):
        model = read(code)
        if len(model.instructions) > 300:
            continue
        live = live_variables(model)
        for index in range(0, len(model.instructions), 7):
            assert live[index] == brute_force_live(model, index), (code, index)


def test_stack_depths_and_kinds_agree():
    for code in bytecode_corpus.sample(29):
        model = read(code)
        depths, kinds = stack_depths(model), stack_kinds(model)
        assert [None if k is None else len(k) for k in kinds] == depths
        assert max_stack(model) >= max(d for d in depths if d is not None)
        for k, instruction in zip(kinds, model.instructions, strict=True):
            if k is not None and instruction.opname == "POP_EXCEPT":
                assert k[-1] is HANDLED
            elif k and instruction.opname in ("RETURN_VALUE", "STORE_ATTR", "BINARY_OP", "GET_ITER"):
                assert k[-1] is VALUE


def call_somewhere(a, b):
    return len(a.upper(b))


def test_kinds_of_a_call():
    model = read(call_somewhere.__code__)
    kinds = stack_kinds(model)[find(model, "LOAD_FAST", "b")]
    if NULL_AFTER_CALLABLE:
        assert kinds == (VALUE, NULL, VALUE, EITHER)
    else:
        assert kinds == (NULL, VALUE, EITHER, VALUE)


def handler(a):
    try:
        a()
    except ValueError:
        a(1)


def test_kinds_in_a_handler():
    model = read(handler.__code__)
    index = find(model, "CHECK_EXC_MATCH")
    assert stack_kinds(model)[index] == (HANDLED, VALUE, VALUE)
    assert stack_kinds(model)[find(model, "PUSH_EXC_INFO")] == (VALUE,)


def test_blocks_partition_the_code():
    for code in bytecode_corpus.sample(97):
        model = read(code)
        order = blocks(model)
        assert [i for b in order for i in range(b.start, b.end + 1)] == list(range(len(model.instructions)))
        starts = {b.start for b in order}
        covering = handlers(model)
        for block in order:
            assert set(block.successors) <= starts
            assert set(block.successors) == set(successors(model, block.end))
            for index in range(block.start, block.end + 1):
                entry = covering[index]
                assert block.handlers == (() if entry is None else (entry.target,))
                if index < block.end:
                    assert successors(model, index) == (index + 1,)


def test_handlers_agree_with_the_table():
    for code in bytecode_corpus.sample(97):
        model = read(code)
        covering = handlers(model)
        for index in range(0, len(model.instructions), 5):
            assert covering[index] is model.handler_at(index)


def test_ways_that_disagree():
    builder = FullBuilder.function("f", ["x"])
    end = builder.label()
    builder.load_fast("x")
    builder.pop_jump_if_true(end)
    builder.load_const(1)
    builder.place(end)
    builder.load_const(2)
    builder.return_value()
    with pytest.raises(BytecodeError, match="of f is reached with 0 and with 1|of f is reached with 1 and with 0"):
        builder.finish()


def _model_of(text):
    scope: dict = {}
    exec(text, scope)
    return read(scope["f"].__code__)


def test_joins_are_where_both_ways_come_through():
    model = _model_of(
        "def f(a, b):\n"
        "    if a:\n"
        "        x = 1\n"
        "    else:\n"
        "        x = b\n"
        "    y = [x]\n"
        "    for i in y:\n"
        "        if i:\n"
        "            x = 5\n"
        "        y = g(x)\n"
        "    return h(x)\n"
    )
    found = joins(model)
    lines = [i.line for i in model.instructions]
    conditional = [n for n, i in enumerate(model.instructions) if "_IF_" in i.opname]
    assert [lines[found[n]] for n in conditional] == [6, 10]
    ends = [n for n, i in enumerate(model.instructions) if i.opname == "RETURN_VALUE"]
    assert all(found[n] is None for n in ends)


def test_copies_of_a_short_end_go_on_in_the_same_way():
    model = _model_of("def f(a, b):\n    if a:\n        b = b + 1\n    else:\n        g(b)\n    return h(b)\n")
    tails = same_tails(model)
    ends = [n for n, i in enumerate(model.instructions) if i.opname == "RETURN_VALUE"]
    assert len({tails[n] for n in ends}) == 1
    for n, tail in enumerate(tails):
        while tail != n:
            here, there = model.instructions[n], model.instructions[tail]
            assert (here.opname, here.argval, here.line) == (there.opname, there.argval, there.line)
            if here.opname == "RETURN_VALUE":
                break
            n, tail = n + 1, tail + 1


def test_equal_ends_of_other_lines_constants_or_handlers_differ():
    model = _model_of(
        "def f(a, b):\n"
        "    if a:\n        return g(b)\n"
        "    try:\n        return g(b)\n"
        "    except ValueError:\n        return 1\n"
    )
    tails = same_tails(model)
    ends = [n for n, i in enumerate(model.instructions) if i.opname.startswith("RETURN_")]
    assert len({tails[n] for n in ends}) == len(ends)


def test_joins_by_brute_force():
    """A join lies on every way from the instruction to an end, and no nearer instruction does."""
    model = _model_of(
        "def f(a, b):\n"
        "    while a:\n"
        "        if b:\n"
        "            if a > b:\n"
        "                return g(a)\n"
        "            b = 1\n"
        "        a = b and (a if b else 3)\n"
        "    return a\n"
    )
    found = joins(model)
    ends = {n for n in range(len(model.instructions)) if not successors(model, n)}

    def reaches_an_end_without(start, avoided):
        seen, work = set(), [start]
        while work:
            n = work.pop()
            if n in ends:
                return True
            for after in successors(model, n):
                if after != avoided and after not in seen:
                    seen.add(after)
                    work.append(after)
        return False

    live = {i for i, depth in enumerate(stack_depths(model)) if depth is not None}
    for n in live - ends:
        common = [m for m in live if m != n and not reaches_an_end_without(n, m)]
        assert (found[n] in common) if common else found[n] is None
        assert not any(m != found[n] and reaches_an_end_without(found[n], m) for m in common)
