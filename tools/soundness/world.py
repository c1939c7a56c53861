"""Random worlds: the source text of classes, objects and helpers, and of a function `f` that reads and writes them.

A world is a list of chunks of source text, so that a failing one can be minimised chunk by chunk. The names in it are fixed:

C0..C3  classes, each with random bases among those before it        o0..o3  instances of them
K, Z    a class of the metaclass Meta, one with slots                k0, z0  instances of them
m0, m1  modules (torch.nn.Module)                                    L, D, S, T, Q, OD  list, dict, set, tuple, deque, ordered dict
L2, D2  at first the list itself and a copy of the dict              h3, cached  a partial and a cached function
h0..h2  functions with defaults and globals                          c0      a closure; `set_cell(v)` changes its cell
G0..G3  globals: numbers, text, a tensor, a function                 P, E    a named tuple, an enum class
t0, t1  small tensors, of a float and of an int                      A       an array
DK      a dict whose keys are objects                                IT      an iterator
W, WS   a weak reference, a weak set                                 Fn      an autograd.Function
d0      an instance of the dataclass DC                              TL, CV  a threading.local, a context variable
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from soundness.vocabulary import (
    ATTRIBUTES,
    CHUNKS,
    EFFECTS,
    MEMBERS,
    PREAMBLE,
    READS,
    SCALARS,
    TENSOR_LINES,
    TENSORS,
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
            return f"out.append({read})" if self.rng.random() < 0.6 else _handled(f"out.append({read})")
        line = self.fill(self.rng.choice(TENSOR_LINES if kind < 0.75 else EFFECTS))
        return line if self.rng.random() < 0.6 else _handled(line)

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
        chunks += map(self.fill, CHUNKS)
        lines = [self.line() for _ in range(self.rng.randrange(3, 9))]
        if self.rng.random() < 0.2:
            lines.append("global G0")
            lines.append(self.fill("G0 = {v}"))
        return World(tuple(chunks), tuple(lines))

    def call(self) -> str:
        """The arguments of a call of `f`."""
        size = self.rng.choice(("2", "2", "2", "3", "1", "5"))
        x = f"torch.arange({size} * 3.0).view({size}, 3)"
        kind = self.rng.random()
        if kind > 0.9:
            x = "torch.ones(2, 3).t().contiguous().t()"
        elif kind > 0.6:
            x = self.rng.choice(TENSORS).replace("N", size)
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


def _handled(line: str) -> str:
    """The statement under a handler that remembers what it raises."""
    inner = line.replace("\n", "\n    ")
    return f"try:\n        {inner}\n    except Exception as error:\n        out.append(type(error).__name__)"
