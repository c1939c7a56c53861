"""`treadle.compile` of a function that has been compiled before."""

from __future__ import annotations

import gc
import pickle
import types
import weakref

import torch

import treadle


def module_level(x):
    return x.sin() + 1


def test_the_same_function_is_compiled_once():
    def f(x):
        return (x.sin() + 1) * 2

    before = treadle.stats().graphs
    for _ in range(5):
        x = torch.randn(4)
        torch.testing.assert_close(treadle.compile(f)(x), f(x))
    assert treadle.stats().graphs == before + 1
    torch.testing.assert_close(treadle.compile(treadle.compile(f))(x), f(x))
    assert treadle.stats().graphs == before + 1


class Scaled(torch.nn.Module):
    def __init__(self, n):
        super().__init__()
        self.n = n
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.linear(x) * self.n

    def twice(self, x):
        return self.linear(x) * self.n * 2


def test_the_same_module_and_method_are_compiled_once():
    module, before = Scaled(2), treadle.stats().graphs
    for _ in range(5):
        x = torch.randn(4, 3)
        torch.testing.assert_close(treadle.compile(module)(x), module(x))
        torch.testing.assert_close(treadle.compile(module.twice)(x), module.twice(x))
    torch.testing.assert_close(treadle.compile(treadle.compile(module))(x), module(x))
    assert treadle.stats().graphs == before + 2
    module.n = 3
    torch.testing.assert_close(treadle.compile(module)(x), module(x))


def test_a_module_that_is_compiled_in_a_compiled_function():
    module, x = Scaled(2), torch.randn(4, 3)

    def f(x):
        return treadle.compile(module)(x) + treadle.compile(module.twice)(x)

    compiled = treadle.compile(f)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), f(x))
    before = treadle.stats().graphs
    for _ in range(5):
        torch.testing.assert_close(compiled(x), f(x))
    assert treadle.stats().graphs == before


def test_methods_of_other_instances_are_compiled_for_themselves():
    x = torch.ones(2, 3)
    for n in range(20):
        module = Scaled(n)
        for target in (module, module.twice):
            torch.testing.assert_close(treadle.compile(target)(x), target(x))


def test_methods_that_are_replaced_are_followed():
    class Plain:
        def run(self, x):
            return x + 1

    plain, x = Plain(), torch.ones(2)
    assert treadle.compile(plain.run)(x)[0] == 2
    Plain.run = lambda self, x: x + 2
    assert treadle.compile(plain.run)(x)[0] == 3


class Slotted:
    __slots__ = ("n",)

    def run(self, x):
        return x + self.n


def test_methods_of_what_cannot_be_referred_to_weakly():
    slotted = Slotted()
    for slotted.n in (1, 2):
        assert treadle.compile(slotted.run)(torch.ones(2))[0] == slotted.n + 1


def test_a_module_is_not_kept_alive():
    def make():
        module = Scaled(2)
        module.me = [module]
        for target in (module, module.twice):
            treadle.compile(target)(torch.ones(2, 3)).sum().backward()
        return weakref.ref(module)

    module = make()
    gc.collect()
    assert module() is None


def test_other_options_are_another_compile():
    def f(x):
        return x.cos() * 3

    before = treadle.stats().graphs
    for options in ({}, {"dynamic": True}, {"backend": "eager"}, {"fullgraph": True}, {"options": {"threads": 1}}):
        treadle.compile(f, **options)(torch.ones(4))
    with treadle.config.patch(decide_on_inputs=False):
        treadle.compile(f)(torch.ones(4))
    assert treadle.stats().graphs == before + 6


def test_closures_made_anew_are_compiled_for_themselves():
    def scaled(n):
        return lambda x: x * n + 1

    for n in range(20):
        f = scaled(n)
        assert treadle.compile(f)(torch.ones(2))[0] == n + 1


def test_code_and_defaults_that_change_are_followed():
    def f(x, n=2):
        return x * n

    def other(x, n=2):
        return x - n

    first, x = treadle.compile(f), torch.ones(3)
    assert first(x)[0] == 2
    f.__defaults__ = (5,)
    assert first(x)[0] == treadle.compile(f)(x)[0] == 5
    f.__code__ = other.__code__
    assert first(x)[0] == treadle.compile(f)(x)[0] == first(x)[0] == -4


def test_a_function_is_not_kept_alive():
    def make():
        def f(x, n=2):
            return x if n == 0 else f(x.sin(), n - 1)

        treadle.compile(f)(torch.ones(3))
        return weakref.ref(f)

    function = make()
    gc.collect()
    assert function() is None


def test_nothing_is_added_to_the_function():
    treadle.compile(module_level)(torch.ones(2))
    assert vars(module_level) == {} and pickle.loads(pickle.dumps(module_level)) is module_level
    copy = types.FunctionType(module_level.__code__, module_level.__globals__)
    before = treadle.stats().graphs
    treadle.compile(copy)(torch.ones(2))
    assert treadle.stats().graphs == before + 1
