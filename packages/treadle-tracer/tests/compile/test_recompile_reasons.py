"""What people are told when a call is compiled again: expected and found, in their own terms, with the line that decided."""

from __future__ import annotations

import builtins
import gc
from types import SimpleNamespace

import pytest
import torch
from compile_runs import compiled

import treadle_frame
from treadle_tracer.output.recompile_reasons import failing_checks


def t(*sizes):
    return torch.randn(sizes)


def double(x):
    return x * 2


def reasons(function, *calls, **options):
    """The reason of every recompile that these calls cost."""
    fast, recorder = compiled(function, **options)
    for args in calls:
        fast(*args)
    return [reason for _, reason in recorder.recompiles]


def last_reason(function, *calls, **options):
    return reasons(function, *calls, **options)[-1]


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (t(4, 8), t(5, 8), "x.size()[0]: expected 4, found 5 (dynamic from now on)"),
        (
            t(4, 8),
            t(5, 9),
            "x.size()[0]: expected 4, found 5 (dynamic from now on); x.size()[1]: expected 8, found 9 (dynamic from now on)",
        ),
        (t(4, 8), t(0, 8), "x.size()[0]: expected 4, found 0"),
        (t(4, 8), t(4, 8, 1), "x.dim(): expected 2, found 3"),
        (t(4, 8), t(4, 8).double(), "x.dtype: expected torch.float32, found torch.float64"),
        (t(4, 8), t(8, 4).t(), "x.stride(): expected (8, 1), found (1, 4)"),
        (t(4, 8), t(4, 8).requires_grad_(), "x.requires_grad: expected False, found True"),
        (t(4, 8), 3, "x: expected a Tensor of float32, found 3"),
        (3, t(4, 8), "expected x == 3, found a Tensor of float32 [4, 8]"),
        (3, 4, "expected x == 3, found 4 (dynamic from now on)"),
        (None, 4, "expected x is None, found 4"),
    ],
)
def test_expected_and_found(first, second, told):
    def both(x, y):
        return (x.sum() if isinstance(x, torch.Tensor) else x or 0) + y

    assert reasons(both, (first, t(8)), (second, t(8)))[0].startswith(told)


def test_a_size_that_must_not_change_is_not_called_dynamic():
    assert reasons(double, (t(4),), (t(5),), dynamic=False) == ["x.size()[0]: expected 4, found 5"]


def test_the_nearest_version_is_told_about():
    told = last_reason(double, (t(4, 8),), (t(4, 8, 2),), (t(5, 8),))
    assert told == "x.size()[0]: expected 4, found 5 (dynamic from now on) (the nearest of 2 compiled versions)"


def test_another_layout_at_changing_sizes():
    told = last_reason(double, (t(4, 8),), (t(5, 9),), (t(7, 6).t(),))
    assert told.startswith("x has strides (1, 6) at sizes (6, 7), another layout than strides (9, 1) at sizes (5, 9)")


def test_a_size_of_0_is_told_from_a_decision():
    assert last_reason(double, (t(4),), (t(5),), (t(0),)).startswith("x.size()[0] is 0, which is compiled on its own (")


def branches(x):
    return x + 1 if x.shape[0] == 1 else x * 2


def same_rows(x, y):
    return x.sum() + y.sum() if x.shape[0] == y.shape[0] else x.sum()


def test_a_decision_names_the_line_that_took_it():
    told = last_reason(branches, (t(4),), (t(5),), (t(1),))
    assert told.startswith("x.size()[0] != 1 (decided at ")
    assert "test_recompile_reasons.py:" in told
    assert "return x + 1 if x.shape[0] == 1 else x * 2), but it is 1" in told


def test_a_decision_about_two_sizes():
    told = last_reason(same_rows, (t(4), t(4)), (t(5), t(5)), (t(5), t(6)))
    assert told.startswith("x.size()[0] == y.size()[0] (decided at ")
    assert "but x.size()[0] is 5 and y.size()[0] is 6" in told


def test_operations_that_do_something_else_at_1():
    told = last_reason(lambda x: x.squeeze(0) * 2, (t(4, 3),), (t(5, 3),), (t(1, 3),))
    assert told.startswith(
        "x.size()[0] is 1, and at that size the graph does something else (squeeze: sizes (3,) instead of (1, 3))"
    )


