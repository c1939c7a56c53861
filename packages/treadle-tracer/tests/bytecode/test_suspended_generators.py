"""A generator is made anew at each of its yields: whatever is done with it then, it does what the original does."""

from __future__ import annotations

import inspect
from types import FunctionType

import pytest

from treadle_tracer.bytecode import BytecodeError, SlotKind, live_locals, read, suspended_generator

log = []


def note(*items):
    log.append(items)
    return len(log)


def counts(n):
    for i in range(n):
        got = yield i
        note(got)
    return "end"


def protected(n):
    try:
        got = yield 1
        note(got)
        got = yield n
        yield got
    except KeyError as error:
        note("caught", str(error))
        yield "after"
    finally:
        note("finally", n)


def delegates(inner):
    result = yield from inner
    note(result)
    yield "last"


class Manager:
    def __enter__(self):
        note("in")

    def __exit__(self, kind, error, trace):
        note("out", kind)
        return kind is KeyError


def managed(n):
    with Manager():
        yield n
        yield n + 1
    yield "end"


ACTIONS = [
    lambda g: next(g),
    lambda g: g.send("sent"),
    lambda g: g.throw(KeyError("thrown")),
    lambda g: g.throw(StopIteration(3)),
    lambda g: g.close(),
    lambda g: list(g),
    lambda g: (g.gi_frame.f_lineno, g.gi_suspended, inspect.getgeneratorstate(g), g.gi_yieldfrom is None),
]


def outcome(action):
    try:
        return action()
    except BaseException as error:
        return type(error), str(error), type(error.__context__)


def made_again(generator, stack):
    """A generator in the same state as a suspended one, with these slots below the yielded value."""
    frame, model = generator.gi_frame, read(generator.gi_code)
    index = next(i for i, x in enumerate(model.instructions) if x.offset == frame.f_lasti)
    index -= model.instructions[index].opname == "RESUME"  # 3.13 gives the instruction behind the yield
    variables = [name for name in live_locals(model, index) if name in frame.f_locals]
    made = suspended_generator(model, index, variables, [SlotKind.VALUE] * (len(stack) + 1))
    again = FunctionType(made.code, globals())(*(frame.f_locals[name] for name in made.variables), *stack, None)
    assert next(again) is None
    return again


STACKS = {
    counts: lambda steps: [iter(range(steps, 3))],
    protected: lambda steps: [],
    managed: lambda steps: [Manager().__exit__],
}


@pytest.mark.parametrize("make", STACKS)
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("action", ACTIONS)
def test_suspended_generators(make, steps, action):
    runs = []
    for again in (False, True):
        generator = make(3)
        for _ in range(steps):
            next(generator)
        if again:
            generator = made_again(generator, STACKS[make](steps))
        log.clear()
        runs.append((outcome(lambda: action(generator)), list(log), outcome(lambda: list(generator)), list(log)))
    assert runs[0] == runs[1]


def test_a_generator_that_delegates():
    """`yield from`: what is sent and thrown goes to the inner generator."""
    for action in ACTIONS:
        runs = []
        for again in (False, True):
            inner = protected(3)
            generator = delegates(inner)
            next(generator)
            if again:
                kept = generator
                generator = made_again(generator, [inner])
            log.clear()
            runs.append((outcome(lambda: action(generator)), list(log), outcome(lambda: list(generator)), list(log)))
        assert runs[0] == runs[1]
    assert kept is not generator


def test_only_yields_of_generators():
    with pytest.raises(BytecodeError, match="no yield"):
        suspended_generator(read(counts.__code__), 0, (), ())
