"""Comprehensions whose variable is named like another one of the function: since Python 3.12 both are slots of one frame (PEP 709)."""

from __future__ import annotations

import itertools
import traceback

import pytest
import torch
from compile_runs import compiled, item


def class_body(x):
    n = 3

    class Made:
        n = 4
        pairs = {i: n for i in (1, 2)}  # noqa: C420
        own = [n for n in (5, 6)]  # noqa: C416
        late = [lambda: (n, i) for i in (1, 2)]  # noqa: B023

        def closure(self):
            return n

    made = Made()
    return x + made.n, made.closure(), made.pairs, made.own, [call() for call in made.late], n


def free_variable(x):
    n = 5

    def inner():
        scaled = [n * x for n in range(3)]
        return scaled[2], n, [n for n in (1, 2)], n  # noqa: C416

    first = inner()
    n = 6
    return first[0], first[1:], inner()[1:]


def written_free_variable(x):
    n = 5

    def inner():
        nonlocal n
        made = [n for n in range(3)]  # noqa: C416
        n += 1
        return made, [(n, m) for m in (1, 2) for n in range(m)], n

    return x * 2, inner(), inner(), n


def cell(x):
    n = 5

    def inner():
        return n

    made = [n * x for n in range(3)]
    before = inner()
    n = 7
    return made[2], before, inner(), [call() for call in [lambda: n for n in (1, 2)]], n


def captured_after(x):
    """CPython 3.13 loads the cell of the lambda by LOAD_FAST, from the slot that the comprehension has used."""
    n = 5
    scaled = [n * x for n in range(3)]
    return scaled[2], (lambda: n)(), [(lambda: n + m)() for m in [n for n in (1, 2)]], n  # noqa: B023, C416


def captured_after_a_break(x):
    n = 5
    scaled = [n * x for n in range(int(item(x.sum() * 0)) + 3)]
    return scaled[2], (lambda: n)(), n


def captured_around_breaks(x):
    """The continuation has a variable of the comprehension in the cell's slot, and the cell on its stack."""
    n = 5
    scaled = [[n * m + item(x.sum()) for m in range(2)] for n in (x, x + 1)]
    return scaled[1][1], (lambda: n)(), n


def captured_argument(x):
    scaled = [x * item(x.sum()) for x in (x, x + 1)]
    return scaled[1], (lambda: x.sum().item())(), [x for y in (1, 2) for x in (y, y + 1)]  # noqa: C416


def captured_by_a_class(x):
    n = 5
    scaled = [n * x for n in range(3)]

    class Made:
        own = n

        def closure(self):
            return n

    return scaled[1], Made.own, Made().closure()


def captured_beside_a_free_variable(x):
    """CPython 3.12 and 3.13 let the comprehension's cell overwrite the closure's."""
    n = 5

    def inner(y):
        late = [lambda: n for n in (1, 2)]
        item(y.sum())  # breaks the graph
        return y + 1, n, [call() for call in late], n

    first = inner(x)
    n = 6
    return first[0], first[1:], inner(x)[1:]


PROGRAMS = (
    class_body,
    free_variable,
    written_free_variable,
    cell,
    captured_after,
    captured_after_a_break,
    captured_around_breaks,
    captured_argument,
    captured_by_a_class,
    captured_beside_a_free_variable,
)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_each_name_keeps_its_meaning(program):
    fn, _ = compiled(program)
    for x in (torch.ones(2), torch.zeros(2), torch.ones(3)):
        mine, own = fn(x), program(x)
        assert torch.equal(mine[0], own[0]) and mine[1:] == own[1:]


def test_a_compiled_closure_that_shares_the_name():
    def make(n):
        def inner(y):
            late = [lambda: n for n in (1, 2)]
            item(y.sum())
            return y + 1, n, [call() for call in late], n

        return inner

    for n in (5, 6):
        fn, _ = compiled(make(n))
        for x, _ in itertools.product((torch.ones(2), torch.zeros(2)), range(2)):
            mine, own = fn(x), make(n)(x)
            assert torch.equal(mine[0], own[0]) and mine[1:] == own[1:]


def fails(x):
    return x.view(99)


def test_an_exception_leaves_a_comprehension_as_it_leaves_python():
    def program(x):
        y = x * 2
        return [[fails(m) for m in (n, y)] for n in (y, x)]

    fn, _ = compiled(program)
    for size in (2, 2, 3):
        names = []
        for run in (program, fn):
            with pytest.raises(RuntimeError, match="shape") as error:
                run(torch.ones(size))
            names.append([frame.name for frame in traceback.extract_tb(error.value.__traceback__)][1:])
        assert names[0] == names[1]
