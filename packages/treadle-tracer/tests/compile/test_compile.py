"""The handler: limits, reasons, dynamic sizes, threads, errors of backends and of our own, torch's state."""

from __future__ import annotations

import contextlib
import threading
import warnings
from time import sleep

import pytest
import torch
from compile_runs import Recorder, compiled, item, run_graph

import treadle_frame
from treadle_tracer import (
    BackendError,
    InternalError,
    TracerOptions,
    Unsupported,
    compilation,
    compile_handler,
    optimize,
)
from treadle_tracer.marks import Mark, set_mark


def scaled(x, k):
    return x * k + 1


def breaking(x, k):
    y = x * k
    item(y.sum())
    return y + 1


# ---- recompiles


def test_recompiles_name_what_changed():
    fast, recorder = compiled(scaled)
    x = torch.ones(2)
    for k in (1, 2, 1, 2):
        assert torch.equal(fast(x, k), scaled(x, k))
    fast(x.double(), 1)
    reasons = [reason for _, reason in recorder.recompiles]
    assert len(reasons) == 2
    assert reasons[0] == "expected k == 1, found 2 (dynamic from now on)"
    assert reasons[1].startswith("x.dtype: expected torch.float32, found torch.float64 (the nearest of 2")
    assert len(recorder.graphs) == 3


def test_the_recompile_limit_ends_in_eager_with_a_warning():
    fast, recorder = compiled(scaled, recompile_limit=3, dynamic=False)
    x = torch.ones(2)
    with pytest.warns(RuntimeWarning, match=r"scaled .*limit of 3 recompiles is reached.*expected k == "):
        for k in (0.5, 1.5, 2.5, 3.5, 4.5, 5.5):
            assert torch.equal(fast(x, k), scaled(x, k))
    assert len(recorder.graphs) == 3
    assert [name for name, _ in recorder.skips] == ["scaled"]


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.weight


def test_instances_of_one_module_class_share_an_entry_from_the_second_on():
    layers = [Layer() for _ in range(6)]

    def opaque(x):
        for layer in layers:
            x = layer(x)
            item(x.sum())
        return x

    compiled(scaled)  # forgets everything
    treadle_frame.skip(opaque)
    recorder = Recorder()
    handler = compile_handler(run_graph, TracerOptions(raise_internal_errors=True, recompile_limit=2), recorder)
    treadle_frame.set_handler(handler)
    try:
        for _ in range(2):
            assert torch.equal(opaque(torch.ones(2)), torch.ones(2))
    finally:
        treadle_frame.set_handler(None)
    assert recorder.recompiles == []
    assert len(recorder.graphs) == len(treadle_frame.entries(Layer.forward)) == 2


def grows(x):
    return torch.relu(x) * x.shape[0] + x.reshape(-1).shape[0]


def test_a_second_size_makes_the_dimension_dynamic():
    fast, recorder = compiled(grows)
    for n in (3, 5, 7, 4, 9):
        x = torch.randn(n, 4)
        assert torch.equal(fast(x), grows(x))
    assert len(recorder.graphs) == 2
    placeholder = next(iter(recorder.graphs[1].graph.nodes))
    assert isinstance(placeholder.meta["example_value"].shape[0], torch.SymInt)
    for n in (1, 0):
        assert torch.equal(fast(torch.ones(n, 4)), grows(torch.ones(n, 4)))


def test_branches_on_dynamic_sizes_are_guarded():
    def chooses(x, y):
        return x + y if x.shape[0] > 4 else x - y

    fast, recorder = compiled(chooses)
    for n in (3, 5, 7, 4, 9, 2):
        x = torch.randn(n, 4)
        assert torch.equal(fast(x, x + 1), chooses(x, x + 1))
    assert len(recorder.graphs) == 3
    assert any("x.size()[0] >= 5" in text for entry in recorder.entries for text in entry.payload.guards)
    with pytest.raises(RuntimeError, match="size of tensor"):
        fast(torch.ones(5, 4), torch.ones(6, 4))


@pytest.mark.parametrize(("dynamic", "graphs"), [(False, 4), (True, 1)])
def test_the_dynamic_option(dynamic, graphs):
    fast, recorder = compiled(grows, dynamic=dynamic)
    for n in (3, 5, 7, 4):
        x = torch.randn(n, 4)
        assert torch.equal(fast(x), grows(x))
    assert len(recorder.graphs) == graphs


def test_marked_dimensions_are_dynamic_from_the_start():
    fast, recorder = compiled(grows)
    for n in (3, 5, 7):
        x = torch.randn(n, 4)
        set_mark(x, 0, Mark("dynamic"))
        assert torch.equal(fast(x), grows(x))
    assert len(recorder.graphs) == 1


# ---- errors


def test_a_backend_must_be_callable():
    with pytest.raises(TypeError, match="backend must be a callable"):
        compile_handler("codegen")
    with pytest.raises(TypeError, match="function must be a Python function"):
        optimize(torch.relu, run_graph)


def test_errors_of_a_backend_come_out():
    def refuses(gm, example_inputs):
        raise ValueError("no such chip")

    fast, _ = compiled(scaled, backend=refuses)
    with pytest.raises(BackendError, match="backend 'refuses' raised ValueError: no such chip") as error:
        fast(torch.ones(2), 1)
    assert isinstance(error.value.__cause__, ValueError)
    fast, _ = compiled(scaled, backend=lambda gm, example_inputs: "text")
    with pytest.raises(BackendError, match="must return a callable, it returned 'text'"):
        fast(torch.ones(2), 1)


