"""The boundary to a backend: its errors, and the hook while its result runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from compile_runs import compiled
from torch import fx

import treadle_frame
import treadle_tracer
from treadle_tracer import BackendError, InternalError, TracerOptions
from treadle_tracer.backend_call import call_backend, outside_the_hook, runs_only_treadle
from treadle_tracer.output.deferred_asserts import raising_typed

GRAPH = fx.symbolic_trace(lambda x: x + 1)


def test_errors_name_the_backend():
    def broken(gm, inputs):
        raise ValueError("why")

    with pytest.raises(BackendError, match="backend 'broken' raised ValueError: why"):
        call_backend(broken, GRAPH, [])
    with pytest.raises(BackendError, match="must return a callable, it returned 3"):
        call_backend(lambda gm, inputs: 3, GRAPH, [])


def test_internal_errors_pass():
    def bug(gm, inputs):
        raise InternalError("lower", "why")

    with pytest.raises(InternalError, match="in pass 'lower': why"):
        call_backend(bug, GRAPH, [])


def test_the_hook_is_off_while_a_compiled_graph_runs():
    def run(x):
        assert treadle_frame.get_handler() is None
        return x + 1

    before = treadle_frame.set_handler(treadle_frame.RUN_CACHED)
    try:
        compiled = call_backend(lambda gm, inputs: run, GRAPH, [])
        assert compiled(torch.ones(1)) == 2 and treadle_frame.get_handler() is treadle_frame.RUN_CACHED
        with pytest.raises(TypeError):
            outside_the_hook(run)()
        assert treadle_frame.get_handler() is treadle_frame.RUN_CACHED
    finally:
        treadle_frame.set_handler(before)


def test_treadles_own_code_needs_no_switch():
    assert runs_only_treadle(raising_typed(len, ()))
    assert not runs_only_treadle(GRAPH.forward) and not runs_only_treadle(len)


def test_the_body_of_a_custom_operator_is_not_traced():
    @torch.library.custom_op("treadle_tests::plus_one_in_python", mutates_args=())
    def plus_one(x: torch.Tensor) -> torch.Tensor:
        assert treadle_frame.get_handler() is None
        return x + 1

    plus_one.register_fake(torch.empty_like)
    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return raising_typed(gm.forward, ())  # of Treadle, so that nothing else turns the hook off

    for operator in (plus_one, torch.ops.treadle_tests.plus_one_in_python):
        compiled = treadle_tracer.optimize(lambda x, operator=operator: operator(x * 2), backend)
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 3.0))
    assert len(graphs) == 2


def test_a_backend_whose_fake_tensors_have_no_numbers_gets_graphs_without_them():
    from torch._subclasses.fake_tensor import FakeTensorMode

    graphs = []

    def backend(gm, inputs):
        with FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fx.Interpreter(gm).run(*[mode.from_tensor(given) for given in inputs])
        graphs.append(gm)
        return gm.forward

    def program(x):
        if not (x > 0).all():
            raise ValueError("x")
        return x + 1

    compiled = treadle_tracer.optimize(program, backend)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with pytest.raises(ValueError, match="^x$"):
        compiled(-torch.ones(2))
    assert len(graphs) == 2  # the check, and what comes behind it
    needs_one_graph = treadle_tracer.optimize(lambda x: x * x.sum().item(), backend, TracerOptions(fullgraph=True))
    with pytest.raises(BackendError, match="DataDependentOutputException"):
        needs_one_graph(torch.ones(2))


class _WritesLast:
    """Compiles what writes nothing before it has run as a whole: writes of a failing run are taken back. Or leaves graphs as they are."""

    raises_before_writing = True

    def __init__(self, keeps_promise: bool) -> None:
        self.keeps_promise = keeps_promise
        self.calls = 0

    def __call__(self, gm: torch.fx.GraphModule, inputs: Any) -> Any:
        def run(*args: Any) -> Any:
            self.calls += 1
            copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
            results = gm(*copies)
            for arg, copy in zip(args, copies, strict=True):
                if isinstance(arg, torch.Tensor):
                    arg.copy_(copy)
            return results

        if not self.keeps_promise:
            return gm.forward
        run.raises_before_writing = True  # type: ignore[attr-defined]
        return run


@pytest.mark.parametrize("keeps_promise", [True, False])
def test_a_graph_may_write_and_check_where_the_backend_raises_before_it_writes(keeps_promise: bool) -> None:
    def f(state, x):
        state.add_(1)
        if (x < 0).any():
            raise ValueError("negative")
        return state * x

    backend = _WritesLast(keeps_promise)
    fast, seen = compiled(f, backend)
    state, expected = torch.zeros(2), torch.zeros(2)
    for x in (torch.ones(2), -torch.ones(2), torch.ones(2)):
        for run, memory in ((fast, state), (f, expected)):
            try:
                result = run(memory, x)
            except ValueError as error:
                result = str(error)
            if run is fast:
                found = result
        assert torch.equal(found, result) if isinstance(result, torch.Tensor) else found == result
        assert torch.equal(state, expected)
    assert seen.codes() == ([] if keeps_promise else ["branch-on-tensor"])
    assert bool(backend.calls) is keeps_promise
