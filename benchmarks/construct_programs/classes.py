"""Classes: made inside functions, metaclasses, descriptors, dataclasses, enums, typing."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import types
import typing

import torch


def class_statement(x):
    class Scale:
        factor = 2

        def __init__(self, bias):
            self.bias = bias

        def __call__(self, value):
            return value * self.factor + self.bias

    return Scale(1)(x)


def class_with_closure(x):
    factor = x.shape[0]

    class Scale:
        def apply(self, value):
            return value * factor

    return Scale().apply(x)


def class_with_base_and_super(x):
    class Base:
        def run(self, value):
            return value + 1

    class Derived(Base):
        def run(self, value):
            return super().run(value) * 2

    return Derived().run(x)


class Registering(type):
    def __new__(mcs, name, bases, namespace):
        cls = super().__new__(mcs, name, bases, namespace)
        cls.registered = name.lower()
        return cls


def metaclass_statement(x):
    class Layer(metaclass=Registering):
        def run(self, value):
            return value * len(self.registered)

    return Layer().run(x)


class Counted(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.count = 3
        return made


class Holder(metaclass=Counted):
    def __init__(self, value):
        self.value = value


def metaclass_call(x):
    return Holder(x).value * Holder(x).count


class Plugin:
    kinds: typing.ClassVar[list] = []

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__()
        cls.kind = kwargs.get("kind", "none")


def init_subclass(x):
    class Named(Plugin, kind="abc"):
        pass

    return x * len(Named.kind)


def type_call(x):
    cls = type("Made", (), {"factor": 3, "run": lambda self, value: value * self.factor})
    return cls().run(x)


def types_new_class(x):
    cls = types.new_class("Made", (), {}, lambda namespace: namespace.update(factor=4))
    return x * cls.factor


@dataclasses.dataclass
class Point:
    x: torch.Tensor
    y: float = 2.0
    tags: list = dataclasses.field(default_factory=list)


def dataclass_instance(x):
    point = Point(x, tags=["a"])
    return point.x * point.y + len(point.tags)


def dataclass_replace_and_fields(x):
    point = dataclasses.replace(Point(x), y=3.0)
    return point.x * point.y + len(dataclasses.fields(point))


def dataclass_asdict(x):
    given = dataclasses.asdict(Point(x, 5.0))
    return given["x"] * given["y"]


def dataclass_astuple(x):
    first, second, _ = dataclasses.astuple(Point(x, 5.0))
    return first * second


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    value: float


def dataclass_frozen(x):
    frozen = Frozen(2.0)
    try:
        frozen.value = 3.0
    except dataclasses.FrozenInstanceError:
        return x * frozen.value
    return x


def dataclass_decorator_inside(x):
    @dataclasses.dataclass
    class Pair:
        left: torch.Tensor
        right: int = 2

    pair = Pair(x)
    return pair.left * pair.right


def dataclass_returned(x):
    return Point(x + 1, 2.5)


Named = collections.namedtuple("Named", "left right", defaults=[2])


def namedtuple_instance(x):
    named = Named(x)
    return named.left * named.right + named._replace(right=3)[1] + len(named._asdict())


def namedtuple_creation(x):
    cls = collections.namedtuple("Pair", "left right")
    pair = cls(x, x + 1)
    return pair.left * pair.right


class TypedPair(typing.NamedTuple):
    left: torch.Tensor
    right: int = 4

    def product(self):
        return self.left * self.right


def typed_namedtuple_methods(x):
    return TypedPair(x).product(), TypedPair(x, 1)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Bits(enum.Flag):
    A = 1
    B = 2


def enum_members(x):
    total = sum(member.value for member in Color)
    return x * total if Color["RED"] is Color(1) else x


def enum_flags(x):
    both = Bits.A | Bits.B
    return x * both.value if Bits.A in both else x


def enum_created_inside(x):
    made = enum.Enum("Made", "ONE TWO")
    return x * made.TWO.value


T = typing.TypeVar("T")


class Box(typing.Generic[T]):
    def __init__(self, item: T):
        self.item = item


def typing_generic(x):
    return Box[torch.Tensor](x).item + 1


def typing_queries(x):
    hint = typing.Optional[int]
    return x * len(typing.get_args(hint)) if typing.get_origin(hint) is typing.Union else x


def typing_cast(x):
    return typing.cast("torch.Tensor", x) * 2


def annotations_with_unions(x):
    def inner(value: torch.Tensor, scale: int | None = None) -> torch.Tensor | None:
        result: torch.Tensor | int = value * (scale or 2)
        return result

    return inner(x)


def class_union(x):
    kinds = int | float
    return x * 2 if isinstance(x.shape[0], kinds) else x


def generic_alias(x):
    return x * len(list[int]((1, 2, 3)))


@typing.runtime_checkable
class HasRun(typing.Protocol):
    def run(self): ...


class Runner:
    def run(self):
        return 3


def protocol_isinstance(x):
    return x * 2 if isinstance(Runner(), HasRun) else x


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


class Square(Shape):
    def area(self):
        return 4


def abstract_class(x):
    try:
        Shape()
    except TypeError:
        return x * Square().area() if isinstance(Square(), Shape) else x
    return x


class Validated:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, obj, owner=None):
        return self if obj is None else getattr(obj, self.name)

    def __set__(self, obj, value):
        setattr(obj, self.name, value * 2)


class WithDescriptor:
    size = Validated()


def python_descriptor(x):
    obj = WithDescriptor()
    obj.size = 3
    return x * obj.size


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


def slots_and_c_descriptors(x):
    obj = Slotted(x)
    Slotted.b.__set__(obj, 3)
    return Slotted.a.__get__(obj) * obj.b


class Props:
    def __init__(self):
        self._value = 2

    @property
    def value(self):
        return self._value

    @value.setter
    def value(self, new):
        self._value = new + 1

    @value.deleter
    def value(self):
        self._value = 0

    @classmethod
    def make(cls):
        return cls()

    @staticmethod
    def factor():
        return 3


def properties_and_methods(x):
    props = Props.make()
    props.value = 4
    result = x * props.value * Props.factor()
    del props.value
    return result + props.value


class Dynamic:
    def __getattr__(self, name):
        if name.startswith("f"):
            return len(name)
        raise AttributeError(name)

    def __setattr__(self, name, value):
        object.__setattr__(self, name + "_", value)

    def __getattribute__(self, name):
        return object.__getattribute__(self, name)


def attribute_protocol(x):
    obj = Dynamic()
    obj.a = 5
    return x * obj.factor + obj.a_ if not hasattr(obj, "missing") else x


class Number:
    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        return Number(self.value + (other.value if isinstance(other, Number) else other))

    __radd__ = __add__

    def __eq__(self, other):
        return isinstance(other, Number) and self.value == other.value

    def __hash__(self):
        return hash(self.value)

    def __lt__(self, other):
        return self.value < other.value

    def __bool__(self):
        return self.value != 0

    def __len__(self):
        return 4

    def __contains__(self, item):
        return item == self.value

    def __index__(self):
        return self.value

    def __matmul__(self, other):
        return self.value * other


def operator_overloading(x):
    total = sum([Number(1), Number(2)], Number(0))
    key = {Number(3): 7}[total]
    return x * key + (Number(2) @ 3) + [10, 20, 30, 40][total] if total and 3 in total else x


class Callback:
    def __init__(self):
        self.calls = []

    def __enter__(self):
        self.calls.append("enter")
        return self

    def __exit__(self, *error):
        self.calls.append("exit")
        return True


def context_manager_class(x):
    callback = Callback()
    with callback:
        raise ValueError("swallowed")
    return x * len(callback.calls)


class IntKind(int):
    def doubled(self):
        return self * 2


class ListKind(list):
    def total(self):
        return sum(self)


class DictKind(dict):
    def __missing__(self, key):
        return len(key)


class StrKind(str):
    __slots__ = ()

    def shout(self):
        return self.upper() + "!"


class FloatKind(float):
    pass


class TupleKind(tuple):
    __slots__ = ()

    def first(self):
        return self[0]


def int_subclass(x):
    return x * IntKind(3).doubled()


def list_subclass(x):
    return x * ListKind([1, 2, 3]).total()


def dict_subclass(x):
    return x * DictKind(a=1)["abc"]


def str_subclass(x):
    return x * len(StrKind("ab").shout())


def float_subclass(x):
    return x * FloatKind(2.5)


def tuple_subclass(x):
    return TupleKind((x, 1)).first() + 1


def exception_subclass(x):
    class Failed(ValueError):
        def __init__(self, code):
            super().__init__(f"code {code}")
            self.code = code

    try:
        raise Failed(3)
    except ValueError as error:
        return x * error.code + len(str(error))


def class_attribute_write(x):
    Plugin.kinds.append("kind")
    Plugin.last = len(Plugin.kinds)
    return x * Plugin.last


def simple_namespace(x):
    space = types.SimpleNamespace(a=2, b=x)
    space.a += 1
    return space.b * space.a


def mapping_proxy(x):
    return x * types.MappingProxyType({"a": 2})["a"]


def class_getitem_and_mro(x):
    class Sized:
        def __class_getitem__(cls, item):
            return item * 2

    return x * Sized[3] + len(Sized.__mro__)
