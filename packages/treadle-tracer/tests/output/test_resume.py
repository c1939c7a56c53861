"""Leave functions at every instruction they run and go on in a continuation: the outcome is the function's own.

The first half of each run is Python's: `bytecode_prefix.prefix` runs the function up to the instruction and hands over the real operand
stack and locals, which stand for the values of a trace. The second half is the replacement code of a break there.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from types import FunctionType, SimpleNamespace

import pytest
from bytecode_prefix import UNBOUND, Broken, prefix

from treadle_tracer.bytecode import OPS, SlotKind, live_locals, read, stack_kinds
from treadle_tracer.bytecode.splice import why_not_cut
from treadle_tracer.output import continuations, resume
from treadle_tracer.output.entry import FramePlan
from treadle_tracer.output.guards import GuardSet
from treadle_tracer.output.left_frames import why_not_resume
from treadle_tracer.output.mutations import Mutations
from treadle_tracer.values.base import NONE, NULL, ConcreteValue

log = []


def note(*items, **named):
    log.append((items, tuple(named.items())))
    return len(log)


@contextlib.contextmanager
def noting(name, swallow=()):
    note("enter", name)
    try:
        yield name
    except swallow as error:
        note("swallowed", str(error))
    finally:
        note("exit", name)


def straight(a, b):
    c = a + note("first", a)
    d = note(c, *[b, 1], key=b, **{"more": c})
    return [c, d, f"{a}{b!r}", max(a, note("nested", max(a, b)))]


def branches(a, b):
    kind = "big" if a > 1 and b else "small"
    if a or b:
        note(kind)
    if a is None:
        return None
    return (a and b, a or b, not a, kind)


def loops(a, b):
    total = 0
    for i in range(a):
        if i == 3:
            continue
        for j in [i, b]:
            total += j
            if total > 20:
                break
        else:
            note("else", i)
    while total > 2:
        total //= 2
    return total, [x + b for x in range(a)], {k: v for k, v in zip("ab", (a, b))}


def failing(a, b):
    try:
        note("try")
        value = 10 // (a - 2)
        note(value)
    except ZeroDivisionError as error:
        value = note("failed", str(error))
    except (TypeError, ValueError):
        value = "other"
    else:
        note("fine")
    finally:
        note("finally", b)
    try:
        return value + b
    finally:
        note("left")


def managers(a, b):
    with noting("outer", swallow=ValueError) as outer, noting("inner"):
        note(outer, a)
        if a == 2:
            raise ValueError("two")
        b += a
    with noting("again"):
        return note("returned", b)


def closing(a, b):
    def add(x):
        nonlocal b
        b += x
        return b

    note(add(a))
    adders = [lambda x, i=i: x + i + b for i in range(2)]
    return add(1), [f(a) for f in adders], b


def arguments(a, *rest, b=3, **named):
    note(*rest, **named)
    a.append(b) if isinstance(a, list) else None
    return a, rest, b, sorted(named)


def unwinding(a, b):
    while True:
        try:
            a -= 1
            if a < b:
                break
            if a % 2:
                continue
            note(a)
        finally:
            note("turn", a)
    raise RuntimeError(f"left with {a}")


free = 7


def make_closure(k):
    def inner(a, b):
        total = a * k + free
        note(total)
        return total if a else [total, k]

    return inner


CASES = [
    (straight, (1, 2)),
    (branches, (0, 0)),
    (branches, (2, 5)),
    (branches, (None, 5)),
    (loops, (5, 4)),
    (loops, (0, 1)),
    (failing, (2, 1)),
    (failing, (3, 1)),
    (managers, (1, 1)),
    (managers, (2, 1)),
    (closing, (3, 4)),
    (arguments, ([1], 5, 6)),
    (unwinding, (4, 1)),
    (make_closure(3), (2, 5)),
    (make_closure(3), (0, 5)),
]


def outcome(function, args):
    log.clear()
    try:
        result = function(*[list(a) if isinstance(a, list) else a for a in args])
    except Exception as error:
        result = (type(error), str(error), "raised")
    return result, list(log)


def function_of(code, like):
    made = FunctionType(code, like.__globals__, like.__name__, like.__defaults__, like.__closure__)
    made.__kwdefaults__ = like.__kwdefaults__
    return made


def as_traced(model, index, slots):
    """(the stack as a trace has it, the exception being handled): the slot of PUSH_EXC_INFO holds what was handled before."""
    stack, handled = [], None
    for kind, value in itertools.zip_longest(
        stack_kinds(model)[index], slots
    ):  # without the arguments before a CALL of 3.11
        if kind is SlotKind.HANDLED:
            stack.append(NONE if handled is None else handled)
            handled = ConcreteValue(value)
        else:
            stack.append(NULL if value is UNBOUND else ConcreteValue(value))
    return stack, handled


def leave_at(function, index):
    """A function that runs `function` up to instruction `index`, leaves it there, and goes on in a continuation."""
    code = function.__code__
    model = read(code)
    live = live_locals(model, index)
    own = [name for name in model.varnames + model.cellvars if name in live]
    first = function_of(prefix(model, index, variables=own), function)

    def run(*args):
        broken = first(*args)
        if not isinstance(broken, Broken):
            return broken
        bound = {name: ConcreteValue(value) for name, value in zip(own, broken.variables) if value is not UNBOUND}
        stack, handled = as_traced(model, index, broken.stack)
        result = SimpleNamespace(
            kind="break",
            guards=GuardSet(),
            index=index,
            inner=(),
            stack=stack,
            handled=handled,
            was_raised=lambda exception: False,
            locals={name: value for name, value in bound.items() if name not in model.cellvars},
            cells={name: value for name, value in bound.items() if name in model.cellvars},
            mutations=Mutations(),
            state_changes=[],
            generators=(),
            arguments={},
            reason=None,
        )
        reached.append(index)
        rest = function_of(FramePlan(code, model, result).replacement(None, False), function)
        return rest(*args)

    return run


reached = []


def places(function):
    model = read(function.__code__)
    kinds = stack_kinds(model)
    for index, instruction in enumerate(model.instructions):
        if kinds[index] is None or why_not_cut(model, index) is not None:
            continue
        if why_not_resume(model, index, []) is None and not OPS[instruction.opname].ends:
            yield index


@pytest.mark.parametrize(("function", "args"), CASES, ids=lambda value: getattr(value, "__name__", repr(value)))
def test_leaving_at_every_instruction(function, args):
    expected = outcome(function, args)
    reached.clear()
    indices = list(places(function))
    for index in indices:
        assert outcome(leave_at(function, index), args) == expected, read(function.__code__).instructions[index]
    assert len(reached) >= 2


def test_continuations_know_whether_they_start_in_a_loop():
    continuations.forget_continuations()
    model = read(loops.__code__)
    index = next(i for i, x in enumerate(model.instructions) if x.opname == "COMPARE_OP")
    leave_at(loops, index)(5, 4)
    leave_at(loops, next(places(loops)))(5, 4)
    made = [c.code for c in continuations._families.get(loops.__code__).made.values()]
    assert [continuations.starts_in_loop(code) for code in made] == [True, False]
    assert all(map(continuations.is_continuation, made))
    assert not continuations.is_continuation(loops.__code__)


def test_a_break_in_a_continuation_hands_the_next_one_over():
    """Every instruction of a loop left once, in continuations of continuations: one call at a time is under way."""
    depths = []

    def counts(n):
        while n:
            depths.append(len(inspect.stack(0)))
            n -= 1
        return "done"

    def leave(function, args, left):
        code = function.__code__
        model = read(code)
        index = next(i for i, x in enumerate(model.instructions) if x.opname == "BINARY_OP")
        live = [name for name in live_locals(model, index) if name not in model.cellvars]
        broken = function_of(prefix(model, index, variables=live), function)(*args)
        if not isinstance(broken, Broken) or not left:
            return broken
        result = SimpleNamespace(
            kind="break",
            guards=GuardSet(),
            index=index,
            inner=(),
            stack=[ConcreteValue(value) for value in broken.stack],
            handled=None,
            locals=dict(zip(live, map(ConcreteValue, broken.variables))),
            cells={},
            mutations=Mutations(),
            state_changes=[],
            generators=(),
            arguments={},
            reason=None,
        )
        rest = FramePlan(code, model, result).replacement(None, False)
        onward = function_of(rest, function)(*args)
        if type(onward) is not resume.NextContinuation:
            return onward
        return leave(onward.function, onward.args, left - 1)

    first = leave(counts, (3,), 1)
    assert first == "done"
    assert len(depths) == 3


def test_frame_readers_are_not_called_from_our_frame():
    def reads():
        return locals()

    model = read(reads.__code__)
    index = next(i for i, x in enumerate(model.instructions) if x.opname == "CALL")
    assert "locals() looks at the frame" in why_not_resume(model, index, [NULL, ConcreteValue(locals)])
