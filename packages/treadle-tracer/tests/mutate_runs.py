"""Programs that change something between two calls of a compiled function, compared with eager Python."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from compile_runs import compiled, outcome

Program = Callable[[], Iterator[tuple[Any, ...]]]
"""A generator that yields calls, each (function, *arguments), and changes something between them. It must not depend on anything that
an earlier run has left behind: classes and objects are made inside, and `finally` undoes what is global."""


def run(program: Program, make: Callable[[Any], Any]) -> list[Any]:
    """What the calls of a program give; `make` turns a function into the one that is called."""
    made: dict[int, tuple[Any, Any]] = {}
    outcomes = []
    with contextlib.closing(program()) as calls:  # type: ignore[type-var]
        for function, *arguments in calls:
            if id(function) not in made:
                made[id(function)] = (function, make(function))
            result, state, _ = outcome(made[id(function)][1], arguments, {})
            outcomes.append((result, state))
    return outcomes


def check(program: Program, *, compiles: int | None = None, breaks: bool = False, **options: Any) -> Any:
    """Eager and compiled calls of the program look the same.

    compiles: the most graphs that the program may need; breaks: Python may run some of it, so there need be no graph.
    """
    expected = run(program, lambda function: function)
    assert len({repr(result) for result, _ in expected}) > 1 or compiles is not None, "the change must be seen in eager"
    recorders = []

    def make(function: Any) -> Any:
        fast, recorder = compiled(function, **options)
        recorders.append(recorder)
        return fast

    got = run(program, make)
    for number, (want, have) in enumerate(zip(expected, got, strict=True)):
        assert have == want, f"call {number}"
    if not breaks:
        assert recorders[0].graphs, (recorders[0].skips, recorders[0].codes())
        assert not recorders[0].breaks, recorders[0].codes()
    if compiles is not None:
        assert sum(len(recorder.graphs) for recorder in recorders) <= compiles, [r.recompiles for r in recorders]
    return recorders


def check_at_most_one_recompile(program: Program) -> None:
    """The program is compiled whole, and at most twice, and its calls look like eager ones."""
    expected = run(program, lambda function: function)
    recorders = []

    def make(function: Any) -> Any:
        fast, recorder = compiled(function)
        recorders.append(recorder)
        return fast

    assert run(program, make) == expected
    (recorder,) = recorders
    assert recorder.graphs and not recorder.breaks
    assert len(recorder.entries) <= 2, [reason for _, reason in recorder.recompiles]


def collect(namespace: dict[str, Any]) -> Any:
    """The decorator of a test over all programs of a module: generator functions without parameters."""
    programs = [
        pytest.param(value, id=name)
        for name, value in namespace.items()
        if inspect.isgeneratorfunction(value) and value.__module__ == namespace["__name__"]
    ]
    return pytest.mark.parametrize("program", programs)


def ones(*shape: int) -> torch.Tensor:
    """A tensor to compute with."""
    return torch.ones(*(shape or (2,)))


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner.name = value` for a while; `owner` may be a dict."""
    missing = object()
    if isinstance(owner, dict):
        before = owner.get(name, missing)
        owner[name] = value
        try:
            yield
        finally:
            if before is missing:
                del owner[name]
            else:
                owner[name] = before
        return
    had = name in vars(owner)
    before = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:
            delattr(owner, name)
