"""The smallest cut against brute force, and what must never be saved or recomputed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import joint_of, leaf
from torch import fx

from treadle_autograd.ancestors import ancestors
from treadle_autograd.joint import JointTrace, trace_joint
from treadle_autograd.node_sizes import is_number
from treadle_autograd.partition import classify, min_cut, save_everything, split
from treadle_autograd.partition.classify import Classes, is_view, why_not_recompute
from treadle_autograd.partition.mincut import capacity, saved_by_eager, why_not_save


def names(nodes: Sequence[fx.Node]) -> set[str]:
    return {str(node.target) if node.op == "call_function" else node.name for node in nodes}


def test_pointwise_chains_are_recomputed_from_the_product() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(torch.sigmoid(torch.exp(x @ w)) * 2).sum()

    classes = classify(joint_of(f, torch.randn(8, 8), leaf(8, 8)))
    assert names(min_cut(classes)) == {"aten.mm.default", "x"}
    assert names(save_everything(classes)) == {
        "aten.exp.default",
        "aten.sigmoid.default",
        "aten.tanh.default",
        "x",
    }


def test_masks_are_saved_because_drawing_them_again_takes_longer() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(torch.exp(x), 0.5, True).sum()

    for size in (8, 100):
        saved = min_cut(classify(joint_of(f, leaf(size, size))))
        assert "aten.ne.Scalar" in names(saved)  # the mask as bytes, not as floats


def test_views_are_taken_again_and_not_saved_beside_their_base() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x @ w
        return (h.t() @ h).sum() + (h.view(-1) ** 3).sum()

    saved = min_cut(classify(joint_of(f, torch.randn(4, 6), leaf(6, 5))))
    assert not any(map(is_view, saved))
    assert names(saved) == {"aten.mm.default", "x"}


def test_what_the_program_may_change_is_saved_only_where_eager_saves_it() -> None:
    """`h` is an output and eager saves `exp(h)`, which is cheap to compute from it; but `h` may be changed in place."""

    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = x @ w
        return h, torch.exp(h).sum() + torch.sigmoid(torch.exp(h)).sum()

    classes = classify(joint_of(f, torch.randn(4, 6), leaf(6, 5)))
    assert "aten.mm.default" not in names(min_cut(classes))


def test_what_formulas_of_backward_read_is_saved_by_eager() -> None:
    """The derivative of `x ** 3` computes `3 * x ** 2` from `x` before it meets a tangent; eager saves `x` for it, not the result."""
    classes = classify(joint_of(lambda x: (x**3).sum(), leaf(4, 6)))
    assert names(min_cut(classes)) == {"x"}


def test_halves_compute_what_the_joint_graph_computes() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = torch.nn.functional.layer_norm(torch.nn.functional.gelu(x @ w), (5,), g)
        return h.t(), h.sum()

    inputs = [torch.randn(4, 6), leaf(6, 5), leaf(5)]
    joint = joint_of(f, *inputs)
    whole = fx.GraphModule(torch.nn.Module(), joint.graph)
    values = [x.detach() for x in inputs]
    tangents = [torch.randn_like(torch.empty(node.meta["val"].shape)) for node in _outputs(joint)]
    expected = whole(*values, *tangents)
    for partition in (min_cut, save_everything):
        classes = classify(joint)
        halves = split(classes, partition(classes))
        results = halves.forward(*values)
        given = iter(results[joint.n_outputs :])
        saved = [next(given) if place is None else values[place] for place in halves.primals]
        gradients = halves.backward(range(len(joint.gradients)))(*saved, *given, *tangents)
        found = [*results[: joint.n_outputs], *gradients]
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def _outputs(joint: JointTrace) -> list[fx.Node]:
    results: Any = joint.graph.output_node().args[0]
    return [results[k] for k in joint.tangents]


# ---- brute force

UNARY = [torch.exp, torch.tanh, torch.sigmoid, torch.sin, lambda a: a.t(), lambda a: a * 2, lambda a: a @ a.t()]
BINARY = [torch.mul, torch.add, torch.matmul]
STEPS = st.lists(
    st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 9), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)


def program(steps: Any) -> Callable[..., torch.Tensor]:
    def run(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        values = [x, w]
        for which, i, j in steps:
            a, b = values[i % len(values)], values[j % len(values)]
            values.append(UNARY[which](a) if which < len(UNARY) else BINARY[which - len(UNARY)](a, b))
        return values[-1].sum()

    return run


def is_enough(classes: Classes, saved: frozenset[fx.Node]) -> bool:
    """Whether backward can be computed from `saved` without anything that must not be computed again."""
    below = ancestors(classes.needed, saved)
    return all(node in saved or why_not_recompute(node) is None for node in below)


def cost(classes: Classes, saved: Sequence[fx.Node]) -> int:
    return sum(capacity(node, classes, 1) for node in saved)


@settings(max_examples=80, deadline=None)
@given(STEPS)
def test_the_cut_is_the_smallest(steps: Any) -> None:
    joint = trace_joint(fx.symbolic_trace(program(steps)), [leaf(3, 3), leaf(3, 3)], {})
    if joint is None:
        return
    classes = classify(joint)
    by_eager = saved_by_eager(classes)
    candidates = [
        node
        for node in classes.order
        if node in ancestors(classes.needed) and not is_number(node) and why_not_save(node, classes, by_eager) is None
    ]
    if len(candidates) > 12:
        return
    found = min_cut(classes)
    assert is_enough(classes, frozenset(found))
    subsets = itertools.chain.from_iterable(itertools.combinations(candidates, n) for n in range(len(candidates) + 1))
    best = min(cost(classes, subset) for subset in subsets if is_enough(classes, frozenset(subset)))
    assert cost(classes, found) <= best


@pytest.mark.parametrize("partition", [min_cut, save_everything])
def test_the_partition_is_deterministic(partition: Any) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ w).exp().sum()

    inputs = [torch.randn(4, 4), leaf(4, 4)]
    runs = [[node.name for node in partition(classify(joint_of(f, *inputs)))] for _ in range(3)]
    assert runs[0] == runs[1] == runs[2]
