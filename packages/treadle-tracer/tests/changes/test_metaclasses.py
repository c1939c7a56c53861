"""Special methods of a class's metaclass, of which the class itself is an operand: added, changed and deleted between calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from mutate_runs import check, ones

QUESTIONS: dict[str, tuple[Callable[[Any], Any], str, Callable[[int], Any]]] = {
    "len": (lambda k: len(k), "__len__", lambda n: lambda cls: n),
    "in": (lambda k: 3 in k, "__contains__", lambda n: lambda cls, item: item == n + 1),
    "truth": (lambda k: 1 if k else 2, "__bool__", lambda n: lambda cls: n == 1),
    "not": (lambda k: not k, "__bool__", lambda n: lambda cls: n == 1),
    "truth by length": (lambda k: 1 if k else 2, "__len__", lambda n: lambda cls: n - 1),
    "iteration": (lambda k: sum(k), "__iter__", lambda n: lambda cls: iter([n])),
    "call": (lambda k: k(3), "__call__", lambda n: lambda cls, value: value + n),
    "item": (lambda k: k[1], "__getitem__", lambda n: lambda cls, key: n),
    "equality": (lambda k: k == 3, "__eq__", lambda n: lambda cls, other: n == 1),
    "inequality": (lambda k: k != 3, "__eq__", lambda n: lambda cls, other: n == 1),
    "order": (lambda k: k < 3, "__lt__", lambda n: lambda cls, other: n == 1),
    "sum": (lambda k: k + 1, "__add__", lambda n: lambda cls, other: n + other),
    "reflected sum": (lambda k: 1 + k, "__radd__", lambda n: lambda cls, other: n + other),
    "negation": (lambda k: -k, "__neg__", lambda n: lambda cls: n),
    "int": (lambda k: int(k), "__int__", lambda n: lambda cls: n),
    "float": (lambda k: float(k), "__float__", lambda n: lambda cls: n / 2),
    "index": (lambda k: [1, 2, 3][k], "__index__", lambda n: lambda cls: n),
    "str": (lambda k: len(str(k)), "__str__", lambda n: lambda cls: "s" * n),
    "repr": (lambda k: len(repr(k)), "__repr__", lambda n: lambda cls: "s" * n),
    "format": (lambda k: len(f"{k}"), "__format__", lambda n: lambda cls, spec: "s" * n),
    "format with a spec": (lambda k: len(f"{k:>2}"), "__format__", lambda n: lambda cls, spec: spec * n),
    "instance": (lambda k: isinstance(3, k), "__instancecheck__", lambda n: lambda cls, value: n == 1),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_special_methods_of_the_metaclass(name: str) -> None:
    question, method, make = QUESTIONS[name]

    def program():
        class Meta(type):
            pass

        class K(metaclass=Meta):
            pass

        def f(x):
            try:
                found = question(K)
            except TypeError:
                found = "TypeError"
            return x + 1, found

        yield f, ones()
        for n in (1, 2):
            setattr(Meta, method, make(n))
            yield f, ones()
        if method == "__eq__":
            Meta.__hash__ = type.__hash__
        delattr(Meta, method)
        yield f, ones()

    check(program)


def test_objects_of_a_class_that_equals_everything() -> None:
    class Meta(type):
        __eq__ = lambda cls, other: True  # noqa: E731
        __hash__ = type.__hash__

    def program():
        class K(metaclass=Meta):
            size = 3

        thing = K()

        def f(x):
            return x * thing.size

        yield f, ones()
        K.size = 5
        yield f, ones()

    check(program)


def test_subscripts_of_classes() -> None:
    def program():
        class K:
            size = 2

            def __class_getitem__(cls, key):
                return cls.size * key

        class L(K):
            size = 5

        def f(x):
            try:
                return x * K[3] + L[4]
            except TypeError as error:
                return x, str(error)

        yield f, ones()
        K.size = 7
        yield f, ones()
        K.__class_getitem__ = classmethod(lambda cls, key: key)
        yield f, ones()
        L.__class_getitem__ = staticmethod(lambda key: 10)
        yield f, ones()
        K.__class_getitem__ = None
        yield f, ones()
        del K.__class_getitem__
        yield f, ones()

    check(program)


def test_the_subscript_of_a_class_runs_once_in_each_call() -> None:
    def program():
        asked = []

        class K:
            def __class_getitem__(cls, key):
                asked.append(key)
                return key

        def f(x):
            return x * K[3], len(asked)

        yield f, ones()
        yield f, ones()
        yield f, ones()

    check(program)
