"""Random programs of slice writes against eager: results, inputs, and what aliases what."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch
from slice_write_programs import SIZES, program

import treadle


def function_of(text: str, name: str) -> Any:
    """The function `f` of a program's text, with lines that tracebacks can show."""
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    scope: dict[str, Any] = {"torch": torch}
    exec(compile(text, name, "exec"), scope)
    return scope["f"]


def inputs(seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    x, y = torch.randn(SIZES), torch.randn(SIZES)
    return [x, y] if seed % 4 else [x.permute(2, 0, 1).contiguous().permute(1, 2, 0), y]


def run(function: Any, seed: int) -> tuple[Any, list[torch.Tensor]]:
    given = inputs(seed)
    try:
        return function(*given), given
    except RuntimeError as error:
        return type(error), given


def check(seed: int) -> None:
    text = program(seed)
    function = function_of(text, f"<slice writes {seed}>")
    compiled = treadle.compile(function, options={"verify": True})
    for attempt in range(2):
        expected, changed = run(function, seed + attempt * 1000)
        actual, given = run(compiled, seed + attempt * 1000)
        assert isinstance(actual, tuple) == isinstance(expected, tuple), text
        if not isinstance(expected, tuple):
            return
        for a, e in zip([*actual, *given], [*expected, *changed], strict=True):
            torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-5, msg=lambda m: f"{m}\n{text}")
            assert a.stride() == e.stride(), text
            assert a._version == e._version, text
        shares = [[p.untyped_storage().data_ptr() == q.untyped_storage().data_ptr() for p in values for q in values]
                  for values in ([*actual, *given], [*expected, *changed])]  # fmt: skip
        assert shares[0] == shares[1], text


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_slice_writes(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed)


@pytest.mark.parametrize("columns", [1, 4])
def test_inputs_of_sizes_that_change_are_updated_where_they_are(columns):
    """One step of the conjugate gradient method: two inputs are written, a third is read, and their memory stays."""

    def step(x, r, p, q):
        a = r.square().sum() / (p * q).sum()
        x += a * p
        r -= a * q
        return r.square().sum()

    compiled = treadle.compile(step)
    with treadle.config.patch(leave_unprofitable=False):
        for n in (5, 6, 9, 1, 0, 300):
            given = [torch.rand(n, columns, dtype=torch.float64) + 0.5 for _ in range(4)]
            mine = [t.clone() for t in given]
            part = torch.rand(2 * n, 2 * columns, dtype=torch.float64)[::2, :columns]  # with gaps
            for ours, theirs in ((mine, given), ([part.clone(), *mine[1:]], [part.clone(), *given[1:]])):
                places, versions = [t.data_ptr() for t in ours], [t._version for t in ours]
                torch.testing.assert_close(compiled(*ours), step(*theirs), equal_nan=True)
                torch.testing.assert_close(ours, theirs, equal_nan=True)
                assert [t.data_ptr() for t in ours] == places
                assert [t._version - v for t, v in zip(ours, versions, strict=True)] == [1, 1, 0, 0]
            shared = torch.rand(n, columns, dtype=torch.float64) + 0.5
            ours, theirs = shared.clone(), shared.clone()
            torch.testing.assert_close(
                compiled(ours, ours, *mine[2:]), step(theirs, theirs, *given[2:]), equal_nan=True
            )
            torch.testing.assert_close(ours, theirs, equal_nan=True)
