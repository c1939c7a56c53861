"""Class 4: places that hold two objects when the function is compiled and one object later, or the other way round."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import torch
from mutate_runs import check, collect, ones


def lists():
    def f(a, b, x):
        a.append(1)
        return x * len(b)

    yield f, [1], [1], ones()
    one = [1]
    yield f, one, one, ones()
    yield f, [1], [1], ones()


def lists_by_item():
    def f(a, b, x):
        a[0] = 5
        return x * b[0]

    yield f, [1], [1], ones()
    one = [1]
    yield f, one, one, ones()


def dicts():
    def f(a, b, x):
        a["k"] = 5
        return x * b["k"]

    yield f, {"k": 1}, {"k": 1}, ones()
    one = {"k": 1}
    yield f, one, one, ones()


def sets():
    def f(a, b, x):
        a.add(2)
        return x * len(b)

    yield f, {1}, {1}, ones()
    one = {1}
    yield f, one, one, ones()


def deques():
    def f(a, b, x):
        a.append(1)
        return x * len(b)

    yield f, collections.deque([1]), collections.deque([1]), ones()
    one = collections.deque([1])
    yield f, one, one, ones()


def ordered_dicts():
    def f(a, b, x):
        a["k"] = 5
        return x * b["k"]

    yield f, collections.OrderedDict(k=1), collections.OrderedDict(k=1), ones()
    one = collections.OrderedDict(k=1)
    yield f, one, one, ones()


def default_dicts():
    def f(a, b, x):
        a["k"].append(1)
        return x * len(b["k"])

    def make():
        return collections.defaultdict(list, k=[1])

    yield f, make(), make(), ones()
    one = make()
    yield f, one, one, ones()


def dataclasses_():
    @dataclasses.dataclass
    class D:
        k: int = 1

    def f(a, b, x):
        a.k = 5
        return x * b.k

    yield f, D(), D(), ones()
    one = D()
    yield f, one, one, ones()


def objects():
    class A:
        def __init__(self):
            self.k = 1

    def f(a, b, x):
        a.k += 1
        return x * b.k

    yield f, A(), A(), ones()
    one = A()
    yield f, one, one, ones()


def slotted_objects():
    class A:
        __slots__ = ("k",)

        def __init__(self):
            self.k = 1

    def f(a, b, x):
        a.k = 7
        return x * b.k

    yield f, A(), A(), ones()
    one = A()
    yield f, one, one, ones()


def list_subclasses():
    class L(list):
        pass

    def f(a, b, x):
        a.append(1)
        return x * len(b)

    yield f, L([1]), L([1]), ones()
    one = L([1])
    yield f, one, one, ones()


def nested_lists():
    def f(a, x):
        a[0].append(1)
        return x * len(a[1])

    yield f, [[1], [1]], ones()
    one = [1]
    yield f, [one, one], ones()


def argument_against_global():
    space: dict[str, Any] = {"CACHE": [1]}
    exec("def f(a, x):\n    a.append(1)\n    return x * len(CACHE)", space)
    yield space["f"], [1], ones()
    yield space["f"], space["CACHE"], ones()


def global_against_argument():
    space: dict[str, Any] = {"CACHE": {"k": 1}}
    exec("def f(a, x):\n    CACHE['k'] += 1\n    return x * a['k']", space)
    yield space["f"], {"k": 1}, ones()
    yield space["f"], space["CACHE"], ones()


def closure_against_argument():
    cache = [1]

    def f(a, x):
        cache.append(1)
        return x * len(a)

    yield f, [1], ones()
    cache[:] = [1]
    yield f, cache, ones()


def attribute_against_argument():
    class A:
        def __init__(self):
            self.log = [1]

    a = A()

    def f(log, x):
        a.log.append(1)
        return x * len(log)

    yield f, [1], ones()
    a.log[:] = [1]
    yield f, a.log, ones()


def dict_of_an_object_against_argument():
    class A:
        def __init__(self):
            self.k = 1

    a = A()

    def f(d, x):
        a.k = 5
        return x * d["k"]

    yield f, {"k": 1}, ones()
    a.k = 1
    yield f, a.__dict__, ones()


def argument_against_the_dict_of_an_object():
    class A:
        def __init__(self):
            self.k = 1

    a = A()

    def f(d, x):
        d["k"] = 5
        return x * a.k

    yield f, {"k": 1}, ones()
    a.k = 1
    yield f, a.__dict__, ones()


def is_of_lists():
    def f(a, b, x):
        return x + 1 if a is b else x - 1

    yield f, [1], [1], ones()
    one = [1]
    yield f, one, one, ones()
    yield f, [1], [1], ones()


def is_of_objects():
    class A:
        pass

    def f(a, b, x):
        return x + 1 if a is b else x - 1

    yield f, A(), A(), ones()
    one = A()
    yield f, one, one, ones()


def is_not_of_dicts():
    def f(a, b, x):
        return x + 1 if a is not b else x - 1

    yield f, {}, {}, ones()
    one: dict[str, int] = {}
    yield f, one, one, ones()


def sentinel():
    class S:
        pass

    missing = S()

    def f(a, x):
        return x + 1 if a is missing else x - 1

    yield f, S(), ones()
    yield f, missing, ones()
    yield f, S(), ones()


def sentinel_object():
    missing = object()

    def f(a, x):
        return x + 1 if a is missing else x - 1

    yield f, object(), ones()
    yield f, missing, ones()


def object_in_a_list():
    class A:
        pass

    one = A()

    def f(a, items, x):
        return x + 1 if a in items else x - 1

    yield f, A(), [one], ones()
    yield f, one, [one], ones()


def object_in_a_tuple():
    class A:
        pass

    one = A()

    def f(a, items, x):
        return x + 1 if a in items else x - 1

    yield f, A(), (one,), ones()
    yield f, one, (one,), ones()


def object_index_in_a_list():
    class A:
        pass

    one = A()

    def f(a, items, x):
        return x * (items.index(a) + 1) * items.count(a)

    yield f, one, [one, A()], ones()
    yield f, one, [A(), one], ones()
    yield f, one, [one, one], ones()


def equality_by_identity():
    class A:
        pass

    def f(a, b, x):
        return x + 1 if a == b else x - 1

    yield f, A(), A(), ones()
    one = A()
    yield f, one, one, ones()


def object_as_key():
    class A:
        pass

    one = A()

    def f(a, table, x):
        return x * table.get(a, 3)

    yield f, A(), {one: 7}, ones()
    yield f, one, {one: 7}, ones()


def objects_as_keys_made_inside():
    class A:
        pass

    def f(a, b, x):
        return x * len({a: 1, b: 2})

    yield f, A(), A(), ones()
    one = A()
    yield f, one, one, ones()


def objects_in_a_set_made_inside():
    class A:
        pass

    def f(a, b, x):
        return x * len({a, b})

    yield f, A(), A(), ones()
    one = A()
    yield f, one, one, ones()


def comparison_of_lists_of_objects():
    class A:
        pass

    one = A()

    def f(a, b, x):
        return x + 1 if a == b else x - 1

    yield f, [one], [A()], ones()
    yield f, [one], [one], ones()


def one_object_becomes_two():
    def f(a, b, x):
        a.append(1)
        return x * len(b)

    one = [1]
    yield f, one, one, ones()
    yield f, [1], [1], ones()


def tensors():
    def f(a, b, x):
        a.add_(1)
        return x * b

    yield f, ones(), ones(), ones()
    one = ones()
    yield f, one, one, ones()


def tensors_compared():
    def f(a, b):
        return a + 1 if a is b else a - 1

    yield f, ones(), ones()
    one = ones()
    yield f, one, one


def tensor_in_a_list_twice():
    def f(items):
        items[0].add_(1)
        return items[1] * 2

    yield f, [ones(), ones()]
    one = ones()
    yield f, [one, one]


def cells():
    import types

    def make(cell):
        def h():
            return k

        k = None
        return types.FunctionType(h.__code__, globals(), "h", None, (cell,))

    def f(g, h, x):
        return x * g() * h()

    yield f, make(types.CellType(2)), make(types.CellType(3)), ones()
    cell = types.CellType(5)
    yield f, make(cell), make(cell), ones()


def stored_cells():
    import types

    def pair(first, second):
        def setter():
            nonlocal k
            k = 7

        def getter():
            return k

        k = None
        return (
            types.FunctionType(setter.__code__, globals(), "setter", None, (first,)),
            types.FunctionType(getter.__code__, globals(), "getter", None, (second,)),
        )

    def f(functions, x):
        functions[0]()
        return x * functions[1]()

    yield f, pair(types.CellType(2), types.CellType(2)), ones()
    cell = types.CellType(2)
    yield f, pair(cell, cell), ones()


def object_holds_itself():
    class A:
        pass

    def make(same):
        a, b = A(), A()
        a.k = b.k = 1
        a.other = a if same else b
        return a

    def f(a, x):
        a.k = 5
        return x * a.other.k

    yield f, make(False), ones()
    yield f, make(True), ones()


def mutable_default_against_argument():
    def f(x, log=[1]):  # noqa: B006
        log.append(1)
        return x * len(log)

    yield f, ones()
    yield f, ones(), [1, 1]
    yield f, ones()


def objects_with_one_dict():
    class Thing:
        def __init__(self, k):
            self.k = k

    def f(a, b, x):
        a.k = 5
        return x * b.k

    one, other = Thing(1), Thing(2)
    yield f, one, other, ones()
    other.__dict__ = one.__dict__
    one.k = 3
    yield f, one, other, ones()
    yield f, Thing(1), Thing(2), ones()


@collect(globals())
def test_aliasing(program):
    check(program, breaks=program.__name__ in MAY_BREAK)


MAY_BREAK = {"objects_with_one_dict", "dict_of_an_object_against_argument", "argument_against_the_dict_of_an_object"}


def test_lists_that_are_only_read_may_be_one_object():
    def program():
        def f(a, b, x):
            return x * a[0] * b[0]

        yield f, [1], [1], torch.ones(2)
        one = [1]
        yield f, one, one, torch.ones(2)

    check(program, compiles=1)
