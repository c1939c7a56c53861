"""Functions whose code or defaults the program replaces."""

from __future__ import annotations

import torch
from compile_runs import compare, compiled, t, whole


def scaled(x, by=1):
    return x * by


def code(x):
    def f():
        return 1

    def g():
        return 2

    f.__code__ = g.__code__
    return x * f()


def defaults(x):
    def f(a=1):
        return a

    f.__defaults__ = (5,)
    return x * f()


def keyword_defaults(x):
    def f(*, a=1):
        return a

    f.__kwdefaults__ = {"a": 4}
    return x * f()


def no_defaults(x):
    def f(a=1, b=2):
        return a + b

    f.__defaults__ = (5, 6)
    before = f()
    f.__defaults__ = None
    try:
        f()
    except TypeError as error:
        return x * before, str(error)


def other_code(x):
    def f():
        return x

    def g():
        return 2

    try:
        f.__code__ = g.__code__
    except ValueError as error:
        return x * f(), str(error)


def of_an_outside_function(x):
    scaled.__defaults__ = (9,)
    try:
        return scaled(x)
    finally:
        scaled.__defaults__ = (1,)


def test_of_a_function_made_inside():
    whole(compare(code, t(2)))
    whole(compare(defaults, t(2)))
    whole(compare(no_defaults, t(2)))


def test_what_is_left_to_python():
    for program in (keyword_defaults, other_code, of_an_outside_function):
        assert "attribute-store" in compare(program, t(2), look=lambda: scaled.__defaults__).codes()


def annotations_changed(x):
    def f(a: int, b: float):
        return a

    f.__annotations__["more"] = f.__annotations__.pop("b")
    return f, f.__annotations__, dict(f.__dict__), x * 2


def keyword_defaults_read(x):
    def f(a, *, by=2):
        return a * by

    def g(a):
        return a

    return x * 2, f.__kwdefaults__, hasattr(f, "__kwdefaults__"), g.__kwdefaults__


def test_annotations_are_one_dict():
    run, recorder = compiled(annotations_changed)
    made, *rest = run(torch.ones(2))
    expected, *others = annotations_changed(torch.ones(2))
    assert made.__annotations__ == expected.__annotations__ and rest[0] is made.__annotations__
    assert rest[:2] == others[:2] and made.__dict__ == {}
    whole(recorder)


def test_defaults_of_keywords_are_read_in_python():
    assert compare(keyword_defaults_read, t(2)).codes() == ["attribute"]
