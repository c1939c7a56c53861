"""Containers that change while they are traced: the call runs in Python, the next one is traced."""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from compile_runs import compiled

from treadle_tracer.changed_meanwhile import MOST_TIMES, is_changed_meanwhile
from treadle_tracer.compilation import Compilation


def refusal(container: Any, change: Callable[[Any], Any]) -> BaseException | None:
    """What CPython raises where `change` happens to the container in an iteration over it."""
    try:
        for _ in container:
            change(container)
    except RuntimeError as error:
        return error
    return None


def exchange_keys(container: dict[int, int]) -> None:
    container[max(container) + 1] = container.pop(min(container))


CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "dict": ({1: 2, 3: 4}, lambda d: d.update({5: 6})),
    "keys of a dict": ({1: 2, 3: 4}, exchange_keys),
    "set": ({1, 2}, lambda s: s.add(3)),
    "ordered dict": (OrderedDict({1: 2, 3: 4}), lambda d: d.update({5: 6})),
    "deque": (deque([1, 2]), lambda d: d.append(3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_python_raises_is_known(name: str) -> None:
    error = refusal(*CHANGES[name])
    assert error is not None
    assert is_changed_meanwhile(error)
    wrapped = ValueError("somewhere else")
    wrapped.__cause__ = error
    assert is_changed_meanwhile(wrapped)


def test_other_errors_are_bugs() -> None:
    assert not is_changed_meanwhile(RuntimeError("a bug"))
    assert not is_changed_meanwhile(ValueError("Set changed size during iteration"))
    assert not is_changed_meanwhile(None)


def run_with_interruptions(monkeypatch: pytest.MonkeyPatch, times: int, calls: int) -> tuple[Any, list[Any]]:
    """What the recorder has seen of `calls` calls, of which the first `times` traces are interrupted; and the warnings."""
    run, left = Compilation.run, [times]

    def interrupted(self: Compilation, *args: Any) -> Any:
        if left[0]:
            left[0] -= 1
            error = refusal({1: 2, 3: 4}, lambda d: d.update({5: 6}))
            assert error is not None
            raise error
        return run(self, *args)

    monkeypatch.setattr(Compilation, "run", interrupted)
    fast, recorder = compiled(lambda x: x * 2 + 1, raise_internal_errors=False)
    x = torch.randn(3)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(calls):
            assert torch.equal(fast(x), x * 2 + 1)
    return recorder, said


def test_the_next_call_is_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, said = run_with_interruptions(monkeypatch, times=2, calls=4)
    assert len(recorder.entries) == 1
    assert not said


def test_a_trace_that_always_ends_so_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, said = run_with_interruptions(monkeypatch, times=100, calls=MOST_TIMES + 3)
    assert not recorder.entries
    assert ["a bug of treadle" in str(warning.message) for warning in said] == [True]
