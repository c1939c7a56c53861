"""Class 1: what a lookup did not find, or found elsewhere, when the function was compiled."""

from __future__ import annotations

import types
from typing import Any

import torch
from mutate_runs import check, collect, ones, replaced
from torch import nn


def attribute_added_to_a_subclass():
    class Base:
        k = 2

    class Sub(Base):
        pass

    a = Sub()

    def f(x):
        return x * a.k

    yield f, ones()
    Sub.k = 5
    yield f, ones()
    del Sub.k
    yield f, ones()


def method_added_to_a_subclass():
    class Base:
        def m(self, x):
            return x + 1

    class Sub(Base):
        pass

    def f(a, x):
        return a.m(x)

    yield f, Sub(), ones()
    Sub.m = lambda self, x: x - 1
    yield f, Sub(), ones()


def attribute_with_a_default_set_on_the_class():
    class A:
        pass

    def f(a, x):
        return x * getattr(a, "k", 3)

    yield f, A(), ones()
    A.k = 7
    yield f, A(), ones()


def has_attribute_set_on_the_class():
    class A:
        pass

    def f(a, x):
        return x + 1 if hasattr(a, "k") else x - 1

    yield f, A(), ones()
    A.k = 7
    yield f, A(), ones()


def attribute_with_a_default_of_a_class():
    class A:
        pass

    def f(x):
        return x * getattr(A, "k", 3)

    yield f, ones()
    A.k = 7
    yield f, ones()


def attribute_of_a_class_set_on_its_metaclass():
    class Meta(type):
        pass

    class A(metaclass=Meta):
        pass

    def f(x):
        return x * getattr(A, "k", 3)

    yield f, ones()
    Meta.k = 7
    yield f, ones()


def unset_slot_set_later():
    class A:
        __slots__ = ("k",)

    a = A()

    def f(x):
        return x * getattr(a, "k", 3)

    yield f, ones()
    a.k = 5
    yield f, ones()
    del a.k
    yield f, ones()


def property_added_later():
    class A:
        def __init__(self):
            self.k = 2

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    A.k = property(lambda self: 9)
    yield f, ones()


def descriptor_becomes_a_data_descriptor():
    class D:
        def __get__(self, instance, owner):
            return 9

    class A:
        k = D()

        def __init__(self):
            self.__dict__["k"] = 2

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    D.__set__ = lambda self, instance, value: None
    yield f, ones()


def plain_class_attribute_becomes_a_descriptor():
    class D:
        k = 4

    class A:
        d = D()

    a = A()

    def f(x):
        return x * (a.d.k if isinstance(a.d, D) else a.d)

    yield f, ones()
    D.__get__ = lambda self, instance, owner: 9
    yield f, ones()


def set_through_a_descriptor_added_later():
    class A:
        pass

    log = []

    class D:
        def __set__(self, instance, value):
            log.append(value)

        def __get__(self, instance, owner):
            return 30

    a = A()
    a.k = 0

    def f(x):
        a.k = 5
        return x * a.k

    yield f, ones()
    A.k = D()
    yield f, ones()


def setattr_added_later():
    class A:
        pass

    a = A()

    def f(x):
        a.k = 5
        return x * a.k

    yield f, ones()
    A.__setattr__ = lambda self, name, value: object.__setattr__(self, name, value + 1)
    yield f, ones()


def forward_of_an_instance():
    m = nn.Linear(2, 2)

    def f(x):
        return m(x)

    with torch.no_grad():
        m.weight.fill_(1)
        m.bias.fill_(0)
        yield f, ones(1, 2)
        m.forward = lambda x: x - 1
        yield f, ones(1, 2)
        del m.forward
        yield f, ones(1, 2)


def forward_of_a_subclass():
    class Base(nn.Module):
        def forward(self, x):
            return x + 1

    class Sub(Base):
        pass

    m = Sub()

    def f(x):
        return m(x)

    yield f, ones()
    Sub.forward = lambda self, x: x - 1
    yield f, ones()


def call_of_a_subclass():
    class Base:
        def __call__(self, x):
            return x + 1

    class Sub(Base):
        pass

    a = Sub()

    def f(x):
        return a(x)

    yield f, ones()
    Sub.__call__ = lambda self, x: x - 1
    yield f, ones()


def call_of_a_module_class():
    class Net(nn.Module):
        def forward(self, x):
            return x + 1

    m = Net()

    def f(x):
        return m(x)

    yield f, ones()
    Net.__call__ = lambda self, x: x - 1
    yield f, ones()


def callable_added_later():
    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if callable(a) else x - 1

    yield f, ones()
    A.__call__ = lambda self: 0
    yield f, ones()


