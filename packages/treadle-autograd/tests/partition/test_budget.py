"""Memory budgets: the knapsack against brute force, bytes against the budget, values against the unlimited partition."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from joint_graphs import joint_of, leaf
from torch import fx

from treadle_autograd import with_budget
from treadle_autograd.node_sizes import size_in_bytes
from treadle_autograd.partition import budget, classify, min_cut, report, split
from treadle_autograd.partition.budget import knapsack
from treadle_autograd.partition.cost import recompute_cost

BUDGETS = (1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.0)
ITEMS = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=9)


@settings(max_examples=300, deadline=None)
@given(ITEMS, st.integers(0, 60))
def test_the_knapsack_is_the_best_and_the_lightest(items: list[tuple[int, int]], capacity: int) -> None:
    weights, values = [w for w, _ in items], [float(v) for _, v in items]
    found = knapsack(weights, values, capacity)

    def rank(chosen: Any) -> tuple[float, int]:
        return sum(values[k] for k in chosen), -sum(weights[k] for k in chosen)

    everything = itertools.chain.from_iterable(
        itertools.combinations(range(len(items)), n) for n in range(len(items) + 1)
    )
    assert rank(found) == max(rank(c) for c in everything if sum(weights[k] for k in c) <= capacity)


def test_a_long_list_of_selections_is_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(1, 1000, (60,), generator=generator).tolist()
    values = torch.rand(60, generator=generator).tolist()
    exact = knapsack(weights, values, 9000)
    monkeypatch.setattr(budget, "_LONGEST", 200)
    thinned = knapsack(weights, values, 9000)
    assert sum(weights[k] for k in thinned) <= 9000
    assert sum(values[k] for k in thinned) >= 0.97 * sum(values[k] for k in exact)


def layers(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    for w in (a, b, c, d):
        x = x + torch.tanh(torch.nn.functional.layer_norm(x, (16,)) @ w)
        x = torch.nn.functional.dropout(x, 0.1, True)
    return x.square().sum()


def inputs() -> list[torch.Tensor]:
    return [torch.randn(32, 16), *[leaf(16, 16) for _ in range(4)]]


def saved_bytes(nodes: Any) -> int:
    return sum(size_in_bytes(node) for node in nodes if node.op != "placeholder")


def test_less_is_saved_and_the_budget_is_kept() -> None:
    classes = classify(joint_of(layers, *inputs()))
    whole = saved_bytes(min_cut(classes))
    found = [saved_bytes(with_budget(b)(classes)) for b in BUDGETS]
    assert found[0] == whole and found == sorted(found, reverse=True) and found[-1] < found[0] / 4
    masks = 4 * 32 * 16
    assert all(n <= max(b * whole, masks) for b, n in zip(BUDGETS, found, strict=True))
    assert found[-1] == masks  # random numbers are not drawn again


@pytest.mark.parametrize("memory_budget", BUDGETS)
def test_values_do_not_depend_on_the_budget(memory_budget: float) -> None:
    given = inputs()
    joint = joint_of(layers, *given)
    classes = classify(joint)
    halves = split(classes, with_budget(memory_budget)(classes))
    values = [x.detach() for x in given]
    torch.manual_seed(0)
    expected = fx.GraphModule(torch.nn.Module(), joint.graph)(*values, torch.ones(()))
    torch.manual_seed(0)
    results = halves.forward(*values)
    rest = iter(results[joint.n_outputs :])
    saved = [next(rest) if place is None else values[place] for place in halves.primals]
    gradients = halves.backward(range(len(joint.gradients)))(*saved, *rest, torch.ones(()))
    found = [*results[: joint.n_outputs], *gradients]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_is_computed_again_stands_in_front_of_its_reader() -> None:
    """Else all of it would be alive when backward begins."""
    classes = classify(joint_of(layers, *inputs()))
    halves = split(classes, with_budget(0.5)(classes))
    nodes = list(halves.backward(range(len(classes.joint.gradients))).graph.nodes)
    place = {node: k for k, node in enumerate(nodes)}
    forward = {node.name for node in classes.order}
    last = max(k for node, k in place.items() if node.name in forward and node.op == "call_function")
    first = min(k for node, k in place.items() if node.name not in forward and node.op == "call_function")
    assert first < last


def test_costs_of_products_and_of_elements() -> None:
    def f(x: torch.Tensor, w: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        image = torch.nn.functional.conv2d((x @ w).view(1, 2, 8, 8), k)
        heads = torch.exp(image).view(1, 3, 6, 6)
        return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads).sum()

    joint = joint_of(f, torch.randn(8, 4), leaf(4, 16), leaf(3, 2, 3, 3))
    costs = {str(n.target): recompute_cost(n) for n in joint.graph.nodes if n.op == "call_function"}
    assert costs["aten.mm.default"] == pytest.approx(2 * 8 * 4 * 16 / 50)
    assert costs["aten.convolution.default"] == pytest.approx(2 * 3 * 36 * 18 / 50)
    assert costs["aten.view.default"] == 0 and costs["aten.exp.default"] > 0


def test_bad_budgets() -> None:
    for bad in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="memory_budget"):
            with_budget(bad)


def test_the_report_names_what_is_saved_and_why_the_rest_is_not() -> None:
    classes = classify(joint_of(layers, *inputs()))
    whole, half = (report(split(classes, with_budget(b)(classes))) for b in (1.0, 0.5))
    assert half.saved_bytes < whole.saved_bytes == saved_bytes(min_cut(classes))
    assert any("memory budget" in value.why for value in half.recomputed)
    assert not any("memory budget" in value.why for value in whole.recomputed)
    assert {value.operator for value in whole.saved} >= {"aten.mm.default", "aten.ne.Scalar", "input"}
    assert all(value.bytes == 0 for value in whole.saved if value.operator == "input")
    assert str(whole) == str(report(split(classes, min_cut(classes))))
    assert "float32[32, 16]" in str(whole) and "aten.tanh.default" in str(whole)
