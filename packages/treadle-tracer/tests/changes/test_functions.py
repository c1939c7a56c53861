"""Class 3: functions whose code, defaults or globals change; two functions of one code."""

from __future__ import annotations

import types
from typing import Any

import torch
from mutate_runs import check, collect, ones
from torch import nn


def code_of_the_root():
    def f(x):
        return x + 1

    def other(x):
        return x - 1

    yield f, ones()
    f.__code__ = other.__code__
    yield f, ones()


def code_of_a_helper():
    def h(x):
        return x + 1

    def other(x):
        return x - 1

    def f(x):
        return h(x)

    yield f, ones()
    h.__code__ = other.__code__
    yield f, ones()


def code_of_a_global_helper():
    space: dict[str, Any] = {}
    exec("def h(x):\n    return x + 1\ndef other(x):\n    return x - 1\ndef f(x):\n    return h(x)", space)
    yield space["f"], ones()
    space["h"].__code__ = space["other"].__code__
    yield space["f"], ones()


def code_of_a_method():
    class A:
        def m(self, x):
            return x + 1

        def other(self, x):
            return x - 1

    a = A()

    def f(x):
        return a.m(x)

    yield f, ones()
    A.m.__code__ = A.other.__code__
    yield f, ones()


def code_of_forward():
    class Net(nn.Module):
        def forward(self, x):
            return x + 1

        def other(self, x):
            return x - 1

    m = Net()

    def f(x):
        return m(x)

    yield f, ones()
    Net.forward.__code__ = Net.other.__code__
    yield f, ones()


def code_of_a_property():
    class A:
        @property
        def k(self):
            return 2

        @property
        def other(self):
            return 3

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    A.k.fget.__code__ = A.other.fget.__code__
    yield f, ones()


def code_of_a_function_argument():
    def make(k):
        return lambda x: x * k

    def f(g, x):
        return g(x)

    yield f, make(2), ones()
    yield f, make(3), ones()
    yield f, lambda x: x - 1, ones()


def defaults_of_the_root():
    def f(x, k=2):
        return x * k

    yield f, ones()
    f.__defaults__ = (5,)
    yield f, ones()
    f.__defaults__ = (torch.zeros(2),)
    yield f, ones()


def keyword_defaults_of_the_root():
    def f(x, *, k=2):
        return x * k

    yield f, ones()
    f.__kwdefaults__ = {"k": 5}
    yield f, ones()
    f.__kwdefaults__["k"] = 7
    yield f, ones()


def defaults_of_a_helper():
    def h(x, k=2):
        return x * k

    def f(x):
        return h(x)

    yield f, ones()
    h.__defaults__ = (5,)
    yield f, ones()


def keyword_defaults_of_a_helper():
    def h(x, *, k=2):
        return x * k

    def f(x):
        return h(x)

    yield f, ones()
    h.__kwdefaults__["k"] = 5
    yield f, ones()
    h.__kwdefaults__ = {"k": 7}
    yield f, ones()


def a_default_of_a_helper_that_was_missing():
    def h(x, k):
        return x * k

    def f(x):
        try:
            return h(x)
        except TypeError:
            return x - 1

    yield f, ones()
    h.__defaults__ = (5,)
    yield f, ones()


def two_lambdas_of_one_code_with_other_globals():
    one = types.FunctionType((lambda x: x * K).__code__, {"K": 2})  # noqa: F821
    two = types.FunctionType(one.__code__, {"K": 5})
    yield one, ones()
    yield two, ones()
    yield one, ones()


def one_code_with_other_globals_as_arguments():
    one = types.FunctionType((lambda x: x * K).__code__, {"K": 2})  # noqa: F821
    two = types.FunctionType(one.__code__, {"K": 5})

    def f(g, x):
        return g(x)

    yield f, one, ones()
    yield f, two, ones()
    yield f, one, ones()


def functions_made_inside_have_the_globals_of_the_call():
    code = compile(
        "def f(x):\n    def inner():\n        return K\n    return x * 2, inner", "<made>", "exec"
    ).co_consts[0]

    def call(g, x):
        value, inner = g(x)
        return value, inner()

    one, two = types.FunctionType(code, {"K": 2}), types.FunctionType(code, {"K": 5})

    def first(x):
        value, inner = one(x)
        return value, inner()

    yield first, ones()
    one.__globals__["K"] = 3
    yield first, ones()
    yield call, two, ones()


def returned_functions_have_the_globals_of_the_call():
    made = compile(
        "def f(x, sink):\n    def inner():\n        return K\n    sink.append(inner)\n    return x * 2",
        "<made>",
        "exec",
    )
    one, two = (types.FunctionType(made.co_consts[0], {"K": k}) for k in (2, 5))
    sink: list[Any] = []
    yield one, ones(), sink
    yield two, ones(), sink
    values = [inner() for inner in sink]

    def f(x):
        return x * values[0] * values[1] * values[1]

    yield f, ones()


def closure_of_a_helper():
    k = 2

    def h(x):
        return x * k

    def change(value):
        nonlocal k
        k = value

    def f(x):
        return h(x)

    yield f, ones()
    change(5)
    yield f, ones()


def closure_of_the_root():
    k = 2

    def f(x):
        return x * k

    def change(value):
        nonlocal k
        k = value

    yield f, ones()
    change(5)
    yield f, ones()


def two_closures_of_one_code():
    def make(k):
        def f(x):
            return x * k

        return f

    one, two = make(2), make(5)
    yield one, ones()
    yield two, ones()
    yield one, ones()


def name_of_a_function():
    def h():
        return 1

    def f(x):
        return x * len(h.__name__)

    yield f, ones()
    h.__name__ = "other"
    yield f, ones()


def qualified_name_of_a_function():
    def h():
        return 1

    def f(x):
        return x * len(h.__qualname__)

    yield f, ones()
    h.__qualname__ = "other"
    yield f, ones()


def function_of_a_method_object():
    class A:
        def m(self, x):
            return x + 1

        def n(self, x):
            return x - 1

    a = A()
    holder = types.SimpleNamespace(m=a.m)

    def f(x):
        return holder.m(x)

    yield f, ones()
    holder.m = a.n
    yield f, ones()


def code_behind_a_static_method():
    class A:
        @staticmethod
        def m(x):
            return x + 1

    def other(x):
        return x - 1

    def f(x):
        return A.m(x)

    yield f, ones()
    A.m.__code__ = other.__code__
    yield f, ones()


def code_behind_a_partial():
    import functools

    def h(x, k):
        return x * k

    def other(x, k):
        return x - k

    p = functools.partial(h, k=2)

    def f(x):
        return p(x)

    yield f, ones()
    h.__code__ = other.__code__
    yield f, ones()


def code_of_a_recursive_function():
    space: dict[str, Any] = {}
    exec("def f(x, n=2):\n    return x + 1 if n == 0 else f(x, n - 1) * 2\ndef other(x, n=2):\n    return x - n", space)
    yield space["f"], ones()
    space["f"].__code__ = space["other"].__code__
    yield space["f"], ones()


@collect(globals())
def test_functions(program):
    check(program, breaks=program.__name__ in MAY_BREAK)


MAY_BREAK: set[str] = set()
