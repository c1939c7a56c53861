"""Class 2: the object is the same, but its class or what it holds has changed."""

from __future__ import annotations

import enum

import torch
from mutate_runs import check, collect, ones
from torch import nn


def class_of_a_module():
    class L1(nn.Module):
        def forward(self, x):
            return x + 1

    class L2(nn.Module):
        def forward(self, x):
            return x - 1

    m = L1()

    def f(x):
        return m(x)

    yield f, ones()
    m.__class__ = L2
    yield f, ones()


def class_of_a_submodule():
    class L1(nn.Module):
        def forward(self, x):
            return x + 1

    class L2(nn.Module):
        def forward(self, x):
            return x - 1

    m = nn.Sequential(L1(), L1())

    def f(x):
        return m(x)

    yield f, ones()
    m[1].__class__ = L2
    yield f, ones()


def class_of_an_object():
    class A:
        k = 2

    class B:
        k = 5

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    a.__class__ = B
    yield f, ones()


def class_of_a_class():
    class M1(type):
        @property
        def k(cls):
            return 2

    class M2(type):
        @property
        def k(cls):
            return 5

    class A(metaclass=M1):
        pass

    def f(x):
        return x * A.k

    yield f, ones()
    A.__class__ = M2
    yield f, ones()


def attribute_of_an_enum_member():
    class C(enum.Enum):
        RED = 1

        def __init__(self, value):
            self.k = 2

    def f(x):
        return x * C.RED.k

    yield f, ones()
    C.RED.k = 5
    yield f, ones()


def value_of_an_enum_member():
    class C(enum.Enum):
        RED = 2

    def f(x):
        return x * C.RED.value

    yield f, ones()
    C.RED._value_ = 5
    yield f, ones()


def name_of_an_enum_member():
    class C(enum.Enum):
        RED = 2

    def f(x):
        return x * len(C.RED.name)

    yield f, ones()
    C.RED._name_ = "other"
    yield f, ones()


def method_of_an_enum_class():
    class C(enum.Enum):
        RED = 2

        def k(self):
            return 2

    def f(x):
        return x * C.RED.k()

    yield f, ones()
    C.k = lambda self: 5
    yield f, ones()


def attribute_of_an_enum_member_argument():
    class C(enum.Enum):
        RED = 1

        def __init__(self, value):
            self.k = 2

    def f(c, x):
        return x * c.k

    yield f, C.RED, ones()
    C.RED.k = 5
    yield f, C.RED, ones()


def attribute_of_an_int():
    class I(int):  # noqa: E742
        pass

    i = I(3)
    i.k = 2

    def f(x):
        return x * i.k

    yield f, ones()
    i.k = 5
    yield f, ones()


def operator_of_an_int_subclass():
    class I(int):  # noqa: E742
        pass

    i = I(3)

    def f(x):
        return x * (i + 1)

    yield f, ones()
    I.__add__ = lambda self, other: 10
    yield f, ones()


def comparison_of_a_str_subclass():
    class S(str):
        __slots__ = ()

    s = S("a")

    def f(x):
        return x + 1 if s == "a" else x - 1

    yield f, ones()
    S.__eq__ = lambda self, other: False
    yield f, ones()


def metaclass_state():
    class M(type):
        @property
        def k(cls):
            return cls.state

    class A(metaclass=M):
        state = 2

    def f(x):
        return x * A.k

    yield f, ones()
    A.state = 5
    yield f, ones()


def name_of_a_class():
    class A:
        pass

    def f(x):
        return x * len(A.__name__)

    yield f, ones()
    A.__name__ = "other"
    yield f, ones()


def name_of_the_class_of_an_object():
    class A:
        pass

    a = A()

    def f(x):
        return x * len(type(a).__name__) * len(a.__class__.__qualname__)

    yield f, ones()
    A.__name__ = "other"
    yield f, ones()
    A.__qualname__ = "another"
    yield f, ones()


def module_name_of_a_class():
    class A:
        pass

    def f(x):
        return x * len(A.__module__)

    yield f, ones()
    A.__module__ = "other"
    yield f, ones()


def bases_of_a_class():
    class One:
        pass

    class Two(One):
        pass

    class A(One):
        pass

    def f(x):
        return x * len(A.__mro__)

    yield f, ones()
    A.__bases__ = (Two,)
    yield f, ones()


def dictionary_of_a_class():
    class A:
        k = 2

    def f(x):
        return x + 1 if "extra" in A.__dict__ else x - 1

    yield f, ones()
    A.extra = 1
    yield f, ones()


def tuple_of_objects():
    class A:
        k = 2

    a = A()
    items = (a, 1)

    def f(x):
        return x * items[0].k

    yield f, ones()
    a.k = 5
    yield f, ones()


def contents_of_a_constant_container():
    from types import SimpleNamespace

    config = SimpleNamespace(table={"k": [1, 2]})

    def f(x):
        return x * config.table["k"][1]

    yield f, ones()
    config.table["k"][1] = 5
    yield f, ones()


def class_attribute_that_is_a_list():
    class A:
        items = [1, 2]

    def f(x):
        return x * A.items[0] + len(A().items)

    yield f, ones()
    A.items[0] = 5
    yield f, ones()
    A.items.append(1)
    yield f, ones()


def class_attribute_that_is_an_object():
    class K:
        pass

    class A:
        k = K()

    A.k.v = 2

    def f(x):
        return x * A.k.v + A().k.v

    yield f, ones()
    A.k.v = 5
    yield f, ones()


def class_of_a_class_attribute():
    class K1:
        v = 2

    class K2:
        v = 5

    class A:
        k = K1()

    def f(x):
        return x * A().k.v

    yield f, ones()
    A.k.__class__ = K2
    yield f, ones()


def state_of_a_descriptor():
    class D:
        v = 2

        def __get__(self, instance, owner):
            return self.v

    class A:
        k = D()

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    A.__dict__["k"].v = 5
    yield f, ones()


def class_of_a_descriptor():
    class D1:
        def __get__(self, instance, owner):
            return 2

    class D2:
        def __get__(self, instance, owner):
            return 5

    class A:
        k = D1()

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    A.__dict__["k"].__class__ = D2
    yield f, ones()


def requires_grad_of_a_parameter():
    m = nn.Linear(2, 2)

    def f(x):
        return x + 1 if m.weight.requires_grad else x - 1

    yield f, ones()
    m.weight.requires_grad_(False)
    yield f, ones()


def training_of_a_module():
    m = nn.Linear(2, 2)

    def f(x):
        return x + 1 if m.training else x - 1

    yield f, ones()
    m.eval()
    yield f, ones()


def namespace_of_a_slotted_subclass():
    class A:
        __slots__ = ("k",)

    class B(A):
        pass

    b = B()
    b.k = 2

    def f(x):
        return x * b.k

    yield f, ones()
    b.k = 5
    yield f, ones()
    B.k = 9
    yield f, ones()


def weak_reference():
    import weakref

    class A:
        k = 2

    holder = [A()]
    reference = weakref.ref(holder[0])

    def f(x):
        a = reference()
        return x * a.k if a is not None else x - 1

    yield f, ones()
    holder.clear()
    yield f, ones()


def dtype_constant_of_a_module():
    m = nn.Linear(2, 2)
    m.kind = torch.float64

    def f(x):
        return x.to(m.kind)

    yield f, ones()
    m.kind = torch.float16
    yield f, ones()


@collect(globals())
def test_identity(program):
    check(program, breaks=program.__name__ in MAY_BREAK)


MAY_BREAK: set[str] = set()
