"""Views of arrays that run backwards: results, memory and breaks are those of eager."""

from __future__ import annotations

import linecache

import pytest
import torch
from compile_runs import compiled

np = pytest.importorskip("numpy", minversion="2.0")

IN_THE_GRAPH = [
    "a[::-1].copy()",
    "a[::-1]",
    "a[::-1] + 1",
    "1 - a[::-1]",
    "a * a[::-1]",
    "-a[::-1]",
    "a[::-1] > a",
    "a[::-1] @ a",
    "a[::-1].astype(np.int64)",
    "np.concatenate([a[::-1], [0.0]])",
    "np.array([a[::-1], a])",
    "np.asarray(a[::-1])",
    "np.asarray(a[::-1], dtype=np.float64)",
    "np.ascontiguousarray(a[::-1])",
    "np.round(a[::-1])",
    "np.cumprod(a[::-1])",
    "np.flip(a)",
    "a[::-1].mean()",
    "a[::-1][0]",
    "list(a[::-1])",
    "a[::-2].copy()",
    "a[4:1:-1] * 2",
    "a[::-1][1:3]",
    "m[::-1].copy()",
    "m[1:, ::-1].sum(1)",
    "m[::-1, ::-1] + 0",
    "torch.from_numpy(a[::-1].copy())",
    "np.linspace(0, 9, 6).round()[::-1].copy().astype(np.int64)",
]
WITH_A_BREAK = [
    "a[::-1][1:2]",
    "a[::-1].reshape(2, 3)",
    "a[::-1].T",
    "a[:1][::-1].copy()",
    "a[0:0:-1].copy()",
    "np.copyto(a[::-1], 0)",
    "a[::-1].fill(1)",
]
STATEMENTS = [
    "v = a[::-1]\na += 1\nreturn v.copy(), a",
    "v = a[::-1]\na[0] = 9\nreturn v, v + 0",
    "v = a[::-1]\nv += 1\nreturn v, a",
    "v = a[::-1]\nv[0] = 5\nreturn a, v",
    "v = a[::-1]\nnp.add(v, 1, out=v)\nreturn a",
    "v = a[::-1]\nnp.add(v, 1, out=a)\nreturn a",
    "v = a[::-1]\nw = v\nreturn v is w, v, w",
    "r = 0\nfor t in a[::-1]:\n    a[0] = 7\n    r = r + t\nreturn r",
]


def program(body: str):
    lines = [
        "def f(x):",
        "a = x.numpy()",
        "m = np.arange(12.0).reshape(3, 4) * a[0]",
        *body.split("\n"),
    ]
    text = "\n    ".join(lines) + "\n"
    name = f"<backwards {body!r}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope = {"np": np, "torch": torch}
    exec(compile(text, name, "exec"), scope)
    return scope["f"]


def outcome(f):
    """What a call gives and does, and what a write to its result does."""
    x = torch.tensor([1.0, 3.0, -2.0, 5.0, 0.5, 4.0])
    try:
        result = f(x)
        found = portrait(result)
        if isinstance(result, np.ndarray) and result.ndim:
            result[...] = 77
    except Exception as error:
        found = (type(error), str(error))
    return found, x.tolist()


def portrait(result):
    if isinstance(result, (list, tuple)):
        return [type(result), *map(portrait, result)]
    if isinstance(result, np.ndarray):
        return (result.dtype, result.shape, result.strides, result.tolist())
    if isinstance(result, torch.Tensor):
        return (result.dtype, result.stride(), result.tolist())
    return (type(result), result)


def graphs_and_breaks(body: str):
    f = program(body)
    fn, recorder = compiled(f)
    assert outcome(fn) == outcome(fn) == outcome(f)
    return len(recorder.graphs), recorder.codes()


@pytest.mark.parametrize("expression", IN_THE_GRAPH)
def test_reading_is_traced(expression):
    assert graphs_and_breaks(f"return {expression}") == (1, [])


@pytest.mark.parametrize("expression", WITH_A_BREAK)
def test_other_views_and_writes_break_the_graph(expression):
    _, codes = graphs_and_breaks(f"return {expression}")
    assert codes and set(codes) <= {"numpy", "array-kind"}


@pytest.mark.parametrize("body", STATEMENTS)
def test_the_view_shares_the_memory_of_the_array(body):
    graphs_and_breaks(body)
