"""Programs that are called with objects made for the call: `PROGRAMS`, and `make` which carries one out.

When the caller has dropped what it made, nothing may keep these objects alive: no guard, graph, constant or record of an entry, as long
as the compiled function lives. Every kind of object that the tracer reads is here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

FUNCTIONS = """
import abc, collections, dataclasses, enum, functools, time, types, typing, weakref
import torch
from torch import nn
def use_attr(x, o): return x * o.k
def use_call(x, o): return o(x)
def use_isinst(x, o, c): return x + 1 if isinstance(o, c) else x - 1
def use_is(x, o, p): return x + 1 if o is p else x - 1
def use_item(x, o): return x + o[0]
def use_key(x, o): return x + o['k']
def use_in(x, o): return x + 1 if 'k' in o else x
def use_iter(x, o):
    for v in o: x = x + v
    return x
def use_value(x, o): return x + o.value
def use_eq(x, o, p): return x + 1 if o == p else x
def use_cls(x, c): return x * c.k
def make_cls(x, c): return x * c().k
def use_name(x, c): return x * len(c.__name__)
def use_id(x, o): return x, o
def use_type(x, o): return x * type(o).k
def store(x, o):
    o.y = x + 1
    return x
def use_super(x, o): return x * o.get()
def use_table(x, table, o): return x * table[o]
def use_type_table(x, table, o): return x * table[type(o)]
def use_sorted(x, o): return x * sorted(o)[0]
def use_fields(x, o): return x * sum(getattr(o, f.name) for f in dataclasses.fields(o))
def use_mod(x, o): return x * o.k
def use_gen(x, g): return x + next(g)
def use_weak(x, r): return x * r().k
def use_annot(x, o): return x * len(o.__annotations__)
def use_method(x, m): return x * m()
def use_str(x, o): return x * len(str(o))
def use_repr(x, o): return x * len(f"{o}")
def use_hash(x, o): return x if hash(o) else x+1
def use_callable(x, o): return x+1 if callable(o) else x
def use_issub(x, c, d): return x+1 if issubclass(c, d) else x
def use_match(x, o):
    match o:
        case [a, b]: return x + a
        case _: return x
"""
"""Imports, and functions that stay; most programs are one of these."""

PROGRAMS: dict[str, str] = {
    "plain instance": """
class C: k = 2.
o = C(); o.j = 3.
return use_attr, (o,), [C, o]
""",
    "instance attr": """
class C: pass
o = C(); o.k = 3.
return use_attr, (o,), [C, o]
""",
    "slots": """
class C: __slots__ = ('k', '__weakref__')
o = C(); o.k = 3.
return use_attr, (o,), [C, o]
""",
    "callable instance": """
class C:
    def __call__(self, x): return x * 2
o = C()
return use_call, (o,), [C, o, C.__call__]
""",
    "isinst": """
class C: pass
class D(C): pass
o = D()
return use_isinst, (o, C), [C, D, o]
""",
    "isinst not": """
class C: pass
class D: pass
o = D()
return use_isinst, (o, C), [C, D, o]
""",
    "is obj": """
class C: pass
o = C(); p = C()
return use_is, (o, p), [C, o, p]
""",
    "is same": """
class C: pass
o = C()
return use_is, (o, o), [C, o]
""",
    "list subclass": """
class L(list): pass
o = L([1., 2.])
return use_item, (o,), [L, o]
""",
    "list of obj": """
class C: k = 1.
o = C()
return (lambda x, l: x * l[0].k), ([o],), [C, o]
""",
    "dict subclass": """
class L(dict): pass
o = L(k=1.)
return use_key, (o,), [L, o]
""",
    "tuple subclass": """
class L(tuple): pass
o = L((1., 2.))
return use_item, (o,), [L]
""",
    "namedtuple": """
N = collections.namedtuple('N', 'k j')
return use_attr, (N(1., 2.),), [N]
""",
    "typed namedtuple": """
