"""Class 5: values and functions implemented in C whose answers were frozen."""

from __future__ import annotations

import collections
import contextvars
import datetime
import decimal
import fractions
import functools
import operator
import os
import random
import re
import time

import pytest
import torch
from mutate_runs import check, collect, ones


def clock():
    def f(x):
        return x * 0 + (datetime.datetime.now().year > 2000), time.perf_counter() > 0

    yield f, ones()
    yield f, ones() * 2


def dates():
    def f(d, x):
        return x * d.weekday()

    yield f, datetime.date(2020, 1, 1), ones()
    yield f, datetime.date(2020, 1, 3), ones()


def attributes_of_dates():
    def f(d, x):
        return x * d.day

    yield f, datetime.date(2020, 1, 1), ones()
    yield f, datetime.date(2020, 1, 3), ones()


def global_date():
    class Holder:
        d = datetime.datetime(2020, 1, 1)

    def f(x):
        return x * Holder.d.toordinal()

    yield f, ones()
    Holder.d = datetime.datetime(2020, 1, 5)
    yield f, ones()


def differences_of_dates():
    def f(d, x):
        return x * d.total_seconds()

    yield f, datetime.timedelta(seconds=2), ones()
    yield f, datetime.timedelta(seconds=5), ones()


def sums_of_dates():
    def f(d, e, x):
        return x * (d + e).day

    yield f, datetime.date(2020, 1, 1), datetime.timedelta(days=2), ones()
    yield f, datetime.date(2020, 1, 1), datetime.timedelta(days=4), ones()


def comparison_of_dates():
    def f(d, e, x):
        return x + 1 if d == e else x - 1

    yield f, datetime.date(2020, 1, 1), datetime.date(2020, 1, 1), ones()
    yield f, datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), ones()


def order_of_dates():
    def f(d, e, x):
        return x + 1 if d < e else x - 1

    yield f, datetime.date(2020, 1, 1), datetime.date(2020, 1, 2), ones()
    yield f, datetime.date(2020, 1, 3), datetime.date(2020, 1, 2), ones()


def text_of_dates():
    def f(d, x):
        return x * len(d.isoformat()) + int(d.isoformat()[-1])

    yield f, datetime.date(2020, 1, 1), ones()
    yield f, datetime.date(2020, 1, 3), ones()


def decimals():
    def f(d, x):
        return x * float(d)

    yield f, decimal.Decimal("1.5"), ones()
    yield f, decimal.Decimal("2.5"), ones()


def decimals_that_are_equal_but_not_the_same():
    def f(d, x):
        return x * len(str(d))

    yield f, decimal.Decimal("1.5"), ones()
    yield f, decimal.Decimal("1.50"), ones()


def truth_of_decimals():
    def f(d, x):
        return x + 1 if d else x - 1

    yield f, decimal.Decimal("1.5"), ones()
    yield f, decimal.Decimal("0"), ones()


def comparison_of_decimals():
    def f(d, x):
        return x + 1 if d == 2 else x - 1

    yield f, decimal.Decimal("2"), ones()
    yield f, decimal.Decimal("3"), ones()


def rational_numbers():
    def f(d, x):
        return x * float(d)

    yield f, fractions.Fraction(1, 2), ones()
    yield f, fractions.Fraction(1, 4), ones()


def item_getters():
    def f(g, x):
        return x * g((1, 2))

    yield f, operator.itemgetter(0), ones()
    yield f, operator.itemgetter(1), ones()


def attribute_getters():
    class A:
        one, two = 1, 2

    a = A()

    def f(g, x):
        return x * g(a)

    yield f, operator.attrgetter("one"), ones()
    yield f, operator.attrgetter("two"), ones()


def method_callers():
    def f(g, x):
        return x * g([1, 1, 2])

    yield f, operator.methodcaller("count", 1), ones()
    yield f, operator.methodcaller("count", 2), ones()


def patterns():
    def f(p, x):
        return x + 1 if p.match("abc") else x - 1

    yield f, re.compile("a"), ones()
    yield f, re.compile("b"), ones()


