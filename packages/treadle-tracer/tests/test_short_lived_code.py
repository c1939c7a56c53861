"""Code made anew for every call is traced for the first calls only."""

import collections
import gc

import torch
from compile_runs import run_graph

import treadle_frame
from treadle_tracer.compile import compile_handler
from treadle_tracer.short_lived_code import ShortLivedCode


def made(text="lambda x: x * 2"):
    return eval(text).__code__


def test_code_is_known_by_its_copies_that_are_gone():
    known = ShortLivedCode()
    kept = [made() for _ in range(3)]
    for code in kept:
        known.watch(code)
    assert not known.holds(made())
    kept.clear()
    del code
    gc.collect()
    assert known.holds(made())
    assert not known.holds(made("lambda x: x * 3"))
    known.forget()
    assert not known.holds(made())


def test_code_that_is_different_every_time_is_forgotten():
    known = ShortLivedCode()
    for number in range(5000):
        known.watch(made(f"lambda x: x * {number}"))
    assert len(known._gone) < 4200 and len(known._watched) < 10


def program(x):
    Outputs = collections.namedtuple("Outputs", ["first", "second"])
    return Outputs(x.sin(), x.cos())


def test_a_class_made_in_every_call_is_not_traced_in_every_call(monkeypatch):
    handler = compile_handler(run_graph)
    traced = []
    answer = handler._answer
    monkeypatch.setattr(
        handler, "_answer", lambda frame, code, state: traced.append(code.co_name) or answer(frame, code, state)
    )
    treadle_frame.skip(program.__code__)  # as a function whose graph is not worth it
    run = treadle_frame.dispatcher(program, handler)
    x = torch.randn(3)
    for _ in range(6):
        torch.testing.assert_close(tuple(run(x)), tuple(program(x)))
        gc.collect()
    assert 0 < traced.count("<lambda>") < 4
