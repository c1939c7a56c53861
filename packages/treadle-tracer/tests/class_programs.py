"""Programs that make classes inside the traced function. Each takes a tensor; results show the classes too."""

# ruff: noqa: E701, E702, E741, B007, PLW, SIM, RUF012, ARG, N801, N805

import abc
import collections
import dataclasses
import enum
import functools
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

import torch
from compile_runs import item


def basic(x):
    class A:
        k = 3

        def __init__(self, v):
            self.v = v

        def f(self, y):
            return self.v * y + self.k

        @property
        def p(self):
            return self.v + 1

        @staticmethod
        def s(z):
            return z * 2

        @classmethod
        def c(cls, z):
            return cls(z)

    a = A(x)
    return a.f(x) + a.p + A.s(x) + A.c(x).v, A.__name__, A.__qualname__, A.__module__


def closure(x):
    y = x * 2

    class A:
        w = y

        def f(self):
            return y + self.w

    return A().f()


def sup(x):
    class B:
        def f(self, v):
            return v + 1

    class C(B):
        def f(self, v):
            return super().f(v) * 2

    c = C()
    return c.f(x), isinstance(c, B), C.__mro__[1].__name__


def meta(x):
    class M(type):
        def __new__(m, name, bases, ns, **kw):
            ns = dict(ns)
            ns["extra"] = kw.get("extra", 0)
            return super().__new__(m, name, bases, ns)

        def __init__(cls, name, bases, ns, **kw):
            super().__init__(name, bases, ns)
            cls.n = len(name)

        def __call__(cls, *a):
            return super().__call__(*a)

    class A(metaclass=M, extra=5):
        def __init__(self, v):
            self.v = v

    return A(x).v * A.extra + A.n, type(A).__name__


def initsub(x):
    reg = []

    class B:
        def __init_subclass__(cls, tag=None, **kw):
            super().__init_subclass__(**kw)
            cls.tag = tag
            reg.append(cls.__name__)

    class C(B, tag=2):
        pass

    class D(C, tag=3):
        pass

    return x * C.tag + D.tag, reg


def escapes(x):
    class A:
        items = []

        def __init__(self, v):
            self.v = v
            self.items.append(1)

        def me(self):
            return __class__

        def f(self, y):
            return self.v + y

    a = A(x + 1)
    return a, A, a.me() is A


def dc(x):
    @dataclass(order=True)
    class P:
        a: int
        b: object = None
        c: list = field(default_factory=list)
        d: int = 7

    p = P(1, x)
    q = P(2, x)
    return p.b * q.d + len(p.c), repr(P(1, 2)), P(1) < P(2), P(1) == P(1), p


def nt(x):
    P = collections.namedtuple("P", "a b", defaults=[3])
    p = P(x)
    return p.a * p.b, p, P._fields, p._replace(b=x)


def abcs(x):
    class B(abc.ABC):
        @abc.abstractmethod
        def f(self, v): ...

    class C(B):
        def f(self, v):
            return v + 2

    try:
        B()
        r = 0
    except TypeError as e:
        r = str(e)
    return C().f(x), r


def desc(x):
    class D:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, obj, cls=None):
            return self if obj is None else getattr(obj, self.name)

        def __set__(self, obj, v):
            setattr(obj, self.name, v * 2)

    class A:
        q = D()

        def __init__(self, v):
            self.q = v

    return A(x).q


def exc(x):
    class E(Exception):
        def __init__(self, v):
            super().__init__(v)
            self.v = v

    try:
        raise E(x)
    except E as e:
        return e.v + 1, e.args


def generic(x):
    T = TypeVar("T")

    class A(Generic[T]):
        def f(self, v):
            return v + 1

    return A[int]().f(x), A().f(x)


def enums(x):
    class E(enum.Enum):
        A = 1
        B = enum.auto()

        def g(self):
            return self.value * 2

    return x * E.B.value + E.A.g(), E.B.name, [e.name for e in E]


def total(x):
    @functools.total_ordering
    class N:
        def __init__(self, v):
            self.v = v

        def __eq__(self, o):
            return self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

    return x + (N(1) >= N(0)), N(1) > N(2), N.__hash__


