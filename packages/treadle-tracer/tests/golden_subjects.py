"""The functions whose compiles are kept as golden files (tests/golden), each with the arguments of its calls.

A call is a callable that gives the arguments, so that every run starts from the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from time import sleep  # breaks the graph
from typing import Any

import torch


@dataclass
class Subject:
    """A function, the arguments of its calls, and the options of its compile."""

    function: Callable[..., Any]
    calls: list[Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]]
    options: dict[str, Any] = field(default_factory=dict)


SUBJECTS: dict[str, Subject] = {}


def given(*args: Any, **kwargs: Any) -> Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]:
    """The arguments of a call; a tensor is copied, a callable is called for a fresh object."""

    def fresh(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.clone()
        return value() if isinstance(value, type) or getattr(value, "__name__", "") == "<lambda>" else value

    return lambda: (tuple(map(fresh, args)), {name: fresh(value) for name, value in kwargs.items()})


def subject(*calls: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        SUBJECTS[function.__name__] = Subject(function, list(calls), options)
        return function

    return register


X = torch.arange(6.0).reshape(2, 3)


@subject(given(X, X + 1))
def straight(x, y):
    z = torch.relu(x) * 2
    return z + y.sum()


@subject(given(X))
def break_in_the_middle(x):
    y = x + 1
    sleep(0)
    return y * 2


@subject(given(X, 2))
def break_in_a_loop(x, n):
    for i in range(n):
        x = x + i
        sleep(0)
    return x


@subject(given(X))
def with_block(x):
    with torch.no_grad():
        y = x * 2
        sleep(0)
        y = y + 1
    return y - x


@subject(given(X, torch.tensor([1])))
def try_except(x, i):
    try:
        y = x.index_select(0, i)
    except IndexError:
        y = x * 0
    return y + 1


def cell_mutation():
    total = torch.zeros(3)

    def add(x):
        nonlocal total
        total = total + x.sum(0)
        return total * 2

    return add


SUBJECTS["cell_mutation"] = Subject(cell_mutation(), [given(X)])


@subject(given(X, lambda: [torch.ones(2, 3)]))
def append_to_an_outer_list(x, log):
    y = x * 2
    log.append(y)
    return len(log)


class Counter:
    def __init__(self):
        self.calls = 0
        self.last = None


@subject(given(X, Counter))
def attribute_mutation(x, counter):
    counter.calls += 1
    counter.last = x.sum()
    return x * counter.calls


def halves(x):
    for part in x.unbind(0):
        yield part / 2


@subject(given(X))
def generator_consumer(x):
    return sum(halves(x))


@subject(given(X), given(torch.arange(15.0).reshape(5, 3)))
def dynamic_size(x):
    if x.shape[0] > 1:
        return x.reshape(-1) * x.shape[0]
    return x


@subject(given(X, X + 1, X + 2, scale=3, shift=X))
def varargs_and_kwargs(x, *rest, scale=1, **named):
    y = x * scale
    for other in rest:
        y = y + other
    return y + named["shift"]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.scale = 0.5

    def forward(self, x):
        return torch.tanh(self.inner(x)) * self.scale


LAYER = Layer()
SUBJECTS["module_forward"] = Subject(LAYER.forward, [given(X)])


@subject(given(X, torch.tensor(1)), fullgraph=True)
def unbacked_item(x, t):
    n = t.item()
    torch._check(n >= 0)
    torch._check(n <= 2)
    return x[:n] + 1


@subject(given(lambda: {"a": X.clone(), "b": X + 1}))
def dict_iteration(tensors):
    found = {}
    for name, tensor in tensors.items():
        found[name] = tensor.sum()
    return found


@subject(given(X, True), given(X, False))
def early_return(x, flag):
    if flag:
        return x
    return x + 1