def matches():
    def f(m, x):
        return x * m.start() + len(m.group())

    yield f, re.search("b", "abc"), ones()
    yield f, re.search("cd", "abcd"), ones()


def cached_functions():
    state = [2]

    @functools.lru_cache
    def h(k):
        return state[0] * k

    def f(x):
        return x * h(1)

    yield f, ones()
    state[0] = 5
    yield f, ones()
    h.cache_clear()
    yield f, ones()


def cached_functions_called_before():
    state = [2]

    @functools.cache
    def h(k):
        return state[0] * k

    h(1)
    state[0] = 5

    def f(x, k):
        return x * h(k)

    yield f, ones(), 1
    yield f, ones(), 3
    h.cache_clear()
    yield f, ones(), 1


def cached_functions_that_count():
    calls = []

    @functools.lru_cache
    def h(k):
        calls.append(k)
        return k

    def f(x):
        return x * h(2), len(calls)

    yield f, ones()
    yield f, ones()
    h.cache_clear()
    yield f, ones()


def cached_functions_behind_writes():
    log, names = [], {}

    @functools.lru_cache
    def h(k):
        log.append(("h", k, len(names)))
        return k

    def f(x, k):
        log.append(("f", k))
        y = x * h(k)
        names[k] = k
        return y + h(k + 10), log[-1]

    for k in (1, 1, 2, 1):
        yield f, ones(), k
    h.cache_clear()
    for k in (1, 2):
        yield f, ones(), k


def cached_functions_of_several_types():
    @functools.lru_cache(maxsize=64, typed=True)
    def h(k, *more, named=0):
        return type(k).__name__, named, more

    def f(x, k):
        return x, h(k), h(k, named=k), h(k, 1)

    for k in (1, True, 1.0, 1, "1", True):
        yield f, ones(), k


def cached_objects():
    """As einops keeps its recipes."""

    class Recipe:
        def __init__(self, k):
            self.k = k

    @functools.lru_cache
    def make(k):
        return Recipe(k)

    @functools.lru_cache
    def apply(recipe, shape):
        return recipe.k * len(shape), [shape, recipe]

    def f(x, k):
        recipe = make(k)
        n, parts = apply(recipe, x.shape)
        return x * n + len(parts), recipe.k, parts[0] == x.shape

    yield f, ones(), 1
    yield f, ones(), 2
    make(1).k = 5
    yield f, ones(), 1
    apply.cache_clear()
    yield f, ones(), 1
    apply(make(1), ones().shape)[1].append(3)
    yield f, ones(), 1
    make.cache_clear()
    yield f, ones(), 1
    yield f, ones(), 2


def cached_tensors_and_containers():
    @functools.lru_cache
    def mask(n):
        return torch.ones(n, n).tril()

    @functools.lru_cache
    def table(n):
        return {"scale": torch.arange(n) + 1.0, "calls": []}

    def f(x):
        found = table(len(x))
        found["calls"].append(len(found["calls"]))
        return x @ mask(len(x)) * found["scale"], len(found["calls"]), mask(len(x)) is mask(len(x))

    x = torch.ones(3, 3)
    yield f, x
    yield f, x
    mask(3).mul_(2)
    yield f, x
    table(3)["scale"] = torch.zeros(3)
    yield f, x
    mask.cache_clear()
    yield f, x


def cached_functions_of_objects_with_an_equality():
    class Key:
        def __init__(self, k):
            self.k = k

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    @functools.lru_cache
    def h(key):
        return key.k

    first, second = Key(2), Key(3)

    def f(x, key):
        return x * h(key)

    yield f, ones(), first
    yield f, ones(), second
    h.cache_clear()
    yield f, ones(), second
    yield f, ones(), first


def cached_functions_of_several_arguments():
    calls = []

    @functools.lru_cache
    def h(k):
        calls.append(k)
        return k

    def f(x, k):
        return x * h(k), tuple(calls)

    for k in (2, 2, 3, 2, 4):
        yield f, ones(), k
    h.cache_clear()
    for k in (2, 3, 2):
        yield f, ones(), k