def slots(x):
    class S:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    s = S(x)
    s.b = 2
    try:
        s.c = 1
    except AttributeError as e:
        r = type(e).__name__
    return s.a * s.b, r


def typecall(x):
    A = type("A", (), {"f": lambda self, v: v + 1, "k": 4})
    return A().f(x) * A.k, A.__module__, A


def cached(x):
    class A:
        n = 0

        @functools.cached_property
        def c(self):
            self.n += 1
            return x * 2

    a = A()
    return a.c + a.c, a.n


def userdict(x):
    class U(collections.UserDict):
        def __getitem__(self, k):
            return super().__getitem__(k) + 1

    u = U(a=x)
    return u["a"], len(u), "a" in u


def callm(x):
    class C:
        def __init__(self):
            self.n = 0

        def __call__(self, v):
            self.n += 1
            return v * self.n

    c = C()
    return c(x) + c(x), c.n


def repr_eq(x):
    class K:
        def __init__(self, v):
            self.v = v

        def __repr__(self):
            return f"K({self.v})"

        def __eq__(self, o):
            return isinstance(o, K) and self.v == o.v

        def __hash__(self):
            return hash(self.v)

    return x + 1, repr(K(3)), K(1) == K(1), {K(1): 2}[K(1)], len({K(1), K(1), K(2)})


class Base:
    k = 1
    reg = []

    def f(self, x):
        return x + self.k

    def __init_subclass__(cls, **kw):
        cls.reg.append(cls.__name__)


class Plain:
    def g(self, x):
        return x * 2


def sub_outside(x):
    class C(Plain):
        def h(self, y):
            return self.g(y) + 1

    return C().h(x)


def sub_reg(x):
    class C(Base):
        pass

    return C().f(x), C


def brk(x):
    class C:
        def __init__(self, v):
            self.v = v

        def f(self, y):
            return self.v + y

    c = C(x)
    s = item(x.sum())
    return c.f(x) * s, type(c) is C


def selfref(x):
    class N:
        def __init__(self, v):
            self.v = v
            self.kids = []

        def add(self, v):
            n = N(v)
            self.kids.append(n)
            return n

        def total(self):
            return self.v + sum(k.total() for k in self.kids)

    n = N(x)
    n.add(x * 2).add(x * 3)
    N.root = n
    return n.total(), n, N


def attrs_after(x):
    class A:
        pass

    A.f = lambda self, y: y * 3
    A.t = x + 1
    a = A()
    del A.t
    try:
        a.t
    except AttributeError as e:
        r = str(e)
    setattr(A, "z", x)
    return a.f(x) + a.z, r, hasattr(A, "t"), A


def multiple(x):
    out = []
    for i in range(3):

        class L:
            idx = i

            def f(self, v):
                return v + self.idx

        out.append(L)
    return sum(c().f(x) for c in out), len(set(out)), out


def raising_body(x):
    try:

        class A:
            a = x + 1
            raise ValueError("in body")
    except ValueError as e:
        return x, str(e)


def conflict(x):
    class M1(type):
        pass

    class M2(type):
        pass

    class A(metaclass=M1):
        pass

    class B(metaclass=M2):
        pass

    try:

        class C(A, B):
            pass
    except TypeError as e:
        return x + 1, str(e)


def mro_conflict(x):
    class A:
        pass

    class B(A):
        pass

    try:

        class C(A, B):
            pass
    except TypeError as e:
        return x + 1, str(e)


def prepare(x):
    log = []

    class D(dict):
        def __setitem__(self, k, v):
            log.append(k)
            super().__setitem__(k, v)

    class M(type):
        @classmethod
        def __prepare__(m, name, bases, **kw):
            return D(pre=x)

        def __new__(m, name, bases, ns):
            return super().__new__(m, name, bases, dict(ns))

    class A(metaclass=M):
        b = 2

        def f(self):
            return self.pre * self.b

    return A().f(), [l for l in log if not l.startswith("__")]


def instcheck(x):
    class M(type):
        def __instancecheck__(cls, o):
            return o == 3

    class A(metaclass=M):
        pass

    return x + isinstance(3, A), isinstance(4, A)


