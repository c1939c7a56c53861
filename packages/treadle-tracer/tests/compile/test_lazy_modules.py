"""Lazy modules make their parameters in their first call: Python runs it, and the next call is one graph."""

from __future__ import annotations

import pytest
import torch
from compile_runs import compiled
from torch import nn


def layers():
    return nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2))


MAKERS = {
    "linear": lambda: nn.LazyLinear(2),
    "nested": lambda: nn.ModuleDict({"a": nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.LazyLinear(2))})["a"],
    "layers": layers,
}


def program(x, model):
    y = x.sin()
    return model(y) * 2 + 1


@pytest.mark.parametrize("fullgraph", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_the_call_behind_the_first_one_is_one_graph(name, fullgraph):
    x = torch.randn(3, 2, 6)
    models = [MAKERS[name]() for _ in range(2)]
    expected, found = [], []
    fast, recorder = compiled(program, fullgraph=fullgraph)
    for results, function, model in ((expected, program, models[0]), (found, fast, models[1])):
        torch.manual_seed(0)
        for _ in range(3):
            results.append(function(x, model))
    assert all(map(torch.equal, expected, found))
    assert len(recorder.graphs) == 1 and recorder.codes() == []
    assert [type(m) for m in models[0].modules()] == [type(m) for m in models[1].modules()]
    state = [dict(model.state_dict()) for model in models]
    assert state[0].keys() == state[1].keys() and all(torch.equal(state[0][k], state[1][k]) for k in state[0])


def test_gradients_and_another_model():
    fast, recorder = compiled(program)
    x = torch.randn(3, 6)
    for seed in range(3):
        models = [nn.LazyLinear(2), nn.LazyLinear(2)]
        for function, model in zip((program, fast), models, strict=True):
            torch.manual_seed(seed)
            function(x, model).sum().backward()
            function(x, model).sum().backward()
        assert torch.equal(models[0].weight.grad, models[1].weight.grad)
    assert recorder.codes() == []


def test_modules_made_in_every_call_break_in_the_end():
    def made_inside(x, make):
        torch.manual_seed(0)
        return make()(x).sin() + 1

    x = torch.randn(3, 6)
    expected, (fast, _) = made_inside(x, lambda: nn.LazyLinear(2)), compiled(made_inside)
    for _ in range(12):
        assert torch.equal(fast(x, lambda: nn.LazyLinear(2)), expected)


def test_a_model_that_stays_lazy_breaks_in_the_end():
    holder = []

    def program(x):
        torch.manual_seed(0)
        return holder[0](x).sin() + 1

    holder[:] = [nn.LazyLinear(2)]
    x = torch.randn(3, 6)
    expected, (fast, recorder) = program(x), compiled(program)
    for _ in range(12):
        holder[:] = [nn.LazyLinear(2)]
        assert torch.equal(fast(x), expected)
    assert "lazy-module" in recorder.codes()


def test_parameters_that_stay_uninitialised_do_not_matter():
    def unused(x, model):
        return x * 2 if model.training else x

    model = nn.LazyLinear(2)
    fast, recorder = compiled(unused)
    assert torch.equal(fast(torch.ones(2), model), torch.full((2,), 2.0)) and recorder.codes() == []
