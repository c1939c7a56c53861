"""Classes, dataclasses, named tuples, enums, descriptors: traced and plain; one graph, no break, unless said otherwise."""

from __future__ import annotations

import dataclasses
import enum
import functools
import typing

import pytest

torch = pytest.importorskip("torch")

from trace_runs import check, collect, t  # noqa: E402
from trace_subjects import Base, Derived  # noqa: E402

CASES, case = collect()


# --- classes
@dataclasses.dataclass
class DC:
    a: torch.Tensor
    b: int = 3
    c: list = dataclasses.field(default_factory=list)

    def total(self):
        return self.a * self.b


@dataclasses.dataclass(frozen=True)
class FDC:
    a: int
    b: str = "z"


@case(t(3))
def dataclass_(x):
    d = DC(x)
    d.b += 1
    d.c.append(d.total())
    e = dataclasses.replace(d, b=9)
    return (
        d,
        e,
        dataclasses.asdict(DC(1, 2)) if False else None,
        [f.name for f in dataclasses.fields(d)],
        dataclasses.is_dataclass(d),
    )


@case(t(3))
def frozen(x):
    f = FDC(3)
    try:
        f.a = 4
    except dataclasses.FrozenInstanceError:
        pass
    return x + f.a, f == FDC(3, "z"), {FDC(3): 1}.get(FDC(3)) if False else 0


class NT(typing.NamedTuple):
    a: int
    b: typing.Any = 5

    def s(self):
        return self.a + self.b


@case(t(3))
def namedtup(x):
    n = NT(1, x)
    m = n._replace(a=2)
    a, b = n
    return n, m, m.s(), NT(3).s(), n[0], n._fields, n._asdict()


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def twice(self):
        return self.value * 2

    @classmethod
    def first(cls):
        return cls.RED


class Flag(enum.IntFlag):
    A = 1
    B = 2


@case(t(3), lambda: Color.GREEN)
def enums(x, c):
    if c is Color.GREEN:
        x = x + c.value
    return (
        x * c.twice,
        c.name,
        Color(1),
        Color["RED"],
        [m.name for m in Color],
        c == Color.RED,
        Color.first(),
        Flag.A | Flag.B,
        len(Color),
        {Color.RED: 1}[Color.RED],
    )


@case(t(3))
def classes(x):
    d = Derived(2, 3)
    b = Base.make(5)
    d.p = 10
    r = [
        d.f(x),
        d.p,
        d.st(4),
        d.kind,
        Base.kind,
        d.dyn_abc,
        list(d),
        d(x),
        d + 1,
        1 + d,
        7 in d,
        8 in d,
        bool(d),
        f"{d}",
        str(b),
        d == Base(10),
        len(d),
        isinstance(d, Base),
        type(d) is Derived,
        Derived.make(1).w,
        d != b,
    ]
    try:
        d.zzz
    except AttributeError as e:
        r.append(str(e))
    return r


@case(t(3), lambda: Derived(2, 3))
def outside_obj(x, d):
    d.new = x
    d.v = 4
    d.p = 6
    del d.w
    return d.f2(x) if hasattr(d, "f2") else d.new + d.v, d[1], [i for i in d], getattr(d, "w", "gone"), vars(d)["v"]


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class Outer:
    class Slotted:
        __slots__ = ("a",)

        @property
        def fixed(self):
            return 1


@case(t(3))
def messages_of_slots_and_properties(x):
    owner, messages = Outer.Slotted(), []
    for access in (lambda: owner.a, lambda: setattr(owner, "fixed", 2), lambda: setattr(owner, "b", 2)):
        try:
            access()
        except AttributeError as error:
            messages.append(str(error))
    return x + 1, messages


@case(t(3))
def slots(x):
    s = Slots(x)
    try:
        s.b
    except AttributeError:
        s.b = 2
    return s.a * s.b


class Desc:
    def __set_name__(self, o, n):
        self.n = "_" + n

    def __get__(self, o, c):
        return 5 if o is None else getattr(o, self.n, 0) + 1

    def __set__(self, o, v):
        setattr(o, self.n, v)


class HasDesc:
    d = Desc()

    @functools.cached_property
    def cp(self):
        return [1]


@case(t(3))
def descriptors(x):
    h = HasDesc()
    a = h.d
    h.d = x
    return a, h.d, HasDesc.d, h.cp is h.cp


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_classes(each):
    check(each)
