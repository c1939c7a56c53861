"""What happens to calls that no entry serves, by stance."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled

from treadle_tracer import RecompileRefused, set_stance


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
