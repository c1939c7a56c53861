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
