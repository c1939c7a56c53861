"""Functions of torch.jit.script: their Python functions are traced where TorchScript does the same, and broken at elsewhere."""

import functools
from typing import List, Tuple  # noqa: UP035 (TorchScript reads the annotations)

import pytest
import torch
from compile_runs import compiled


def helper(x: torch.Tensor, k: float):
    return x * k


@torch.jit.script
def gate(a, b):
    return torch.tanh(a) * torch.sigmoid(b)


@torch.jit.script
def combine(a: Tuple[torch.Tensor, torch.Tensor], b: Tuple[torch.Tensor, torch.Tensor]):  # noqa: UP006
    return b[0] * a[0], torch.addcmul(b[1], b[0], a[1])


@torch.jit.script
def scaled(x, k: float = 3, by: int = 1):
    return gate(x * k, x + by)


@torch.jit.script
def appended(xs: List[torch.Tensor]):  # noqa: UP006
    xs.append(xs[0] * 2)
    return len(xs)


@torch.jit.script
def where_it_runs(x):
    if torch.jit.is_scripting():
        return x + 1
    return x - 1


@torch.jit.script
def with_a_helper(x):
    return helper(x, 2.0)


def norm(x: torch.Tensor):
    return x.abs()


@torch.jit.script
def a_method_called_as_a_helper(x):
    return x.norm(dim=-1, p=2, keepdim=True) * x


class Point(torch.nn.Parameter):
    """A parameter with methods of its own, as geoopt's are."""

    def distance(self, other):
        return (self - other).norm()


class Counted(torch.nn.Parameter):
    def abs(self):
        return super().abs() + 1


@torch.jit.script
def size_of(p, x):
    return p.abs() + x


@torch.jit.script
def a_float(x) -> float:
    return 2.0 * x.size(0)


def refused(function, x):
    try:
        return function()
    except RuntimeError:
        return x * 2


TRACED = torch.jit.trace(lambda x: x * x.shape[0], torch.ones(3, dtype=torch.int64), check_trace=False)


WHOLE = {
    "a function": lambda x: gate(x.sin(), x),
    "tuples": lambda x: combine((x, x + 1), (x.sin(), x)),
    "lists for tuples": lambda x: combine([x, x + 1], b=(x.sin(), x)),
    "a list that is written to later": lambda x: ((xs := [x, x + 1]), combine(xs, xs), xs.append(x))[1:],
    "numbers": lambda x: scaled(x.float(), 2.0, by=3),
    "a parameter of a class of its own": lambda x, p=Point(torch.ones(2)): size_of(p, x).detach(),
    "an int for a float": lambda x: scaled(x, 2),
    "a default that is converted": lambda x: scaled(x, by=2),
    "passed on": lambda x: functools.partial(gate, x)(b=x.cos()),
    "a method called as a helper": lambda x: a_method_called_as_a_helper(x.double()),
    "mapped": lambda x: list(map(gate, [x, x.sin()], [x, x])),
}
BROKEN = {
    "a parameter that overrides what is called": lambda x, p=Counted(torch.ones(2)): size_of(p, x * 2).detach(),
    "a size for a float": lambda x: scaled(x, x.shape[0]),
    "a list": lambda x: ((xs := [x]), appended(xs), len(xs))[1:],
    "asks whether it is scripted": lambda x: where_it_runs(x * 2),
    "a helper": lambda x: with_a_helper(x * 2),
    "a float": lambda x: a_float(x * 2),
    "too long a list": lambda x: refused(lambda: combine([x, x, x], (x, x)), x),
    "traced": lambda x: TRACED(x * 2),
}


def run_at_sizes(function):
    broken, recorder = compiled(function)
    for n in (3, 4, 5):
        x = torch.arange(n * 2).view(n, 2)
        torch.testing.assert_close(broken(x), function(x))
    return recorder


@pytest.mark.parametrize("name", WHOLE)
def test_the_python_function_is_traced(name):
    recorder = run_at_sizes(WHOLE[name])
    assert recorder.codes() == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_may_differ_breaks_the_graph(name):
    recorder = run_at_sizes(BROKEN[name])
    assert set(recorder.codes()) == {"script-function"}
