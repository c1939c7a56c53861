"""Small programs as cases: collected by a decorator, run with and without the tracer, expected to be one graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from compile_runs import Recorder, compare

import treadle_frame

ONE = torch.ones(1)


def t(*shape: int, **options: Any) -> Callable[[], torch.Tensor]:
    """A maker of the same tensor every time."""
    return lambda: torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **options)


@dataclass
class Case:
    """`function` with a maker per argument; `breaks` are codes that breaks must have, among others after them."""

    function: Callable[..., Any]
    makers: tuple[Any, ...]
    breaks: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.function.__name__


def collect() -> tuple[list[Case], Callable[..., Any]]:
    """(list of cases, decorator `case(*makers, breaks=(), recompiles=False, **options of compare)`)."""
    cases: list[Case] = []

    def case(*makers: Any, breaks: tuple[str, ...] = (), **options: Any) -> Callable[..., Any]:
        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            cases.append(Case(function, makers, breaks, options))
            return function

        return register

    return cases, case


def run_quietly(gm: torch.fx.GraphModule, example_inputs: Any) -> Callable[..., Any]:
    """A backend that runs the graph as it is with the frame hook off, so that Python inside torch is not compiled too."""
    gm.graph.lint()

    def run(*args: Any) -> Any:
        before = treadle_frame.set_handler(None)
        try:
            return gm.forward(*args)
        finally:
            treadle_frame.set_handler(before)

    return run


def check(case: Case) -> Recorder:
    """Run the case eagerly and compiled and compare; look at graphs and breaks.

    Every case is run inside a function that computes a tensor of its own, so that there is a graph to compile.
    """
    function = case.function
    options = dict(case.options)
    recompiles = options.pop("recompiles", False)

    def run(*args: Any) -> Any:
        return function(*args), ONE + 1

    recorder = compare(run, *case.makers, backend=run_quietly, **options)
    assert set(case.breaks) <= set(recorder.codes()), recorder.breaks
    if not case.breaks:
        assert recorder.codes() == []
        assert recorder.skips == []
        if not recompiles:
            assert len(recorder.graphs) == 1
            assert recorder.recompiles == []
    return recorder
