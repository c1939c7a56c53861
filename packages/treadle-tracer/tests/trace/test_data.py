"""Containers, text, functions and pattern matching: traced and plain; one graph, no break, unless said otherwise."""

from __future__ import annotations

import collections
import functools
import operator
import typing

import pytest

torch = pytest.importorskip("torch")

from trace_runs import check, collect, t  # noqa: E402
from trace_subjects import Base  # noqa: E402

CASES, case = collect()


class NT(typing.NamedTuple):
    a: int
    b: typing.Any = 5


# --- containers subclass
class OD(collections.OrderedDict):
    def __setitem__(self, k, v):
        super().__setitem__(k, v)
        self.last = k


class MyList(list):
    def total(self):
        return sum(self)


class MyDict(dict):
    def __missing__(self, k):
        return k * 2


@case(t(3))
def subclasses(x):
    o = OD()
    o["a"] = x
    o["b"] = 1
    l = MyList([1, 2])
    l.append(3)
    d = MyDict(a=1)
    return o, o.last, l, l.total(), d, d["zz"], d.get("q"), len(l), list(o.items())


@case(t(3))
def dicts(x):
    d = {"a": 1, **{"b": x}}
    d.update(c=3)
    d |= {"e": 5}
    k = list(d)
    v = d.pop("a")
    w = d.setdefault("z", [])
    w.append(1)
    dd = collections.defaultdict(list)
    dd["q"].append(x)
    o = collections.OrderedDict(a=1)
    o.move_to_end("a")
    return (
        d,
        k,
        v,
        dd,
        o,
        "b" in d,
        d.keys() & {"b"},
        [*d.items()],
        dict(zip("ab", (1, 2))),
        {k: v for k, v in d.items() if k != "b"},
        d == {"a": 1},
        {**d},
        dict.fromkeys("ab", 0),
        next(iter(d)),
        len(d),
    )


@case(t(3))
def lists(x):
    l = [1, 2, 3]
    l[1:2] = [7, 8]
    l += [x]
    del l[0]
    l.insert(0, "s")
    a, *b = l
    l2 = l.copy()
    l2.reverse()
    l3 = l * 2
    return (
        l,
        a,
        b,
        l2,
        l3,
        l.index(7),
        l[:3].count(8),
        l[-1] is x,
        [1, 2] < [1, 3],
        (1, 2) + (3,),
        [0] * 3,
        l[::2],
        sorted([(2, "b"), (1, "z")]),
    )


@case(t(3))
def sets(x):
    s = {1, 2}
    s.add(3)
    s |= {4}
    f = frozenset([1])
    return x, s, s - {1}, 2 in s, f, s > {1}, len(s), sorted(s), {i % 2 for i in range(4)}


@case(t(3))
def deq(x):
    d = collections.deque([1, 2], maxlen=3)
    d.append(x)
    d.append(4)
    d.appendleft(0)
    return d.pop(), list(d), d.maxlen


@case(t(3))
def strings(x):
    s = "abc"
    return (
        x,
        s.upper(),
        s + "d",
        s * 2,
        s[1],
        "%s-%d" % (s, 3),
        "{:>5}|{a}".format(s, a=1),
        f"{x.shape}",
        f"{3.14159:.2f}",
        s.split("b"),
        ",".join(str(i) for i in range(3)),
        "b" in s,
        s.startswith(("a", "z")),
        [c for c in s],
        f"{s!r:>6}",
        str(None),
        int("12"),
        float("1e3"),
        ord("a"),
        s.encode(),
    )


# --- functions
@case(t(3))
def closures(x):
    n = 0

    def inc(k=1):
        nonlocal n
        n += k
        return n

    inc()
    inc(5)
    fs = [lambda y, i=i: y + i for i in range(3)]

    def fact(k):
        return 1 if k < 2 else k * fact(k - 1)

    return x + n, [f(x) for f in fs], fact(5)


def deco_factory(k):
    def d(f):
        @functools.wraps(f)
        def w(*a, **kw):
            return f(*a, **kw) * k

        return w

    return d


@deco_factory(3)
def decorated(x, y=1):
    "doc"
    return x + y


@case(t(3))
def decorators(x):
    return decorated(x), decorated(x, y=2), decorated.__name__, decorated.__doc__, decorated.__wrapped__(x)


@functools.lru_cache(None)
def cached(n):
    return n * 2


@case(t(3))
def misc_funcs(x):
    p = functools.partial(decorated, y=5)
    q = functools.partial(p)
    return (
        p(x),
        q(x),
        cached(4) + x,
        (lambda *a, **k: (a, k))(1, *[2, 3], z=4, **{"y": 5}),
        callable(p),
        p.keywords,
        operator.itemgetter(1)([1, 2]),
        operator.attrgetter("shape")(x),
        functools.reduce(operator.mul, [1, 2, 3]),
    )


def posonly(a, /, b, *, c=3, **kw):
    return a, b, c, kw


@case(t(3))
def argbind(x):
    r = [posonly(1, 2), posonly(1, b=x, c=4, d=5)]
    try:
        posonly(1)
    except TypeError:
        r.append("te")
    try:
        posonly(a=1, b=2)
    except TypeError:
        r.append("te2")
    return r


@case(t(3))
def match_(x):
    out = []
    for v in (1, [1, 2, 3], {"k": 5, "z": 1}, Base(3), "s", None, NT(1, 2)):
        match v:
            case 1:
                out.append("one")
            case [a, *b]:
                out.append((a, b))
            case {"k": k, **r}:
                out.append((k, r))
            case Base(v=q):
                out.append(("B", q))
            case str():
                out.append("str")
            case None:
                out.append("none")
    return x, out


@case(t(3))
def walrus(x):
    if (n := len(x)) > 2:
        return x + n
    return x


@pytest.mark.parametrize("each", CASES, ids=lambda each: each.name)
def test_data(each):
    check(each)
