"""In-place operators become functional ones, and the run tells what was changed."""

from __future__ import annotations

import torch
from torch import fx
from torch.nn import functional as F

from treadle_autograd.functionalise import functionalisation, run_functional, unwrap, wrap
from treadle_autograd.recorder import AtenRecorder, RecordedGraph
from treadle_shapes.torch import fake_like, fake_mode


def run(function, *inputs):
    """(the functional run, the recorder, the functional inputs) of a function."""
    mode = fake_mode()
    recorder = AtenRecorder(RecordedGraph(), mode, {})
    wrappers = []
    for index, real in enumerate(inputs):
        fake = fake_like(mode, real)
        recorder.bind(fake, recorder.recorded.add_call_input(f"x{index}", index, fake))
        with mode:
            wrappers.append(wrap(fake))
    gm = fx.symbolic_trace(function)
    with torch.no_grad(), mode, recorder, functionalisation():
        return run_functional(gm, wrappers, {}, recorder), recorder, wrappers


def targets(recorder):
    return [str(n.target) for n in recorder.recorded.graph.nodes if n.op == "call_function"]


def test_a_write_through_a_view_reaches_the_base():
    def f(x):
        y = x.view(2, 6)
        y.add_(1)
        return x * 2

    result, recorder, (x,) = run(f, torch.ones(3, 4))
    with recorder:
        assert recorder.node_of(unwrap(x)).target is torch.ops.aten.view.default
    assert targets(recorder)[:2] == ["aten.view.default", "aten.add.Tensor"]
    assert result.mutated and len(result.outputs) == 1


def test_pure_programs_change_nothing():
    result, _, _ = run(lambda x: (x + 1, x.t()), torch.ones(3, 4))
    assert not result.mutated
    assert [layout for layout in result.layouts.values()] == [((3, 4), (4, 1)), ((4, 3), (1, 4))]


def test_running_statistics_are_changes():
    def f(x, mean, var):
        return F.batch_norm(x, mean, var, training=True)

    result, recorder, (_, mean, _) = run(f, torch.ones(2, 3, 4), torch.zeros(3), torch.ones(3))
    assert result.mutated and "aten._native_batch_norm_legit_functional.default" in targets(recorder)
    assert recorder.stat_updates == []
    node = recorder.node_of(unwrap(mean))
    assert node.args[1] == 3  # the third result: the new running mean
