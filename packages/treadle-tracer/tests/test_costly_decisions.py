"""Decisions on numbers that change in every call are given up where they cost more than their graph saves."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

import treadle_frame
from treadle_tracer import SkipKind
from treadle_tracer.decided import Decided
from treadle_tracer.output.continuations import continuations_of

OPTIONS = {"leave_unprofitable": True, "decide_on_inputs": True}


def decisions(code):
    """The lines that the entries of a function and of its continuations decide at, relative to its first."""
    entries = [entry for piece in (code, *continuations_of(code)) for entry in treadle_frame.entries(piece)]
    return {line - code.co_firstlineno for entry in entries for _, line, _ in entry.payload.decided.lines}


def left(recorder):
    return [name for name, skip in recorder.skips if skip.kind is SkipKind.UNPROFITABLE]


def solved(a, b):
    """Conjugate gradients: the condition of the loop is computed from the same products as its step."""
    x = torch.zeros_like(b)
    r = b - a @ x
    p, rs = r.clone(), r @ r
    for i in range(20):
        ap = a @ p
        alpha = rs / (p @ ap)
        x, r = x + alpha * p, r - alpha * ap
        new = r @ r
        if new.sqrt() < 1e-6:
            break
        p, rs = r + (new / rs) * p, new
    return x


def test_a_loop_that_decides_on_what_each_turn_computes_breaks_there():
    torch.manual_seed(0)
    m = torch.randn(10, 10)
    a, b = m @ m.T + torch.eye(10) * 5, torch.randn(10)
    fn, recorder = compiled(solved, **OPTIONS)
    fn(a, b)
    assert decisions(solved.__code__)
    for n in range(4):
        torch.testing.assert_close(fn(a, b + n), solved(a, b + n))
    assert not decisions(solved.__code__)
    assert "solved" not in left(recorder)


def checked(x, w):
    y = x * w + 1
    if torch.isnan(y).any():
        raise ValueError("nan")
    return torch.softmax(y, -1)


def test_a_path_that_raises_is_ruled_out_by_the_graph():
    fn, recorder = compiled(checked, **OPTIONS)
    w = torch.randn(4)
    for _ in range(30):
        x = torch.randn(4)
        torch.testing.assert_close(fn(x, w), checked(x, w))
    assert not decisions(checked.__code__)
    assert recorder.breaks == []
    with pytest.raises(ValueError, match="nan"):
        fn(torch.full((4,), torch.nan), w)


def scheduled(x, step):
    if step > 5:
        x = x * 2
    for _ in range(20):
        x = torch.sin(x) + 1
    return x


def test_cheap_decisions_stay():
    fn, _ = compiled(scheduled, **OPTIONS)
    x = torch.ones(4)
    for n in range(40):
        step = torch.tensor(n)
        torch.testing.assert_close(fn(x, step), scheduled(x, step))
    assert decisions(scheduled.__code__) == {1}


def test_decisions_on_numbers_that_stay_are_kept():
    fn, _ = compiled(checked, **OPTIONS)
    x, w = torch.randn(4), torch.randn(4)
    for _ in range(40):
        torch.testing.assert_close(fn(x, w), checked(x, w))
    assert decisions(checked.__code__) == {2}


def halve(x):
    n = (x * x).sum().sqrt()
    if n > 1e6:
        return x / n
    return x


def calls_halve(x):
    for _ in range(3):
        x = halve(torch.tanh(x) * 2)
    return x


class Initialised(torch.nn.Module):
    """The first batch sets the scale."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1, 4))
        self.register_buffer("is_set", torch.tensor(0.0))

    def forward(self, x):
        if not self.is_set:
            self.scale.data = x.std(0, keepdim=True).detach()
            self.is_set = torch.tensor(1.0)
        return x / self.scale


def test_what_the_first_call_alone_decides_is_not_given_up_with_its_pieces():
    """The call that initialises breaks in every layer, and is not worth compiling. What was decided has cost nothing."""
    models = [torch.nn.Sequential(*(Initialised() for _ in range(4))) for _ in range(2)]

    def run(model, x):
        for layer in model:
            x = layer(x) + 1
        return x

    fn, recorder = compiled(run, **OPTIONS)
    breaks = []
    for n in range(3):
        x = torch.randn(8, 4) + n
        torch.testing.assert_close(fn(models[0], x), run(models[1], x))
        breaks.append(len(recorder.codes()))
    assert breaks[0] == breaks[-1]
    assert decisions(run.__code__)


def test_functions_called_in_place_do_not_decide_either():
    fn, _ = compiled(calls_halve, **OPTIONS)
    for _ in range(40):
        x = torch.randn(4)
        torch.testing.assert_close(fn(x), calls_halve(x))
    codes = calls_halve.__code__, halve.__code__
    assert not any(map(decisions, codes))


def test_without_the_cost_model_decisions_stay():
    fn, _ = compiled(checked, decide_on_inputs=True)
    for _ in range(40):
        x = torch.randn(4)
        fn(x, x)
    assert decisions(checked.__code__) == {2}


def test_the_guard_of_a_function_left_to_python_holds_whatever_its_decisions_have_cost():
    decided = Decided()
    decided.is_costly = True
    assert not decided()
    decided.stop_deciding(lambda: False)
    assert decided()