class N(typing.NamedTuple):
    k: float
return use_attr, (N(1.),), [N]
""",
    "enum member": """
class E(enum.Enum): A = 1.
return use_value, (E.A,), [E, E.A]
""",
    "str enum": """
class E(str, enum.Enum): A = 'a'
return use_eq, (E.A, 'a'), [E]
""",
    "flag": """
class E(enum.Flag):
    A = 1
    B = 2
return use_eq, (E.A | E.B, E.B | E.A), [E]
""",
    "enum is": """
class E(enum.Enum): A = 1.
return use_is, (E.A, E.A), [E, E.A]
""",
    "function": """
def g(x): return x * 2
return use_call, (g,), [g]
""",
    "lambda": """
g = lambda x: x * 2
return use_call, (g,), [g]
""",
    "closure": """
class C: k = 2.
c = C()
def g(x): return x * c.k
return use_call, (g,), [g, c, C]
""",
    "default": """
class C: k = 2.
c = C()
def g(x, c=c): return x * c.k
return use_call, (g,), [g, c, C]
""",
    "kwdefault": """
class C: k = 2.
c = C()
def g(x, *, c=c): return x * c.k
return use_call, (g,), [g, c, C]
""",
    "tensor closure": """
c = torch.ones(4)
def g(x): return x * c
return use_call, (g,), [g, c]
""",
    "function attr": """
class C: k = 2.
def g(x): return x * g_holder[0].c.k
g_holder = [g]
g.c = C()
return use_call, (g,), [g, C, g.c]
""",
    "partial": """
def g(a, x): return x * a.k
class C: k = 2.
c = C()
p = functools.partial(g, c)
return use_call, (p,), [g, c, C, p]
""",
    "bound method": """
class C:
    k = 2.
    def m(self): return self.k
c = C()
return use_method, (c.m,), [c, C, C.m]
""",
    "class arg": """
class C: k = 2.
return use_cls, (C,), [C]
""",
    "class made": """
class C:
    def __init__(self): self.k = 2.
return make_cls, (C,), [C, C.__init__]
""",
    "class name": """
class C: pass
return use_name, (C,), [C]
""",
    "metaclass": """
class M(type):
    @property
    def k(cls): return 2.
class C(metaclass=M): pass
return use_cls, (C,), [C, M]
""",
    "abc class": """
class C(abc.ABC): pass
class D(C): pass
return use_isinst, (D(), C), [C, D]
""",
    "abc register": """
class C(abc.ABC): pass
class D: pass
C.register(D)
return use_isinst, (D(), C), [C, D]
""",
    "protocol": """
@typing.runtime_checkable
class P(typing.Protocol):
    def m(self): ...
class D:
    def m(self): return 1
return use_isinst, (D(), P), [P, D]
""",
    "issub": """
class C: pass
class D(C): pass
return use_issub, (D, C), [C, D]
""",
    "returned": """
class C: pass
o = C()
return use_id, (o,), [C, o]
""",
    "returned list": """
class C: pass
o = C()
return use_id, ([o],), [C, o]
""",
    "stored": """
class C: pass
o = C()
return store, (o,), [C, o]
""",
    "type of": """
class C: k = 2.
return use_type, (C(),), [C]
""",
    "super": """
class B:
    def get(self): return 2.
class C(B):
    def get(self): return super().get() + 1
o = C()
return use_super, (o,), [B, C, o]
""",
    "property": """
class C:
    @property
    def k(self): return 2.
return use_attr, (C(),), [C]
""",
    "cached property": """
class C:
    @functools.cached_property
    def k(self): return 2.
o = C()
return use_attr, (o,), [C, o]
""",
    "descriptor": """
class D:
    def __get__(self, o, c): return 2.
class C: k = D()
return use_attr, (C(),), [C, D]
""",
    "staticm": """
class C:
    @staticmethod
    def __call__(x): return x * 2
    @classmethod
    def get(cls): return 2.
