"""Class 8: keys and members that are equal but not the same, orders of sets, `sys.modules`, registrations, protocols, `callable`."""

from __future__ import annotations

import abc
import collections.abc
import numbers
import sys
import types
import typing

from mutate_runs import check, collect, ones, replaced


def members_of_a_set():
    def f(s, x):
        return x * len([k for k in s if k is True])

    yield f, {1, 2}, ones()
    yield f, {True, 2}, ones()


def members_of_a_frozen_set():
    def f(s, x):
        return x * len([k for k in s if k is True])

    yield f, frozenset({1, 2}), ones()
    yield f, frozenset({True, 2}), ones()


def order_of_a_set():
    def f(s, x):
        for k in s:
            x = x * 2 + k
        return x

    yield f, {0, 8}, ones()
    other = {8}
    other.add(0)
    yield f, other, ones()
    third = {16, 8, 0}
    third.discard(16)
    yield f, third, ones()


def order_of_a_set_made_inside():
    def f(x, a, b):
        for k in {a, b}:
            x = x * 2 + k
        return x

    yield f, ones(), 0, 8
    yield f, ones(), 8, 0


def order_after_removal_inside():
    def f(x):
        s = {16, 8, 0}
        s.discard(16)
        s.add(24)
        for k in s:
            x = x * 2 + k
        return x

    yield f, ones()
    yield f, ones() * 2


def order_of_a_changed_set():
    def f(s, x):
        s.add(16)
        s.discard(8)
        for k in s:
            x = x * 2 + k
        return x

    yield f, {0, 8}, ones()
    yield f, {8, 0, 24}, ones()


def type_of_a_key():
    def f(d, x):
        return x * len([k for k in d if k is True])

    yield f, {1: 0, 2: 0}, ones()
    yield f, {True: 0, 2: 0}, ones()


def keys_with_their_own_equality():
    class K:
        def __init__(self, k):
            self.k = k

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    def f(d, x):
        for k in d:
            x = x * k.k
        return x

    yield f, {K(2): 1}, ones()
    yield f, {K(5): 1}, ones()


def float_keys():
    def f(d, x):
        for k in d:
            x = x / (k + 1) if str(k) == "0.0" else x - 1
        return x

    yield f, {0.0: 1}, ones()
    yield f, {-0.0: 1}, ones()


def presence_of_an_equal_key():
    def f(d, x):
        return x + 1 if 1 in d else x - 1

    yield f, {True: 1}, ones()
    yield f, {2: 1}, ones()
    yield f, {1.0: 1}, ones()


def tuple_keys():
    def f(d, x):
        for a, b in d:
            x = x + 1 if a is True else x - 1
        return x

    yield f, {(1, 2): 1}, ones()
    yield f, {(True, 2): 1}, ones()


def mapping_proxies():
    class A:
        k = 2

    def f(x):
        return x * len([k for k in A.__dict__ if not k.startswith("_")])

    yield f, ones()
    A.extra = 1
    yield f, ones()


def keys_of_a_mapping_proxy():
    def f(d, x):
        return x * len([k for k in d if k is True])

    yield f, types.MappingProxyType({1: 1}), ones()
    yield f, types.MappingProxyType({True: 1}), ones()


def order_of_keys():
    def f(d, x):
        for k in d:
            x = x * 2 + d[k]
        return x

    yield f, {"a": 1, "b": 2}, ones()
    yield f, {"b": 2, "a": 1}, ones()


def module_replaced_before_an_import():
    one, two = types.ModuleType("treadle_test_module"), types.ModuleType("treadle_test_module")
    one.k, two.k = 2, 5
    with replaced(sys.modules, "treadle_test_module", one):

        def f(x):
            import treadle_test_module  # type: ignore[import-not-found]

            return x * treadle_test_module.k

        yield f, ones()
        sys.modules["treadle_test_module"] = two
        yield f, ones()


