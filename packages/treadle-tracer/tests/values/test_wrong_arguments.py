"""Calls of Python's own functions with arguments that they refuse: the exception is Python's, caught or not, and no bug of the tracer."""

from __future__ import annotations

import collections
import inspect
import operator
import re
import sys
import typing
import warnings

import pytest
import torch
from compile_runs import compiled


class Plain:
    pass


class Named(dict):
    pass


class Whole(int):
    def __mul__(self, other):
        CALLS.append(other)
        return 7

    __rmul__ = __add__ = __radd__ = __mul__


CALLS: list[object] = []
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def caught(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)


def program(x, function, args, kwargs):
    return x + 1, caught(function, *args, **kwargs)


def uncaught(x, function, args, kwargs):
    return x + 1, function(*args, **kwargs)


def check(make, args=lambda: (), kwargs=None):
    """`make` gives the function, `args` the arguments, anew for each of the two."""
    for run in (program, uncaught):
        traced, _ = compiled(run)
        expected = caught(run, torch.ones(2), make(), args(), kwargs or {})
        found = caught(traced, torch.ones(2), make(), args(), kwargs or {})
        assert ADDRESS.sub("", str(found)) == ADDRESS.sub("", str(expected))


OBJECTS = {
    "list": lambda: [1, 2],
    "dict": lambda: {1: 2},
    "set": lambda: {1},
    "text": lambda: "ab",
    "range": lambda: range(3),
    "number": lambda: 3,
    "dict subclass": lambda: Named(a=1),
    "counter": lambda: collections.Counter("ab"),
    "keys": lambda: {1: 2}.keys(),
    "iterator": lambda: iter([1, 2]),
    "exception": lambda: ValueError("x"),
}
SPECIAL = "len iter bool getitem setitem delitem contains eq lt add radd iadd and ror setattr delattr index".split()


@pytest.mark.parametrize("kind", OBJECTS)
def test_special_methods_of_too_many_or_too_few(kind):
    make = OBJECTS[kind]
    for name in SPECIAL:
        if not hasattr(make(), f"__{name}__"):
            continue
        for count in (0, 3):
            check(lambda name=name: getattr(make(), f"__{name}__"), lambda count=count: (1,) * count)
        check(lambda name=name: getattr(make(), f"__{name}__"), lambda: (), {"self": 1})


@pytest.mark.parametrize(
    ("kind", "name", "other"),
    [
        ("list", "add", 1.5),
        ("list", "__eq__", (1, 2)),
        ("list", "mul", 2),
        ("dict", "or", [1]),
        ("dict", "lt", {}),
        ("set", "and", [1]),
        ("set", "ior", "a"),
        ("set", "isub", 1j),
        ("keys", "rand", 5),
        ("keys", "ge", float("nan")),
        ("number", "add", "a"),
        ("number", "add", 1.5),
        ("text", "mod", (1, 2)),
        ("range", "eq", 3),
    ],
)
def test_operators_that_leave_it_to_the_other_operand(kind, name, other):
    check(lambda: getattr(OBJECTS[kind](), f"__{name.strip('_')}__"), lambda: (other,))


CALLS_OF_FUNCTIONS = [
    (round, (), {"number": 2.567, "ndigits": 1}),
    (pow, (2,), {"exp": 3}),
    (pow, (), {"base": 2, "exp": 5, "mod": 7}),
    (round, (), {}),
    (setattr, (1,), {}),
    (setattr, (1, 2, 3, 4), {}),
    (delattr, (1, "a", 3), {}),
    (getattr, (1, 1), {}),
    (getattr, (1, 1, 2), {}),
    (hasattr, (1, 1.5), {}),
    (setattr, (Plain(), b"a", 1), {}),
    (__import__, (), {}),
    (operator.attrgetter, (), {}),
    (operator.attrgetter, (1,), {}),
    (operator.itemgetter, (), {}),
    (operator.index, (Plain(),), {}),
    (operator.length_hint, (Plain(),), {}),
    (ExceptionGroup, ({1: 2},), {}),
    (ExceptionGroup, ("a", []), {}),
    (ValueError, (1,), {"key": 2}),
    (len, (range(sys.maxsize + 1),), {}),
    ((1, 2).index, (1, 1.5), {}),
    ([1, 2].index, ("a", "b"), {}),
    ({}.get, (slice(1, 2),), {}),
    (dict.update, (Named(), 1, 2), {}),
    (frozenset.__init__, (frozenset([1]), [2]), {}),
    (bytes.hex, (5,), {}),
    (list.append, ((), 1), {}),
]


