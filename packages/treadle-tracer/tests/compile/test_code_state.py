"""What is remembered of a code object between its compiles."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from treadle_tracer.code_state import CodeState
from treadle_tracer.output.entry import Payload
from treadle_tracer.output.guards import TensorGuard
from treadle_tracer.source import AttrSource, LocalSource

X = LocalSource("x")


def frame_of(**arguments):
    return SimpleNamespace(locals=arguments, globals={}, builtins={}, closure=())


def entry_for(tensor, source=X, by_identity=False, numbers=()):
    guard = TensorGuard.of(source, tensor, (), by_identity)
    return SimpleNamespace(payload=Payload(None, (guard,), None, None, numbers=numbers))


def test_sizes_that_differ_become_dynamic():
    state = CodeState()
    learnt = state.learn_changes(frame_of(x=torch.ones(5, 2)), [entry_for(torch.ones(3, 2))], None)
    assert learnt == {X: {0: 5}}
    learnt = state.learn_changes(frame_of(x=torch.ones(4, 9)), [entry_for(torch.ones(3, 2))], None)
    assert learnt == {X: {0: 5, 1: 9}}  # the largest size of each dimension
    assert CodeState().learn_changes(frame_of(x=torch.ones(5, 2)), [entry_for(torch.ones(3, 2))], False) == {}


def test_numbers_that_cannot_be_symbols_stay_constant():
    state = CodeState()
    entry = entry_for(torch.ones(2), numbers=((LocalSource("n"), 3),))
    frame = frame_of(x=torch.ones(2), n=4)
    assert state.learn_changes(frame, [entry], None).numbers == {LocalSource("n")}
    state.constants.add(LocalSource("n"))
    assert state.learn_changes(frame, [entry], None).numbers == set()


def test_all_numbers_are_dynamic_where_the_option_says_so():
    assert CodeState().learn_changes(frame_of(n=3, f=1.0, s="a", b=True), [], True).numbers == {
        LocalSource("n"),
        LocalSource("f"),
    }


def test_an_exchanged_argument_is_an_input_at_once_and_a_parameter_the_second_time():
    state, kept = CodeState(), [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    weight = AttrSource(LocalSource("self"), "weight")
    frame = frame_of(x=kept[2], self=SimpleNamespace(weight=kept[2]))
    once = [entry_for(kept[0], by_identity=True), entry_for(kept[0], weight, by_identity=True)]
    assert state.learn_changes(frame, once, None).inputs == {X}
    twice = [*once, entry_for(kept[1], weight, by_identity=True)]
    assert state.learn_changes(frame, twice, None).inputs == {X, weight}


def test_forgetting_keeps_what_is_true_of_the_code():
    state = CodeState(is_root=True)
    state.learn_changes(frame_of(x=torch.ones(5)), [entry_for(torch.ones(3))], None)
    state.tensorless_calls, state.empty_traces, state.may_assume = 3, 4, False
    state.forget_calls()
    assert state.is_root
    assert (state.tensorless_calls, state.empty_traces, state.may_assume, state.dynamic) == (0, 0, True, {})