def module_replaced_before_a_from_import():
    one, two = types.ModuleType("treadle_test_module"), types.ModuleType("treadle_test_module")
    one.k, two.k = 2, 5
    with replaced(sys.modules, "treadle_test_module", one):

        def f(x):
            from treadle_test_module import k  # type: ignore[import-not-found]

            return x * k

        yield f, ones()
        sys.modules["treadle_test_module"] = two
        yield f, ones()


def module_read_from_sys_modules():
    one, two = types.ModuleType("treadle_test_module"), types.ModuleType("treadle_test_module")
    one.k, two.k = 2, 5
    with replaced(sys.modules, "treadle_test_module", one):

        def f(x):
            return x * sys.modules["treadle_test_module"].k

        yield f, ones()
        sys.modules["treadle_test_module"] = two
        yield f, ones()


def import_function_replaced():
    import builtins

    one = types.ModuleType("treadle_test_module")
    one.k = 2
    other = types.SimpleNamespace(k=5)
    before = builtins.__import__
    with replaced(sys.modules, "treadle_test_module", one):

        def f(x):
            import treadle_test_module  # type: ignore[import-not-found]

            return x * treadle_test_module.k

        yield f, ones()
        with replaced(
            builtins, "__import__", lambda name, *rest: other if name == "treadle_test_module" else before(name, *rest)
        ):
            yield f, ones()


def registered_later():
    class Base(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, Base) else x - 1

    yield f, ones()
    Base.register(A)
    yield f, ones()


def registered_later_for_issubclass():
    class Base(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    def f(x):
        return x + 1 if issubclass(A, Base) else x - 1

    yield f, ones()
    Base.register(A)
    yield f, ones()


def instance_check_of_a_metaclass():
    class M(type):
        answer = True

        def __instancecheck__(cls, instance):
            return M.answer

    class Base(metaclass=M):
        pass

    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, Base) else x - 1

    yield f, ones()
    M.answer = False
    yield f, ones()


def instance_check_added_later():
    class M(type):
        pass

    class Base(metaclass=M):
        pass

    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, Base) else x - 1

    yield f, ones()
    M.__instancecheck__ = lambda cls, instance: True
    yield f, ones()


def subclass_hook_added_later():
    class Base(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, Base) else x - 1

    yield f, ones()
    Base.__subclasshook__ = classmethod(lambda cls, other: True)
    Base._abc_caches_clear() if hasattr(Base, "_abc_caches_clear") else abc._reset_caches(Base)  # type: ignore[attr-defined]
    yield f, ones()


def protocols():
    @typing.runtime_checkable
    class P(typing.Protocol):
        k: int

    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, P) else x - 1

    yield f, ones()
    a.k = 1
    yield f, ones()


def protocols_of_methods():
    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, collections.abc.Iterable) else x - 1

    yield f, ones()
    A.__iter__ = lambda self: iter(())
    yield f, ones()


def numbers_registered():
    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, numbers.Number) else x - 1

    yield f, ones()
    numbers.Number.register(A)
    yield f, ones()


def callable_class_attribute_removed():
    class A:
        def __call__(self):
            return 1

    a = A()

    def f(x):
        return x + 1 if callable(a) else x - 1

    yield f, ones()
    del A.__call__
    yield f, ones()


def membership_in_a_set_of_strings():
    def f(s, x):
        return x + 1 if "a" in s else x - 1

    yield f, {"a", "b"}, ones()
    yield f, {"b", "c"}, ones()


def set_operations():
    def f(a, b, x):
        return x * len(a & b) + len(a | b)

    yield f, {1, 2}, {2, 3}, ones()
    yield f, {1, 2}, {4, 5}, ones()


def keys_that_lose_their_hash():
    class A:
        pass

    key = A()
    table, members = {key: 1, (key, 1): 2}, {key}

    def f(x):
        out = [len(table), len(members), 3 in members]
        try:
            table[not_there] = 3  # noqa: F821
        except Exception as error:
            out.append(type(error).__name__)
        return x + 1, out

    yield f, ones()
    A.__hash__ = None
    yield f, ones()


@collect(globals())
def test_keys(program):
    check(program, breaks=True, compiles=9)