return use_super, (C(),), [C]
""",
    "getattr": """
class C:
    def __getattr__(self, name): return 2.
return use_attr, (C(),), [C]
""",
    "getattribute": """
class C:
    def __getattribute__(self, name): return 2.
return use_attr, (C(),), [C]
""",
    "dataclass": """
@dataclasses.dataclass
class C:
    k: float = 2.
    j: float = 3.
o = C()
return use_fields, (o,), [C, o]
""",
    "frozen dataclass": """
@dataclasses.dataclass(frozen=True)
class C:
    k: float = 2.
return use_table, ({C(): 1.}, C()), [C]
""",
    "eq class": """
class C:
    def __eq__(self, o): return True
    def __hash__(self): return 1
a, b = C(), C()
return use_eq, (a, b), [C, a, b]
""",
    "iter class": """
class C:
    def __iter__(self):
        yield 1.
        yield 2.
return use_iter, (C(),), [C]
""",
    "contains class": """
class C:
    def __contains__(self, k): return True
return use_in, (C(),), [C]
""",
    "getitem class": """
class C:
    def __getitem__(self, i): return 2.
return use_item, (C(),), [C]
""",
    "generator iter": """
class C: k = 1.
c = C()
def gen():
    yield c.k
g = gen()
return use_iter, (g,), [g, gen, c]
""",
    "simple namespace": """
class S(types.SimpleNamespace): pass
s = S(k=2.)
return use_mod, (s,), [s, S]
""",
    "weakref": """
class C: k = 2.
c = C()
r = weakref.ref(c)
return use_weak, (r,), [c, C]
""",
    "nn module": """
class M(nn.Module):
    def __init__(self):
        super().__init__(); self.l = nn.Linear(4, 4)
    def forward(self, x): return self.l(x)
m = M()
return use_call, (m,), [M, m, m.l, m.l.weight]
""",
    "nn module hooks": """
m = nn.Linear(4, 4)
class H:
    def __call__(self, m, a, r): return r * 2
h = H()
m.register_forward_hook(h)
return use_call, (m,), [m, h, H]
""",
    "nn sequential": """
m = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
return use_call, (m,), [m, m[0]]
""",
    "nn params": """
m = nn.Linear(4, 4)
return (lambda x, m: x + sum(p.sum() for p in m.parameters())), (m,), [m, m.weight]
""",
    "tensor subclass": """
class S(torch.Tensor): pass
s = torch.ones(4).as_subclass(S)
return (lambda x, s: x + s), (s,), [S, s]
""",
    "autograd function": """
class F(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, g): return g * 2
return (lambda x, F: F.apply(x)), (F,), [F]
""",
    "str subclass": """
class S(str): pass
return use_in, (S('abk'),), [S]
""",
    "set obj": """
class C: pass
o = C()
return (lambda x, s, o: x + 1 if o in s else x), ({o}, o), [C, o]
""",
    "exception class": """
class E(Exception): pass
def f(x, E):
    try: raise E('a')
    except E: return x + 1
return f, (E,), [E]
""",
    "context manager": """
class C:
    def __enter__(self): return 2.
    def __exit__(self, *a): return None
def f(x, c):
    with c as v: return x * v
return f, (C(),), [C]
""",
    "lru": """
class C: k = 2.
c = C()
@functools.lru_cache
def g(k): return c.k
return (lambda x, g: x * g(1)), (g,), [c, C, g]
""",
    "deque": """
class D(collections.deque): pass
d = D([1., 2.])
return use_item, (d,), [D, d]
""",
    "defaultdict": """
class C:
    def __call__(self): return 2.
c = C()
d = collections.defaultdict(c)
return use_key, (d,), [c, C]
""",
    "str method": """
class C:
    def __str__(self): return 'abc'
return use_str, (C(),), [C]
""",
    "fstr": """
class C:
    def __format__(self, s): return 'abc'
return use_repr, (C(),), [C]
""",
    "hash": """
