"""The two ends of the program's own run after a graph has raised."""

from __future__ import annotations

import warnings

import pytest
import torch

import treadle_frame
from treadle_tracer import InternalError
from treadle_tracer.output.deferred_asserts import AssertFailed, DeferredAssert
from treadle_tracer.output.deoptimise import Deoptimisation, turn_hook_off

FAILED = AssertFailed(DeferredAssert("n >= 0 does not hold", IndexError))


def deoptimisation(has_handlers=False, raise_internal_errors=False):
    return Deoptimisation("f", has_handlers=has_handlers, raise_internal_errors=raise_internal_errors)


def test_the_hook_is_off_while_the_program_runs():
    before = treadle_frame.set_handler(treadle_frame.RUN_CACHED)
    try:
        state = turn_hook_off(ValueError())
        assert state is treadle_frame.RUN_CACHED and treadle_frame.get_handler() is None
        with pytest.warns(RuntimeWarning):
            deoptimisation().on_return(state, ValueError("why"))
        assert treadle_frame.get_handler() is treadle_frame.RUN_CACHED
        state = turn_hook_off(ValueError())
        deoptimisation().on_exception(state, ValueError("why"), ValueError("why"))
        assert treadle_frame.get_handler() is treadle_frame.RUN_CACHED
    finally:
        treadle_frame.set_handler(before)


def test_keyboard_interrupts_pass():
    with pytest.raises(KeyboardInterrupt):
        turn_hook_off(KeyboardInterrupt())


def test_exceptions_of_saved_tensor_hooks_pass():
    class Stop(Exception):
        pass

    def pack(tensor):
        raise Stop

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with pytest.raises(Stop) as stopped:
            x.sin()
        with pytest.raises(Stop):
            turn_hook_off(stopped.value)
        treadle_frame.set_handler(turn_hook_off(ValueError()))  # an exception of the graph itself


def test_an_assumption_is_warned_about_once_under_the_programs_exception_class():
    found = deoptimisation(raise_internal_errors=True)
    with pytest.warns(RuntimeWarning, match=r"graph of f raised IndexError: n >= 0 does not hold; Python itself runs"):
        found.on_return(None, FAILED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found.on_return(None, FAILED)


def test_what_only_the_graph_raises_is_a_bug():
    with pytest.raises(InternalError, match=r"in pass 'run': the compiled graph of f raised ValueError: why"):
        deoptimisation(raise_internal_errors=True).on_return(None, ValueError("why"))
    for lenient in (deoptimisation(), deoptimisation(has_handlers=True, raise_internal_errors=True)):
        for _ in range(2):
            with pytest.warns(RuntimeWarning, match="raised ValueError: why"):
                lenient.on_return(None, ValueError("why"))


def test_the_programs_exception_is_noted_with_what_was_relied_on():
    error = ValueError("too many")
    deoptimisation().on_exception(None, FAILED, error)
    assert error.__notes__ == ["treadle: n >= 0 does not hold"]
    for of_graph, of_program in (
        (FAILED, ValueError("n >= 0 does not hold")),
        (ValueError("why"), ValueError("other")),
    ):
        deoptimisation().on_exception(None, of_graph, of_program)
        assert not hasattr(of_program, "__notes__")
