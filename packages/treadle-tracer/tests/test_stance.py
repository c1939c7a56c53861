"""What happens to calls that no entry serves, by stance."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from compile_runs import Recorder, compiled, run_graph

import treadle_frame
from treadle_tracer import RecompileRefused, TracerOptions, compile_handler, set_stance


def program(x, n):
    return x * n


def test_eager_on_recompile_and_fail_on_recompile():
    run, recorder = compiled(program, dynamic=False)
    x = torch.ones(3)
    assert torch.equal(run(x, 2), x * 2)
    with set_stance("eager_on_recompile"):
        assert torch.equal(run(x, 3), x * 3) and torch.equal(run(x, 2), x * 2)
    assert len(recorder.entries) == 1
    with set_stance("fail_on_recompile"):
        assert torch.equal(run(x, 2), x * 2)
        with pytest.raises(RecompileRefused, match="program"):
            run(x, 3)
    assert torch.equal(run(x, 3), x * 3) and len(recorder.entries) == 2


def test_first_calls_are_compiled_under_fail_on_recompile():
    run, recorder = compiled(program)
    with set_stance("fail_on_recompile"):
        run(torch.ones(3), 2)
    assert len(recorder.entries) == 1


def test_force_eager_keeps_entries_for_later():
    ran = []

    def backend(gm, _):
        return lambda *args: ran.append(1) or gm.forward(*args)

    run, recorder = compiled(program, backend)
    x = torch.ones(3)
    run(x, 2)
    with set_stance("force_eager"):
        assert torch.equal(run(x, 2), x * 2) and torch.equal(run(x, 5), x * 5)
    assert len(ran) == 1
    assert torch.equal(run(x, 2), x * 2)
    assert len(ran) == 2 and len(recorder.entries) == 1


def test_without_a_context_the_stance_stays():
    set_stance("force_eager")
    try:
        run, recorder = compiled(program)
        run(torch.ones(3), 2)
        assert recorder.entries == []
    finally:
        set_stance("default")
    run(torch.ones(3), 2)
    assert len(recorder.entries) == 1


def test_other_names_are_refused():
    with pytest.raises(ValueError, match="force_eager"):
        set_stance("eager")


def model_in_a_function(model, x):
    return model(x).sin()


def test_entries_that_are_kept_for_later_keep_no_model_alive():
    run, recorder = compiled(model_in_a_function)
    x = torch.ones(2, 3)
    model = torch.nn.Linear(3, 3)
    run(model, x)
    weight = weakref.ref(model.weight)
    with set_stance("force_eager"):
        del model
        recorder.graphs.clear()
        recorder.entries.clear()
        gc.collect()
        assert weight() is None
    assert treadle_frame.entries(model_in_a_function) == ()


def test_a_reset_also_drops_what_is_kept_for_later():
    recorder = Recorder()
    handler = compile_handler(run_graph, TracerOptions(), recorder)
    handler.add_root(program.__code__)
    treadle_frame.reset()
    run = treadle_frame.dispatcher(program, handler)
    run(torch.ones(3), 2)
    with set_stance("force_eager"):
        handler.reset()
        treadle_frame.reset()
    assert treadle_frame.entries(program) == ()
