"""Repeated parts of sequences and graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from joint_graphs import leaf, with_examples
from torch import fx

from treadle_autograd.repeats import Cuts, Stretch, cover, find_regions, why_not_shared


def anywhere(n: int) -> Cuts:
    """Cuts of a sequence that can be cut everywhere at the same cost."""
    return Cuts([1] * (n + 1), {})


LETTERS = st.lists(st.sampled_from("abcde"), max_size=6)


@given(LETTERS, st.lists(st.sampled_from("abcde"), min_size=2, max_size=6), st.integers(2, 6), LETTERS)
def test_the_parts_of_a_stretch_are_equal_and_planted_repeats_are_found(
    before: list[str], part: list[str], count: int, after: list[str]
) -> None:
    sequence = [*before, "mark", *(count * [*part, "once"]), *after]
    found = cover(sequence, anywhere(len(sequence)), 1)
    covered: list[int] = []
    for stretch in found:
        assert stretch.count >= 2
        first = sequence[stretch.start : stretch.start + stretch.period]
        for k in range(stretch.count):
            assert sequence[stretch.start + k * stretch.period :][: stretch.period] == first
        covered += range(stretch.start, stretch.end)
    assert len(set(covered)) == len(covered)
    assert max(stretch.saved for stretch in found) >= (count - 1) * (len(part) + 1)


def test_parts_begin_where_the_fewest_values_cross() -> None:
    crossing = [3, 3, 1, 3, 3, 1, 3, 3, 1, 3]
    assert cover("abcabcabc", Cuts(crossing, {}), 1) == [Stretch(2, 3, 2)]


def test_more_parts_are_better_where_as_many_values_cross() -> None:
    assert cover("abcabcabca", anywhere(10), 1) == [Stretch(0, 3, 3)]


def test_a_confined_value_stays_in_its_part() -> None:
    confined = {0: 3, 3: 6, 6: 9}  # the value of each `a` is used by the next one
    assert cover("abcabcabca", Cuts([1] * 11, confined), 1) == []
    assert cover("abcabcabca", Cuts([1] * 11, {2: 3, 5: 6, 8: 9}), 1) == [Stretch(1, 3, 3)]


def test_few_parts_are_left_out() -> None:
    assert cover("ababab", anywhere(6), 1, 4) == []
    assert cover("ababab", Cuts([1, 0, 1, 0, 1, 0, 1], {}), 1, 3) == [Stretch(0, 2, 3)]


def test_what_saves_too_little_is_left_out() -> None:
    assert cover("abab", anywhere(4), 3) == []
    assert cover("abab", anywhere(4), 2) == [Stretch(0, 2, 2)]


def test_items_without_a_signature_are_in_no_part() -> None:
    assert cover([None, None, None, None], anywhere(4), 1) == []


def mlp(n_layers: int) -> Any:
    def run(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = torch.tanh(x @ weight).relu() + x
        return x.sum()

    graph = fx.Graph()
    nodes = [graph.placeholder(f"x{k}") for k in range(n_layers + 1)]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    result = run(*[fx.Proxy(node, tracer) for node in nodes])  # type: ignore[arg-type]
    graph.output((result.node,))  # type: ignore[attr-defined]
    return fx.GraphModule(torch.nn.Module(), graph)


def test_layers_of_a_model_are_regions_of_one_structure() -> None:
    gm = with_examples(mlp(5), [leaf(4, 4) for _ in range(6)])
    regions = find_regions(gm.graph)
    assert len(regions) == 5
    assert len({region.structure for region in regions}) == 1
    assert [len(region.nodes) for region in regions] == 5 * [4]
    assert all(len(region.arguments) == 2 and region.results == (3,) for region in regions)
    assert regions[1].arguments[0] is regions[0].nodes[3]


def test_a_layer_whose_weight_has_another_shape_is_no_region() -> None:
    shapes = [(4, 4), (4, 4), (4, 6), (6, 6), (6, 6), (6, 6)]
    graph = fx.Graph()
    x, *weights = [graph.placeholder(f"x{k}") for k in range(7)]
    for weight in weights:
        for call in (
            lambda: graph.call_function(torch.matmul, (x, weight)),
            *2 * [lambda: graph.call_method("relu", (x,))],
        ):
            x = call()
    graph.output((x,))
    gm = with_examples(fx.GraphModule(torch.nn.Module(), graph), [leaf(2, 4), *[leaf(*shape) for shape in shapes]])
    regions = find_regions(gm.graph)
    used = [w.meta["example_value"].shape for region in regions for w in region.arguments if w in weights]
    assert used == 3 * [(6, 6)]


def test_constants_of_another_type_or_sign_tell_regions_apart() -> None:
    def programs(*constants: Any) -> int:
        graph = fx.Graph()
        x = graph.placeholder("x")
        for constant in constants:
            for function in (torch.mul, torch.add, torch.sub, torch.div):
                x = graph.call_function(function, (x, constant))
        graph.output((x,))
        return len(find_regions(with_examples(fx.GraphModule(torch.nn.Module(), graph), [leaf(3)]).graph))

    assert programs(1.0, 1.0, 1.0) == 3
    assert programs(1, 1.0, True) == 0
    assert programs(0.0, -0.0, 0.0, -0.0) == 0


@pytest.mark.parametrize(
    "node_of",
    [
        lambda graph, x: graph.call_method("requires_grad_", (x,)),
        lambda graph, x: graph.call_function(torch._C._set_grad_enabled, (False,)),
        lambda graph, x: graph.call_function(torch.add, (x, torch.Generator())),
        lambda graph, x: graph.call_method("add_", (x, 1)),
        lambda graph, x: graph.call_function(torch.nn.functional.batch_norm, (x.graph.call_method("sin", (x,)), x, x)),
    ],
)
def test_calls_that_are_in_no_region(node_of: Any) -> None:
    graph = fx.Graph()
    node = node_of(graph, graph.placeholder("x"))
    if node.target is not torch._C._set_grad_enabled:
        node.meta["example_value"] = torch.ones(2)
    assert why_not_shared(node) is not None


def test_a_call_that_changes_a_value_of_the_program_may_be_in_a_region() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_method("add_", (graph.call_method("sin", (x,)), x))
    node.meta["example_value"] = torch.ones(2)
    assert why_not_shared(node) is None
