"""Whether somebody reads all elements of a value that may raise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from aten_capture import capture

from treadle_codegen.lower.read_in_full import is_read_in_full

CASES: dict[str, tuple[Callable[[torch.Tensor], object], bool]] = {
    "returned": (lambda y: y, True),
    "an elementwise result is returned": (lambda y: (y + 1).exp(), True),
    "a sum": (lambda y: y.sum(), True),
    "a softmax of a rearrangement": (lambda y: y.view(2, 2).t().softmax(0), True),
    "one element": (lambda y: y[:1], False),
    "one element of a result": (lambda y: (y * 2)[:1].sum(), False),
    "its shape": (lambda y: torch.zeros_like(y), False),
    "overwritten": (lambda y: torch.fill(y, 3.0), False),
    "one reader of several": (lambda y: (y[:1], y.amax()), True),
    "an operator without lowering": (lambda y: torch.linalg.vander(y), False),
}


@pytest.mark.parametrize("name", CASES)
def test_readers(name: str) -> None:
    function, wanted = CASES[name]
    graph = capture(lambda x, i: function(x[i]), [torch.randn(4), torch.tensor([0, 1, 2, 3])]).graph
    node = next(n for n in graph.nodes if str(n.target).startswith("aten.index"))
    assert is_read_in_full(node) is wanted


@pytest.mark.parametrize("whole", [True, False])
def test_readers_behind_many_paths(whole: bool) -> None:
    """Each turn of an unrolled loop doubles the paths from the first value, and lengthens them beyond Python's recursion limit."""

    def loop(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        y = x[i]
        for _ in range(400):
            y = y.sin() + y.cos() * y
        return y if whole else y[:1]

    graph = capture(loop, [torch.randn(4), torch.tensor([0, 1, 2, 3])]).graph
    node = next(n for n in graph.nodes if str(n.target).startswith("aten.index"))
    assert is_read_in_full(node) is whole
