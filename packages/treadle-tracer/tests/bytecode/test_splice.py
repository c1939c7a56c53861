"""Cut at every instruction: prefix and continuation together do what the whole function does."""

from __future__ import annotations

import inspect
import sys
import types
import weakref

import bytecode_programs
import bytecode_subjects
import pytest
from bytecode_prefix import UNBOUND, Broken, prefix
from bytecode_runs import cuts, function_like, outcome, run_cut
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from treadle_tracer.bytecode import (
    BytecodeError,
    SlotKind,
    continuation,
    live_locals,
    read,
    restart_index,
    resumed_call,
    stack_kinds,
    why_not_cut,
)


@pytest.mark.parametrize(
    ("function", "inputs"), bytecode_subjects.SUBJECTS, ids=[f.__name__ for f, _ in bytecode_subjects.SUBJECTS]
)
def test_cut_anywhere(function, inputs):
    model = read(function.__code__)
    places = cuts(model)
    assert len(places) > 0.8 * len(model.instructions) - 8
    expected = {text: outcome(function, text) for text in inputs}
    used = 0
    for index in places:
        run, continued = run_cut(model, index, function)
        for text in inputs:
            assert outcome(run, text) == expected[text], (index, model.instructions[index], text)
        used += bool(continued[0])
    assert used > 0.6 * len(places)


def nested_cut(code_model, index, original):
    """A function whose continuation at ``index`` is itself cut, at a place that moves on from call to call."""
    first = function_like(prefix(code_model, index), original)
    calls = [0]

    def run(*args):
        result = first(*args)
        if not isinstance(result, Broken):
            return result
        start = restart_index(code_model, index)
        kinds = stack_kinds(code_model)[start]
        known = [
            SlotKind.NULL if value is UNBOUND else SlotKind.VALUE if kind is SlotKind.EITHER else kind
            for kind, value in zip(kinds, result.stack, strict=True)
        ]
        live = live_locals(code_model, start)
        values = {n: v for n, v in zip(live, result.variables, strict=True) if v is not UNBOUND}
        rest = continuation(code_model, index, variables=values, stack=known)
        second = function_like(rest.code, original)
        second.__defaults__ = second.__kwdefaults__ = None
        inner_model = read(rest.code)
        places = cuts(inner_model)
        calls[0] += 1
        again, _ = run_cut(inner_model, places[calls[0] * 7 % len(places)], second)
        return again(*[values[n] for n in rest.variables], *[result.stack[slot] for slot in rest.stack])

    return run


@pytest.mark.parametrize(
    ("function", "inputs"), bytecode_subjects.SUBJECTS, ids=[f.__name__ for f, _ in bytecode_subjects.SUBJECTS]
)
def test_cut_twice(function, inputs):
    model = read(function.__code__)
    expected = {text: outcome(function, text) for text in inputs}
    for index in cuts(model)[::5]:
        run = nested_cut(model, index, function)
        for text in inputs:
            assert outcome(run, text) == expected[text], (index, model.instructions[index], text)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(bytecode_programs.programs(), st.data())
def test_random_programs_cut_anywhere(source, data):
    function = bytecode_programs.compiled(source)
    model = read(function.__code__)
    places = cuts(model)
    for index in data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=4, unique=True)):
        run, _ = run_cut(model, index, function)
        for inputs in ("(1, 2, [])", "(0, [3], [])", "('x', None, [1])"):
            assert outcome(run, inputs) == outcome(function, inputs), (index, model.instructions[index])


def counter():
    count = 0

    def add(n):
        nonlocal count
        count += n
        return count

    add(1)
    return add, lambda: count


def test_closures_made_before_and_after_the_cut_share_their_cell():
    model = read(counter.__code__)
    (index,) = [i for i, x in enumerate(model.instructions) if x.opname == "POP_TOP"]
    run, continued = run_cut(model, index, counter)
    add, get = run()
    assert continued == [1]
    add(5)
    assert get() == 6


def test_continuation_has_a_plain_signature():
    def f(a, *rest, key=2, **others):
        return [a, key, sorted(others), g(*rest)]

    g = lambda *args: args  # noqa: E731
    model = read(f.__code__)
    index = next(i for i, x in enumerate(model.instructions) if x.argval == "sorted")
    rest = continuation(model, index)
    assert rest.variables == ("rest", "others")
    assert rest.stack == (0, 1)
    assert rest.code.co_freevars == ("g",)
    assert rest.code.co_argcount == 4
    assert rest.code.co_kwonlyargcount == rest.code.co_posonlyargcount == 0
    assert not rest.code.co_flags & 0x0C
    function = types.FunctionType(rest.code, globals(), closure=f.__closure__)
    assert function((7,), {"z": 1}, "first", "kept") == ["first", "kept", ["z"], (7,)]
    assert rest.code.co_filename == f.__code__.co_filename
    named = continuation(model, index, name="f at line 3")
    assert named.code.co_name == named.code.co_qualname == "f at line 3"


def waits(called, x, log):
    found = [x]
    for k in range(2):
        try:
            found.append(10 + called(x, k, *found[:1], last=k) * 2)  # the call
        except KeyError as error:
            found.append(str(error))
        finally:
            log.append(k)
    return found, x


def raises(error):
    raise error


class Swallows:
    def __enter__(self):
        return 1

    def __exit__(self, kind, error, trace):
        return kind is KeyError


def waits_while_handling(called, x, log):
    try:
        raise ValueError(x)
    except ValueError:
        with Swallows() as one:
            x = x + called(one)
        log.append(type(sys.exception()).__name__ if sys.version_info >= (3, 11) else None)
    return x