def test_no_reason_shows_an_internal_symbol():
    def program(x, n):
        y = x.view(x.shape[0], -1, 2)
        return y + 1 if x.shape[0] > 2 * x.shape[1] + n else y

    told = reasons(program, *[((t(a, b)), n) for a, b, n in [(4, 8, 1), (5, 6, 2), (20, 4, 3), (1, 8, 3)]])
    assert len(told) == 2
    for reason in told:
        words = reason.replace("(", " ").replace(")", " ").split()
        assert not any(word.strip(",;") in ("s0", "s1", "s2", "v0", "v1") for word in words), reason


def test_what_follows_from_a_difference_is_not_told():
    def first(xs):
        return xs[0] * 2

    assert reasons(first, ([t(4)],), ((t(4),),)) == ["expected type(xs) is list, found tuple"]
    assert reasons(first, ([t(4)],), ([t(4), t(4)],)) == ["expected len(xs) == 1, found 2"]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x):
        return x * self.weight


def test_another_parameter():
    layer = Layer()
    fast, recorder = compiled(Layer.forward)
    fast(layer, t(3))
    layer.weight = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    fast(layer, t(3))
    ((_, told),) = recorder.recompiles
    assert told == "self._parameters['weight']: expected the same Parameter as when it was compiled, found another one"


def test_the_limit_is_told_once_with_the_reason():
    fast, recorder = compiled(double, dynamic=False, recompile_limit=2)
    with pytest.warns(
        RuntimeWarning, match=r"limit of 2 recompiles is reached.*x\.size\(\)\[0\]: expected 3, found 4"
    ) as told:
        for n in range(2, 8):
            assert torch.equal(fast(torch.ones(n)), torch.ones(n) * 2)
    assert len(told) == 1
    assert len(recorder.graphs) == 2


def test_a_base_that_a_class_has_no_more():
    class First:
        pass

    class Second(First):
        pass

    class Third(Second):
        pass

    def f(x, owner):
        try:
            return x, super(Second, owner).missing
        except Exception as error:
            return x, type(error)

    fast, recorder = compiled(f)
    assert fast(t(3), Third())[1] is f(t(3), Third())[1] is AttributeError
    owner = Third()
    Third.__bases__ = (First,)
    assert fast(t(3), owner)[1] is f(t(3), owner)[1] is TypeError
    assert "Second to be a base of " in recorder.recompiles[0][1]


def test_guards_are_compared_with_a_call_in_few_programs_and_without_collections(monkeypatch):
    made, collections = [], []

    def function(xs, y):
        for x in xs:
            y = y + x
        return y

    fast, recorder = compiled(function, dynamic=False)
    xs = [t(3) for _ in range(200)]
    fast(xs, t(3))
    guards = len(recorder.entries[0].guard.checks)
    assert guards > 400
    program = treadle_frame.GuardProgram
    monkeypatch.setattr(treadle_frame, "GuardProgram", lambda checks: made.append(len(checks)) or program(checks))
    failing = failing_checks(recorder.entries[0], frame_of(xs=xs, y=t(3).double()))
    assert [check.path for check in failing] == [(("local", "y"),)]
    assert len(made) < guards / 4
    monkeypatch.setattr(
        "treadle_tracer.compile.recompile_reason", lambda *args: collections.append(gc.isenabled()) or ""
    )
    fast(xs, t(3).double())
    assert collections == [False] and gc.isenabled()


@pytest.mark.parametrize("changed", [(0,), (63, 64), (5, 70, 199)])
def test_all_checks_that_fail_are_found(changed):
    def function(xs):
        return xs[-1] + len(xs) + sum(x * 2 for x in xs)

    fast, recorder = compiled(function, dynamic=False)
    xs = [t(3) for _ in range(200)]
    fast(xs)
    others = [t(4) if n in changed else x for n, x in enumerate(xs)]
    found = failing_checks(recorder.entries[0], frame_of(xs=others))
    assert sorted(check.path[-1][-1] for check in found) == list(changed)


def frame_of(**arguments):
    code = SimpleNamespace(co_freevars=())
    return SimpleNamespace(code=code, locals=arguments, globals=globals(), builtins=vars(builtins), closure=())