def test_a_bug_is_a_warning_and_the_eager_result(monkeypatch):
    def broken(*args):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(compilation, "trace_frame", broken)
    fast, _ = compiled(scaled, raise_internal_errors=False)
    with pytest.warns(
        RuntimeWarning,
        match=r"a bug of treadle, internal error in pass 'compile' \(from .*test_compile.py:\d+\): scaled: ZeroDivisionError: oops",
    ):
        assert torch.equal(fast(torch.ones(2), 3), scaled(torch.ones(2), 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(torch.ones(2), 3)
    fast, _ = compiled(scaled)
    with pytest.raises(InternalError, match="scaled") as error:
        fast(torch.ones(2), 3)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_an_internal_error_keeps_its_cause(monkeypatch):
    def broken(*args):
        raise InternalError("lowering", "oops", "here.py:1") from ZeroDivisionError("why")

    monkeypatch.setattr(compilation, "trace_frame", broken)
    fast, _ = compiled(scaled)
    with pytest.raises(InternalError, match="oops") as error:
        fast(torch.ones(2), 3)
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_bug_before_a_recompile_is_a_warning_too(monkeypatch):
    fast, _ = compiled(scaled, raise_internal_errors=False, dynamic=False)
    fast(torch.ones(2), 3)
    monkeypatch.setattr("treadle_tracer.compile.recompile_reason", lambda *args: 1 // 0)
    with pytest.warns(RuntimeWarning, match="a bug of treadle.*ZeroDivisionError"):
        assert torch.equal(fast(torch.ones(3), 3), scaled(torch.ones(3), 3))


def test_fullgraph_raises_what_a_break_would_have_said():
    def function(x, k):
        y = x * k
        sleep(0)
        return y + 1

    fast, _ = compiled(function, fullgraph=True)
    with pytest.raises(Unsupported) as error:
        fast(torch.ones(2), 1)
    assert error.value.info.hints


# ---- what is left alone


def test_no_trace_under_foreign_modes():
    class Mode(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            Mode.seen += 1
            return func(*args, **(kwargs or {}))

    fast, recorder = compiled(scaled)
    with Mode():
        fast(torch.ones(2), 1)
    assert Mode.seen > 0
    assert recorder.graphs == []
    fast(torch.ones(2), 1)
    assert len(recorder.graphs) == 1


def test_tracing_leaves_torchs_state_alone():
    def noisy(gm, example_inputs):
        torch.rand(3)
        torch.set_grad_enabled(False)
        return gm.forward

    def dropped(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(4)

    fast, _ = compiled(dropped, backend=noisy)
    for _ in range(2):
        torch.manual_seed(3)
        want = dropped(torch.ones(4)), torch.rand(1)
        torch.manual_seed(3)
        assert torch.equal(fast(torch.ones(4)), want[0])
        assert torch.equal(torch.rand(1), want[1])
    assert torch.is_grad_enabled()


def test_grad_mode_is_put_back_when_a_graph_fails_half_way():
    def picks(x, i):
        with torch.no_grad():
            return torch.index_select(x, 0, i)

    fast, _ = compiled(picks)
    x = torch.ones(3)
    fast(x, torch.tensor([1]))
    with pytest.raises(IndexError):
        fast(x, torch.tensor([5]))
    assert torch.is_grad_enabled()


def test_threads_compile_one_at_a_time():
    active, overlaps = [], []

    def backend(gm, example_inputs):
        overlaps.append(len(active))
        active.append(1)
        threading.Event().wait(0.02)
        active.pop()
        return gm.forward

    fast, recorder = compiled(scaled, backend=backend)
    results = {}

    def work(k):
        for _ in range(3):
            results[k] = fast(torch.ones(2), k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {k: v.tolist() for k, v in results.items()} == {k: [k + 1.0] * 2 for k in range(4)}
    assert overlaps == [0] * len(overlaps)


def test_the_observer_hears_of_everything():
    phases = []

    class Listener(Recorder):
        @contextlib.contextmanager
        def phase(self, name):
            phases.append(name)
            yield

    listener = Listener()
    fast = optimize(breaking, run_graph, TracerOptions(raise_internal_errors=True), listener)
    treadle_frame.reset(breaking)
    fast(torch.ones(2), 2)
    assert {"trace", "backend", "codegen"} <= set(phases)
    assert len(listener.graphs) == len(listener.entries) == 2
    assert listener.codes() == ["disabled"]
    assert [entry.payload.reason is not None for entry in listener.entries] == [True, False]


def test_reset_forgets_sizes():
    handler = compile_handler(run_graph, TracerOptions(raise_internal_errors=True), recorder := Recorder())
    handler.add_root(grows.__code__)
    treadle_frame.reset()
    fast = treadle_frame.dispatcher(grows, handler)
    for n in (3, 5):
        fast(torch.ones(n, 4))
    treadle_frame.reset(grows)
    handler.reset()
    fast(torch.ones(6, 4))
    assert len(recorder.graphs) == 3
    assert next(iter(recorder.graphs[-1].graph.nodes)).meta["example_value"].shape == (6, 4)
