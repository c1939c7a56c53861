"""The backward graph in stages: what each computes, hands on, and never computes twice."""

from __future__ import annotations

import torch
from joint_graphs import joint_of, leaf
from torch import fx

from treadle_autograd.joint import trace_joint
from treadle_autograd.partition import classify, cut, group_gradients, min_cut, split
from treadle_autograd.partition.stages import MOST_STAGES, why_not_cut


def halves_of(function, *inputs):
    classes = classify(joint_of(function, *inputs))
    return split(classes, min_cut(classes))


def layers(x, *weights):
    for w in weights:
        x = torch.tanh(x @ w)
    return x


def test_gradients_come_in_the_order_in_which_they_are_ready():
    halves = halves_of(lambda x, u, v, w: layers(x, u, v, w), torch.randn(4, 4), leaf(4, 4), leaf(4, 4), leaf(4, 4))
    assert group_gradients(halves) == ((2,), (1,), (0,))


def test_stages_have_about_the_same_bytes():
    many = [leaf(4, 4) for _ in range(4 * MOST_STAGES)]
    gathered = "ws = [" + ", ".join(f"w{k}" for k in range(len(many))) + "]"
    names = ", ".join(f"w{k}" for k in range(len(many)))
    scope: dict = {"layers": layers}
    exec(f"def function(x, {names}):\n    {gathered}\n    return layers(x, *ws)", scope)
    groups = group_gradients(halves_of(scope["function"], torch.randn(4, 4), *many))
    assert [len(group) for group in groups] == [4] * MOST_STAGES


def test_no_product_is_computed_twice_and_gradients_that_are_not_wanted_not_at_all():
    halves = halves_of(lambda x, u, v, w: layers(x, u, v, w), torch.randn(4, 4), leaf(4, 4), leaf(4, 4), leaf(4, 4))
    groups = group_gradients(halves)

    def products(wanted):
        stages = cut(halves, groups, wanted)
        return [sum(n.target is torch.ops.aten.mm.default for n in s.graph.graph.nodes) for s in stages]

    assert products((0, 1, 2)) == [2, 2, 1]
    assert products((1,)) == [0, 2, 0]


def test_a_gradient_that_is_read_later_is_given_out_later():
    # The gradient of u is the tangent of sin, which the gradient of v is computed from.
    halves = halves_of(lambda u, v, w: torch.sin(torch.tanh(v * w) + u.exp() * 0 + u), leaf(4), leaf(4), leaf(4))
    groups = group_gradients(halves)
    stages = cut(halves, groups, range(3))
    for number, stage in enumerate(stages):
        given = {node for _, node in stage.gradients}
        assert not any(given.intersection(later.inputs) for later in stages[number + 1 :])


def test_no_stage_reads_a_primal_whose_gradient_has_been_given_out():
    def program(
        x, u, v, w
    ):  # the gradients of `w` are ready before those of `u` and `v`, whose formulas read it in several ways
        return (torch.nn.functional.layer_norm(x @ u.exp() @ v, (4,), w[0], w[1]) * w[2].exp()).split(2)

    halves = halves_of(program, torch.randn(4, 4), *[leaf(4, 4) for _ in range(3)])
    joint = halves.classes.joint
    primals = joint.graph.find_nodes(op="placeholder")
    stages = cut(halves, group_gradients(halves), range(3))
    assert len([stage for stage in stages if stage.gradients]) > 1
    released: set[fx.Node] = set()
    for stage in stages:
        assert released.isdisjoint(stage.inputs)
        released |= {primals[joint.gradients[k]] for k, _ in stage.gradients}


def test_what_may_raise_and_gradients_need_is_cut():
    index = torch.tensor([2, 0, 1])

    def program(x, u, v, index):
        return torch.tanh(torch.zeros(3, 4).index_add(0, index, x @ u)) @ v

    halves = halves_of(program, torch.randn(3, 4), leaf(4, 4), leaf(4, 4), index)
    assert [len(group) for group in group_gradients(halves)] == [1, 1]
    stages = cut(halves, group_gradients(halves), range(2))
    targets = [[n.target for n in stage.graph.graph.nodes] for stage in stages]
    raising = torch.ops.aten.index_select.default
    assert sum(found.count(raising) for found in targets) == 1


def test_effects_in_backward_keep_the_graph_whole():
    class Loud(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * torch.rand_like(gradient)

    graph = fx.Graph()
    x, w = map(graph.placeholder, "xw")
    product = graph.call_function(torch.matmul, (x, w))
    graph.output((graph.call_function(lambda x: Loud.apply(x), (product,)),))
    joint = trace_joint(fx.GraphModule(torch.nn.Module(), graph), [leaf(4, 4), leaf(4, 4)], {})
    assert joint is not None
    classes = classify(joint)
    halves = split(classes, min_cut(classes))
    assert why_not_cut(halves) is not None
    assert len(group_gradients(halves)) == 1