class C:
    def __hash__(self): return 7
return use_hash, (C(),), [C]
""",
    "callable": """
class C: pass
return use_callable, (C(),), [C]
""",
    "match": """
class L(list): pass
return use_match, (L([1., 2.]),), [L]
""",
    "match class": """
class C:
    __match_args__ = ('k',)
    k = 2.
def f(x, o, C):
    match o:
        case C(k): return x * k
        case _: return x
return f, (C(), C), [C]
""",
    "generic": """
Tv = typing.TypeVar('Tv')
class C(typing.Generic[Tv]):
    k = 2.
return use_attr, (C(),), [C]
""",
    "broken": """
class C: k = 2.
o = C()
def f(x, o):
    y = x * o.k
    v = float(y.sum())
    time.sleep(0)
    return y * v * o.k
return f, (o,), [C, o]
""",
    "class that the program makes objects of and returns": """
class C:
    def __init__(self, x): self.x = x
def f(x, C): return x * 2, C(x)
return f, (C,), [C]
""",
    "module in a list": """
m = nn.Linear(4, 4)
return (lambda x, l: l[0](x)), ([m],), [m, m.weight]
""",
    "module in a closure": """
m = nn.Linear(4, 4)
def g(x): return m(x)
return use_call, (g,), [m, m.weight, g]
""",
    "parameter as an argument": """
p = nn.Parameter(torch.ones(4))
return (lambda x, p: x * p), (p,), [p]
""",
    "parameter in a list": """
p = nn.Parameter(torch.ones(4))
return (lambda x, l: x * l[0]), ([p],), [p]
""",
    "object as a key": """
class C: pass
o = C()
return (lambda x, d: x * sum(d.values())), ({o: 2.},), [C, o]
""",
    "object that is looked up": """
class C: pass
o = C()
return (lambda x, d, o: x * d[o]), ({o: 2.}, o), [C, o]
""",
    "object that is not there": """
class C: pass
o = C()
return (lambda x, d, o: x + 1 if o in d else x), ({"a": 1}, o), [C, o]
""",
    "keys of several kinds": """
class C: pass
o = C()
def f(x, d):
    for key, value in d.items():
        x = x * value if key == "b" else x + value
    return x
return f, ({o: 2., "b": 3., C: 1.},), [C, o]
""",
    "class that is looked up": """
class C: pass
return (lambda x, d, c: x * d[c]), ({C: 2., int: 1.}, C), [C]
""",
    "member of an enumeration as a key": """
E = enum.Enum("E", "A B")
return (lambda x, d, e: x * d[e]), ({E.A: 2., E.B: 1.}, E.A), [E]
""",
    "function as a key of an ordered dict": """
g = lambda: 3
return (lambda x, d: x * next(iter(d.values()))), (collections.OrderedDict([(g, 2.)]),), [g]
""",
    "key of a proxy": """
class C: pass
o = C()
return (lambda x, d: x * list(d.values())[0]), (types.MappingProxyType({o: 2.}),), [C, o]
""",
    "class in a set": """
class C: pass
return (lambda x, s, c: x + 1 if c in s else x), ({C, int}, C), [C]
""",
    "module as a key": """
m = nn.Linear(4, 4)
return (lambda x, d, m: m(x) * d[m]), ({m: 2.}, m), [m, m.weight]
""",
    "module with a buffer": """
m = nn.BatchNorm1d(4)
return (lambda x, m: m(x[None].expand(2, 4))), (m,), [m, m.running_mean]
""",
}
"""Bodies of functions that return (the function to compile, its arguments behind `x`, the objects that must die)."""


def make(name: str) -> tuple[Callable[..., Any], tuple[Any, ...], list[Any]]:
    """What the program of this name returns; its classes and functions are those of one call."""
    scope: dict[str, Any] = {"__name__": __name__}
    exec(FUNCTIONS + "def make():\n" + textwrap.indent(PROGRAMS[name], "    "), scope)
    return scope["make"]()
