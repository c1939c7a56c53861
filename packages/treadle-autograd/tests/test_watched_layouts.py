"""Where the functional run says that it has eager's layouts, a run on plain fake tensors finds the same ones."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_random_programs import LAYOUTS, OUTPUTS, PROGRAM, build
from torch import fx

from treadle_autograd.errors import UnsupportedGraph
from treadle_autograd.expected_metadata import run_as_eager
from treadle_autograd.functional_trace import FunctionalTrace
from treadle_autograd.watched_layouts import WatchedLayouts
from treadle_shapes.torch import fake_like


def run_of(function, *inputs):
    """The functional run of a function without gradients, and its trace."""
    gm = function if isinstance(function, fx.GraphModule) else fx.symbolic_trace(function)
    with torch.no_grad():
        job = FunctionalTrace(gm, inputs, {})
        return job, job.run()


def why_not_as_eager(function, *inputs):
    job, run = run_of(function, *inputs)
    assert run.mutated
    with torch.no_grad(), job.mode:
        return job._why_not_as_eager(run)


def geometry(tensor):
    return tensor.shape, tensor.stride(), tensor.storage_offset()


def test_elementwise_writes_keep_layouts():
    assert why_not_as_eager(lambda x: (x.t().add_(1), x[1:].mul_(2)), torch.ones(3, 4)) is None
    assert why_not_as_eager(lambda x: x[:, ::2].copy_(x[:, 1::2]), torch.ones(3, 4)) is None


def test_writes_to_shared_elements_do_not():
    assert "share memory" in why_not_as_eager(lambda x: x.expand(2, 4).fill_(7), torch.ones(4))


def test_sizes_that_are_changed_in_place():
    assert "other sizes or strides" in why_not_as_eager(lambda x: (x.add_(1), (x + 1).t_()), torch.ones(3, 4)[:, :2])


def test_a_value_with_another_layout_is_seen_when_it_is_read():
    watched, x = WatchedLayouts(), torch.ones(3, 4)
    read = watched.before_call((x,), {})
    watched.after_call(read, None)
    assert watched.moved is None
    x.t_()
    watched.after_call(read, None)
    assert watched.moved == "a tensor has other sizes or strides than before"


def test_sparse_tensors_have_no_layout():
    watched = WatchedLayouts()
    watched.before_call(((torch.eye(2).to_sparse(),),), {})
    assert watched.moved is not None and "sparse" in watched.moved


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(PROGRAM, OUTPUTS, st.lists(st.integers(0, 3), min_size=1, max_size=2))
def test_random_programs_have_the_layouts_of_a_plain_run(program, outputs, layouts):
    inputs = [LAYOUTS[layout]() for layout in layouts]
    gm = build(program, outputs, layouts)
    if gm is None:
        return
    try:
        job, run = run_of(gm, *inputs)
    except UnsupportedGraph:
        return
    with torch.no_grad(), job.mode:
        if job._why_not_as_eager(run) is not None:
            return
        fresh = [fake_like(job.mode, fake) for fake in job.inputs.fakes]
        plain, _ = run_as_eager(gm, fresh, {}, run.layouts, job.mode)
        assert [geometry(t) for t in run.outputs] == [geometry(t) for t in plain]