def cached_properties():
    class A:
        k = 2

        @functools.cached_property
        def c(self):
            return self.k

    a = A()

    def f(x):
        return x * a.c

    yield f, ones()
    a.k = 5
    yield f, ones()
    del a.__dict__["c"]
    yield f, ones()


def random_numbers():
    def f(x):
        return x * random.random()

    random.seed(3)
    yield f, ones()
    random.seed(4)
    yield f, ones()


def environment():
    def f(x):
        return x * len(os.environ.get("TREADLE_TEST_SOUND", "ab"))

    try:
        yield f, ones()
        os.environ["TREADLE_TEST_SOUND"] = "abcd"
        yield f, ones()
    finally:
        os.environ.pop("TREADLE_TEST_SOUND", None)


def environment_by_getenv():
    def f(x):
        return x * len(os.getenv("TREADLE_TEST_SOUND", "ab"))

    try:
        yield f, ones()
        os.environ["TREADLE_TEST_SOUND"] = "abcd"
        yield f, ones()
    finally:
        os.environ.pop("TREADLE_TEST_SOUND", None)


def context_variable():
    variable = contextvars.ContextVar("variable", default=2)

    def f(x):
        return x * variable.get()

    yield f, ones()
    variable.set(5)
    yield f, ones()


def counters():
    def f(c, x):
        return x * c["a"]

    yield f, collections.Counter("aab"), ones()
    yield f, collections.Counter("b"), ones()


def chain_maps():
    base = {"k": 2}

    def f(c, x):
        return x * c["k"]

    yield f, collections.ChainMap({}, base), ones()
    yield f, collections.ChainMap({"k": 5}, base), ones()


def iterators():
    def f(i, x):
        return x * next(i)

    yield f, iter([2, 3]), ones()
    yield f, iter([5, 3]), ones()


def generators():
    def f(g, x):
        return x * next(g)

    yield f, (k for k in [2, 3]), ones()
    yield f, (k for k in [5, 3]), ones()


def bytes_and_arrays():
    def f(b, x):
        return x * b[0]

    yield f, bytearray(b"\x02"), ones()
    yield f, bytearray(b"\x05"), ones()


def numpy_arrays():
    np = pytest.importorskip("numpy")

    array = np.array([2, 3])

    def f(x):
        return x * int(array[0])

    yield f, ones()
    array[0] = 5
    yield f, ones()


def numpy_functions():
    np = pytest.importorskip("numpy")

    def f(x):
        return x * float(np.sqrt(4.0)) + float(np.random.rand() < 2)

    yield f, ones()
    yield f, ones() * 2


def numpy_scalars():
    np = pytest.importorskip("numpy")

    def f(k, x):
        return x * float(k)

    yield f, np.float64(2), ones()
    yield f, np.float64(5), ones()


def hashes():
    class A:
        def __init__(self, k):
            self.k = k

        def __hash__(self):
            return self.k

        def __eq__(self, other):
            return True

    def f(a, x):
        return x * hash(a)

    yield f, A(2), ones()
    yield f, A(5), ones()


def paths():
    import pathlib

    def f(p, x):
        return x * len(p.name)

    yield f, pathlib.PurePosixPath("a/bc"), ones()
    yield f, pathlib.PurePosixPath("a/bcd"), ones()


def identifiers():
    import uuid

    def f(u, x):
        return x * (u.int % 7)

    yield f, uuid.UUID(int=2), ones()
    yield f, uuid.UUID(int=5), ones()


def ranges():
    def f(r, x):
        return x * len(r)

    yield f, range(2), ones()
    yield f, range(5), ones()


def versions():
    def f(x):
        return x + 1 if torch.__version__ > "1" else x - 1

    before = torch.__version__
    try:
        yield f, ones()
        torch.__version__ = "0.1"
        yield f, ones()
    finally:
        torch.__version__ = before


@collect(globals())
def test_native_values(program):
    check(program, breaks=True)


def test_datetime_now_is_asked_at_every_call():
    from compile_runs import compiled

    def f(x):
        return x + 1, datetime.datetime.now(), datetime.date.today(), datetime.datetime.utcnow

    fast, _ = compiled(f)
    first = fast(ones())[1]
    time.sleep(0.01)
    assert fast(ones())[1] > first
