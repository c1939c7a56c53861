"""Slices bounded by tensors that the program makes from constants: numbers of the graph's, which no graph has to read."""

import pytest
import torch
from compile_runs import compiled


def first(x):
    return x.sin()[: torch.tensor(3)] * 2


def computed(x):
    """As resampling computes the length of what it gives."""
    length = torch.floor(torch.as_tensor(5 * x.shape[0] / 8)).long()
    return x[..., :length] * 2


def with_step(x):
    return x[torch.tensor(1) : torch.tensor(5) : torch.tensor(2)] + 1


def written(x):
    y = x + 1
    y[: torch.tensor(2)] = 0
    y[torch.tensor(-1) :] = x[:1]
    return y


def truth(x):
    return x[torch.tensor(True) :] + 1


@pytest.mark.parametrize("program", [first, computed, with_step, written, truth])
def test_known_bounds(program):
    run, seen = compiled(program)
    x = torch.arange(8.0)
    torch.testing.assert_close(run(x), program(x))
    (graph,) = seen.graphs
    keys = [node.args[1] for node in graph.graph.nodes if "item" in node.name]
    parts = [part for key in keys for part in (key if isinstance(key, tuple) else (key,))]
    assert not any(
        isinstance(bound, torch.fx.Node)
        for part in parts
        if isinstance(part, slice)
        for bound in (part.start, part.stop, part.step)
    )
    assert not seen.breaks


def test_bounds_of_other_kinds_raise_as_in_eager():
    def program(x):
        return x[: torch.tensor(2.0)] * 2

    run, _ = compiled(program)
    with pytest.raises(TypeError, match="only integer tensors"):
        run(torch.arange(8.0))
