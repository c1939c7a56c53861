"""Random programs that branch on sizes: at every size, in any order, what Python gives."""

from __future__ import annotations

import torch
from compile_runs import compiled, load, outcome, portrait
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CONDITIONS = st.sampled_from(
    [
        "n == 1",
        "n > 1",
        "n != 1",
        "m > 1",
        "m == n",
        "n >= 2 and f",
        "not f",
        "f and g",
        "f or n == 1",
        "g",
        "n == 1 and torch.jit.is_tracing()",
        "n > 1 and x is None",
        "single(n)",
        "1 <= n < m",
        "y.shape[0] != n",
        "f is True",
        "k == 1",
        "n == 0 or n > 3",
    ]
)
SIMPLE = st.sampled_from(
    [
        "f = n > 1",
        "f = n > 1 and k is None",
        "f = not g",
        "g = m == 1",
        "f, g = g, f",
        "k = 1",
        "k = 2",
        "k = n",
        "k = n if n > 1 else 1",
        "k = 3 if f else 3",
        "k = (1, n)[f]",
        "y = x",
        "y = torch.arange(4.)[None]",
        "y = y.expand(n, -1)",
        "y = y[:1]",
        "y = torch.where(torch.arange(n)[:, None] >= 0, y, -1.0)",
        "z = y",
        "x = x + 1",
        "x = x * k",
        "x = x + y.sum()",
        "y = y[:, :2]",
        "y.add_(1)",
        "x[:, :1] += 1",
        "log.append(f)",
        "log.append(z is y)",
        "log.append(k)",
        "log.append('s')",
        "h = {True: 5, False: 6}[bool(g)]",
        "x = x * h",
        "del z",
        "z = None",
        "raise ValueError(k)",
    ]
)


def _indented(block):
    return ["    " + line for line in block]


STATEMENTS = st.recursive(
    SIMPLE.map(lambda s: [s]),
    lambda inner: st.one_of(
        st.tuples(CONDITIONS, inner, inner).map(lambda p: [f"if {p[0]}:", *_indented(p[1]), "else:", *_indented(p[2])]),
        st.tuples(CONDITIONS, inner).map(lambda p: [f"if {p[0]}:", *_indented(p[1])]),
        st.tuples(CONDITIONS, inner).map(lambda p: [f"if {p[0]}:", *_indented(p[1]), "    return x, k"]),
        inner.map(lambda b: ["for i in range(2):", *_indented(b)]),
        st.tuples(inner, inner).map(lambda p: ["try:", *_indented(p[0]), "except ValueError:", *_indented(p[1])]),
        st.lists(inner, min_size=2, max_size=3).map(lambda bs: [line for b in bs for line in b]),
    ),
    max_leaves=10,
)

HEADER = """
import torch

def single(n):
    if n == 1:
        return True
    return False

def program(x, log):
    n, m = x.shape[0], x.shape[1]
    f, g, h, k = True, False, 2, 1
    y = z = x
"""

SIZES = st.lists(st.tuples(st.sampled_from([0, 1, 1, 2, 3, 5]), st.sampled_from([4, 4, 1, 6])), min_size=3, max_size=6)


def make(lines):
    return load(HEADER + "\n".join("    " + line for line in [*lines, "return x, y, f, k"]))["program"]


def run(function, sizes):
    seen = []
    for n, m in sizes:
        x, log = torch.arange(float(n * m)).reshape(n, m) - 3, []
        seen.append((n, m, outcome(function, [x, log], {}), portrait(x, log)))
    return seen


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(STATEMENTS, SIZES)
def test_random_programs(lines, sizes):
    sizes = [(4, 4), *sizes]
    function = make(lines)
    expected = run(function, sizes)
    fast, recorder = compiled(function)
    assert run(fast, sizes) == expected