def getattr_added_later():
    class A:
        pass

    a = A()

    def f(x):
        return x * getattr(a, "k", 3)

    yield f, ones()
    A.__getattr__ = lambda self, name: 11
    yield f, ones()


def getattribute_added_later():
    class A:
        def __init__(self):
            self.k = 2

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    A.__getattribute__ = lambda self, name: 11
    yield f, ones()


def getattr_of_a_module_added_later():
    class Net(nn.Module):
        pass

    m = Net()

    def f(x):
        return x * getattr(m, "k", 3)

    yield f, ones()
    Net.__getattr__ = lambda self, name: 11
    yield f, ones()


def equality_added_later():
    class A:
        pass

    a, b = A(), A()

    def f(x):
        return x + 1 if a == b else x - 1

    yield f, ones()
    A.__eq__ = lambda self, other: True
    yield f, ones()


def length_added_later():
    class A:
        pass

    a = A()

    def f(x):
        return x + 1 if a else x - 1

    yield f, ones()
    A.__len__ = lambda self: 0
    yield f, ones()
    A.__bool__ = lambda self: True
    yield f, ones()


def truth_of_a_module_class_added_later():
    class Net(nn.Module):
        pass

    m = Net()

    def f(x):
        return x + 1 if m else x - 1

    yield f, ones()
    Net.__len__ = lambda self: 0
    yield f, ones()


def iter_added_later():
    class A:
        def __getitem__(self, i):
            if i > 1:
                raise IndexError
            return i + 1

    a = A()

    def f(x):
        for k in a:
            x = x * (k + 1)
        return x

    yield f, ones()
    A.__iter__ = lambda self: iter([7])
    yield f, ones()


def contains_added_later():
    class A:
        def __iter__(self):
            return iter([1, 2])

    a = A()

    def f(x):
        return x + 1 if 2 in a else x - 1

    yield f, ones()
    A.__contains__ = lambda self, item: False
    yield f, ones()


def reflected_operator_added_later():
    class Left:
        def __add__(self, other):
            return 1

    class Right(Left):
        pass

    a, b = Left(), Right()

    def f(x):
        return x * (a + b)

    yield f, ones()
    Right.__radd__ = lambda self, other: 5
    yield f, ones()


def in_place_operator_added_later():
    class A:
        def __add__(self, other):
            return 1

    a = A()

    def f(x):
        k = a
        k += 2
        return x * k

    yield f, ones()
    A.__iadd__ = lambda self, other: 5
    yield f, ones()


def operator_of_a_list_and_an_object_added_later():
    class A:
        def __radd__(self, other):
            return 2

    a = A()

    def f(x):
        return x * (3 + a)

    yield f, ones()
    A.__radd__ = lambda self, other: 5
    yield f, ones()


def format_added_later():
    class A:
        def __str__(self):
            return "a"

    a = A()

    def f(x):
        return x + len(f"{a}")

    yield f, ones()
    A.__format__ = lambda self, spec: "abc"
    yield f, ones()


def exit_of_a_context_manager_replaced():
    log = []

    class Base:
        def __enter__(self):
            return 2

        def __exit__(self, *args):
            log.append(1)

    class Sub(Base):
        pass

    a = Sub()

    def f(x):
        with a as k:
            x = x * k
        return x, len(log)

    yield f, ones()
    Sub.__enter__ = lambda self: 3
    yield f, ones()


def global_deleted_and_set_again():
    space: dict[str, Any] = {"K": 2, "torch": torch}
    exec("def f(x):\n    return x * K", space)
    yield space["f"], ones()
    del space["K"]
    yield space["f"], ones()
    space["K"] = 5
    yield space["f"], ones()


def global_that_shadows_a_builtin():
    space: dict[str, Any] = {}
    exec("def f(x, l):\n    return x * len(l)", space)
    yield space["f"], ones(), [1, 2]
    space["len"] = lambda items: 9
    yield space["f"], ones(), [1, 2]
    del space["len"]
    yield space["f"], ones(), [1, 2]


def global_of_a_helper_that_shadows_a_builtin():
    space: dict[str, Any] = {}
    exec("def h(x, l):\n    return x * len(l)", space)
    h = space["h"]

    def f(x):
        return h(x, [1, 2])

    yield f, ones()
    space["len"] = lambda items: 9
    yield f, ones()


def name_in_neither_that_is_handled():
    space: dict[str, Any] = {}
    exec(
        "def f(x):\n    try:\n        k = K\n    except NameError:\n        k = 3\n    return x * k",
        space,
    )
    yield space["f"], ones()
    space["K"] = 7
    yield space["f"], ones()


