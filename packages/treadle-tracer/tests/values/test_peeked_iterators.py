"""Loops around a graph break: a continuation takes the next item of the real iterator, so that the parts of two turns are one graph."""

from __future__ import annotations

import array
import collections
import contextvars
import itertools
import weakref

import pytest
import torch
from compile_runs import compiled

seen = array.array("b")
hidden = seen.append
"""A call that breaks the graph."""

NUMBERS = {"a": 2.0, "b": 3.0, "c": 4.0, "d": 5.0, "e": 6.0}
LOOPS = {
    "range": lambda: range(5),
    "steps": lambda: range(9, -1, -2),
    "list": lambda: list(NUMBERS.values()),
    "tuple": lambda: tuple(NUMBERS.values()),
    "tensors": lambda: [torch.full((2,), number) for number in NUMBERS.values()],
    "keys": lambda: {0.5: "a", 1.5: "b", 2.5: "c", 3.5: "d", 4.5: "e"},
    "values": lambda: NUMBERS.values(),
    "items backwards": lambda: reversed(NUMBERS.items()),
    "set": lambda: {2, 3, 4, 5, 6},
    "frozenset": lambda: frozenset(range(5)),
    "letters": lambda: "abcde",
    "umlauts": lambda: "\u00e4bcd\u00fc",
    "backwards": lambda: reversed(list(NUMBERS.values())),
    "tuple backwards": lambda: reversed(tuple(NUMBERS.values())),
    "default dict": lambda: collections.defaultdict(list, NUMBERS).values(),
    "enumerate": lambda: enumerate(NUMBERS.values(), 3),
    "enumerate of items": lambda: enumerate(NUMBERS.items()),
    "items": lambda: NUMBERS.items(),
    "zip": lambda: zip([1, 2, 3, 4, 5], NUMBERS.items()),
    "map": lambda: map(lambda number: number + 1, NUMBERS.values()),
}


def number_in(item):
    while isinstance(item, tuple):
        item = item[-1]
    return len(item) if isinstance(item, str) else item


def turns(x, loop):
    for item in loop:
        x = x + number_in(item)
        hidden(1)
        x = x * 2
    return x, item


def same(a, b):
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def outcome(function, *arguments):
    """The result or the error, what the loop has left of its arguments, and how often the graph broke."""
    del seen[:]
    try:
        result = function(torch.ones(2), *arguments)
    except Exception as error:
        result = type(error).__name__, str(error)
    return result, *arguments, len(seen)


@pytest.mark.parametrize("name", LOOPS)
def test_a_turn_is_one_graph(name):
    calls = []

    def backend(gm, example_inputs):
        return lambda *args: (calls.append(gm), gm(*args))[1]

    run, recorder = compiled(turns, backend)
    for _ in range(3):
        calls.clear()
        assert same(outcome(run, LOOPS[name]())[0], outcome(turns, LOOPS[name]())[0])
    assert len(calls) == 6 and not recorder.skips
    assert len(recorder.graphs) <= 4, "turns differ in what they take only"


@pytest.mark.parametrize("count", range(5))
def test_two_turns_without_a_break(count):
    """The second item of a part is left to Python."""

    def program(x, numbers, table):
        for position, number in enumerate(numbers):
            if float(x.sum()) % 2 > 1:
                hidden(1)
            for key, value in table.items():
                x = x * value + number
                if float(x.sum()) % 3 > 1.5:
                    hidden(1)
                x = x + len(key) - position
        return x

    run, _ = compiled(program)
    for _ in range(3):
        arguments = [list(range(count)), dict(list(NUMBERS.items())[:count])]
        assert same(outcome(run, *arguments), outcome(program, *arguments))


def _appends(x, xs, table):
    for number in xs:
        x = x + number
        hidden(1)
        if len(xs) < 6:
            xs.append(number + 1)
    return x


def _shortens(x, xs, table):
    for number in xs:
        x = x + number
        hidden(1)
        xs.pop()
    return x


def _collects(x, xs, table):
    for number in xs:
        hidden(1)
        table[number] = x = x + number
    return x


def _replaces(x, xs, table):
    for key, value in table.items():
        x = x * value
        hidden(1)
        table[key] = 7.0
        table["c"] = 0.5
    return x


def _adds_keys(x, xs, table):
    for key in table:
        x = x + len(key)
        hidden(1)
        table[key * 2] = 1
    return x


def _takes_keys(x, xs, table):
    for value in table.values():
        x = x * value
        hidden(1)
        table.popitem()
    return x


class _Owner:
    pass


def _own_attributes(x, xs, table):
    owner = _Owner()
    owner.__dict__ = table
    for name, value in owner.__dict__.items():
        x = x * value
        hidden(1)
        owner.c = 0.25
        owner.a = x
    return x, len(name)


def _own_attributes_in_one_graph(x, xs, table):
    owner = _Owner()
    owner.__dict__ = table
    for value in vars(owner).values():
        x = x * value
        owner.c = 0.25
    return x


def _takes_itself(x, xs, table):
    numbers = iter(xs)
    for number in numbers:
        x = x * number
        hidden(1)
        x = x + next(numbers, 0.5)
    return x, next(numbers, None)


def _returns_items(x, xs, table):
    for pair in table.items():
        hidden(1)
        xs.append(pair)
        if len(xs) > 5:
            return x + 1, pair
    return x


