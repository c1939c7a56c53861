"""Numbers that the backward graph needs in order to know the sizes of its tensors."""

from __future__ import annotations

import torch
from joint_graphs import joint_of, leaf
from torch import fx

from treadle_autograd.partition import classify, min_cut, split
from treadle_autograd.partition.split import _untold
from treadle_shapes import ShapeEnv
from treadle_shapes.torch import fake_mode, fake_shape_env, sym_int


def graph_of(*values):
    """Nodes with these values."""
    graph = fx.Graph()
    nodes = [graph.placeholder(f"p{position}") for position in range(len(values))]
    for node, value in zip(nodes, values, strict=True):
        node.meta["val"] = value
    return nodes


def numbers(count):
    env = ShapeEnv()
    mode = fake_mode(shape_env=fake_shape_env(env, allow_scalar_outputs=True, allow_dynamic_output_shape_ops=True))
    return mode, [sym_int(env, env.create_unbacked(f"n{position}", lower=2)) for position in range(count)]


def test_numbers_in_a_size_that_no_tensor_tells():
    mode, (n, m) = numbers(2)
    with mode:
        *leaves, saved, told = graph_of(n, m, torch.empty(n * m + 1, 4), torch.empty(n, 4))
    assert set(_untold([], [saved], leaves)) == set(leaves)
    assert set(_untold([], [saved, told], leaves)) == {leaves[1]}
    assert set(_untold([leaves[1]], [saved, told], leaves)) == set()


def test_a_size_that_a_tensor_has_needs_no_number():
    mode, (n, m) = numbers(2)
    with mode:
        *leaves, saved, computed = graph_of(n, m, torch.empty(n, m), torch.empty(2 * n, m))
    assert list(_untold([computed], [saved], leaves)) == []


def test_low_precision_that_backward_computes_again_or_reads_is_rounded_in_both_graphs():
    def f(x, w, y):
        scaled = (x @ w) * 3
        return (torch.tanh(scaled.sigmoid().float() + y) * (x + 1)).sum()

    x = torch.randn(8, 8, dtype=torch.bfloat16)
    classes = classify(joint_of(f, x, leaf(8, 8).detach().bfloat16().requires_grad_(), leaf(8, 8)))
    halves = split(classes, min_cut(classes))
    rounded = [
        {str(node.target) for node in gm.graph.nodes if node.meta.get("rounded")}
        for gm in (halves.forward, halves.backward(range(2)))
    ]
    assert "aten.mul.Tensor" in rounded[0] & rounded[1] and "aten.mm.default" in rounded[0]
    assert all(
        node.meta["val"].dtype == torch.bfloat16 for node in halves.forward.graph.nodes if node.meta.get("rounded")
    )


def test_nothing_is_rounded_in_float32():
    classes = classify(joint_of(lambda x: torch.tanh(x.sigmoid() * 3).sum(), leaf(8, 8)))
    halves = split(classes, min_cut(classes))
    assert not any(node.meta.get("rounded") for node in halves.forward.graph.nodes)