def module_attribute_added_later():
    module = types.ModuleType("made_here")

    def f(x):
        return x * getattr(module, "k", 3)

    yield f, ones()
    module.k = 7
    yield f, ones()


def module_getattr_added_later():
    module = types.ModuleType("made_here")

    def f(x):
        return x * getattr(module, "k", 3)

    yield f, ones()
    module.__getattr__ = lambda name: 7
    yield f, ones()


def class_of_a_module_object():
    module = types.ModuleType("made_here")
    module.k = 2

    class Sub(types.ModuleType):
        @property
        def k(self):
            return 7

    def f(x):
        return x * module.k

    yield f, ones()
    module.__class__ = Sub
    yield f, ones()


def method_of_a_module_object():
    """The name of the module is one of the standard library's, whose attributes are guarded by identity; methods are made anew."""

    class Sub(types.ModuleType):
        def k(self):
            return self.factor

    module = Sub("types")
    module.factor = 2

    def f(x):
        return x * module.k()

    yield f, ones()
    module.factor = 3
    yield f, ones()
    Sub.k = lambda self: 7
    yield f, ones()


def parameter_shadowed_in_the_dict():
    m = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        m.weight.fill_(1)

        def f(x):
            return x @ m.weight

        yield f, ones(1, 2)
        m.__dict__["weight"] = torch.zeros(2, 2)
        yield f, ones(1, 2)
        del m.__dict__["weight"]
        yield f, ones(1, 2)


def buffer_shadowed_in_the_dict():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(2))

        def forward(self, x):
            return x + self.b

    m = Net()

    def f(x):
        return m(x)

    yield f, ones()
    m.__dict__["b"] = 5
    yield f, ones()


def submodule_shadowed_in_the_dict():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(x) + 1

    m = Net()

    def f(x):
        return m(x)

    yield f, ones()
    m.__dict__["act"] = nn.Tanh()
    yield f, ones()


def parameter_shadowed_on_the_class():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(2))

        def forward(self, x):
            return x + self.b

    m = Net()

    def f(x):
        return m(x)

    yield f, ones()
    Net.b = 5
    yield f, ones()


def bases_changed():
    class One:
        k = 1

    class Two:
        k = 2

    class A(One):
        pass

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    A.__bases__ = (Two,)
    yield f, ones()


def bases_changed_under_isinstance():
    class One:
        pass

    class Two:
        pass

    class A(One):
        pass

    a = A()

    def f(x):
        return x + 1 if isinstance(a, One) else x - 1

    yield f, ones()
    A.__bases__ = (Two,)
    yield f, ones()


def super_intermediate_gets_the_method():
    class Base:
        def m(self, x):
            return x + 1

    class Middle(Base):
        pass

    class Sub(Middle):
        def m(self, x):
            return super().m(x) * 2

    a = Sub()

    def f(x):
        return a.m(x)

    yield f, ones()
    Middle.m = lambda self, x: x - 5
    yield f, ones()


def super_with_changed_bases():
    class One:
        def m(self, x):
            return x + 1

    class Two:
        def m(self, x):
            return x + 2

    class Sub(One):
        def m(self, x):
            return super().m(x) * 2

    a = Sub()

    def f(x):
        return a.m(x)

    yield f, ones()
    Sub.__bases__ = (Two,)
    yield f, ones()


def super_of_a_class_method():
    class Base:
        @classmethod
        def m(cls, x):
            return x + 1

    class Middle(Base):
        pass

    class Sub(Middle):
        @classmethod
        def m(cls, x):
            return super().m(x) * 2

    def f(x):
        return Sub.m(x)

    yield f, ones()
    Middle.m = classmethod(lambda cls, x: x - 5)
    yield f, ones()


def class_attribute_of_a_class_added_below():
    class Base:
        k = 2

    class Sub(Base):
        pass

    def f(x):
        return x * Sub.k

    yield f, ones()
    Sub.k = 5
    yield f, ones()


def metaclass_property_added_later():
    class Meta(type):
        pass

    class A(metaclass=Meta):
        k = 2

    def f(x):
        return x * A.k

    yield f, ones()
    Meta.k = property(lambda cls: 9)
    yield f, ones()


def metaclass_call_added_later():
    class Meta(type):
        pass

    class A(metaclass=Meta):
        k = 2

    def f(x):
        return x * A().k

    yield f, ones()

    class Other:
        k = 5

    Meta.__call__ = lambda cls: Other()
    yield f, ones()


def init_added_later():
    class A:
        k = 2

    def f(x):
        return x * A().k

    yield f, ones()

    def init(self):
        self.k = 5

    A.__init__ = init
    yield f, ones()


