"""Graphs that enter inference mode: their pieces, what runs between them, and what is kept alive."""

from __future__ import annotations

import operator
import weakref

import torch
from torch import fx

from treadle_autograd import aot, run_in_pieces, switches_inference_mode
from treadle_autograd.pieces import Piece, split
from treadle_shapes.torch import enter_inference_mode, leave_inference_mode


def graph_with_switches() -> fx.GraphModule:
    """x -> (x + 1).topk(2); in inference mode, values * 2; outside, indices + 1 and that."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    top = graph.call_function(torch.topk, (graph.call_function(torch.add, (x, 1)), 2))
    graph.call_function(enter_inference_mode, (True,))
    values = graph.call_function(operator.getitem, (top, 0))
    doubled = graph.call_function(torch.mul, (values, 2))
    graph.call_function(leave_inference_mode)
    indices = graph.call_function(operator.getitem, (top, 1))
    graph.output((doubled, graph.call_function(torch.add, (indices, 1)), x))
    return fx.GraphModule(torch.nn.Module(), graph)


def run_as_it_is(piece, inputs):
    return piece.forward


def test_pieces_and_switches_in_order():
    steps = split(graph_with_switches())
    kinds = ["piece" if isinstance(step, Piece) else step.target.__name__ for step in steps]
    assert kinds == ["piece", "enter_inference_mode", "piece", "leave_inference_mode", "piece"]
    first = steps[0]
    assert isinstance(first, Piece)
    assert [node.name for node in first.inputs] == ["x"] and len(first.outputs) == 2  # both items of the pair


def test_what_runs_in_the_mode_gives_inference_tensors():
    gm = graph_with_switches()
    assert switches_inference_mode(gm)
    x = torch.arange(5.0)
    for _ in range(2):
        doubled, indices, same = run_in_pieces(gm, run_as_it_is)(x)
        assert doubled.is_inference() and not indices.is_inference() and same is x
        assert doubled.tolist() == [10.0, 8.0] and indices.tolist() == [5, 4]
    assert not torch.is_inference_mode_enabled()


def test_a_piece_is_compiled_once_in_its_mode():
    modes = []

    def compile_piece(piece, inputs):
        modes.append(torch.is_inference_mode_enabled())
        return piece.forward

    run = run_in_pieces(graph_with_switches(), compile_piece)
    run(torch.ones(3))
    run(torch.ones(3))
    assert modes == [False, True, False]


def test_values_are_freed_when_nothing_needs_them():
    seen = []

    def compile_piece(piece, inputs):
        def run(*args):
            found = piece.forward(*args)
            seen.append([weakref.ref(x) for x in found])
            return found

        return run

    kept = run_in_pieces(graph_with_switches(), compile_piece)(torch.ones(3))
    assert [ref() is not None for ref in seen[0]] == [False, False] and kept[0] is seen[1][0]()


def test_aot_leaves_such_a_graph_to_eager():
    compiled = aot(graph_with_switches(), [torch.ones(3)], forward=run_as_it_is)
    assert compiled.why_eager == "it enters inference mode"