def kwbad(x):
    try:

        class A(foo=1):
            pass
    except TypeError as e:
        return x + 1, str(e)


def getattr_(x):
    class A:
        def __getattr__(self, n):
            return len(n)

        def __len__(self):
            return 4

        def __iter__(self):
            yield x
            yield x + 1

        def __contains__(self, v):
            return v == 3

        def __getitem__(self, i):
            return x * i

        def __enter__(self):
            return self

        def __exit__(self, *a):
            return True

        def __add__(self, o):
            return x + o

        def __bool__(self):
            return False

    a = A()
    with a as b:
        raise ValueError
    return a.abc + len(a), sum(a), 3 in a, a[2], a + 1, bool(a), b is a


def nested(x):
    class Outer:
        class Inner:
            v = 3

            def f(self):
                return x * self.v

        def g(self):
            return self.Inner().f()

    return Outer().g(), Outer.Inner.__qualname__


def containers(x):
    class L(list):
        def total(self):
            return sum(self)

    class D(dict):
        def __missing__(self, k):
            return x

    class T(tuple):
        pass

    l = L([x, x + 1])
    d = D(a=1)
    return l.total() + d["q"] + d["a"], l, d


def exc_escape(x):
    class E(ValueError):
        code = 4

    raise E("boom")


def prop_setter(x):
    class A:
        def __init__(self):
            self._v = x

        @property
        def v(self):
            return self._v

        @v.setter
        def v(self, n):
            self._v = n * 2

        @v.deleter
        def v(self):
            self._v = None

    a = A()
    a.v = x
    r = a.v
    del a.v
    return r, a.v, a, A


def annotations(x):
    class A:
        a: int = 1
        b: "str"

    return x + len(A.__annotations__), A.__annotations__, A


def dc_frozen(x):
    @dataclasses.dataclass(frozen=True)
    class P:
        a: int
        b: int = 2

        def m(self):
            return self.a + self.b

    p = P(1)
    try:
        p.a = 3
    except dataclasses.FrozenInstanceError as e:
        r = str(e)
    d = {p: x}
    return d[P(1)] + p.m(), r, dataclasses.replace(p, a=5), dataclasses.asdict(p), dataclasses.fields(P)[0].name, P


def dc_default_tensor(x):
    @dataclasses.dataclass
    class P:
        a: object = x + 1
        b: list = dataclasses.field(default_factory=lambda: [x])

        def __post_init__(self):
            self.c = self.a * 2

    p = P()
    return p.c + p.b[0], p.a, p.b, type(p).__name__


def dc_inherit(x):
    @dataclasses.dataclass
    class P:
        a: object

    @dataclasses.dataclass
    class Q(P):
        b: int = 3

    q = Q(x)
    return q.a * q.b, Q(1) == Q(1), isinstance(q, P), q


def callers(x):
    class A:
        @classmethod
        def make(cls, v):
            a = cls.__new__(cls)
            a.v = v
            return a

        def __eq__(self, o):
            return self.v is o.v

    a, b = A.make(x), A.make(x)
    return a == b, a.v + 1, A.__hash__ is None


def nn_module(x):
    class M(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.ReLU()

        def forward(self, v):
            return self.act(v) * 2

    return M()(x)


def typednt(x):
    class P(NamedTuple):
        a: object
        b: int = 2

        def m(self):
            return self.a * self.b

    p = P(x)
    a, b = p
    return p.m() + a + b, p._fields, p


def nt_sub(x):
    class P(collections.namedtuple("P", "a b")):
        __slots__ = ()

        def m(self):
            return self.a * self.b

    return P(x, 2).m(), P(1, 2)


def locals_in(x):
    class A:
        a = 1
        b = sorted(k for k in locals() if not k.startswith("_"))

    return x + len(A.b), A.b


def redefine(x):
    y = 1

    class A:
        y = y + 1 if False else 2

        def f(self):
            return y

    return x + A.y + A().f()


def ducked(x):
    class A:
        def __call__(self, fn):
            return lambda *a: fn(*a) + 1

    @A()
    def g(v):
        return v * 2

    return g(x)
