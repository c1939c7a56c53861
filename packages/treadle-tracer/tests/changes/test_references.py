"""What guards refer to: the user's data dies when the user lets it go, whatever a compiled function has read of it."""

from __future__ import annotations

import gc
import weakref

import pytest
from compile_runs import compiled
from mutate_runs import ones
from torch import nn


class Data:
    def __init__(self):
        self.k = 2


def attribute(a, x):
    return x * a.k


def key(a, x):
    return x * {a: 3}[a]


def membership(a, x):
    return x * (2 if a in [1, a] else 3)


def comparison(a, x):
    return x * (2 if a == SENTINEL else 3)


def identity(a, x):
    return x * (2 if a is SENTINEL else 3)


def store(a, x):
    a.k = 3
    return x * a.k


def instance(a, x):
    return x * (2 if isinstance(a, (int, Data)) else 3)


SENTINEL = Data()


@pytest.mark.parametrize("function", [attribute, key, membership, comparison, identity, store, instance])
def test_an_argument_dies_with_its_last_reference(function):
    fast, recorder = compiled(function)
    made = Data()
    fast(made, ones())
    assert recorder.entries
    reference = weakref.ref(made)
    del made
    assert reference() is None, "without a collection"


def test_a_module_that_is_an_argument_dies():
    def f(m, x):
        return m(x)

    fast, recorder = compiled(f)
    module = nn.Sequential(nn.ReLU(), nn.Tanh())
    fast(module, ones())
    assert recorder.entries
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None


def test_the_value_of_a_class_attribute_dies_when_it_is_replaced_and_the_function_compiled_anew():
    class Holder:
        data = Data()

    def f(x):
        return x * Holder.data.k

    fast, recorder = compiled(f)
    fast(ones())
    reference = weakref.ref(Holder.data)
    Holder.data = Data()
    fast(ones())
    assert len(recorder.entries) <= 2
    del fast, f, recorder
    gc.collect()
    assert reference() is None
