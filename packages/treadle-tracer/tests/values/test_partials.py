"""functools.partial, its subclasses and instances with attributes: as in eager, made outside or inside."""

from __future__ import annotations

import functools
from functools import partial

import pytest
import torch
from compile_runs import compiled


def describe(*args, **kwargs):
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    return [arg for arg in args if not isinstance(arg, torch.Tensor)], sorted(kwargs.items()), sum(tensors, 0)


class Shadowing(partial):
    """Its attribute `func` is not the function that it calls."""

    __slots__ = ("func",)

    def __init__(self, func):
        self.func = func


class Counting(partial):
    def __call__(self, *args, **kwargs):
        return "counted", super().__call__(*args, **kwargs)


class Falsy(partial):
    def __bool__(self):
        return False


class Bound(partial):
    def __get__(self, instance, owner):
        return self if instance is None else partial(self.func, "bound")


class Host:
    method = Bound(describe, 1)


def parts(found):
    return type(found), partial.func.__get__(found), partial.args.__get__(found), partial.keywords.__get__(found)


NAMED = partial(describe, 1)
functools.update_wrapper(NAMED, describe)
OUTSIDE = {
    "plain": partial(describe, 1, key=2),
    "shadowing": Shadowing(partial(describe, 1)),
    "counting": Counting(describe, 1),
    "falsy": Falsy(describe, 1),
    "named": NAMED,
    "nested": partial(NAMED, 2),
}


def calls_it(x, p):
    return p(x, 3, other=4), bool(p), isinstance(p, Counting), isinstance(p, partial), type(p).__name__


def reads_it(x, p):
    return p.args, dict(p.keywords), p.func is describe, hasattr(p, "__name__"), getattr(p, "mark", None), callable(p)


def flattens_it(x, p):
    q = partial(p, 5, late=6)
    return q(x), q.args, q.keywords, q.func is p


def names_it(x, p):
    q = functools.update_wrapper(partial(p, 5), describe, updated=[])
    r = partial(q, 6)
    return q.__name__, q.__wrapped__ is describe, r.func is q, r(x), q


def makes_another(x, p):
    q = type(p)(p)
    return q(x), parts(q)


def keeps_it(x, p):
    return x + 1, partial(p, 7, k=8), Counting(p, 9)


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("program", (calls_it, reads_it, flattens_it, names_it, keeps_it), ids=lambda f: f.__name__)
def test_as_in_eager(program, name):
    fast, _ = compiled(program)
    for _ in range(2):
        found, expected = fast(torch.ones(2), OUTSIDE[name]), program(torch.ones(2), OUTSIDE[name])
        assert comparable(found) == comparable(expected)


def comparable(value):
    if isinstance(value, partial):
        return tuple(map(comparable, (*parts(value), value(torch.ones(2)), vars(value))))
    if isinstance(value, (tuple, list)):
        return type(value), [comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: comparable(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, torch.Tensor) else value


def test_subclasses_made_in_the_program():
    def f(x):
        shadowing, counting = Shadowing(partial(describe, 1)), Counting(describe, 2, key=3)
        return shadowing(x), isinstance(shadowing.func, partial), counting(x), counting.args, Host().method(x)

    fast, said = compiled(f, fullgraph=True)
    assert comparable(fast(torch.ones(2))) == comparable(f(torch.ones(2)))
    assert len(said.graphs) == 1


def test_attributes_outside():
    def f(x, p):
        p.calls = getattr(p, "calls", 0) + 1
        return p(x)[2] * p.calls

    fast, _ = compiled(f)
    p, q = partial(describe), partial(describe)
    for _ in range(3):
        assert torch.equal(fast(torch.ones(2), p), f(torch.ones(2), q))
        assert vars(p) == vars(q)


def test_what_has_got_attributes_since_is_not_taken_apart():
    def f(x, p):
        return x * 2, partial(p, 1).func is p

    fast, _ = compiled(f)
    p = partial(describe)
    assert not fast(torch.ones(2), p)[1]
    p.mark = 1
    assert fast(torch.ones(2), p)[1]


def test_errors():
    def f(x):
        try:
            return partial()
        except TypeError as error:
            return x, str(error)

    fast, _ = compiled(f)
    assert fast(torch.ones(2))[1] == f(torch.ones(2))[1]


def test_a_partial_of_what_is_no_function():
    def f(x):
        try:
            return partial(3), 1
        except TypeError as error:
            return x, str(error)

    fast, _ = compiled(f)
    assert fast(torch.ones(2))[1] == f(torch.ones(2))[1]
