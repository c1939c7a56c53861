"""Random programs of loops, handlers, managers and generators, with opaque calls in every place: `program(seed)` gives the text of one,
`nested_program(seed)` one of several functions that call each other.

The function `note` is unknown to the tracer: it breaks the graph, and records what an opaque callee sees, the exception being handled and
the length of the log that the program writes to.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

HEADER = """
import contextlib, itertools, sys, torch

log = []

@torch.compiler.disable
def note(*items):
    error = sys.exc_info()[1]
    log.append((len(log), type(error).__name__, str(error), *[i if isinstance(i, (int, str)) else type(i).__name__ for i in items]))
    return len(log)

class Manager:
    def __init__(self, name, swallows):
        self.name, self.swallows = name, swallows
    def __enter__(self):
        log.append("enter " + self.name)
        return self
    def __exit__(self, kind, error, trace):
        log.append(("exit", self.name, kind and kind.__name__, str(error)))
        return kind is not None and issubclass(kind, self.swallows)

class Loud(Manager):
    def __enter__(self):
        note("enter")
        return self
    def __exit__(self, kind, error, trace):
        note("exit")
        return super().__exit__(kind, error, trace)

@contextlib.contextmanager
def opened(name):
    log.append("open " + name)
    try:
        yield name
    except KeyError:
        note("caught")
    finally:
        log.append("close " + name)

def numbers(x, k):
    for i in range(k):
        got = yield x + i
        if got is not None:
            x = x * 2

def loud(x, k):
    for i in range(k):
        note(i)
        yield x * i

def helper(x, k):
    x = x + k
    note("helper")
    if k > 2:
        raise ValueError("helper " + str(k))
    return x * 0.5

def quiet(x, k):
    if k > 2:
        raise KeyError(k)
    return x + k

def deep(x, k):
    if k > 0:
        try:
            x = deep(x + k, k - 1) * 0.5
        finally:
            log.append(k)
    note("deep", k)
    return x + k

def with_rest(x, *rest, scale=1, **others):
    def scaled(value):
        nonlocal scale
        scale += 1
        note("scaled", scale)
        return value * scale
    x = scaled(x)
    return sum((r for r in rest if isinstance(r, torch.Tensor)), x) + scaled(x) + len(others)

class Holder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0
    def forward(self, x, k):
        self.calls += 1
        with Manager("holder", ValueError):
            x = helper(x, k)
        return x * self.calls

class Loudly(Holder):
    def forward(self, x, k):
        note("loudly")
        return super().forward(x * 2, k) + 1

def late(x, k):
    try:
        x = x + 1
        note("try")
        return quiet(x, k)
    finally:
        x = x * 2
        note("finally")
