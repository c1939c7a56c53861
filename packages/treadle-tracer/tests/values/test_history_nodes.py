"""`tensor.grad_fn`: whether there is a node, and its name, are known; the node itself breaks the graph."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def is_recorded(x, w):
    y = x * w
    return y + (1 if y.grad_fn is not None else 2), y.grad_fn is None, w.grad_fn is None, x.grad_fn is None


def without_gradients(x, w):
    with torch.no_grad():
        y = x * w
    z = y.detach() * 2
    return y + 1, y.grad_fn is None, z.grad_fn is None, bool((x * w).detach().grad_fn)


def truths(x, w):
    y = (x @ w).relu()
    return y * 2 if y.grad_fn else y, not y.grad_fn, not x.grad_fn


def names(x, w):
    y = (x @ w).relu().mean()
    return y * 2, y.grad_fn.name(), type(y.grad_fn).__name__, isinstance(y.grad_fn, torch.autograd.graph.Node)


def detached_in_place(x, w):
    y = x * w
    y.detach_()
    return y * 2, y.grad_fn is None


PROGRAMS = [is_recorded, without_gradients, truths, names, detached_in_place]


def arguments(kind):
    x, w = torch.ones(2, 2), torch.full((2, 2), 3.0)
    if kind == "leaves":
        return x, w.requires_grad_()
    return (x, (w.requires_grad_() * 2)) if kind == "results" else (x, w)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_one_graph_with_eagers_answers(program):
    run, recorder = compiled(program)
    for kind in ["leaves", "results", "plain", "leaves", "results"]:
        if program is names and kind == "plain":
            continue
        assert str(run(*arguments(kind))[1:]) == str(program(*arguments(kind))[1:])
    assert not recorder.breaks and not recorder.skips


def test_whether_an_input_has_a_node_is_guarded():
    def asked(w):
        return w * 2, w.grad_fn is None, bool(w.grad_fn)

    run, recorder = compiled(asked)
    leaf = torch.ones(2, requires_grad=True)
    for w in [leaf, leaf * 2, torch.ones(2), leaf]:
        assert run(w)[1:] == asked(w)[1:]
    assert not recorder.breaks


def test_the_node_itself_breaks_the_graph():
    def looked_into(x, w):
        y = x * w
        node = y.grad_fn
        return y * 2, len(node.next_functions)

    run, recorder = compiled(looked_into)
    assert run(*arguments("leaves"))[1] == 2
    assert recorder.breaks


def test_the_name_of_the_node_of_an_input():
    def named(w):
        return w * 2, w.grad_fn.name()

    run, _ = compiled(named)
    leaf = torch.ones(2, requires_grad=True)
    assert run(leaf * 2)[1] == "MulBackward0" and run(leaf + 2)[1] == "AddBackward0"


def test_a_node_that_is_kept():
    kept = []

    def keeps(x, w):
        y = x * w
        kept.append(y.grad_fn)
        return y * 2

    run, recorder = compiled(keeps)
    run(*arguments("leaves"))
    assert kept[0] is not None and recorder.breaks
