"""A plain run finds eager's strides, and refuses programs that differ from their functional form."""

from __future__ import annotations

import pytest
import torch
from aten_runner import compile_traced
from torch import fx

from treadle_autograd import UnsupportedGraph
from treadle_autograd.errors import Refusal
from treadle_autograd.expected_metadata import run_as_eager
from treadle_autograd.layouts import same_layout
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_like, fake_mode, fake_shape_env, fake_tensor


def traced(function, *inputs):
    mode = fake_mode()
    gm = fx.symbolic_trace(function)
    return gm, [fake_like(mode, x) for x in inputs], mode


def test_layouts_agree_where_strides_matter():
    assert same_layout(((2, 1, 3), (3, 9, 1)), ((2, 1, 3), (3, 3, 1)))
    assert not same_layout(((2, 3), (3, 1)), ((2, 3), (1, 2)))
    assert not same_layout(((2, 3), (3, 1)), ((3, 2), (3, 1)))


def test_outputs_are_as_in_eager():
    gm, fakes, mode = traced(lambda x: (x.add_(1).t(), x), torch.ones(3, 4))
    add, t = [n for n in gm.graph.nodes if n.op == "call_method"]
    layouts = {add: ((3, 4), (4, 1)), t: ((4, 3), (1, 4))}
    (view, same), _ = run_as_eager(gm, fakes, {}, layouts, mode)
    assert view.stride() == (1, 4) and view._base is fakes[0] and same is fakes[0]


def test_other_strides_than_in_the_functional_run_are_refused():
    gm, fakes, mode = traced(lambda x: x.add_(1), torch.ones(3, 4))
    (add,) = [n for n in gm.graph.nodes if n.op == "call_method"]
    with pytest.raises(UnsupportedGraph, match="keeps strides that its functional form does not"):
        run_as_eager(gm, fakes, {}, {add: ((3, 4), (1, 3))}, mode)


def test_writes_to_shared_elements_are_refused():
    compiled = compile_traced(lambda x: (x.unsqueeze(0).expand(2, 4).fill_(7), x), [torch.ones(4)])
    assert compiled.why_eager == "a tensor whose elements share memory is written to"


@pytest.mark.parametrize("symbolic", [False, True])
def test_kernels_that_take_no_symbolic_sizes_run_in_python(monkeypatch, symbolic):
    """Where the composite kernels of C++ refuse a call, those of Python's dispatcher run, if sizes are symbolic."""
    gm = fx.symbolic_trace(lambda x: x.add_(1))
    (add,) = [n for n in gm.graph.nodes if n.op == "call_method"]
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env)) if symbolic else fake_mode()
    x = fake_tensor(mode, torch.ones(3), [env.create_symbol(3, "n")]) if symbolic else fake_like(mode, torch.ones(3))
    tried = []

    def call_node(node, args, kwargs, mode):
        tried.append(torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher))
        if len(tried) == 1:
            raise Refusal("no symbolic sizes")
        return args[0]

    monkeypatch.setattr("treadle_autograd.expected_metadata.call_node", call_node)
    arguments = (gm, [x], {}, {add: (tuple(x.size()), tuple(x.stride()))}, mode)
    if symbolic:
        assert run_as_eager(*arguments) == ([x], [None]) and tried == [False, True]
    else:
        with pytest.raises(Refusal):
            run_as_eager(*arguments)
