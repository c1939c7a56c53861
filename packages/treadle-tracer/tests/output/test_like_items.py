"""Items of lists change with the items beside them."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled


def boxes(*counts):
    return [{"boxes": torch.ones(n, 4), "size": torch.ones(2, 2)} for n in counts]


def total(targets):
    found = torch.cat([t["boxes"] * t["size"].sum() for t in targets])
    return found.sum(0), len(found)


@pytest.mark.parametrize(
    ("second", "graphs"), [((2, 5, 4, 4), 2), ((2, 3, 4, 4), 3)], ids=["two change", "one changes"]
)
def test_items_change_with_those_beside_them(second, graphs):
    run, recorder = compiled(total)
    for counts in ((3, 3, 4, 4), second, (5, 3, 2, 6), (7, 6, 5, 4), (1, 2, 3, 1)):
        torch.testing.assert_close(run(boxes(*counts)), total(boxes(*counts)))
    assert len(recorder.graphs) == graphs
    placeholders = [node.meta["example_value"] for node in recorder.graphs[-1].graph.nodes if node.op == "placeholder"]
    assert all(isinstance(x.shape[0], int) is (tuple(x.shape) == (2, 2)) for x in placeholders if x.dim() == 2)


def test_items_of_another_rank_stay_as_they_are():
    def function(xs):
        return [x.sum(0) for x in xs]

    run, recorder = compiled(function)
    for n in (3, 4, 5):
        xs = [torch.ones(n, 2), torch.ones(n), torch.ones(3, 2), torch.ones(3)]
        torch.testing.assert_close(run(xs), function(xs))
    assert len(recorder.graphs) == 2


def test_arguments_of_a_function_are_no_items():
    def function(x, y, z):
        return x.sum() + y.sum() + z.sum()

    run, recorder = compiled(function)
    for n in (3, 4, 5):
        run(torch.ones(n), torch.ones(n), torch.ones(3))
    assert len(recorder.graphs) == 2
    run(torch.ones(4), torch.ones(4), torch.ones(5))
    assert len(recorder.graphs) == 3
