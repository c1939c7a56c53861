"""Values of graphs as tuples: what differs is described differently, and what cannot be described is refused."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from treadle_shapes.torch import NotDescribed, described

_GRAPH = fx.Graph()
_NODE, _OTHER = _GRAPH.placeholder("x"), _GRAPH.placeholder("y")
_VALUES = [
    *(None, True, 1, 1.0, -0.0, 0.0, 1j, "1", ..., torch.float32, torch.device("cpu"), torch.strided),
    *((1,), [1], (_NODE,), (_OTHER,), {"a": 1}, {"a": 2}, {"b": 1}, slice(1), slice(1, 2)),
    *([[1], 2], [1, [2]], torch.ones(2, 2).max(0), torch.ones(2, 2).min(0)),
]


def _shape(tensor: torch.Tensor) -> tuple[str, tuple[int, ...]]:
    return "tensor", tuple(tensor.shape)


def test_values_that_differ_are_described_differently():
    assert len({repr(described(value, _shape)) for value in _VALUES}) == len(_VALUES)


def test_tensors_are_described_by_the_caller():
    assert described([torch.ones(2, 3)], _shape) == ("list", ("tensor", (2, 3)))


@pytest.mark.parametrize("value", [object(), print, {1, 2}, torch.Generator()])
def test_other_values_are_refused(value):
    with pytest.raises(NotDescribed):
        described((value,), _shape)