def new_added_later():
    class Base:
        k = 2

    class A(Base):
        pass

    class Other:
        k = 5

    def f(x):
        return x * A().k

    yield f, ones()
    A.__new__ = lambda cls: Other()
    yield f, ones()


def instance_attribute_over_a_class_attribute():
    class A:
        k = 2

    a = A()

    def f(x):
        return x * a.k

    yield f, ones()
    a.k = 5
    yield f, ones()


def instance_method_over_a_method():
    class A:
        def m(self, x):
            return x + 1

    a = A()

    def f(x):
        return a.m(x)

    yield f, ones()
    a.m = lambda x: x - 1
    yield f, ones()


def subclass_of_dict_gets_missing():
    class D(dict):
        pass

    d = D()

    def f(x):
        try:
            return x * d["k"]
        except KeyError:
            return x - 1

    yield f, ones()
    D.__missing__ = lambda self, key: 5
    yield f, ones()


def class_gets_class_getitem():
    class A:
        pass

    def f(x):
        try:
            return x * A[3]
        except TypeError:
            return x - 1

    yield f, ones()
    A.__class_getitem__ = classmethod(lambda cls, item: item)
    yield f, ones()
    A.__class_getitem__ = classmethod(lambda cls, item: item + 1)
    yield f, ones()


def base_gets_class_getitem():
    class Base:
        pass

    class A(Base):
        pass

    def f(x):
        try:
            return x * A["k"]
        except TypeError:
            return x - 1

    yield f, ones()
    Base.__class_getitem__ = lambda item: 5
    yield f, ones()
    Base.__class_getitem__ = classmethod(lambda cls, item: 7)
    yield f, ones()


def class_getitem_that_counts_its_calls():
    class A:
        calls = 0

        def __class_getitem__(cls, item):
            A.calls += 1
            return item * A.calls

    def f(x):
        return x * A[2]

    yield f, ones()
    yield f, ones()
    yield f, ones()


def subclass_of_list_gets_getitem():
    class L(list):
        pass

    items = L([2])

    def f(x):
        return x * items[0]

    yield f, ones()
    L.__getitem__ = lambda self, i: 5
    yield f, ones()


def subclass_of_list_gets_len():
    class L(list):
        pass

    items = L([2])

    def f(x):
        return x * len(items)

    yield f, ones()
    L.__len__ = lambda self: 5
    yield f, ones()


def subclass_of_dict_gets_get():
    class D(dict):
        pass

    d = D(k=2)

    def f(x):
        return x * d.get("k")

    yield f, ones()
    D.get = lambda self, key: 5
    yield f, ones()


def hash_added_later():
    class A:
        pass

    a = A()

    def f(x):
        try:
            {a: 1}
        except TypeError:
            return x - 1
        return x + 1

    yield f, ones()
    A.__hash__ = None
    yield f, ones()


def tensor_attribute_set_later():
    t = ones()

    def f(x):
        return x * getattr(t, "mark", 3)

    yield f, ones()
    t.mark = 7
    yield f, ones()


def tensor_class_gets_an_attribute():
    def f(x):
        return x * getattr(x, "mark_of_this_test", 3)

    yield f, ones()
    with replaced(torch.Tensor, "mark_of_this_test", 7):
        yield f, ones()


def function_attribute_set_later():
    def h():
        return 1

    def f(x):
        return x * getattr(h, "k", 3)

    yield f, ones()
    h.k = 7
    yield f, ones()


def slot_value_changes():
    class A:
        __slots__ = ("k",)

    a = A()
    a.k = 2

    def f(x):
        return x * a.k

    yield f, ones()
    a.k = 5
    yield f, ones()
    del a.k
    yield f, ones()


def named_tuple_gets_a_method():
    import collections

    P = collections.namedtuple("P", "a b")

    class Q(P):
        pass

    q = Q(2, 3)

    def f(x):
        return x * q.a

    yield f, ones()
    Q.a = 9
    yield f, ones()


def dataclass_gets_a_property():
    import dataclasses

    @dataclasses.dataclass
    class D:
        k: int = 2

    d = D()

    def f(x):
        return x * d.k

    yield f, ones()
    D.k = property(lambda self: 9)
    yield f, ones()


def hook_added_later():
    m = nn.ReLU()

    def f(x):
        return m(x)

    yield f, ones()
    handle = m.register_forward_hook(lambda module, args, result: result + 5)
    yield f, ones()
    handle.remove()
    yield f, ones()


@collect(globals())
def test_absence(program):
    check(program, breaks=program.__name__ in MAY_BREAK)


MAY_BREAK = {"global_deleted_and_set_again", "slot_value_changes"}
"""Programs that raise, or that Python runs in part."""
