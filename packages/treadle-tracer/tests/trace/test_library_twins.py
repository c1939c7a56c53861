"""Subclasses of built-in types, and functions of the standard library whose twins in Python are traced: equal to eager in one graph."""

# ruff: noqa: E701, E702, B007, PLW, SIM, RUF, N801, S102, S307

from __future__ import annotations

import bisect
import copy
import dataclasses
import functools
import heapq
import itertools

import pytest
import torch
from compile_runs import compiled


class IntKind(int):
    def doubled(self):
        return self * 2


class StrKind(str):
    __slots__ = ()

    def shout(self):
        return self.upper() + "!"


class FloatKind(float):
    pass


class Named(float):
    def __new__(cls, v, name):
        made = super().__new__(cls, v * 2)
        return made

    def __add__(self, o):
        return float(self) + 100


class TupleKind(tuple):
    def first(self):
        return self[0]


class TupleNew(tuple):
    def __new__(cls, *a):
        return super().__new__(cls, a)

    def __len__(self):
        return 42


def ints(x):
    a = IntKind(3)
    return (
        x * a.doubled() + a,
        a,
        type(a) is IntKind,
        a + 1,
        a == 3,
        {a: 1}[3],
        isinstance(a, int),
        f"{a}",
        a is a,
        IntKind(3) is a,
    )


def strs(x):
    s = StrKind("ab")
    return x + len(s.shout()), s, s + "c", type(s + "c") is str, s.shout(), {"ab": 2}[s], sorted([s, "a"])


def floats(x):
    return x * FloatKind(2.5), FloatKind(1), Named(3.0, "n") + 1, Named(3.0, "q")


def tuples(x):
    t_ = TupleKind((x, 1))
    u = TupleNew(x, 2, 3)
    return t_.first() + 1, t_, u, len(u), u[1], list(t_), type(t_ + (1,)) is tuple


def bad(x):
    try:
        IntKind("q")
    except ValueError as error:
        return x + 1, str(error)


def groups(x):
    x = x + 1
    out = []
    for k, g in itertools.groupby([1, 1, 2, 3, 3, 1], key=lambda v: v % 2):
        out.append((k, list(g)))
    kept = [(k, g) for k, g in itertools.groupby("aabbc")]
    skipped = []
    for k, g in itertools.groupby("aaabbbcc"):
        skipped.append((k, next(g)))
    g = itertools.groupby([x, x])
    n = 0
    for k, it in g:
        n += len(list(it))
    return x, out, [(k, list(v)) for k, v in kept], skipped, n


def sentinel(x):
    x = x + 1
    v = [3, 2, 1, 0]
    it = iter(v.pop, 2)
    a = list(it)
    return x, a, v, list(it)


def heaps(x):
    h = [5, 1, 4]
    heapq.heapify(h)
    heapq.heappush(h, 2)
    a = heapq.heappop(h)
    h2 = []
    for i, w in enumerate([3, 1, 2]):
        heapq.heappush(h2, (w, i, x * w))
    b = heapq.heappop(h2)
    return (
        a,
        h,
        b,
        heapq.nlargest(2, h),
        heapq.heapreplace(h, 9),
        h,
        heapq.heappushpop(h, 0),
        list(heapq.merge([1, 4], [2, 3])),
    )


def heaps_err(x):
    try:
        heapq.heappop([])
    except IndexError as error:
        return x + 1, str(error)


OUT = [1, 5, 9]


def bis(x):
    l = [1, 3, 5]
    bisect.insort(l, 4)
    bisect.insort(OUT, 6)
    return x * bisect.bisect(l, 3) + bisect.bisect_left(l, 3), l, bisect.bisect_left(l, 2, key=lambda v: v)


def cmpk(x):
    return x + 1, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))


@dataclasses.dataclass
class DC:
    a: object
    b: int = 2


def deep(x):
    d = DC(x)
    e = copy.deepcopy(d)
    e.a.add_(1)
    f = dataclasses.asdict(d)
    return e, f, copy.deepcopy(x) is x, copy.deepcopy(x.t() if x.dim() == 2 else x), dataclasses.astuple(d)


def evals(x):
    k = 3
    y = eval("x * k + 1")
    z = eval("[i * 2 for i in range(2)]")
    exec("q = 5")
    w = eval("q") if "q" in locals() else None
    return y, z, w, eval("len([k, k])"), eval(compile("1 + 1", "<s>", "eval")), eval("a + 1", {"a": x})


def execs(x):
    ns = {"x": x}
    exec("y = x * 2\nfor i in range(3): y = y + i", ns)
    return ns["y"], sorted(ns), ns["i"]


def slots_(x):
    class S:
        __slots__ = ("a", "b")

    s = S()
    S.a.__set__(s, x)
    return S.a.__get__(s) * 2


PROGRAMS = [f for f in list(globals().values()) if getattr(f, "__module__", "") == __name__ and hasattr(f, "__code__")]


def _portrait(value):
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [_portrait(item) for item in type(value).__mro__[-2].__iter__(value)]
    if isinstance(value, dict):
        return {key: _portrait(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.stride()
    if isinstance(value, DC):
        return "DC", _portrait(value.a), value.b
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_program(program):
    run, recorder = compiled(program, fullgraph=program is not heaps_err)
    for number in (1, 2, 3):
        shown = []
        for function in (program, run):
            OUT[:] = [1, 5, 9]
            x = torch.ones(3) * number
            shown.append((_portrait(function(x)), list(OUT), x.tolist()))
        assert shown[0] == shown[1]
    assert len(recorder.entries) == 1 or program is heaps_err


def test_objects_of_a_subclass_of_int_are_others_at_every_call():
    def program(x):
        return x + 1, IntKind(3)

    run, _ = compiled(program, fullgraph=True)
    first, second = run(torch.ones(1))[1], run(torch.ones(1))[1]
    assert type(first) is IntKind and first == second == 3 and first is not second


def test_deepcopy_of_several_tensors_keeps_what_they_share():
    def program(x):
        a, b = copy.deepcopy([x, x[0]])
        a.add_(1)
        return a, b

    run, recorder = compiled(program)
    for _ in range(2):
        (a, b), (c, d) = run(torch.ones(3)), program(torch.ones(3))
        assert torch.equal(a, c) and torch.equal(b, d)
