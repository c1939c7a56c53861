"""`export`: a graph module that stands for the function, or an error that lists what is in the way."""

from __future__ import annotations

import time

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from treadle_tracer import ExportError, export

OUTSIDE = torch.full((3,), 5.0)
SEEN = []


def program(x, pair, *, scale=2.0, flag=None):
    a, b = pair
    x = x + 1
    return {"s": x * scale + a, "t": (b.sum(), [x, 3], pair[1])}


def test_arguments_and_results_keep_their_tree():
    x, a, b = torch.ones(3), torch.arange(3.0), torch.ones(2)
    gm = export(program)(x, (a, b), scale=3.0)
    for factor in (1, 2):
        args = (x * factor, (a * factor, b * factor))
        expected, got = program(*args, scale=3.0), gm(*args, scale=3.0)
        assert torch.equal(got["s"], expected["s"]) and torch.equal(got["t"][0], expected["t"][0])
        assert torch.equal(got["t"][1][0], expected["t"][1][0]) and got["t"][1][1] == 3 and got["t"][2] is args[1][1]
    assert any("scale" in guard or "3.0" in guard for guard in gm.meta["guards"])
    assert [node.name for node in gm.graph.find_nodes(op="placeholder")][:3] == ["x", "pair_0", "pair_1"]


@pytest.mark.parametrize(
    ("function", "args", "kwargs"),
    [
        (lambda x, x_0: x[0] - x_0, ([2.0, 3.0], 5.0), {}),
        (lambda x, *rest, k=1.5, **others: x * k + sum(rest) + others["z"], (1.0, 2.0, 4.0), {"k": 3.0, "z": 7.0}),
        (lambda x, /, **others: x - others["x"], (1.0,), {"x": 3.0}),
        (lambda *rest, argument_0: rest[0] - argument_0, (1.0,), {"argument_0": 3.0}),
    ],
    ids=["a leaf and a parameter", "variadic", "positional-only and keyword", "made up and keyword"],
)
def test_arguments_whose_names_are_the_same_are_told_apart(function, args, kwargs):
    args, kwargs = tree_map(torch.tensor, (args, kwargs))
    gm = export(function)(*args, **kwargs)
    assert torch.equal(gm(*args, **kwargs), function(*args, **kwargs))


def test_a_module_keeps_its_parameters_and_sizes_are_symbols():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU())
    gm = export(module, dynamic=True)(torch.ones(5, 3))
    x = torch.randn(7, 3)
    assert torch.equal(gm(x), module(x))
    assert {id(p) for p in gm.parameters()} == {id(p) for p in module.parameters()}
    assert all(least == 1 for least, _ in gm.meta["symbols"].values()) and gm.meta["symbols"]


def test_tensors_from_outside_are_attributes():
    gm = export(lambda x: x + OUTSIDE)(torch.ones(3))
    assert torch.equal(gm(torch.ones(3)), torch.full((3,), 6.0))


def test_every_break_is_listed_with_its_line_and_a_remedy():
    def breaks(x):
        x = x + 1
        time.sleep(0)
        x = x * 2
        time.perf_counter()
        return x

    with pytest.raises(ExportError) as caught:
        export(breaks)(torch.ones(3))
    assert len(caught.value.reasons) == 2
    for reason, name in zip(caught.value.reasons, ("sleep", "perf_counter"), strict=True):
        assert name in reason and "line" in reason and "outside the compiled part" in reason


def test_writes_to_outside_objects_are_refused():
    def writes(x):
        SEEN.append(1)
        return x + 1

    with pytest.raises(ExportError, match="SEEN"):
        export(writes)(torch.ones(3))


def test_writes_to_arguments_stay():
    def writes(x):
        return x.add_(1) * 2

    gm = export(writes)(torch.ones(2))
    x = torch.zeros(2)
    assert gm(x).tolist() == [2, 2] and x.tolist() == [1, 1]
