"""Compilers that return something else than their graph says are told so, before autograd sees the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gradient_oracle import as_graph, leaves

from treadle_autograd import WrongResult, aot

Change = Callable[[list[Any]], Any]

WRONG: dict[str, tuple[Change, str]] = {
    "too few": (lambda r: r[:-1], r"returned \d results, the graph has \d outputs"),
    "too many": (lambda r: [*r, None], r"returned \d results, the graph has \d outputs"),
    "one tensor": (lambda r: r[0], "returned Tensor, not a list or tuple"),
    "no tensor": (lambda r: [1.0, *r[1:]], "returned float as result 0, not a tensor"),
    "dtype": (lambda r: [r[0].double(), *r[1:]], "dtype torch.float64 as result 0 .*, expected torch.float32"),
    "shape": (lambda r: [r[0][:1], *r[1:]], r"shape \(1, 4\) as result 0 .*, expected \(3, 4\)"),
    "rank": (lambda r: [r[0][0], *r[1:]], r"shape \(4,\) as result 0 .*, expected \(3, 4\)"),
    "strides": (lambda r: [r[0].t().contiguous().t(), *r[1:]], r"strides \(1, 3\) as result 0 .*, expected \(4, 1\)"),
}


def program(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    return [torch.tanh(x) * y]


def compiled(change_forward: Change, change_backward: Change) -> tuple[Any, list[torch.Tensor]]:
    def compiler(change: Change) -> Any:
        return lambda gm, examples: lambda *args: change(list(gm(*args)))

    inputs = leaves([torch.randn(3, 4), torch.randn(3, 4)], [True, True])
    gm = as_graph(program, 2, 1)
    return aot(
        gm, inputs, inference=False, forward=compiler(change_forward), backward=compiler(change_backward)
    ), inputs


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_forward(name: str) -> None:
    change, message = WRONG[name]
    run, inputs = compiled(change, lambda r: r)
    for _ in range(2):
        with pytest.raises(WrongResult, match=f"the compiled forward graph {message}|with {message}"):
            run(*inputs)


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backward(name: str) -> None:
    change, message = WRONG[name]
    run, inputs = compiled(lambda r: r, change)
    for _ in range(2):
        with pytest.raises(WrongResult, match=f"the compiled backward graph {message}|with {message}"):
            run(*inputs)[0].sum().backward()
    assert inputs[0].grad is None


def test_not_callable() -> None:
    gm, inputs = as_graph(program, 2, 1), leaves([torch.randn(3, 4), torch.randn(3, 4)], [True, True])
    with pytest.raises(WrongResult, match="forward graph returned NoneType, which is not callable"):
        aot(gm, inputs, inference=False, forward=lambda gm, examples: None)
    run = aot(gm, inputs, inference=False, forward=lambda gm, e: gm.forward, backward=lambda gm, e: 3)
    with pytest.raises(WrongResult, match="backward graph returned int, which is not callable"):
        run(*inputs)[0].sum().backward()


def test_right_results_pass_in_any_sequence() -> None:
    run, inputs = compiled(tuple, tuple)
    run(*inputs)[0].sum().backward()
    torch.testing.assert_close(inputs[1].grad, torch.tanh(inputs[0]).detach())