"""

SIMPLE = [
    "x = x + y",
    "x = torch.relu(x) * 0.5 - n",
    "y = x - y * 0.25",
    "n = n + 1",
    "m = (m * 3 + n) % 5",
    "out.append(x)",
    "out.append(n)",
    "states += (y,)",
    "d[n % 3] = x",
    "log.append(n)",
    "x = quiet(x, m % 3)",
    "x = x + len(out) + len(states)",
    "y.add_(1)",
    "x = out[-1] + y if out and isinstance(out[-1], torch.Tensor) else x",
    "x = sum([y * i for i in range(3)], x)",
    "it = iter([x, y, n])",
    "it = numbers(x, 3)",
    "it = itertools.chain([x], [n, y])",
    "it = zip([1, 2, 3], itertools.count(n))",
    "it = enumerate(out[:4])",
    "out.append(next(it, None))",
    "out += list(itertools.islice(it, 2))",
    "y = [x, y][n % 2] * 1",
    "x = (lambda a, b=n: a + b)(x)",
    "free(2)",
    "x = x + total",
]
BREAKING = [
    "note(n)",
    "x = helper(x, m % 3)",
    "n = n + note(m) % 2",
    "x = x * (1 if note(n, x) else 2)",
    "x = late(x, n % 2)",
    "out.append([note(i) and y + i for i in range(2)])",
    "y = sum((note(1) and x * i for i in range(2)), y)",
    "x = (note(1), x + 1, note(2))[1]",
    "d = {i: helper(y, 1) for i in range(2)}",
    "out.append(next(loud(x, 2)))",
    "x = x + next(numbers(y, 3)) * note()",
    "n += x.sum().item() > 0",
    "x = deep(x, m % 3)",
    "x = with_rest(x, y, *out[:2], scale=n, **{'k': m})",
    "x = Holder()(x, m % 4)",
    "x = Loudly()(x, n % 4)",
    "x = torch.no_grad()(deep)(x, 1)",
]
RAISING = [
    "raise ValueError(n)",
    "raise KeyError('k')",
    "x = helper(x, 3)",
    "x = quiet(x, 3)",
    "out[99]",
    "raise",
    "late(x, 5)",
]
CONDITIONS = ["n % 2", "m > 2", "len(out) % 2", "x.sum() > 0", "note(n) % 2", "n < m", "True", "isinstance(it, list)"]
ITERABLES = [
    "range(3)",
    "[x, y, n]",
    "(1, 2)",
    "enumerate([x, y])",
    "zip([x, y, x], range(5))",
    "list(d)",
    "d.items()",
    "numbers(x, 3)",
    "loud(y, 2)",
    "itertools.chain([1], [2, 3])",
    "(y + i for i in range(3))",
    "reversed([1, 2])",
    "map(lambda a: a + n, [1, 2, 3])",
    "itertools.product([1, 2], [x])",
    "'ab'",
    "it",
]
MANAGERS = [
    "Manager('a', KeyError)",
    "Manager('b', ValueError) as manager",
    "Loud('c', KeyError)",
    "opened('d')",
    "torch.no_grad()",
    "opened('e') as name, Manager('f', ())",
]
EXCEPTIONS = [
    "ValueError as error",
    "KeyError",
    "(KeyError, ValueError) as error",
    "Exception as error",
    "RuntimeError",
]


class _Program:
    """The body of a function. `calls` are statements that call functions made for this program."""

    def __init__(self, seed: Any, calls: Sequence[str] = ()):
        self.random = random.Random(seed)
        self.calls = calls
        self.lines: list[str] = []
        self.names = 0

    def emit(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def block(self, depth: int, indent: int, loop: bool, handler: bool) -> None:
        for _ in range(self.random.randint(1, 3 if depth else 5)):
            self.statement(depth, indent, loop, handler)

    def statement(self, depth: int, indent: int, loop: bool, handler: bool) -> None:
        pick = self.random.choice
        kind = pick(
            ["simple"] * 5
            + ["break"] * 3
            + ["call"] * (2 if self.calls else 0)
            + (["if", "for", "for", "while", "try", "try", "with"] if depth < 3 else [])
        )
        if kind == "simple":
            self.emit(indent, pick(SIMPLE))
        elif kind == "break":
            self.emit(indent, pick(BREAKING))
        elif kind == "call":
            self.emit(indent, pick(self.calls))
        elif kind == "if":
            self.emit(indent, f"if {pick(CONDITIONS)}:")
            self.block(depth + 1, indent + 1, loop, handler)
            leave = pick(["", "", "return out, x", *(["break", "continue"] * 2 if loop else []), pick(RAISING)])
            if leave and (leave != "raise" or handler):
                self.emit(indent + 1, leave)
            if pick([True, False]):
                self.emit(indent, "else:")
                self.block(depth + 1, indent + 1, loop, handler)
        elif kind == "for":
            self.emit(indent, f"for item in {pick(ITERABLES)}:")
            self.emit(indent + 1, "x = x + (item if isinstance(item, (int, torch.Tensor)) else 1)")
            self.block(depth + 1, indent + 1, True, handler)
            self.rest_of_loop(depth, indent, loop, handler)
        elif kind == "while":
            self.names += 1
            self.emit(indent, f"limit{self.names} = 0")
            self.emit(indent, f"while limit{self.names} < 3 and {pick([*CONDITIONS, 'True', 'True'])}:")
            self.emit(indent + 1, f"limit{self.names} += 1")
            self.block(depth + 1, indent + 1, True, handler)
            self.rest_of_loop(depth, indent, loop, handler)
        elif kind == "try":
            self.handlers(depth, indent, loop, handler)
        elif kind == "with":
            self.emit(indent, f"with {pick(MANAGERS)}:")
            self.block(depth + 1, indent + 1, loop, handler)
            if self.random.random() < 0.3:
                self.emit(indent + 1, pick(RAISING[:5]))

    def rest_of_loop(self, depth: int, indent: int, loop: bool, handler: bool) -> None:
        if self.random.random() < 0.25:
            self.emit(indent, "else:")
            self.block(depth + 1, indent + 1, loop, handler)

    def handlers(self, depth: int, indent: int, loop: bool, handler: bool) -> None:
        self.emit(indent, "try:")
        self.block(depth + 1, indent + 1, loop, handler)
        if self.random.random() < 0.6:
            self.emit(indent + 1, self.random.choice(RAISING[:5]))
        caught = self.random.random() < 0.8
        if caught:
            self.emit(indent, f"except {self.random.choice(EXCEPTIONS)}:")
            self.block(depth + 1, indent + 1, loop, True)
            if self.random.random() < 0.15:
                self.emit(indent + 1, self.random.choice(RAISING))
        if not caught or self.random.random() < 0.4:
            self.emit(indent, "finally:")
            self.block(depth + 1, indent + 1, False, handler)


_DEPTH = 3


def _function(name: str, seed: Any, calls: Sequence[str]) -> str:
    made = _Program(seed, calls)
    made.block(0, 1, False, False)
    body = "\n".join(made.lines)
    return f"""
def {name}(x, y, n, m):
    out, states, d, it, total = [], (), {{0: y}}, iter([n]), 1
    def free(k):
        nonlocal total
        total += k
{body}
    return x, y, n, m, out, states, d, it, total
"""


def program(seed: int) -> str:
    """The text of a module with a function `program(x, y, n, m)` and the list `log`."""
    return HEADER + _function("program", seed, ())


def nested_program(seed: int) -> str:
    """The same with functions `level1`, `level2`, ... that call one another, so that breaks are in every depth."""
    text, calls = HEADER, []
    for level in range(_DEPTH, -1, -1):
        name = f"level{level}" if level else "program"
        text += _function(name, f"{seed}/{level}", calls)
        calls = [
            f"x, n = {name}(x, y, n % 3, m)[::2][:2]",
            f"out.append({name}(y, x, m % 3, n)[0])",
            f"y = {name}(*[y, x], n=1, m=n)[0]",
            f"x = [{name}(x, y, i, 2)[0] for i in range(2)][-1]",
            f"x = x + (y if n % 2 else {name}(x, y, n, m)[1])",
            f"return {name}(x, y, n, m)",
        ]
    return text
