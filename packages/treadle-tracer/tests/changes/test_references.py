"""What guards refer to: the user's data dies when the user lets it go, whatever a compiled function has read of it."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref

import pytest
from compile_runs import compiled
from mutate_runs import check, ones
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


def returned(x):
    return x, x + 1


def generator(x):
    return sum(x * k for k in range(3))


def inner_function(x):
    return (lambda y: y + x)(x)


def dynamic(x):
    return x * x.shape[0]


def broken(x):
    y = x * 2
    return y + y.sum().item()


def skipped(x):
    return x + len(sys._getframe().f_code.co_name)


def raising(x):
    y = x * 2
    raise ValueError(y.shape)


def differentiated(x):
    return (x * x.detach().requires_grad_()).sum()


def stored(x):
    SENTINEL.last = x * 2
    return x + 1


@pytest.mark.parametrize(
    "function", [returned, generator, inner_function, dynamic, broken, skipped, raising, differentiated, stored]
)
def test_tensors_die_after_the_calls(function):
    fast, _ = compiled(function, raise_internal_errors=False)
    references = []
    for size in (2, 2, 3, 4):
        x = ones(size)
        with contextlib.suppress(ValueError):
            fast(x)
        references.append(weakref.ref(x))
        del x
    SENTINEL.last = None
    gc.collect()
    assert [reference() for reference in references] == [None] * 4


def test_tensors_die_after_a_failed_compile():
    def backend(gm, inputs):
        raise NotImplementedError

    fast, _ = compiled(returned, backend=backend, raise_internal_errors=False)
    x = ones()
    with contextlib.suppress(Exception):
        fast(x)
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None


def test_a_module_and_what_its_method_has_read_die():
    """The class is one of the module's: its code, which holds the entry, stays."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)
            self.data = Data()

        def forward(self, x):
            return self.inner(x) * self.data.k

    model = Model()
    fast, recorder = compiled(model.forward)
    fast(ones())
    assert recorder.entries
    references = [weakref.ref(obj) for obj in (model, model.inner, model.data)]
    del model, fast
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_what_a_weak_proxy_refers_to_dies():
    def program():
        data = Data()
        proxy = weakref.proxy(data)

        def f(x):
            return x * proxy.k

        yield f, ones()
        data.k = 7
        yield f, ones()
        del data
        yield f, ones()
        yield f, ones()

    check(program, breaks=True)
