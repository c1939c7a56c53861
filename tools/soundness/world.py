"""Random worlds: the source text of classes, objects and helpers, and of a function `f` that reads and writes them.

A world is a list of chunks of source text, so that a failing one can be minimised chunk by chunk. The names in it are fixed:

C0..C3  classes, each with random bases among those before it        o0..o3  instances of them
K, Z    a class of the metaclass Meta, one with slots                k0, z0  instances of them
m0, m1  modules (torch.nn.Module)                                    L, D, S, T, Q, OD  list, dict, set, tuple, deque, ordered dict
L2, D2  at first the list itself and a copy of the dict              h3, cached  a partial and a cached function
h0..h2  functions with defaults and globals                          c0      a closure; `set_cell(v)` changes its cell
G0..G3  globals: numbers, text, a tensor, a function                 P, E    a named tuple, an enum class
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PREAMBLE = """
import collections, dataclasses, enum, functools, gc, math, operator
import torch
import torch.nn.functional as F
class P(collections.namedtuple("P", "first second")): pass
class E(enum.Enum):
    A = 1
    B = 2
class Meta(type):
    @property
    def name2(cls): return cls.__name__
class K(metaclass=Meta): k = 1
class Z: __slots__ = ("k", "n", "items")
"""

SCALARS = ("0", "1", "2", "3", "-1", "0.5", "2.0", "True", "False", "None", "'k'", "'text'", "()")
ATTRIBUTES = ("k", "n", "flag", "items", "scale")

MEMBERS = (
    "{a} = {v}",
    "{a} = {v}",
    "def get(self): return self.{a}",
    "def get(self): return ({v}, getattr(self, '{a}', {w}))",
    "@property\n    def {a}(self): return {v}",
    "@staticmethod\n    def make(): return {v}",
    "@classmethod\n    def name(cls): return cls.__name__, getattr(cls, '{a}', {w})",
    "def __len__(self): return {n}",
    "def __bool__(self): return {b}",
    "def __getattr__(self, name): return ('dynamic', name) if name != 'items' else self.__getattribute__('nope')",
    "def __eq__(self, other): return {b}\n    __hash__ = object.__hash__",
    "def __iter__(self): return iter(({v}, {w}))",
    "def __contains__(self, item): return {b}",
    "def __call__(self, x): return x * {n}",
    "def __radd__(self, other): return ('radd', other)",
    "def __add__(self, other): return ('add', {v})",
    "def __getitem__(self, i): return ({v}, {w})[i]",
    "def __setattr__(self, name, value): object.__setattr__(self, name, value if name != 'n' else {v})",
    "def __init_subclass__(cls): cls.born = {v}",
    "def scaled(self, x): return x * float(self.n if isinstance(self.n, (int, float)) else {n})",
)

READS = (
    "{o}.{a}",
    "getattr({o}, '{a}', {v})",
    "hasattr({o}, '{a}')",
    "{o}.get()",
    "{C}.{a}",
    "type({o}).__name__",
    "isinstance({o}, {C})",
    "issubclass({C}, {C2})",
    "len({o})",
    "bool({o})",
    "1 if {o} else 2",
    "{o} == {o2}",
    "{o} is {o2}",
    "{o} + 1",
    "1 + {o}",
    "list({o})",
    "{v} in {o}",
    "{o}[0]",
    "callable({o})",
    "{o}.name()",
    "{C}.make()",
    "super({C}, {o}).get()",
    "{G}",
    "{G} is None",
    "({G} or 7)",
    "len(L)",
    "L[{i}]",
    "L[-1]",
    "{v} in L",
    "L is {c}",
    "a is b",
    "a is L",
    "sum(v for v in L if isinstance(v, (int, float)))",
    "D.get('{a}', {v})",
    "D['{a}']",
    "'{a}' in D",
    "list(D)",
    "sorted(map(str, D.items()))",
    "[k for k in D]",
    "len(S)",
    "{v} in S",
    "T[0]",
    "list(Q)",
    "P(1, {v}).second",
    "E.A.value",
    "E(2).name",
    "h0(1)",
    "h1(2)",
    "h1(2, w={n})",
    "h2()",
    "h2.__defaults__",
    "c0({n})",
    "len({t})",
    "max(1, {n})",
    "m0.training",
    "m0.width",
    "hasattr(m0, 'extra')",
    "getattr(m0, 'extra', {v})",
    "len(list(m0.parameters()))",
    "m0.weight.shape",
    "m0.weight.requires_grad",
    "list(m1._modules)",
    "isinstance(m0, torch.nn.Linear)",
    "dataclasses.is_dataclass({C})",
    "functools.reduce(operator.add, [1, {n}])",
    "math.floor({n} + 0.5)",
    "x.shape[0]",
    "x.dtype",
    "torch.is_grad_enabled()",
    "torch.get_default_dtype()",
    "torch.get_num_threads()",
    "torch.are_deterministic_algorithms_enabled()",
    "torch.is_deterministic_algorithms_warn_only_enabled()",
    "torch.get_float32_matmul_precision()",
    "torch.is_anomaly_enabled()",
    "torch.is_autocast_enabled('cpu')",
    "torch.backends.cuda.flash_sdp_enabled()",
    "torch.tensor(1.0).dtype",
    "torch.get_autocast_dtype('cpu')",
    "torch.backends.mkldnn.enabled",
    "torch.is_warn_always_enabled()",
    "torch.utils.deterministic.fill_uninitialized_memory",
    "torch.get_default_device().type",
    "torch.zeros(1).device.type",
    "K.{a}",
    "getattr(K, '{a}', {v})",
    "K.name2",
    "isinstance({o}, K)",
    "isinstance(k0, {C})",
    "type(K()).__name__",
    "k0.{a}",
    "len(K)",
    "z0.{a}",
    "getattr(z0, '{a}', {v})",
    "hasattr(z0, '{a}')",
    "type(z0) is Z",
    "[c.__name__ for c in {C}.__mro__]",
    "len(L2)",
    "L2 is L",
    "L2 == L",
    "D2 is D",
    "D2.get('{a}', {v})",
    "list(OD)",
    "OD == D",
    "next(iter(OD), None)",
    "sorted(map(str, S))",
    "S == {{1, 'k'}}",
    "Q.maxlen",
    "h3()",
    "h0.{a}",
    "getattr(h0, '{a}', {v})",
    "c0.__closure__[0].cell_contents",
    "cached({n})",
    "m0.late",
    "'late' in m0._buffers",
    "m0.weight.dtype",
    "m0.weight.grad is None",
    "m0.steps.shape",
    "[name for name, p in m1.named_parameters()]",
)

TENSOR_LINES = (
    "x = x * {n}",
    "x = x + ({G} if isinstance({G}, (int, float)) else 1)",
    "x = torch.relu(x - 0.5)",
    "x = F.silu(x)",
    "x = x + torch.ones(1)",
    "x = x * math.floor(2.5)",
    "x = m0(x)",
    "x = m1(x)",
    "x = x + m0.weight.sum()",
    "x = {o}(x)",
    "x = {o}.scaled(x)",
    "x = x + torch.rand(x.shape)",
    "x = F.dropout(x, 0.5, m0.training)",
    "x = x.view(-1).view(x.shape)",
    "x = x + m0.steps.sum()",
    "x = x + c0(1)[1] if isinstance(c0(1)[1], (int, float)) else x",
    "x = torch.nn.functional.relu(x) + torch.randn(1)",
    "x = x.to(m0.weight.dtype)",
    "x = x * torch.full((1,), 2.0)",
    "x = x + float(len(L))",
    "x = x + sum(v for v in L if isinstance(v, float))",
    "for v in L:\n        x = x + (v if isinstance(v, (int, float)) else 1)",
    "for name, v in D.items():\n        x = x + len(name)",
    "if {G}:\n        x = x + 1",
    "if isinstance({o}, {C}):\n        x = x - 1",
    "y = {c}\n    x = x + (y[0] if isinstance(y, list) and y and isinstance(y[0], float) else 2)",
)

EFFECTS = (
    "{o}.{a} = {v}",
    "{o}.n = x.sum().detach()",
    "L.append({v})",
    "a.append(1.5) if isinstance(a, list) else None",
    "b.append(len(a)) if isinstance(b, list) and isinstance(a, list) else None",
    "D['{a}'] = {v}",
    "D.pop('{a}', None)",
    "S.add({n})",
    "Q.append({v})",
    "m0.calls = getattr(m0, 'calls', 0) + 1",
    "x.add_(1)",
    "x[0] = {n}",
    "print('{a}', len(out), {o} is a)",
    "out.append(x)",
    "L[0] = x.sum()",
    "L2.append({v})",
    "D2['{a}'] = {v}",
    "OD['{a}'] = len(OD)",
    "z0.{a} = {v}",
    "k0.n = {v}",
    "K.n = {v}",
    "cached({n})",
    "m0.steps += 1",
    "set_cell({v})",
    "x = x.clone()\n    x.add_(1)",
)


@dataclass(frozen=True)
class World:
    """chunks: source text, executed in order. lines: the statements of `f(x, a, b)`, which stands behind them."""

    chunks: tuple[str, ...]
    lines: tuple[str, ...]

    def text(self) -> str:
        """The whole program."""
        declared = sorted({line for line in self.lines if line.startswith("global ")})  # before the names are used
        body = "\n".join(f"    {line}" for line in self.lines if line not in declared)
        head = "".join(f"    {line}\n" for line in declared)
        return "\n".join([PREAMBLE, *self.chunks, f"def f(x, a, b):\n{head}    out = []\n{body}\n    return x, out\n"])


class Maker:
    """Fills templates at random."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def fill(self, template: str) -> str:
        """`template` with its fields replaced."""
        pick = self.rng.choice
        fields = {
            "a": pick(ATTRIBUTES), "v": pick(SCALARS), "w": pick(SCALARS), "n": pick(("1", "2", "3", "0.5")),
            "b": pick(("True", "False")), "i": pick(("0", "1", "2")), "o": pick(("o0", "o1", "o2", "o3", "a")),
            "o2": pick(("o0", "o1", "o2", "b")), "C": pick(("C0", "C1", "C2", "C3")), "C2": pick(("C0", "C1", "C2")),
            "G": pick(("G0", "G1", "G2", "G3")), "g": pick(("G0", "G1")), "c": pick(("a", "b", "L", "D['list']")),
            "t": pick(("L", "T", "D", "'abc'")),
        }  # fmt: skip
        return template.format(**fields)

    def read(self) -> str:
        """An expression over the world."""
        return self.fill(self.rng.choice(READS))

    def line(self) -> str:
        """One statement of `f`; continuation lines are indented as in its body."""
        kind = self.rng.random()
        if kind < 0.45:
            read = self.read()
            if self.rng.random() < 0.6:
                return f"out.append({read})"
            return f"try:\n        out.append({read})\n    except Exception as error:\n        out.append(type(error).__name__)"
        if kind < 0.75:
            return self.fill(self.rng.choice(TENSOR_LINES))
        return self.fill(self.rng.choice(EFFECTS))

    def world(self) -> World:
        """A random world."""
        chunks = [self._class(k) for k in range(4)]
        chunks += [f"o{k} = C{self.rng.randrange(4)}()" for k in range(4)]
        chunks += [
            f"vars(o{self.rng.randrange(4)})['{self.rng.choice(ATTRIBUTES)}'] = {self._scalar()}" for _ in range(5)
        ]
        chunks += [
            self.fill("L = [{v}, 1.5, {w}]"),
            self.fill("D = {{'k': {v}, '{a}': {w}, 'list': L}}"),
            self.fill("S = {{1, {n}, 'k'}}"),
            self.fill("T = ({v}, {w})"),
            self.fill("Q = collections.deque([{v}])"),
            self.fill("G0 = {v}"),
            self.fill("G1 = {n}"),
            "L2, D2, OD = L, dict(D), collections.OrderedDict(k=1, n=2)",
            "z0, k0 = Z(), K()",
            "h3 = functools.partial(max, 1)",
            "@functools.lru_cache\ndef cached(v):\n    print('called', v)\n    return v * 2",
            "G2 = torch.ones(2)",
            self.fill("def G3(v=1): return v"),
            self.fill("def h0(v): return v, G0"),
            self.fill("def h1(v, u={v}, *, w={w}): return v, u, w"),
            self.fill("def h2(u={v}): return u, len(L)"),
            "def make():\n    cell = 1\n    def inner(v): return v, cell\n    def change(v):\n        nonlocal cell\n        cell = v\n"
            "    return inner, change\nc0, set_cell = make()",
            "class M(torch.nn.Module):\n    width = 2\n    def __init__(self):\n        super().__init__()\n"
            "        self.weight = torch.nn.Parameter(torch.ones(3))\n        self.register_buffer('steps', torch.zeros(1))\n"
            "    def forward(self, x): return x * self.weight.sum() + self.width",
            "torch.manual_seed(0)\nm0 = M()\nm1 = torch.nn.Sequential(torch.nn.Linear(3, 3), M(), torch.nn.Dropout(0.5))",
        ]  # fmt: skip
        lines = [self.line() for _ in range(self.rng.randrange(3, 9))]
        if self.rng.random() < 0.2:
            lines.append("global G0")
            lines.append(self.fill("G0 = {v}"))
        return World(tuple(chunks), tuple(lines))

    def call(self) -> str:
        """The arguments of a call of `f`."""
        size = self.rng.choice(("2", "2", "2", "3", "1", "5"))
        x = self.rng.choice(
            (f"torch.arange({size} * 3.0).view({size}, 3)",) * 3 + ("torch.ones(2, 3).t().contiguous().t()",)
        )
        choices = ("L", "[1.0, 2]", "o0", "o1", "D", "D['list']", "[]", "T", "1", "None")
        if self.rng.random() < 0.15:
            return f"f({x}, *[[1.0, 2]] * 2)"
        return f"f({x}, {self.rng.choice(choices)}, {self.rng.choice(choices)})"

    def _scalar(self) -> str:
        return self.rng.choice(SCALARS)

    def _class(self, k: int) -> str:
        bases = self.rng.sample([f"C{j}" for j in range(k)], min(k, self.rng.choice((0, 1, 1, 2))))
        bases.sort(reverse=True)
        members = [self.fill(self.rng.choice(MEMBERS)) for _ in range(self.rng.randrange(1, 5))]
        body = "\n    ".join(["k = 1", *members])
        return f"class C{k}({', '.join(bases)}):\n    {body}"
