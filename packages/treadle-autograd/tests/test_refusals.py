"""What torch refuses makes a graph run eagerly; what our own code raises is an internal error. The exception's type decides."""

from __future__ import annotations

import pytest
import torch
from aten_runner import compile_traced
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException

import treadle_autograd
from treadle_autograd import InternalError, UnsupportedGraph
from treadle_autograd.errors import Refusal
from treadle_autograd.refusals import call_torch, why_not_functional
from treadle_shapes import UsageError


def raises(error):
    def function(*args, **kwargs):
        raise error

    return function


def call(function):
    return call_torch(function, (), {}, lambda: "model.py:7")


@pytest.mark.parametrize("kind", [RuntimeError, NotImplementedError, IndexError, ValueError, OverflowError])
def test_exceptions_of_torch_become_refusals(kind):
    error = kind("no kernel")
    with pytest.raises(Refusal) as caught:
        call(raises(error))
    assert str(caught.value) == "torch has no functional form of an operator: no kernel (at model.py:7)"
    assert caught.value.__cause__ is error and caught.value.user_line == "model.py:7"


def test_questions_about_values_have_a_message_of_their_own():
    with pytest.raises(Refusal, match="the values of a tensor are needed: aten._local_scalar_dense.default"):
        call(raises(DataDependentOutputException(torch.ops.aten._local_scalar_dense.default)))


@pytest.mark.parametrize(
    "error",
    [
        UnsupportedGraph("why"),
        InternalError("pass", "message"),
        UsageError("wrong"),
        RecursionError("deep"),
        TypeError("ours"),
        AssertionError("ours"),
        KeyError("ours"),
    ],
    ids=repr,
)
def test_other_exceptions_pass_through(error):
    with pytest.raises(type(error)) as caught:
        call(raises(error))
    assert caught.value is error


def test_a_call_that_torch_refuses_runs_eagerly():
    compiled = compile_traced(lambda x: x.view(3), [torch.ones(2)])
    assert compiled.why_eager.startswith("torch has no functional form of an operator: ")


@pytest.mark.parametrize("kind", [RuntimeError, IndexError, ValueError, ZeroDivisionError])
def test_a_bug_of_ours_below_torch_is_an_internal_error(monkeypatch, kind):
    monkeypatch.setattr(treadle_autograd.recorder.AtenRecorder, "to_argument", raises(kind("mine")))
    with pytest.raises(InternalError) as caught:
        compile_traced(lambda x: x + 1, [torch.ones(2)])
    assert str(caught.value) == f"internal error in pass 'functionalise': {kind.__name__}: mine"
    assert isinstance(caught.value.__cause__, kind)


def test_a_decomposition_may_refuse_a_call():
    rules = {torch.ops.aten.relu.default: raises(ValueError("not this one"))}
    gm = fx.symbolic_trace(lambda x: torch.relu(x))
    run = treadle_autograd.aot(gm, [torch.ones(2)], forward=None, decompositions=rules)
    assert run.why_eager == "torch has no functional form of an operator: not this one"


def test_graphs_that_their_nodes_alone_refuse():
    trace = fx.symbolic_trace
    split = "unsafe_split has no functional form: it gives views that it does not declare"
    assert why_not_functional(trace(lambda x: torch.unsafe_split(x, 2))) == split
    assert why_not_functional(trace(lambda x: x.unsafe_split(2))) == split
    module = trace(torch.nn.Sequential(torch.nn.ReLU()))
    assert why_not_functional(module) == "call_module nodes (0) are not part of the contract"
    assert why_not_functional(trace(lambda x: x.view(-1))) is None


def test_kernels_that_autocast_reaches_are_refused_under_it():
    gm = fx.symbolic_trace(lambda x: torch.linalg.pinv(x))
    assert why_not_functional(gm) is None
    with torch.autocast("cpu"):
        assert "calls operators that autocast casts" in why_not_functional(gm)


def test_writes_to_windows_are_refused():
    def lost(x):
        x.unfold(0, 3, 3)[..., 0].mul_(2)
        return x.sum()

    def read(x):
        x.add_(1)
        return (x + 1).unfold(0, 3, 3).sum()

    for program, reason in ((lost, "unfold"), (read, "None")):
        gm = fx.symbolic_trace(program)
        _WithValues(gm).run(torch.arange(8.0))
        assert reason in str(why_not_functional(gm))


class _WithValues(fx.Interpreter):
    """A run that records every node's value, as a tracer does."""

    def run_node(self, n):
        n.meta["example_value"] = super().run_node(n)
        return n.meta["example_value"]