@pytest.mark.parametrize(
    "program",
    [
        _appends,
        _shortens,
        _collects,
        _replaces,
        _adds_keys,
        _takes_keys,
        _own_attributes,
        _own_attributes_in_one_graph,
        _takes_itself,
        _returns_items,
    ],
)
def test_loops_over_what_they_change(program):
    run, _ = compiled(program)
    for count in (4, 3, 4, 1, 0, 4):
        found = []
        for function in (run, program):
            found.append(outcome(function, [1.5, 2.5, 3.5, 4.5][:count], dict(list(NUMBERS.items())[:count])))
            if isinstance(found[-1][2], dict):
                found[-1] = (*found[-1][:2], list(found[-1][2].items()), *found[-1][3:])
        assert same(*found), program


def test_a_list_appended_to_is_the_one_of_the_loop_or_another():
    def program(x, loop, xs):
        for number in loop:
            x = x + number
            hidden(1)
            if len(xs) < 5:
                xs.append(2.0)
        return x

    for order in ((True, False), (False, True)):
        run, _ = compiled(program)
        for is_same in order * 2:
            found = []
            for function in (run, program):
                xs = [1.0, 3.0]
                found.append(outcome(function, xs if is_same else [5.0, 6.0, 7.0], xs))
            assert same(*found), order


def test_what_is_left_of_an_iterator():
    def program(x, numbers):
        for number in numbers:
            hidden(1)
            x = x + number
            if number > 1:
                return x
        return x - 1

    makers = [
        lambda: iter(range(4)),
        lambda: iter([0.5, 1.5, 2.5]),
        lambda: iter({0: 1, 2: 3, 4: 5}),
        lambda: iter(dict(a=0, b=0.5).values()),
        lambda: iter([]),
        lambda: iter({0, 1, 2, 3}),
        lambda: reversed([3, 1.5, 0]),
        lambda: reversed((3, 2, 0, 0)),
        lambda: zip([1, 2], [0, 1]) and iter((1, 2, 3)),
    ]
    for make in makers:
        run, recorder = compiled(program)
        for _ in range(3):
            found = []
            for function in (run, program):
                numbers = make()
                found.append((outcome(function, numbers)[0], list(numbers)))
            assert same(*found)
        assert not recorder.skips


def test_many_items_of_a_dict():
    run, _ = compiled(turns)
    for count in (300, 20, 300):
        table = {number: number * 0.125 for number in range(count)}
        assert same(outcome(run, table.values())[0], outcome(turns, table.values())[0])


def test_iterators_over_dicts_that_others_have_begun():
    def program(x, it):
        return sum([x * value for value in it]), next(it, None)

    run, recorder = compiled(program)
    for taken in (0, 2, 5, 0):
        found = []
        for function in (run, program):
            it = iter(NUMBERS.values())
            for _ in range(taken):
                next(it)
            found.append((function(torch.ones(2), it), list(it)))
        assert same(*found)
    assert not recorder.breaks and not recorder.skips


class _Told:
    """Counts the calls of what stands in the place of an iterator, a reference, a context variable."""

    def __init__(self):
        self.calls = []

    def __call__(self):
        self.calls.append("call")

    def __repr__(self):
        self.calls.append("repr")
        return "told"

    def __reduce__(self):
        self.calls.append("reduce")
        return super().__reduce__()

    def __length_hint__(self):
        self.calls.append("hint")
        return 3

    def get(self, *args):
        self.calls.append("get")

    @property
    def mapping(self):
        self.calls.append("mapping")


_VARIABLE = contextvars.ContextVar("variable", default=2)
PLACES = {
    "list": (lambda it: next(it), lambda: iter([2, 3])),
    "range": (lambda it: next(it), lambda: iter(range(2, 4))),
    "dict": (lambda it: next(it), lambda: iter({2: 3})),
    "enumerate": (lambda it: next(it)[1], lambda: enumerate([2, 3])),
    "zip": (lambda it: next(it)[0], lambda: zip([2, 3], [4, 5])),
    "map": (lambda it: next(it), lambda: map(abs, [2, 3])),
    "count": (lambda it: next(it), lambda: itertools.count(2)),
    "reference": (lambda it: len(it().__name__), lambda: weakref.ref(_Told)),
    "view": (lambda it: len(it), lambda: {2: 3}.keys()),
    "context variable": (lambda it: it.get(), lambda: _VARIABLE),
}


@pytest.mark.parametrize("other", ["told", "tensor"])
@pytest.mark.parametrize("name", PLACES)
def test_another_object_in_the_place_of_an_iterator(name, other):
    """What tells the trace where an iterator stands is not asked of it: that would run code of the program."""
    ask, make = PLACES[name]
    kind = type(make())

    def program(x, it):
        return x * ask(it) if type(it) is kind else x - 1

    run, recorder = compiled(program)
    told = _Told()
    arguments = [make, (lambda: told) if other == "told" else lambda: torch.ones(2)]
    for argument in arguments * 2:
        assert torch.equal(run(torch.ones(2), argument()), program(torch.ones(2), argument()))
    assert not told.calls and not recorder.skips


def test_a_long_rest_of_a_turn_is_compiled_once():
    def program(x, numbers):
        for number in numbers:
            hidden(1)
            for _ in range(60):
                x = torch.sin(x) + number
        return x

    run, recorder = compiled(program)
    for count in (4, 2):
        assert same(run(torch.ones(2), range(count)), program(torch.ones(2), range(count)))
    assert sum(len(gm.graph.nodes) > 60 for gm in recorder.graphs) == 1


def test_the_last_turn_is_no_recompile():
    def program(x, names):
        for name in names:
            x = x * len(name)
            hidden(1)
        return x + 1

    run, recorder = compiled(program)
    for count in (4, 4):
        assert same(run(torch.ones(2), iter(["ab"] * count)), program(torch.ones(2), ["ab"] * count))
    assert not recorder.recompiles and len(recorder.graphs) == 3