@pytest.mark.parametrize(
    ("function", "args", "kwargs"), CALLS_OF_FUNCTIONS, ids=lambda x: getattr(x, "__qualname__", None)
)
def test_functions(function, args, kwargs):
    check(lambda: function, lambda: args, kwargs)


def catches_a_number(x):
    try:
        raise ValueError("x")
    except 5:
        return x


def subclasses_a_special_form(x):
    class Made(typing.Never):
        pass

    return x, Made


def calls_a_special_form(x):
    return x, typing.ClassVar(int)


def reads_the_class_while_it_is_made(x):
    class Base:
        def __init_subclass__(cls):
            CALLS.append(Made)

    class Made(Base):
        pass

    return x, Made


def named_like_the_metaclass_has_it(x):
    class Made:
        __mro__ = property(lambda self: 1)
        __bases__ = property(lambda self: (int,))
        __name__ = property(lambda self: "x")

    return x + 1, Made().__bases__, Made.__bases__, Made.__name__


def signature_of_a_number(x):
    return x, inspect.signature(42)


def largest_of_nothing(x):
    return x, max([]), min(())


@pytest.mark.parametrize(
    "statement",
    [
        catches_a_number,
        subclasses_a_special_form,
        calls_a_special_form,
        reads_the_class_while_it_is_made,
        named_like_the_metaclass_has_it,
        signature_of_a_number,
        largest_of_nothing,
    ],
    ids=lambda f: f.__name__,
)
def test_statements(statement):
    run, _ = compiled(statement)
    assert str(caught(run, torch.ones(1))) == str(caught(statement, torch.ones(1)))


@pytest.mark.parametrize("operate", [operator.mul, operator.add])
def test_operators_of_int_subclasses_run_when_the_program_does(operate):
    run, _ = compiled(lambda x, n: (x + 1, operate(n, Whole(5)), operate(Whole(5), n)))
    for n in (3, 4, 5):
        CALLS.clear()
        assert run(torch.ones(1), n)[1:] == (operate(n, Whole(5)), operate(Whole(5), n))
        assert CALLS == [n, n] * 2


def test_operators_of_int_subclasses_and_tensors():
    run, _ = compiled(lambda x: (Whole(5) * x, x * Whole(5), Whole(5) + x))
    CALLS.clear()
    found = run(torch.ones(1))
    assert (found[0], found[2]) == (7, 7) and found[1].item() == 5 and len(CALLS) == 2


def test_a_function_that_warns_warns_when_the_program_runs():
    def f(x, pattern):
        return x + len(re.sub(pattern, "a", "bb"))

    def told(function):
        re.purge()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            function(torch.ones(1), "[[a]")
        return [str(warning.message) for warning in seen]

    assert told(compiled(f)[0]) == told(f) != []


@pytest.mark.parametrize("size", [10**8, sys.maxsize, 10**30])
def test_ranges_are_not_unrolled(size):
    def f(x):
        numbers = range(size)
        return (
            x + any(numbers) + (5 in numbers) + next(iter(numbers)),
            list(zip(numbers, "ab", strict=False)),
            numbers[3:7],
        )

    assert compiled(f)[0](torch.ones(1)) == f(torch.ones(1))


def test_long_lists_are_made_by_python():
    def f(x):
        return x + len(list(range(1_000_000))) + sum(range(1_000_000))

    assert compiled(f)[0](torch.ones(1)) == f(torch.ones(1))


def test_instances_of_a_type_that_nobody_has_used():
    def f(x):
        return x + len(list(f.__code__.co_positions())), type(f.__code__.co_positions()).__name__

    assert str(compiled(f)[0](torch.zeros(1))) == str(f(torch.zeros(1)))


def test_iterators_over_items_have_no_length():
    pytest.importorskip("numpy")  # the distribution does without it, and x.numpy() then raises

    class Items:
        def __getitem__(self, position):
            return [1, 2][position]

    def f(x):
        array = x.numpy()
        return x, caught(len, iter(array)), caught(len, reversed(array)), caught(len, iter(Items())), next(iter(array))

    assert str(compiled(f)[0](torch.ones(2))) == str(f(torch.ones(2)))
