"""Parts that the forward compiler keeps out of memory: what is saved in their place, values, and what the program may do in between."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import pytest
import torch
from joint_graphs import joint_of, leaf
from torch import fx

from treadle_autograd import aot, min_cut
from treadle_autograd.partition import divided, report

aten = torch.ops.aten
_INNER = (aten.bmm.default, aten.add.Tensor, aten.mul.Tensor, aten._softmax.default, aten.native_dropout.default)


def scores_and_weights(graph: fx.Graph, others: Container[fx.Node]) -> list[list[fx.Node]]:
    """What every softmax of forward is computed from as far as `_INNER` goes, and the softmax."""
    found = []
    for node in graph.nodes:
        if node.target is aten._softmax.default and node not in others:
            part = [node]
            for inner in part:
                part += [used for used in inner.all_input_nodes if used.target in _INNER and used not in part]
            found.append(part)
    return found


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.bmm(q, k.mT) * 0.5, -1) @ v


def with_bias(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.bmm(q, k.mT) + bias, -1) @ v


def leaves() -> list[torch.Tensor]:
    return [leaf(3, 20, 4), leaf(3, 24, 4), leaf(3, 24, 4)]


def targets_saved(function: Callable[..., Any], *inputs: torch.Tensor) -> set[Any]:
    return {node.target for node in divided(joint_of(function, *inputs), min_cut, scores_and_weights).saved}


def compiled(function: Callable[..., Any], *inputs: torch.Tensor) -> Callable[..., Any]:
    gm = fx.symbolic_trace(function)
    (result,) = next(node for node in gm.graph.nodes if node.op == "output").args
    if isinstance(result, fx.Node):
        gm.graph.output_node().args = ((result,),)
        gm.recompile()
    run = aot(gm, inputs, inference=False, forward=lambda graph, _: graph.forward, again=scores_and_weights)
    return lambda *args: run(*args)


def test_inputs_are_saved_in_place_of_scores_and_weights() -> None:
    joint = joint_of(attend, *leaves())
    halves = divided(joint, min_cut, scores_and_weights)
    assert [node.target for node in halves.saved if node.op != "placeholder"] == []
    weights = [node.target for node in divided(joint_of(attend, *leaves()), min_cut).saved if node.op != "placeholder"]
    assert weights == [aten._softmax.default]
    again = {value.operator: value.why for value in report(halves).recomputed}
    assert again["aten.bmm.default"] == "in a part that the compiler does not keep in memory"


def test_gradients_and_their_gradients() -> None:
    inputs = leaves()
    found, expected = compiled(attend, *inputs)(*inputs)[0], attend(*inputs)
    torch.testing.assert_close(found, expected)
    first = [torch.autograd.grad(y.square().sum(), inputs, create_graph=True) for y in (found, expected)]
    torch.testing.assert_close(*first)
    second = [torch.autograd.grad(sum(g.square().sum() for g in gradients), inputs) for gradients in first]  # type: ignore[arg-type]
    torch.testing.assert_close(*second)


def test_the_program_may_change_what_eager_does_not_save() -> None:
    inputs, bias = leaves(), torch.randn(20, 24)
    assert aten.clone.default in targets_saved(with_bias, *inputs, bias)
    run, gradients = compiled(with_bias, *inputs, bias), []
    for function in (lambda *args: run(*args)[0], with_bias):
        given = bias.clone()
        result = function(*inputs, given)
        given.zero_()
        gradients.append(torch.autograd.grad(result.square().sum(), inputs))
    torch.testing.assert_close(*gradients)


def test_changing_what_eager_saves_is_an_error_of_backward() -> None:
    inputs = leaves()
    values = [x.detach() for x in inputs[1:]]
    result = compiled(attend, inputs[0], *values)(inputs[0], *values)[0]
    values[0].zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_one_copy_of_what_several_parts_read() -> None:
    def twice(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return with_bias(with_bias(q, k, v, bias), k, v, bias)

    saved = divided(joint_of(twice, *leaves(), torch.randn(20, 24)), min_cut, scores_and_weights).saved
    assert [node.target for node in saved].count(aten.clone.default) == 1


def shows_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    weights = torch.softmax(torch.bmm(q, k.mT), -1)
    return weights @ v, weights


def drops(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.dropout(torch.bmm(q, k.mT), 0.5, True), -1) @ v


@pytest.mark.parametrize(
    ("function", "extra"),
    [(shows_weights, ()), (with_bias, (torch.randn(3, 20, 24),))],
    ids=["the program gets the weights", "a bias as large as the scores"],
)
def test_what_is_saved_all_the_same(function: Callable[..., Any], extra: tuple[torch.Tensor, ...]) -> None:
    inputs = leaves()
    plain = {node.target for node in divided(joint_of(function, *inputs, *extra), min_cut).saved}
    assert targets_saved(function, *inputs, *extra) == plain
    results = compiled(function, *inputs, *extra)(*inputs, *extra)
    torch.testing.assert_close(
        results[0], function(*inputs, *extra)[0] if function is shows_weights else function(*inputs, *extra)
    )


def test_random_numbers_are_not_drawn_again() -> None:
    inputs, gradients = leaves(), []
    run = compiled(drops, *inputs)
    for function in (lambda *args: run(*args)[0], drops):
        torch.manual_seed(0)
        gradients.append(torch.autograd.grad(function(*inputs).square().sum(), inputs))
    torch.testing.assert_close(*gradients)