def at_the_call(function, stack, **variables):
    """The resumed call of `called(...)`, as a function of what is called and its arguments."""
    model = read(function.__code__)
    index = next(
        i
        for i, x in enumerate(model.instructions)
        if x.opname in ("CALL", "CALL_KW", "CALL_FUNCTION_EX")
        and model.instructions[i].line == _line_of(function)
        and len(stack_kinds(model)[i + 1]) == len(stack) + 1
    )
    kinds = [
        SlotKind.NULL if value is UNBOUND else SlotKind.HANDLED if isinstance(value, BaseException) else SlotKind.VALUE
        for value in stack
    ]
    rest = resumed_call(model, index, variables=variables, stack=kinds)
    assert rest.origin[rest.call] == index
    made = types.FunctionType(rest.code, globals())
    values = [variables[name] for name in rest.variables] + [value for value in stack if value is not UNBOUND]
    return lambda called, *args: made(*values, called, args)


def _line_of(function):
    lines = inspect.getsource(function).splitlines()
    return function.__code__.co_firstlineno + next(i for i, line in enumerate(lines[1:], 1) if "called(" in line)


def waiting(log):
    """`waits` in its first turn, with a callee that returns 7 in the second one."""
    found, turns = [3], iter(range(2))
    assert next(turns) == 0
    method = [found.append] if sys.version_info >= (3, 13) else [UNBOUND, found.append]
    if sys.version_info >= (3, 13):
        method.append(UNBOUND)
    elif sys.version_info >= (3, 12):
        method = [UNBOUND, found.append]
    return at_the_call(waits, [turns, *method, 10], called=lambda *a, **k: 7, x=3, log=log, found=found, k=0)


def test_a_resumed_call_calls_what_it_is_given():
    log = []
    assert waiting(log)(lambda a, b: a + b, 1, 4) == ([3, 20, 24], 3) and log == [0, 1]


def test_exceptions_of_a_resumed_call_go_to_the_handler_of_the_call():
    log = []
    assert waiting(log)(raises, KeyError("k")) == ([3, "'k'", 24], 3) and log == [0, 1]
    log.clear()
    with pytest.raises(ValueError, match="v") as caught:
        waiting(log)(raises, ValueError("v"))
    assert log == [0] and caught.traceback[2].name == "waits" and caught.traceback[2].lineno + 1 == _line_of(waits)


def test_a_resumed_call_handles_what_was_handled():
    for called, want in ((lambda: 2, 5), (lambda: raises(KeyError()), 3)):
        log = []
        leave = Swallows().__exit__
        assert at_the_call(waits_while_handling, [ValueError(3), leave, 3], x=3, log=log)(called) == want
        assert log == ["ValueError"]


def test_where_a_call_cannot_be_resumed():
    model = read(generator.__code__)
    with pytest.raises(BytecodeError, match="generator"):
        resumed_call(model, 2, stack=[])


def generator():
    yield 1


async def coroutine():
    return 1


def loop(items):
    for item in items:
        print(item)
    return items


def reason_at(function, opname):
    model = read(function.__code__)
    index = next(i for i, x in enumerate(model.instructions) if x.opname == opname)
    return why_not_cut(model, index)


def test_where_not_to_cut():
    assert "generator" in reason_at(generator, "YIELD_VALUE")
    assert "coroutine" in reason_at(coroutine, "RESUME")
    assert "prologue" in reason_at(loop, "RESUME")
    assert "prologue" in why_not_cut(read(loop.__code__), 10_000)
    body = read(compile("x = 1\ny = 2", "", "exec"))
    assert "namespace" in why_not_cut(body, 2)
    if any(i.opname == "END_FOR" for i in read(loop.__code__).instructions):
        assert "FOR_ITER" in reason_at(loop, "END_FOR")
    with pytest.raises(BytecodeError, match="generator cannot be cut at instruction 3: a generator"):
        continuation(read(generator.__code__), 3)


def test_wrong_stack_or_variables():
    model = read(loop.__code__)
    index = next(i for i, x in enumerate(model.instructions) if x.opname == "FOR_ITER")
    with pytest.raises(BytecodeError, match="has 1 stack slots at instruction"):
        continuation(model, index, stack=[])
    with pytest.raises(BytecodeError, match="stack slot 0 at instruction .* say if it is NULL"):
        continuation(model, index, stack=[SlotKind.EITHER])
    with pytest.raises(BytecodeError, match="other: no local variable of loop"):
        continuation(model, index, variables=["items", "other"])


def test_nothing_lives_longer_than_in_the_original():
    class Token:
        pass

    def f(token):
        note = weakref.ref([token][0])
        token = len([token])
        return token, note()

    model = read(f.__code__)
    (index,) = [i for i, x in enumerate(model.instructions) if x.opname == "STORE_FAST" and x.argval == "token"]
    index -= (
        3 if sys.version_info < (3, 12) else 2
    )  # BUILD_LIST: the token is on the stack, and in the variable no more
    assert model.instructions[index].opname == "BUILD_LIST"
    rest = continuation(model, index)
    kinds = [kind for kind in stack_kinds(model)[index] if kind is not SlotKind.NULL]
    assert len(kinds) == 2
    assert rest.variables == ("note",)
    function = types.FunctionType(rest.code, f.__globals__, closure=f.__closure__)
    made = []

    def make():
        token = Token()
        made.append(weakref.ref(token))
        return token

    result = function(lambda: made[0](), len, make())  # in an assert, pytest would keep the token
    assert result == (1, None)
